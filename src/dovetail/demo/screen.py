"""What a demo reports while it runs."""

from __future__ import annotations

from typing import Protocol


class Screen(Protocol):
    """Receives the progress of a demo."""

    def phase(self, title: str) -> None:
        """A new phase begins."""

    def status(self, text: str) -> None:
        """How far the phase is; may come often."""

    def note(self, text: str) -> None:
        """Something happened that is worth a line."""
