"""The journal against a list: after any operations in any order, both hold the same."""

import random
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dovetail.journal.catalogue import Limits
from dovetail.journal.purge import purge_step
from dovetail.journal.verify import verify_journal
from dovetail.lake.seal import seal_journal
from dovetail.lake.store import LocalStore
from dovetail.model.hop import Stage
from journal.worlds import START_US, Model, observe, open_writer, random_observations

LIMITS = Limits(messages_kept=6, names_kept=6, index_after_messages=9, index_after_runs=25)


class JournalMachine(RuleBasedStateMachine):
    """Appends, checkpoints, indexing, purging, sealing, closing and opening, in any order."""

    def __init__(self):
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.path = self.directory / "a.journal"
        self.model = Model()
        self.purged = set()
        self.journal = open_writer(self.path, limits=LIMITS)

    def teardown(self):
        self.journal.checkpoint()
        self.journal.close()
        assert verify_journal(self.path).findings == []
        shutil.rmtree(self.directory)

    @rule(seed=st.integers(0, 1000), count=st.integers(1, 6), drift_s=st.integers(-5, 5))
    def append(self, seed, count, drift_s):
        batch = random_observations(random.Random(seed), START_US + drift_s * 10**6, count)
        assert self.journal.append(batch) == len(self.model.hops) + sum(len(o.counterparts) or 1 for o in batch)
        self.model.append(batch)

    @rule()
    def checkpoint(self):
        signed = self.journal.checkpoint()
        assert (signed.size if signed else 0) == len(self.model.hops)

    @rule()
    def index(self):
        self.journal.index()

    @rule(after_s=st.integers(0, 10))
    def purge(self, after_s):
        before = len(self.model.hops)
        count = purge_step(self.journal, now_us=START_US + after_s * 10**6)
        purged = [hop.message for hop in self.journal.hops(before)]
        assert len(purged) == len(set(purged)) == count
        self.model.append([observe(b"", Stage.PURGED, raw=None, at_us=START_US + after_s * 10**6) for _ in purged])
        for hop, address in zip(self.journal.hops(before), purged, strict=True):
            assert hop.stage is Stage.PURGED
            self.model.hops[hop.seq] = hop
            self.purged.add(address)

    @rule()
    def seal(self):
        seal_journal(self.path, LocalStore(self.directory / "lake"))

    @rule()
    def reopen(self):
        self.journal.close()
        self.journal = open_writer(self.path, limits=LIMITS)

    @invariant()
    def holds_the_same_hops(self):
        found = list(self.journal.hops())
        assert len(found) == len(self.model.hops)
        for hop, expected in zip(found, self.model.hops, strict=True):
            if hop.message in self.purged:
                assert hop.raw is None
            else:
                assert hop.raw == expected.raw
            assert (hop.seq, hop.at_us, hop.stage, hop.message) == (
                expected.seq,
                expected.at_us,
                expected.stage,
                expected.message,
            )
            assert (hop.counterpart, hop.reason, hop.size) == (expected.counterpart, expected.reason, expected.size)


TestJournal = JournalMachine.TestCase
TestJournal.settings = settings(
    max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
