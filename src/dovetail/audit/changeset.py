"""The changeset of a run: every message with a new hop, link or verdict, and everything that silver has about it.

Time alone changes messages whose lifetime has ended without an outcome, and those with a hop whose loss timeout has
passed (`FabricAudit.overdue`): the audit's time, or that of a server whose journal goes further now.

A chain is computed from several messages, and so are contradictions of a signer. In fabrics with such rows
(`FabricAudit.is_chained`) the changed messages, what they answer and what answers them are `linked`: rows about those
may change. They are computed from all of these, and again from what those answer and what answers them.

Inputs are looked up in the tables (`Warehouse.lookup`), in proportion to what is new. They go through the same
transforms as in a full run, which only have less to read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dovetail.audit.arrow_sets import distinct, pick
from dovetail.audit.fabric_audit import FabricAudit, signed
from dovetail.audit.fabrics import AUDITS
from dovetail.audit.reach import newly_known
from dovetail.audit.table import BINARY, STRING
from dovetail.audit.tables import Run
from dovetail.audit.warehouse import Warehouse
from dovetail.model.outcome import PENDING
from dovetail.model.times import to_datetime

MAX_CHANGED = 2_000_000
"""Number of addresses that fit in a task; if more have changed, everything is recomputed."""

ADDRESS = ["fabric", "message"]
_CHILD, _PARENT, _KEY = ["fabric", "child"], ["fabric", "parent"], ["fabric", "key"]
_ADDRESSES = pa.schema([("fabric", STRING), ("message", BINARY)])


@dataclass(frozen=True, slots=True)
class Changeset:
    """`now` has the hops, messages and links from which the changed rows of all tables are computed.

    `before` has what was known about the changed messages alone: their `hops` and `holdings`. `neighbours` are the
    holdings of unchanged messages at the other ends of links.
    """

    changed: pa.Table
    """The addresses."""
    known: pa.Table
    """Those that had hops or holdings before: only these can have old rows."""
    linked: pa.Table
    """Addresses whose chains, and outcomes derived from answers, may have changed; includes the changed ones."""
    children: pa.Table
    """Messages whose links may have other targets now."""
    now: Mapping[str, pa.Table]
    own_hops: pa.Table
    own_messages: pa.Table
    before: Mapping[str, pa.Table]
    neighbours: pa.Table

    @property
    def rows(self) -> int:
        """The size of the work."""
        return int(sum(table.num_rows for table in (*self.now.values(), self.neighbours)))


def gather(
    warehouse: Warehouse, made: pa.Table, previous: Run, as_of_us: int, loss_timeout_us: int
) -> Changeset | None:
    """The changeset since `previous`, or None if it is too large; `made` are new rows of `messages`."""
    changed = _addresses(warehouse, previous, as_of_us, loss_timeout_us)
    return None if changed.num_rows > MAX_CHANGED else _Gathering(warehouse, made, changed).gather()


def _addresses(warehouse: Warehouse, previous: Run, as_of_us: int, loss_timeout_us: int) -> pa.Table:
    decoded = warehouse.fresh("decoded")
    parts = [
        _ADDRESSES.empty_table(),
        warehouse.fresh("hops").select(ADDRESS),
        decoded.filter(pc.is_null(decoded["reject"])).select(ADDRESS),
    ]
    reached = newly_known(warehouse.earlier("servers", previous), warehouse.arrow("servers"))
    if as_of_us > previous.as_of_us or reached:
        parts += _ended(warehouse, as_of_us)
    if as_of_us > previous.as_of_us:
        parts += _overdue(warehouse, previous.as_of_us - loss_timeout_us, as_of_us - loss_timeout_us)
    if reached:  # what these servers should have recorded may only now be missing, whatever the audit's time is
        since_us, until_us = min(us for us, _ in reached.values()), max(us for _, us in reached.values())
        next_servers = ("counterpart", "in", sorted(reached))
        parts += _overdue(warehouse, since_us - loss_timeout_us, until_us - loss_timeout_us, next_servers)
    return distinct(*parts)


def _overdue(warehouse: Warehouse, since_us: int, until_us: int, *more: tuple[str, str, Any]) -> Iterator[pa.Table]:
    """Messages that change their outcome when the loss timeout passes, by when they were sent."""
    is_sent = (("at", ">=", to_datetime(since_us)), ("at", "<", to_datetime(until_us)), *more)
    for audit in AUDITS:
        if audit.overdue is not None:
            is_own = (("fabric", "=", audit.name), ("stage", "=", audit.overdue.value))
            yield warehouse.scan("hops", ADDRESS, (*is_own, *is_sent))


def _ended(warehouse: Warehouse, now_us: int) -> Iterator[pa.Table]:
    """Messages whose lifetime has ended and that had no outcome yet."""
    is_open = ("outcome", "in", sorted(PENDING))
    yield warehouse.scan("deliveries", ADDRESS, (is_open, ("expires", "<=", to_datetime(now_us))))
    for audit in AUDITS:
        if audit.lifetime_us is not None:
            is_old = ("accepted", "<=", to_datetime(now_us - audit.lifetime_us))
            yield warehouse.scan("deliveries", ADDRESS, (is_open, is_old, ("fabric", "=", audit.name)))


@dataclass(frozen=True, slots=True)
class _Gathering:
    warehouse: Warehouse
    made: pa.Table
    changed: pa.Table

    def gather(self) -> Changeset:
        fresh = self.warehouse.fresh("hops")
        past = self._past_hops(self.changed)
        known = distinct(past.select(ADDRESS))
        messages = self._messages(known)
        links = self._links(known, distinct(messages.select(_KEY), _keys_of(self.changed)))
        holdings = self._holdings(links, messages)
        linked, more_links, more_messages = self._chained(links, holdings, messages)
        others = distinct(_ADDRESSES.empty_table(), more_messages.select(ADDRESS))
        more_hops = self._past_hops(pick(others, self.changed, others=True))
        before = pick(holdings, self.changed)
        return Changeset(
            changed=self.changed,
            known=distinct(known, before.select(ADDRESS)),
            linked=distinct(self.changed, linked),
            children=distinct(links.select(_CHILD)),
            now={
                "hops": pa.concat_tables([fresh, past, more_hops]),
                "messages": pa.concat_tables([messages, pick(more_messages, self.changed, others=True)]),
                "links": pa.concat_tables([links, more_links]),
            },
            own_hops=pa.concat_tables([fresh, past]),
            own_messages=messages,
            before={"hops": past, "holdings": before},
            neighbours=pick(holdings, self.changed, others=True),
        )

    def _past_hops(self, addresses: pa.Table) -> pa.Table:
        """The previous hops of these messages."""
        found = self.warehouse.lookup("hops", addresses)
        return found.filter(pc.not_equal(found["run"], self.warehouse.run))

    def _messages(self, known: pa.Table) -> pa.Table:
        """The decoded fields of the changed messages."""
        judged = of_fabrics(self.changed, signed(AUDITS))
        made = pick(self.made, self.changed)
        wanted = pick(distinct(known, judged), distinct(made.select(ADDRESS)), others=True)
        return pa.concat_tables([made, self.warehouse.lookup("messages", wanted)])

    def _links(self, known: pa.Table, keys: pa.Table) -> pa.Table:
        """All links of every message that has changed, or refers to one that has."""
        fresh = self.warehouse.fresh("links")
        referring = self._past_links(keys.rename_columns(_PARENT))
        children = distinct(known.rename_columns(_CHILD), referring.select(_CHILD))
        # all new links are links of changed messages
        return pa.concat_tables([self._past_links(children), fresh])

    def _past_links(self, wanted: pa.Table) -> pa.Table:
        found = self.warehouse.lookup("links", wanted)
        return found.filter(pc.not_equal(found["run"], self.warehouse.run))

    def _holdings(self, links: pa.Table, messages: pa.Table) -> pa.Table:
        """What was known about the changed messages, others with the same key, and both ends of their links."""
        children = distinct(links.select(_CHILD)).rename_columns(ADDRESS)
        keys = distinct(
            links.select(_PARENT).rename_columns(_KEY),
            messages.select(_KEY),
            _keys_of(self.changed),
            _keys_of(children),
        )
        by_key = self.warehouse.lookup("holdings", keys)
        keyless = distinct(of_fabrics(children, _keyless()), of_fabrics(self.changed, _keyless()))
        by_address = self.warehouse.lookup("holdings", keyless)
        return pa.concat_tables([by_key, pick(by_address, distinct(by_key.select(ADDRESS)), others=True)])

    def _chained(self, links: pa.Table, holdings: pa.Table, messages: pa.Table) -> tuple[pa.Table, pa.Table, pa.Table]:
        """What is linked, and the further links and messages from which its chains are computed."""
        chained = [audit for audit in AUDITS if audit.is_chained]
        own = of_fabrics(self.changed, chained)
        links, holdings = of_fabrics(links, chained), of_fabrics(holdings, chained)
        own_keys = distinct(of_fabrics(messages, chained).select(_KEY), _keys_of(own))
        answers = pick(links, own_keys.rename_columns(_PARENT))
        asked = distinct(pick(links, own.rename_columns(_CHILD)).select(_PARENT)).rename_columns(_KEY)
        linked = distinct(own, answers.select(_CHILD).rename_columns(ADDRESS), pick(holdings, asked).select(ADDRESS))
        if not own.num_rows:
            return linked, links.slice(0, 0), messages.slice(0, 0)
        keys = distinct(own_keys, asked, pick(holdings, linked).select(_KEY))
        referring = self.warehouse.lookup("links", keys.rename_columns(_PARENT))
        children = distinct(linked.rename_columns(_CHILD), referring.select(_CHILD))
        more = self._past_links(pick(children, distinct(links.select(_CHILD)), others=True))
        found = self._chained_messages(pa.concat_tables([links, more]), keys, children, messages)
        return linked, more, found

    def _chained_messages(self, links: pa.Table, keys: pa.Table, children: pa.Table, messages: pa.Table) -> pa.Table:
        """The messages at both ends of these links."""
        lookup = self.warehouse.lookup
        ends = distinct(keys, links.select(_PARENT).rename_columns(_KEY), _keys_of(children.rename_columns(ADDRESS)))
        kept = [messages.slice(0, 0)]
        have = distinct(messages.select(ADDRESS))
        for rows in (
            lookup("messages", ends),
            lookup("messages", of_fabrics(children, _keyless()).rename_columns(ADDRESS)),
            *self._unique(messages),
        ):
            kept.append(pick(rows, have, others=True))
            have = distinct(have, kept[-1].select(ADDRESS))
        return pa.concat_tables(kept)

    def _unique(self, messages: pa.Table) -> Iterator[pa.Table]:
        """For types of which a sender may make only one message: those of the senders of changed messages."""
        for audit in AUDITS:
            types = list(audit.unique_types)
            is_unique = (pc.field("fabric") == audit.name) & pc.field("type").isin(types)
            senders = messages.filter(is_unique)["sender"].unique().to_pylist() if types else []
            if senders:
                same = (("fabric", "=", audit.name), ("type", "in", types), ("sender", "in", senders))
                yield self.warehouse.scan("messages", messages.column_names, same)


def of_fabrics(rows: pa.Table, audits: Iterable[FabricAudit]) -> pa.Table:
    """Rows of these fabrics."""
    names = pa.array([audit.name for audit in audits], pa.string())
    return rows.filter(pc.is_in(rows["fabric"], value_set=names))


def _keyless() -> list[FabricAudit]:
    """Fabrics whose keys do not follow from the address."""
    return [audit for audit in AUDITS if audit.fabric.key_bytes is None]


def _keys_of(addresses: pa.Table) -> pa.Table:
    """How links name messages with these addresses, if it follows from the address."""
    parts = [addresses.slice(0, 0).rename_columns(_KEY)]
    for audit in AUDITS:
        if audit.fabric.key_bytes is not None:
            own = of_fabrics(addresses, [audit])
            keys = pc.binary_slice(own["message"], 0, audit.fabric.key_bytes)
            parts.append(pa.table([own["fabric"], keys], names=_KEY))
    return pa.concat_tables(parts)
