"""`audit run`: adds everything new in the lake to silver, then brings gold up to date.

New is what the lake's manifests name and the table `ingest` does not. A run holds the lease of the tables, starts where
the newest run ended, whatever a killed run left behind, and becomes visible with its row in `runs`.
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from dovetail.audit import schemas
from dovetail.audit.active_manifests import active_facts, expected_manifests, false_manifests
from dovetail.audit.arrow_sets import distinct, pick
from dovetail.audit.changeset import ADDRESS, MAX_CHANGED, gather
from dovetail.audit.fabric_audit import communal, signed
from dovetail.audit.fabrics import AUDITS, audits_of
from dovetail.audit.failures import FileChanged, LeftOut, retried, unreadable
from dovetail.audit.finding import Finding, find_all
from dovetail.audit.increment import Increment
from dovetail.audit.ingest_log import (
    BatchFacts,
    FileFact,
    ManifestFact,
    altered_files,
    announced_rows,
    changed_manifests,
    fact_rows,
    facts_of,
    joined,
    missing_files,
    newest_us,
    unannounced_files,
)
from dovetail.audit.integrity import Verdict, judge_servers
from dovetail.audit.local_rows import from_arrow, to_arrow
from dovetail.audit.progress import Progress, silent
from dovetail.audit.proven_files import proven_paths
from dovetail.audit.reach import is_less_known, with_reaches
from dovetail.audit.refresh import MANY_PEERS, Refresh
from dovetail.audit.reread import (
    MAX_REREADS,
    REREADS_S,
    Listing,
    Plan,
    changed_files,
    disturbed_files,
    list_lake,
    plan_reading,
)
from dovetail.audit.runs import publish, writing
from dovetail.audit.session import SMALL_ROWS, SessionOptions, open_session, tune
from dovetail.audit.settings import AuditSettings, load_settings
from dovetail.audit.silver import Ingest, known_keys, node_keys, rows_of
from dovetail.audit.state_tables import DECODED_TABLE, SERVERS_TABLE
from dovetail.audit.steps import gold_steps
from dovetail.audit.summary import Summary, summarize
from dovetail.audit.tables import Run, check_room, open_tables, read_runs, refuse_old_format
from dovetail.audit.transforms.messages import messages
from dovetail.audit.warehouse import Warehouse
from dovetail.lake.location import Location, is_url, open_store
from dovetail.lake.manifest import Manifest
from dovetail.lake.snapshot import check_lake
from dovetail.model.times import to_datetime, to_us

FORM = 11
"""Version of the tables: when a transform gives other rows than before, existing gold is rebuilt."""


@dataclass(slots=True, kw_only=True)
class Audit:
    """An audit of one lake into one set of tables; up to `whole_below` hops gold is always rebuilt completely."""

    spark: SparkSession
    lake: Location
    tables: Location
    settings: AuditSettings
    as_of: dt.datetime | None = None
    progress: Progress = silent
    settling_s: float = 0
    """A file that no manifest announces is a finding only after this age."""
    whole_below: int = SMALL_ROWS
    wait_s: float = 0
    """How long to wait for another audit that writes the same tables."""
    _facts: tuple[int, BatchFacts] = field(default=(-1, BatchFacts(manifests=[], files=[])))

    def run(self) -> Summary:
        """Process what is new and return the summary."""
        run = self.refresh()
        self.progress.step("summary")
        return summarize(open_tables(self.tables, run.number))

    def refresh(self) -> Run:
        """Read what is new, check the lake in its current state, and update the tables if anything has changed."""
        return retried(self._refresh)

    def _refresh(self, left_out: LeftOut) -> Run:
        refuse_old_format(self.tables)
        check_room(self.tables)
        warehouse = Warehouse(self.spark, str(self.tables))
        began = dt.datetime.now(dt.UTC)
        with writing(warehouse, self.wait_s) as previous:
            lake, listed = open_store(self.lake), list_lake(open_store(self.lake))
            before = self._known_facts(warehouse)
            is_alike = previous is not None and previous.basis == basis_of(self.settings, before)
            trusted = self.settings.trusted
            plan = plan_reading(
                lake,
                before,
                listed,
                trusted,
                is_judged_alike=is_alike,
                left_out=left_out,
                may_reread=lambda: _may_reread(read_runs(self.tables), began),
            )
            everything = plan.known
            if plan.is_anew:
                warehouse.clear(("ingest", *Ingest.TABLES))
                previous = None
            if plan.is_due:
                everything, listed = self._read(warehouse, plan, listed, left_out)
            facts = active_facts(everything, trusted)
            verdicts, retagged = self._judge(facts, everything, listed)
            run = replace(self._describe(warehouse.run, began, facts, verdicts), is_reread=plan.is_reread)
            is_quiet = not plan.is_due and not retagged.manifests + retagged.files
            if previous is not None and is_quiet and _is_same(previous, run):
                return previous
            warehouse.append_arrow("ingest", fact_rows(retagged, warehouse.run))
            everything = joined(everything, retagged)
            work = _Gold(self, warehouse, facts, run)
            is_whole = work.build(verdicts, previous)
            run = publish(warehouse, run, is_whole=is_whole)
            self._facts = (run.versions["ingest"], everything)
            return run

    def _known_facts(self, warehouse: Warehouse) -> BatchFacts:
        """The facts of earlier runs; a follower caches them."""
        version, facts = self._facts
        if version != warehouse.versions()["ingest"]:
            facts = facts_of(warehouse.arrow("ingest").sort_by("run"))
        return facts

    def _read(self, warehouse: Warehouse, plan: Plan, listed: Listing, left_out: LeftOut) -> tuple[BatchFacts, Listing]:
        """All facts, and the lake after what is new was read; FileChanged if a file was not the same all the time."""
        tune(self.spark, announced_rows(plan.new))
        lake = open_store(self.lake)
        ingest = Ingest(self.spark, lake, warehouse, self.settings, self.progress.step)
        try:
            everything = joined(plan.known, ingest.process(plan.new, plan.known, left_out))
        except Exception as error:
            paths = unreadable(error) | disturbed_files(plan, listed, list_lake(lake))
            if all(path in left_out for path in paths):
                raise
            raise FileChanged(paths, listed.tags) from error
        after = list_lake(lake)
        if changed := changed_files(plan, everything, listed, after):
            raise FileChanged(changed, listed.tags)
        return everything, after

    def _judge(self, facts: BatchFacts, everything: BatchFacts, listed: Listing) -> tuple[list[Verdict], BatchFacts]:
        """The verdicts, and objects that are unchanged but have another tag: a later run need not read them again."""
        lake, present = open_store(self.lake), listed.files
        expected = expected_manifests(lake, facts.manifests, self.settings.trusted)
        manifests = changed_manifests(lake, expected, listed.tags)
        files = altered_files(lake, present, facts.files)
        verdicts = judge_servers(
            facts.manifests,
            facts.files,
            trusted=self.settings.trusted,
            changed=manifests.changed,
            unannounced=unannounced_files(present, _believed(everything.manifests), self.settling_s),
            missing=missing_files(present, _believed(expected)),
            altered=files.changed,
            false=false_manifests(everything.manifests, self.settings.trusted),
            now_us=time.time_ns() // 1000,
        )
        return verdicts, BatchFacts(manifests=manifests.retagged, files=files.retagged)

    def _describe(self, number: int, began: dt.datetime, facts: BatchFacts, verdicts: list[Verdict]) -> Run:
        newest = newest_us(facts.files, proven_paths(facts.manifests, facts.files), time.time_ns() // 1000)
        return Run(
            number=number,
            lake=str(self.lake),
            as_of_us=newest if self.as_of is None else to_us(self.as_of),
            fingerprint=_digest(self.settings.fingerprint(), [verdict.row() for verdict in verdicts]),
            basis=basis_of(self.settings, facts),
            hops=rows_of(facts.files),
            began=began,
        )


@dataclass(slots=True)
class _Gold:
    """One build of gold from the current silver."""

    audit: Audit
    warehouse: Warehouse
    facts: BatchFacts
    run: Run

    def build(self, verdicts: Sequence[Verdict], previous: Run | None) -> bool:
        """Write what has changed since `previous`; True if everything was recomputed."""
        audit, warehouse, spark = self.audit, self.warehouse, self.audit.spark
        report = audit.progress.step
        size = max(self.run.hops, _spread(self.facts))
        report("integrity")
        integrity = to_arrow([verdict.row() for verdict in verdicts], schemas.INTEGRITY.arrow)
        is_judged_anew = integrity != warehouse.arrow("integrity")
        if is_judged_anew:
            warehouse.overwrite_arrow("integrity", integrity)
        known = self._servers()
        is_whole = self._must_be_whole(previous, known)
        made = self._build_messages(is_whole=is_whole, size=size)
        fabrics = {fact.manifest.fabric for fact in self.facts.manifests if fact.manifest is not None}
        audits = audits_of(fabrics)
        servers: dict[str, list[str]] = {}
        for row in known.sort_by("server").to_pylist():
            servers.setdefault(row["fabric"], []).append(row["server"])
        report("changes")
        changes = None
        if not is_whole and previous is not None and made is not None:
            changes = gather(warehouse, made, previous, self.run.as_of_us, audit.settings.loss_timeout_us)
        loss_timeout_us = audit.settings.loss_timeout_us
        refresh = Refresh(
            spark=spark,
            warehouse=warehouse,
            steps_of=lambda chosen: gold_steps(loss_timeout_us, chosen, servers),
            audits=audits,
            servers=from_arrow(spark, known, SERVERS_TABLE.schema),
            as_of=to_datetime(self.run.as_of_us),
            size=size,
            hops=_hops_by_fabric(self.facts.files),
            report=report,
        )
        overdue_us = self.run.as_of_us - loss_timeout_us
        if changes is None or previous is None or made is None:
            refresh.whole()
            report("findings")
            find_all(warehouse, overdue_us=overdue_us)
            return True
        increment = Increment.of(refresh, changes)
        increment.follow()
        report("findings")
        Finding(
            increment=increment,
            judged=made,
            others=frozenset({"integrity"} if is_judged_anew else ()),
            was_overdue_us=previous.as_of_us - loss_timeout_us,
            overdue_us=overdue_us,
        ).find()
        increment.release()
        return False

    def _servers(self) -> pa.Table:
        """The servers with what is known of their journals now, which also a file that is read in vain may change."""
        stored = self.warehouse.arrow("servers")
        known = with_reaches(stored, self.facts.manifests, self.facts.files)
        if known != stored:
            self.warehouse.overwrite_arrow("servers", known)
        return known

    def _must_be_whole(self, previous: Run | None, servers: pa.Table) -> bool:
        run = self.run
        if previous is None or (previous.lake, previous.basis) != (run.lake, run.basis):
            return True
        if previous.as_of_us > run.as_of_us or run.hops <= self.audit.whole_below:
            return True
        new = run.hops - previous.hops
        if new < 0 or new > MAX_CHANGED:
            return True
        return is_less_known(self.warehouse.earlier("servers", previous), servers)

    def _build_messages(self, *, is_whole: bool, size: int) -> pa.Table | None:
        """Bring `messages` up to date with decoded bytes, verdicts and keys; returns new rows, None if all are new."""
        warehouse, spark = self.warehouse, self.audit.spark
        self.audit.progress.step("messages")
        if is_whole:
            tune(spark, size)
            keys = self._keys(warehouse.read("keys"))
            everything = messages(warehouse.read("decoded"), warehouse.read("verdicts"), keys, audits=AUDITS)
            warehouse.overwrite("messages", everything)
            return None
        fresh = warehouse.fresh("decoded")
        fresh = fresh.filter(pc.is_null(fresh["reject"]))
        names = [audit.name for audit in signed(AUDITS)]
        judged = warehouse.fresh("verdicts").select(["message"])
        waiting = self._newly_published()
        late = pa.concat_tables([judged, waiting])
        addresses = distinct(
            fresh.select(ADDRESS),
            *(
                pa.table([pa.array([name] * late.num_rows, pa.string()), late["message"]], names=ADDRESS)
                for name in names
            ),
        )
        of_signed = addresses.filter(pc.is_in(addresses["fabric"], value_set=pa.array(names, pa.string())))
        gone = distinct(warehouse.lookup("messages", of_signed).select(ADDRESS))
        older = warehouse.lookup("decoded", distinct(gone, _others(of_signed, fresh)))
        decoded = pa.concat_tables([fresh, older.filter(pc.not_equal(older["run"], warehouse.run))])
        verdicts = warehouse.lookup("verdicts", distinct(of_signed.select(["message"])))
        tune(spark, decoded.num_rows)
        rows = messages(
            from_arrow(spark, decoded, DECODED_TABLE.schema),
            from_arrow(spark, verdicts),
            self._keys(warehouse.read("keys")),
            audits=AUDITS,
        )
        made: pa.Table = rows.select(*schemas.MESSAGES.names).toArrow().cast(schemas.MESSAGES.arrow)
        warehouse.replace("messages", from_arrow(spark, made, schemas.MESSAGES.schema), gone)
        return made

    def _keys(self, published: DataFrame) -> DataFrame:
        return known_keys(self.audit.spark, published, node_keys(self.audit.settings, self.facts.manifests))

    def _newly_published(self) -> pa.Table:
        """Messages whose signature could not be verified, and whose signer has since published a key."""
        owners = self.warehouse.fresh("keys")["owner"].unique().to_pylist()
        if not owners:
            return pa.table({"message": pa.array([], pa.binary())})
        waiting = (("signature", "=", "unknown_key"), ("signer", "in", owners))
        return self.warehouse.scan("messages", ["message"], waiting)


def _may_reread(runs: Iterable[Run], now: dt.datetime) -> bool:
    since = now - dt.timedelta(seconds=REREADS_S)
    return sum(run.is_reread and run.began is not None and run.began > since for run in runs) < MAX_REREADS


def basis_of(settings: AuditSettings, facts: BatchFacts) -> str:
    """A digest of the shared inputs of all rows of gold that the driver knows."""
    servers = sorted({(file.fabric, name) for file in facts.files if file.part for name in file.part.servers})
    return _digest(FORM, settings.fingerprint(), servers, _starts(facts.files))


def _starts(files: Iterable[FileFact]) -> list[tuple[str, int]]:
    """Where the ranges of hops of each server of a community start.

    Its absences apply to the messages of others, so if hops arrive before which later ones are known, all rows may
    change; the start of a range changes with them.
    """
    names = {audit.name for audit in communal(AUDITS)}
    parts = [(file.server, file.part) for file in files if file.fabric in names and file.is_own and file.part]
    starts, following = [], ("", 0)
    for server, part in sorted(parts, key=lambda one: (one[0], one[1].first_seq)):
        if (server, part.first_seq) != following:
            starts.append((server, part.first_seq))
        following = server, part.last_seq + 1
    return starts


def _hops_by_fabric(files: Iterable[FileFact]) -> Counter[str]:
    hops: Counter[str] = Counter()
    for fact in files:
        hops[fact.fabric] += 0 if fact.part is None else fact.part.rows
    return hops


def _spread(facts: BatchFacts) -> int:
    """A community of many servers has more deliveries than hops: one per message and server."""
    names = {audit.name for audit in communal(AUDITS)}
    parts = [fact.part for fact in facts.files if fact.part is not None and fact.fabric in names]
    peers = {name for part in parts for name in part.servers}
    return sum(part.rows for part in parts) * len(peers) // MANY_PEERS


def _is_same(previous: Run, run: Run) -> bool:
    """True if a run would write what is already there."""
    return (previous.lake, previous.as_of_us, previous.fingerprint, previous.basis) == (
        run.lake,
        run.as_of_us,
        run.fingerprint,
        run.basis,
    )


def _others(addresses: pa.Table, fresh: pa.Table) -> pa.Table:
    return pick(addresses, distinct(fresh.select(ADDRESS)), others=True)


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _believed(facts: Sequence[ManifestFact]) -> list[Manifest]:
    return [fact.manifest for fact in facts if fact.manifest is not None]


def build_parser() -> argparse.ArgumentParser:
    """The arguments under spark-submit; the same as on the command line."""
    parser = argparse.ArgumentParser(prog="dovetail.audit.run", description="Audit a lake of sealed journals.")
    parser.add_argument("lake")
    parser.add_argument("--tables", required=True)
    parser.add_argument("--master")
    parser.add_argument("--driver-memory")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--swarm", type=Path, action="append", default=[], metavar="FILE")
    parser.add_argument("--trust", type=Path, action="append", default=[], metavar="FILE")
    parser.add_argument("--proven-only", action="store_true")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the audit; for spark-submit."""
    arguments = build_parser().parse_args(argv)
    conf = dict(item.split("=", 1) for item in arguments.conf)
    lake = check_lake(arguments.lake)
    has_s3 = is_url(lake) or is_url(arguments.tables)
    spark = open_session(
        SessionOptions(master=arguments.master, driver_memory=arguments.driver_memory, conf=conf, has_s3=has_s3)
    )
    settings = load_settings(arguments.swarm, arguments.trust, proven_only=arguments.proven_only)
    audit = Audit(spark=spark, lake=lake, tables=arguments.tables, settings=settings)
    sys.stdout.write(audit.run().text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
