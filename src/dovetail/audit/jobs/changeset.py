"""What new batches touch: the addresses, and all that silver has about them, gathered from everything before.

Touched are the messages that new batches speak about, and those that they answer. Time alone touches messages whose
lifetime is over, if they had no outcome yet, and those with a hop for which patience is over by now
(`FabricAudit.overdue`).

A chain is told from several messages, and so are contradictions of a signer. Of the fabrics that have such
(`FabricAudit.is_chained`) the touched messages, what they answer and what answers them are `bound`: rows about those
may change. What they are told from is all of that, and again what it answers and what answers it.

The old part of silver is large. What is asked for is looked up in it (`search`), and is as little as what is new.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from dovetail.audit import schemas
from dovetail.audit.fabric_audit import FabricAudit
from dovetail.audit.fabrics import AUDITS
from dovetail.audit.jobs.batch import DECODED_TABLE
from dovetail.audit.jobs.search import Search, distinct, pick
from dovetail.audit.schemas import BINARY, STRING, Table
from dovetail.audit.session import tune
from dovetail.audit.store import RunRecord, Store
from dovetail.audit.tablefiles import count_rows, read_here, scan_here
from dovetail.audit.transforms.holdings import SIGHTINGS
from dovetail.model.outcome import PENDING

MAX_TOUCHED = 2_000_000
"""So many addresses a task can well hold; where more are touched everything is made anew."""

ADDRESS = ["fabric", "message"]
_CHILD, _PARENT, _KEY = ["fabric", "child"], ["fabric", "parent"], ["fabric", "key"]


def state_table(name: str, of: Table) -> Table:
    """Some rows of a table, kept while a run lasts."""
    return Table(f"_state/{name}", "silver", "What this run has to look at.", of.key, of.schema)


TOUCHED = Table(
    "_state/touched",
    "silver",
    "Addresses that this run has to look at.",
    tuple(ADDRESS),
    StructType().add("fabric", STRING).add("message", BINARY),
)
BOUND = Table("_state/bound", "silver", "Addresses whose chains this run has to make.", tuple(ADDRESS), TOUCHED.schema)
PAST_HOPS = state_table("past_hops", schemas.HOPS)
TOUCHED_HOPS = state_table("touched_hops", schemas.HOPS)
PAST_MESSAGES = state_table("past_messages", schemas.MESSAGES)
TOUCHED_MESSAGES = state_table("touched_messages", schemas.MESSAGES)
REFERRING = state_table("referring", schemas.LINKS)
PAST_LINKS = state_table("past_links", schemas.LINKS)
TOUCHED_LINKS = state_table("touched_links", schemas.LINKS)
BY_KEY = state_table("by_key", SIGHTINGS)
BY_ADDRESS = state_table("by_address", SIGHTINGS)
BEFORE = state_table("before", SIGHTINGS)
NEAR = state_table("near", SIGHTINGS)
CHAINED_HOPS = state_table("chained_hops", schemas.HOPS)
CHAINED_LINKS = state_table("chained_links", schemas.LINKS)
CHAINED_MESSAGES = state_table("chained_messages", schemas.MESSAGES)


@dataclass(frozen=True, slots=True)
class Touched:
    """What is touched; the gathered tables are read with `Store.read_written`."""

    spark: SparkSession
    store: Store
    addresses: pa.Table
    bound: pa.Table
    rows: int
    """Of hops and links that are touched, and messages near them."""
    known: pa.Table
    """The addresses of those touched messages that had hops before: there can be old rows of these only."""

    @property
    def known_fabrics(self) -> list[str]:
        """Fabrics of which touched messages were known before."""
        fabrics: list[str] = self.known["fabric"].unique().to_pylist()
        return fabrics


def gather(
    spark: SparkSession, store: Store, previous: RunRecord, record: RunRecord, patience_us: int
) -> Touched | None:
    """Everything that is touched, or None where that is too much."""
    old, new = previous.batches, sorted(set(record.batches) - set(previous.batches))
    fresh = sum(count_rows(store.batch_path(schemas.HOPS, batch)) for batch in new)
    if fresh > MAX_TOUCHED:
        return None
    tune(spark, fresh)
    search = Search(spark, store, fresh)
    touched = _addresses(store, previous, record, new, patience_us)
    touched = distinct(touched, _answered(search, new))
    if touched.num_rows > MAX_TOUCHED:
        return None
    return _Gathering(search, old, new, touched).gather()


def _answered(search: Search, new: Sequence[int]) -> pa.Table:
    """Messages that new ones answer: an answer changes what is known of their deliveries."""
    links = read_here(schemas.LINKS, search.store.batch_files(schemas.LINKS, new), (*_PARENT, "relation"))
    parts = []
    for audit in AUDITS:
        if audit.answers is not None:
            is_answer = (pc.field("fabric") == audit.name) & (pc.field("relation") == audit.answers.value)
            parts.append(links.filter(is_answer).select(_PARENT).rename_columns(_KEY))
    return search.take(BY_KEY, search.store.gold_files(SIGHTINGS), distinct(*parts)).select(ADDRESS)


def _addresses(store: Store, previous: RunRecord, record: RunRecord, new: Sequence[int], patience_us: int) -> pa.Table:
    decoded = read_here(DECODED_TABLE, store.batch_files(DECODED_TABLE, new), (*ADDRESS, "reject"))
    parts = [
        read_here(schemas.HOPS, store.batch_files(schemas.HOPS, new), ADDRESS),
        decoded.filter(pc.is_null(decoded["reject"])).select(ADDRESS),
    ]
    if record.as_of_us > previous.as_of_us:
        parts += _ended(store, record)
        before, now = (_time(us - patience_us) for us in (previous.as_of_us, record.as_of_us))
        hops = store.batch_files(schemas.HOPS, previous.batches)
        for audit in AUDITS:
            if audit.overdue is not None:
                waited = (
                    (pc.field("at") >= before)
                    & (pc.field("at") < now)
                    & (pc.field("fabric") == audit.name)
                    & (pc.field("stage") == audit.overdue.value)
                )
                parts += scan_here(schemas.HOPS, hops, waited, ("at", "fabric", "stage"), ADDRESS)
    return distinct(*parts)


def _ended(store: Store, record: RunRecord) -> Iterator[pa.Table]:
    """Messages whose lifetime is over, of those that had no outcome yet."""
    is_ended = pc.field("expires") <= _time(record.as_of_us)
    for audit in AUDITS:
        if audit.lifetime_us is not None:
            is_old = pc.field("accepted") <= _time(record.as_of_us - audit.lifetime_us)
            is_ended = is_ended | (is_old & (pc.field("fabric") == audit.name))
    is_ended = is_ended & pc.field("outcome").isin(sorted(PENDING))
    columns = ("fabric", "outcome", "accepted", "expires")
    yield from scan_here(schemas.DELIVERIES, store.gold_files(schemas.DELIVERIES), is_ended, columns, ADDRESS)


def _time(us: int) -> pa.Scalar:
    return pa.scalar(us, pa.timestamp("us", "UTC"))


@dataclass(frozen=True, slots=True)
class _Gathering:
    search: Search
    old: Sequence[int]
    new: Sequence[int]
    touched: pa.Table

    def gather(self) -> Touched:
        store = self.search.store
        store.write_rows(TOUCHED, [self.touched])
        past, fresh = self._past_hops(self.touched), self._fresh(schemas.HOPS)
        store.write_rows(PAST_HOPS, [past])
        store.write_rows(TOUCHED_HOPS, [fresh, past])
        known = distinct(past.select(ADDRESS))
        messages = self._messages(known)
        links = self._links(known, distinct(messages.select(_KEY), _keys_of(self.touched)))
        near = self._near(links, messages)
        bound, others = self._chained(links, near, messages)
        others = self._past_hops(pick(others, self.touched, others=True))
        store.write_rows(CHAINED_HOPS, [of_fabrics(hops, _chained()) for hops in (fresh, past, others)])
        rows = past.num_rows + fresh.num_rows + links.num_rows + near.num_rows
        return Touched(self.search.spark, store, self.touched, bound, rows, known)

    def _past_hops(self, addresses: pa.Table) -> pa.Table:
        """The hops that these messages had before."""
        return self.search.take(PAST_HOPS, self.search.store.batch_files(schemas.HOPS, self.old), addresses)

    def _messages(self, known: pa.Table) -> pa.Table:
        """What the bytes of the touched messages say; bytes come with a hop, signed messages lie in one place."""
        store = self.search.store
        signed = of_fabrics(self.touched, [audit for audit in AUDITS if audit.fabric.is_signed])
        files = store.batch_files(schemas.MESSAGES, self.old, with_current=True)
        past = self.search.take(PAST_MESSAGES, files, distinct(known, signed))
        messages = pa.concat_tables([self._fresh(schemas.MESSAGES), past])
        store.write_rows(TOUCHED_MESSAGES, [messages])
        return messages

    def _fresh(self, table: Table) -> pa.Table:
        return read_here(table, self.search.store.batch_files(table, self.new))

    def _links(self, known: pa.Table, keys: pa.Table) -> pa.Table:
        """All links of every message that is touched, or refers to one that is."""
        store = self.search.store
        files = store.batch_files(schemas.LINKS, self.old)
        referring = self.search.take(REFERRING, files, keys.rename_columns(_PARENT))
        children = distinct(known.rename_columns(_CHILD), referring.select(_CHILD))
        # all links of new batches are links of touched messages
        past = self.search.take(PAST_LINKS, files, children)
        links = pa.concat_tables([past, self._fresh(schemas.LINKS)])
        store.write_rows(TOUCHED_LINKS, [links])
        return links

    def _near(self, links: pa.Table, messages: pa.Table) -> pa.Table:
        """What was known of the touched messages, of others with a key of theirs, and of both ends of their links."""
        store = self.search.store
        files = store.gold_files(SIGHTINGS)
        children = distinct(links.select(_CHILD)).rename_columns(ADDRESS)
        keys = distinct(
            links.select(_PARENT).rename_columns(_KEY),
            messages.select(_KEY),
            _keys_of(self.touched),
            _keys_of(children),
        )
        by_key = self.search.take(BY_KEY, files, keys)
        by_address = self.search.take(BY_ADDRESS, files, of_fabrics(children, _keyless()))
        near = pa.concat_tables([by_key, pick(by_address, distinct(by_key.select(ADDRESS)), others=True)])
        store.write_rows(BEFORE, [pick(near, self.touched)])
        store.write_rows(NEAR, [pick(near, self.touched, others=True)])
        return near

    def _chained(self, links: pa.Table, near: pa.Table, messages: pa.Table) -> tuple[pa.Table, pa.Table]:
        """What is bound, and the messages beside the touched ones that its chains are told from."""
        search, store = self.search, self.search.store
        chained = _chained()
        own = of_fabrics(self.touched, chained)
        links, near = of_fabrics(links, chained), of_fabrics(near, chained)
        own_keys = distinct(of_fabrics(messages, chained).select(_KEY), _keys_of(own))
        answers = pick(links, own_keys.rename_columns(_PARENT))
        asked = distinct(pick(links, own.rename_columns(_CHILD)).select(_PARENT)).rename_columns(_KEY)
        bound = distinct(own, answers.select(_CHILD).rename_columns(ADDRESS), pick(near, asked).select(ADDRESS))
        keys = distinct(own_keys, asked, pick(near, bound).select(_KEY))
        files = store.batch_files(schemas.LINKS, self.old if own.num_rows else [])
        referring = search.take(REFERRING, files, keys.rename_columns(_PARENT))
        children = distinct(bound.rename_columns(_CHILD), referring.select(_CHILD))
        have = distinct(links.select(_CHILD))
        more = search.take(PAST_LINKS, files, pick(children, have, others=True))
        links = pa.concat_tables([links, more])
        store.write_rows(CHAINED_LINKS, [links])
        others = self._chained_messages(links, keys, children, messages)
        store.write_rows(BOUND, [bound])
        return bound, others

    def _chained_messages(self, links: pa.Table, keys: pa.Table, children: pa.Table, messages: pa.Table) -> pa.Table:
        """Keep the messages at both ends of these links; their addresses."""
        search, store = self.search, self.search.store
        files = store.batch_files(schemas.MESSAGES, self.old if keys.num_rows else [], with_current=True)
        ends = distinct(keys, links.select(_PARENT).rename_columns(_KEY), _keys_of(children.rename_columns(ADDRESS)))
        found = [
            search.take(PAST_MESSAGES, files, ends),
            search.take(PAST_MESSAGES, files, of_fabrics(children, _keyless()).rename_columns(ADDRESS)),
            *self._unique(messages),
        ]
        kept = [of_fabrics(messages, _chained())]
        for rows in found:
            have = distinct(self.touched, *(part.select(ADDRESS) for part in kept))
            kept.append(pick(rows, have, others=True))
        store.write_rows(CHAINED_MESSAGES, kept)
        return distinct(*(part.select(ADDRESS) for part in kept))

    def _unique(self, messages: pa.Table) -> Iterator[pa.Table]:
        """Of types of which a sender may make one message: those of the senders of touched ones."""
        store = self.search.store
        for audit in AUDITS:
            is_unique = (pc.field("fabric") == audit.name) & pc.field("type").isin(list(audit.unique_types))
            senders = messages.filter(is_unique)["sender"].unique() if audit.unique_types else ()
            if len(senders):
                is_same = is_unique & pc.field("sender").isin(senders)
                old = [] if audit.fabric.is_signed else self.old
                files = store.batch_files(schemas.MESSAGES, old, with_current=True)
                yield from scan_here(schemas.MESSAGES, files, is_same, ("fabric", "type", "sender"))


def of_fabrics(rows: pa.Table, audits: Iterable[FabricAudit]) -> pa.Table:
    """Rows of these fabrics."""
    names = pa.array([audit.name for audit in audits], pa.string())
    return rows.filter(pc.is_in(rows["fabric"], value_set=names))


def _chained() -> list[FabricAudit]:
    return [audit for audit in AUDITS if audit.is_chained]


def _keyless() -> list[FabricAudit]:
    """Fabrics of which an address does not tell the key."""
    return [audit for audit in AUDITS if audit.fabric.key_bytes is None]


def _keys_of(addresses: pa.Table) -> pa.Table:
    """How links name messages of these addresses, as far as the address tells."""
    parts = [addresses.slice(0, 0).rename_columns(_KEY)]
    for audit in AUDITS:
        if audit.fabric.key_bytes is not None:
            own = of_fabrics(addresses, [audit])
            keys = pc.binary_slice(own["message"], 0, audit.fabric.key_bytes)
            parts.append(pa.table([own["fabric"], keys], names=_KEY))
    return pa.concat_tables(parts)
