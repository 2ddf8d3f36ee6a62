"""How a server with WebSocket links divides its memory between them and everything else."""

from __future__ import annotations


class LinkMemory:
    """The shares of what the links of a server hold; its settings have `memory_bytes`."""

    __slots__ = ()
    memory_bytes: int

    @property
    def inbox_share(self) -> int:
        """Bytes for received messages that are not handled yet."""
        return self.memory_bytes // 8

    @property
    def unsent_share(self) -> int:
        """Bytes for written messages that the kernel has not accepted."""
        return self.memory_bytes // 8

    @property
    def unfinished_share(self) -> int:
        """Bytes for incomplete messages."""
        return self.memory_bytes // 4
