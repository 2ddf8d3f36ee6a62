"""Which pictures the page contains: a few examples of each kind, and one for each of the worst findings."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dovetail.audit.server_names import strip_uri
from dovetail.audit.table import BINARY
from dovetail.audit.tables import Tables
from dovetail.report.arrays import count_by
from dovetail.report.evidence import (
    Evidence,
    HopSeen,
    LinkSeen,
    read_chains,
    read_hops,
    read_messages,
    read_neighbourhood,
)
from dovetail.report.pictures import (
    Picture,
    draw_conversation,
    draw_holders,
    draw_neighbourhood,
    draw_recipients,
)
from dovetail.report.text import community_of, name_briefly, shorten

MAX_CONVERSATIONS = 3
MAX_CHAINS_PER_CONVERSATION = 2
MAX_SPREADS = 3
MAX_GRAPHS = 3
MAX_FINDING_PICTURES = 150
MAX_NEIGHBOURS = 20_000
NEIGHBOUR_STEPS = 2
_LINED = ("fork.cycle", "fork.against_time", "fork.self_reference", "fork.forked_log", "gap.nobody")
"""Findings about a reference, the most informative pictures first."""
_COMPLETE = "complete"
_PARTS = ("message", "first_response", "second_response", "failure")


def draw_conversations(tables: Tables) -> list[Picture]:
    """The conversations with the most problems, and the longest one without any."""
    chains = tables.read("chains", ("fabric", "message", "kind", "conversation", "state", "only_at"))
    names = _choose_conversations(chains)
    chosen: dict[str, list[bytes]] = {}
    for name in names:
        rows = chains.filter(pc.equal(chains["conversation"], name))
        chosen[name] = rows["message"].to_pylist()
    if not chosen:
        chosen = _choose_requests(chains)
    found = read_chains(tables, [address for addresses in chosen.values() for address in addresses])
    evidence, links = _read_parts(tables, found.values())
    pictures = []
    for addresses in chosen.values():
        rows = sorted((found[each] for each in addresses if each in found), key=lambda row: row["begun_us"] or 0)
        shown = _keep_trouble(rows)
        ends = " and ".join(_name_ends(shown[0]))
        title = f"A request from {ends}" if shown[0]["conversation"] is None else f"A conversation between {ends}"
        caption = f"{len(shown)} of {len(rows)} chains; {_name_states(shown)}"
        pictures.append(draw_conversation(shown, evidence, links, title=title, caption=caption))
    return pictures


def _choose_conversations(chains: pa.Table) -> list[str]:
    talks = chains.filter(pc.is_valid(chains["conversation"]))
    total: dict[str, int] = defaultdict(int)
    trouble: dict[str, int] = defaultdict(int)
    columns = (talks[name].to_pylist() for name in ("conversation", "state", "only_at"))
    for name, state, only_at in zip(*columns, strict=True):
        total[name] += 1
        trouble[name] += state != _COMPLETE or bool(only_at)
    worst = sorted((name for name in total if trouble[name]), key=lambda name: (-trouble[name], -total[name], name))
    best = sorted((name for name in total if not trouble[name]), key=lambda name: (-total[name], name))
    chosen = worst[: MAX_CONVERSATIONS - 1]
    return chosen + best[: MAX_CONVERSATIONS - len(chosen)]


def _choose_requests(chains: pa.Table) -> dict[str, list[bytes]]:
    """One request of each state, if there are no conversations."""
    requests = chains.filter(pc.equal(chains["kind"], "request"))
    by_state = {}
    for state in sorted(set(requests["state"].to_pylist())):
        rows = requests.filter(pc.equal(requests["state"], state))
        by_state[state] = rows["message"].slice(0, 1).to_pylist()
    return by_state


def _keep_trouble(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first chain with a problem and the first without, or two of a kind, ordered by time."""
    trouble = [row for row in rows if row["state"] != _COMPLETE or row["only_at"]]
    complete = [row for row in rows if row["state"] == _COMPLETE and not row["only_at"]]
    ranked = [*trouble[:1], *complete[:1], *trouble[1:], *complete[1:]][:MAX_CHAINS_PER_CONVERSATION]
    return sorted(ranked, key=lambda row: row["begun_us"] or 0)


def _name_state(chain: dict[str, Any]) -> str:
    return "copies differ" if chain["only_at"] else chain["state"].replace("_", " ")


def _name_states(chains: Sequence[dict[str, Any]]) -> str:
    """The states, those with a problem first; counted if there are several."""
    counts = Counter(_name_state(chain) for chain in chains)
    states = sorted(counts, key=lambda state: (state == _COMPLETE, state))
    return ", ".join(states if len(states) == 1 else (f"{counts[state]} {state}" for state in states))


def _name_ends(chain: dict[str, Any]) -> list[str]:
    return [shorten(strip_uri(chain[end] or "somebody"), 40) for end in ("sender", "recipient")]


def draw_spreads(tables: Tables, peers: Collection[str]) -> list[Picture]:
    """The broadcast that most peers lack, the slowest one that reached all, and the message with the most targets."""
    coverage = tables.read("coverage", ("swarm", "scope", "message", "peer", "lacking", "all_us"))
    spread = coverage.filter(pc.equal(coverage["scope"], "message"))
    chosen: dict[bytes, str] = {}
    lacking = spread.filter(pc.greater(spread["lacking"], 0)).sort_by(
        [("lacking", "descending"), ("message", "ascending")]
    )
    complete = spread.filter(pc.is_valid(spread["all_us"])).sort_by(
        [("all_us", "descending"), ("message", "ascending")]
    )
    for rows, words in (
        (lacking, "The broadcast that most peers lack:"),
        (complete, "The slowest complete broadcast:"),
    ):
        for address in rows["message"].slice(0, 1).to_pylist():
            chosen.setdefault(address, words)
    for address in complete["message"].slice(complete.num_rows // 2, 1).to_pylist():
        chosen.setdefault(address, "A typical broadcast:")
    hops = read_hops(tables, chosen)
    pictures = [
        _draw_holders(address, hops.get(address, []), peers, words)
        for address, words in list(chosen.items())[:MAX_SPREADS]
    ]
    return pictures + _draw_most_targets(tables, peers)


def _draw_holders(address: bytes, hops: Sequence[HopSeen], peers: Collection[str], words: str) -> Picture:
    """How a message spread among the peers of the community where the hops occurred."""
    communities = {community_of(hop.server) for hop in hops}
    members = [peer for peer in peers if community_of(peer) in communities]
    name = name_briefly(address, communities.pop()[0] if communities else "")
    return draw_holders(hops, members, title=f"{words} {name}")


def _draw_most_targets(tables: Tables, peers: Collection[str]) -> list[Picture]:
    """The message with the most targets, in fabrics whose servers form no communities."""
    communal = {community_of(peer)[0] for peer in peers}
    others = ~pc.field("fabric").isin(pa.array(sorted(communal), type=pa.string()))
    deliveries = tables.read("deliveries", ("fabric", "message"), where=others)
    counts = sorted(count_by(deliveries, ("fabric", "message")), key=lambda row: (-row[2], row[1]))
    if not counts or counts[0][2] < 2:
        return []
    fabric, address, _ = counts[0]
    rows = tables.read("deliveries", where=pc.field("message") == pa.scalar(address, BINARY)).drop(
        ["accepted", "finished"]
    )
    title = f"The message with the most targets: {name_briefly(address, fabric)}"
    return [draw_recipients(rows.to_pylist(), title=title)]


def draw_findings(tables: Tables, findings: pa.Table, peers: Collection[str]) -> list[tuple[bytes, Picture]]:
    """Pictures of the worst findings, keyed by their message."""
    graph: dict[bytes, str] = {}
    others: dict[bytes, str] = {}
    columns = (findings[name].to_pylist() for name in ("message", "check", "fabric"))
    for address, check, fabric in zip(*columns, strict=True):
        if address is None or len(graph) + len(others) >= MAX_FINDING_PICTURES:
            continue
        (graph if check.startswith(("gap.", "fork.")) else others).setdefault(address, fabric or "")
    pictures = _draw_graphs(tables, graph)
    communal = {community_of(peer)[0] for peer in peers}
    spread = [address for address, fabric in others.items() if fabric in communal]
    hops = read_hops(tables, spread) if spread else {}
    for address in spread:
        if any(hop.stage in ("accepted", "created") for hop in hops.get(address, [])):
            pictures.append((address, _draw_holders(address, hops[address], peers, "The spread of")))
    rest = {address: fabric for address, fabric in others.items() if fabric not in communal}
    return pictures + _draw_chains(tables, rest)


def _draw_graphs(tables: Tables, focus: dict[bytes, str]) -> list[tuple[bytes, Picture]]:
    if not focus:
        return []
    fellows: dict[bytes, list[bytes]] = {}
    for evidence in tables.read("forks", ("evidence",))["evidence"].to_pylist():
        for address in evidence or []:
            if address in focus:
                fellows.setdefault(address, evidence)
    everyone = set(focus) | {each for evidence in fellows.values() for each in evidence}
    around = read_neighbourhood(tables, everyone, steps=NEIGHBOUR_STEPS, limit=MAX_NEIGHBOURS)
    return [
        (
            address,
            draw_neighbourhood(
                fellows.get(address, [address]),
                around,
                steps=1 if address in fellows else NEIGHBOUR_STEPS,
                title=f"Around {name_briefly(address, fabric)}",
                caption="older messages on the left; a line leads from a message to what it refers to",
                is_evidence=address in fellows,
            ),
        )
        for address, fabric in focus.items()
    ]


def _draw_chains(tables: Tables, addresses: dict[bytes, str]) -> list[tuple[bytes, Picture]]:
    if not addresses:
        return []
    chains = read_chains(tables, addresses)
    by_part = {row[part]: row for row in chains.values() for part in _PARTS if row[part] is not None}
    alone = {address: _lone_chain(address) for address in addresses if address not in by_part}
    evidence, links = _read_parts(tables, [*chains.values(), *alone.values()])
    pictures = []
    for address, fabric in addresses.items():
        chain = by_part.get(address) or alone[address]
        if not any(evidence.hops.get(chain[part]) for part in _PARTS if chain[part] is not None):
            continue
        title = f"The path of {name_briefly(address, fabric)}"
        caption = _name_state(chain) if chain["state"] else "not part of a chain"
        pictures.append((address, draw_conversation([chain], evidence, links, title=title, caption=caption)))
    return pictures


def _lone_chain(address: bytes) -> dict[str, Any]:
    return {**dict.fromkeys(_PARTS), "message": address, "state": None, "begun_us": None}


def _read_parts(tables: Tables, chains: Iterable[dict[str, Any]]) -> tuple[Evidence, list[LinkSeen]]:
    addresses = {row[part] for row in chains for part in _PARTS if row[part] is not None}
    evidence = Evidence(messages=read_messages(tables, addresses), hops=read_hops(tables, addresses))
    keys = {row["key"]: address for address, row in evidence.messages.items()}
    rows = tables.read("links", where=pc.field("child").isin(pa.array(sorted(addresses), type=BINARY)))
    links = [
        LinkSeen(child, keys.get(parent, parent), relation)
        for child, parent, relation in zip(
            *(rows[name].to_pylist() for name in ("child", "parent", "relation")), strict=True
        )
    ]
    return evidence, links


def draw_dag_examples(tables: Tables, findings: pa.Table) -> list[Picture]:
    """Neighbourhoods: of forks and gaps or, if all is well, of a message that refers to others.

    Those with wrong references come first: only they have a line to show.
    """
    columns = (findings[name].to_pylist() for name in ("message", "check", "fabric"))
    wrong = [row for row in zip(*columns, strict=True) if row[0] is not None and row[1].startswith(("fork.", "gap."))]
    wrong.sort(key=lambda row: _LINED.index(row[1]) if row[1] in _LINED else len(_LINED))
    graph = dict(islice({address: fabric or "" for address, _, fabric in wrong}.items(), MAX_GRAPHS))
    if not graph:
        links = tables.read("links", ("fabric", "child"), where=pc.field("relation").isin(["refers", "previous"]))
        graph = dict(zip(links["child"].slice(0, 1).to_pylist(), links["fabric"].slice(0, 1).to_pylist(), strict=True))
    return [picture for _, picture in _draw_graphs(tables, graph)]
