"""The runs of the audit: how one starts from the tables of the previous one, and how it becomes visible."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from dovetail.audit.lease import Lease
from dovetail.audit.schemas import RUNS
from dovetail.audit.tables import Run, read_runs
from dovetail.audit.warehouse import Warehouse
from dovetail.lake.location import open_store
from dovetail.model.times import to_datetime


def newest_run(root: str) -> Run | None:
    """The newest run, from whose tables the next one continues."""
    return next(iter(read_runs(root)), None)


@contextlib.contextmanager
def holding_lease(root: str, wait_s: float = 0) -> Iterator[Lease]:
    """Be the only writer of these tables; raises PipelineError with the current holder."""
    lease = Lease(open_store(root))
    lease.take(wait_s)
    try:
        yield lease
    finally:
        lease.give_back()


@contextlib.contextmanager
def writing(warehouse: Warehouse, wait_s: float = 0) -> Iterator[Run | None]:
    """Hold the lease, with the tables as the newest run left them; yields that run."""
    with holding_lease(warehouse.root, wait_s) as lease:
        warehouse.guard = lease.check
        warehouse.prepare()
        previous = newest_run(warehouse.root)
        warehouse.begin(1 if previous is None else previous.number + 1)
        warehouse.recover({} if previous is None else previous.versions)
        warehouse.widen()
        yield previous


def publish(warehouse: Warehouse, run: Run, *, is_whole: bool) -> Run:
    """Make the current tables visible as one run."""
    finished = dt.datetime.now(dt.UTC)
    versions = warehouse.versions()
    row = {
        "run": run.number,
        "began": run.began,
        "finished": finished,
        "lake": run.lake,
        "as_of": to_datetime(run.as_of_us),
        "fingerprint": run.fingerprint,
        "basis": run.basis,
        "hops": run.hops,
        "is_whole": is_whole,
        "is_reread": run.is_reread,
        "versions": list(versions.items()),
    }
    warehouse.append_arrow("runs", pa.Table.from_pylist([row], schema=RUNS.arrow))
    return replace(run, finished=finished, versions=versions)
