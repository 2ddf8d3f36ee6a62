"""Whole worlds of servers and clients in one process on a virtual clock: same seed, same journals, byte for byte."""

from dovetail.model.times import SECOND_US
from dovetail.sim.core import Boot, CrashPoint, Journal, JournalFactory
from dovetail.sim.memory import MemoryDisks, MemoryJournal, digest_hops
from dovetail.sim.network import Link
from dovetail.sim.process import ProcessOptions, SimProcess
from dovetail.sim.randomness import Randomness
from dovetail.sim.world import World

__all__ = [
    "World",
    "SimProcess",
    "ProcessOptions",
    "Link",
    "Randomness",
    "SECOND_US",
    "Boot",
    "CrashPoint",
    "Journal",
    "JournalFactory",
    "MemoryJournal",
    "MemoryDisks",
    "digest_hops",
]
