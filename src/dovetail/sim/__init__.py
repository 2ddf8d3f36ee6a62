"""Whole worlds of cores in one process on a virtual clock: same seed, same journals, byte for byte."""

from dovetail.sim.core import (
    Boot,
    CloseStream,
    Core,
    CrashPoint,
    Datagram,
    DatagramCore,
    Frame,
    Journal,
    JournalFactory,
    OpenStream,
    Outgoing,
    StreamCore,
)
from dovetail.sim.memory import MemoryDisks, MemoryJournal, digest_hops
from dovetail.sim.network import Link
from dovetail.sim.randomness import Randomness
from dovetail.sim.world import SECOND_US, World

__all__ = [
    "World",
    "Link",
    "Randomness",
    "SECOND_US",
    "Core",
    "DatagramCore",
    "StreamCore",
    "Boot",
    "Outgoing",
    "Datagram",
    "OpenStream",
    "Frame",
    "CloseStream",
    "CrashPoint",
    "Journal",
    "JournalFactory",
    "MemoryJournal",
    "MemoryDisks",
    "digest_hops",
]
