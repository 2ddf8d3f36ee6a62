"""What a demo reports while it runs."""

from __future__ import annotations

from typing import Protocol


class Screen(Protocol):
    """Receives the progress of a demo."""

    def phase(self, title: str) -> None:
        """A new phase starts."""

    def status(self, text: str) -> None:
        """The progress of the phase; may be called often."""

    def note(self, text: str) -> None:
        """Something happened that is worth a line."""
