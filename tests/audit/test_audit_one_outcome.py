"""What servers of simulated worlds forgot is named, nothing else is, and all who count deliveries agree.

The servers kept every promise; then hops are taken out of their journals, as if a server had lost a message.
"""

from __future__ import annotations

from collections import Counter

import pytest

from audit.audit_worlds import open_test_session
from dovetail.audit.message_trace import trace_message
from dovetail.audit.run import Audit
from dovetail.audit.settings import AuditSettings
from dovetail.audit.summary import summarize
from dovetail.audit.tables import Tables
from dovetail.dashboard.audit import read_verdicts, survey
from dovetail.model.address import Address
from dovetail.model.hop import Stage
from dovetail.model.outcome import ARRIVED, PENDING
from dovetail.pcp.vocabulary import is_outcome
from dovetail.report.survey import take_numbers
from dovetail.sim import SECOND_US, World
from dovetail.sim.pcp_scenario import BROKER, BROKER_URI
from dovetail.sim.scenario import Setting
from dovetail.sim.won_scenario import WonScenario
from dovetail.won.message import decode_message
from dovetail.won.vocabulary import CONNECTION_TYPES, MessageType, node_of_atom
from properties.test_audit_sim_oracle import write_journals
from properties.test_pcp_sim import run_world as run_pcp
from swarm.swarm_world import SETTINGS as SWARM
from swarm.swarm_world import SwarmWorld

WEEK_US = 7 * 24 * 3600 * SECOND_US


def forget_pcp(hops):
    """Take the outcome of a member of a wildcard out of the broker's journal."""
    routed = {(hop.message, hop.counterpart) for hop in hops if hop.stage is Stage.ROUTED}
    ends = (hop for hop in hops if is_outcome(hop.stage, hop.counterpart))
    lost = next(hop for hop in ends if (hop.message, hop.counterpart) in routed)
    return [hop for hop in hops if hop != lost], (lost.message.hex(), lost.counterpart, BROKER_URI)


def forget_won(hops, node, others, which):
    """Take a message to another node out of that node's journal, and what its sender's node heard of it."""
    read = {hop.message: decode_message(hop.raw) for part in hops.values() for hop in part if hop.raw is not None}
    sent = [
        read[hop.message]
        for hop in hops[node]
        if hop.stage is Stage.ACCEPTED
        and read[hop.message].type in CONNECTION_TYPES
        and node_of_atom(read[hop.message].sender) == others[node]
        and node_of_atom(read[hop.message].recipient) != others[node]
    ]
    lost = sent[which]
    about = {lost.address} | {m.address for m in read.values() if m.responding_to == lost.uri}
    kept = {
        name: [
            hop
            for hop in part
            if hop.message not in about
            or (
                name == node
                and read[hop.message].signer in (lost.signer, others[node])
                and hop.stage is not Stage.FORWARDED
            )
        ]
        for name, part in hops.items()
    }
    return kept, (lost.address.hex(), lost.recipient, others[node])


def won_world():
    """Nodes that say nothing for a week, and then something again. The journal of the last one is not ours to audit."""
    world = World(5)
    scenario = WonScenario(world, Setting(places=3, duration_us=3 * SECOND_US))
    own = {name: uri for name, uri in scenario.nodes.items() if name != "node-2"}
    world.run(20 * SECOND_US)
    earlier = {name: list(part) for name, part in world.hops().items() if name in own}
    world.run(WEEK_US + 60 * SECOND_US)
    sockets = [f"{scenario.atoms[name]}#chat" for name in ("owner-0-0", "owner-1-0")]
    for _ in range(2):
        world.command("owner-0-0", lambda core, now: core.send_message(MessageType.CONNECT, *sockets, now))
        world.run(20 * SECOND_US)
    later = {name: part[len(earlier[name]) :] for name, part in world.hops().items() if name in own}
    return earlier, later, own, {uri: world.randomness.derive_key(uri) for uri in own.values()}


@pytest.mark.timeout(600)
def test_what_servers_forgot_is_named_and_all_numbers_agree(tmp_path):
    broker, forgotten_pcp = forget_pcp(run_pcp(1)[0].hops()[BROKER])
    earlier, later, nodes, keys = won_world()
    earlier, forgotten_won = forget_won(earlier, "node-0", nodes, -1)
    later, echoed = forget_won(later, "node-0", nodes, 0)
    swarm = SwarmWorld(3, 3)
    swarm.traffic(4)
    swarm.run(20)
    journals = [*swarm.world.hops().values(), broker, *(earlier[name] + later[name] for name in nodes)]
    for hops in journals:
        write_journals(tmp_path, hops, keys.get(hops[0].server, bytes([7]) * 32))
    settings = AuditSettings(agreements={"": SWARM.agreement}, loss_timeout_us=SECOND_US)
    out = tmp_path / "out"
    said = Audit(spark=open_test_session(), lake=tmp_path / "lake", tables=out, settings=settings).run()

    tables = Tables.open(out)
    findings = [row for row in tables.scan("findings") if row["check"].startswith("delivery.")]
    named = {(row["message"], row["detail"], row["server"]) for row in findings if row["severity"] == "error"}
    assert named == {(m, f"for {whom}", server) for m, whom, server in (forgotten_pcp, forgotten_won)}
    late = [(row["message"], row["detail"]) for row in findings if row["check"] == "delivery.echoed"]
    assert late == [(echoed[0], f"for {echoed[1]}")]

    rows = list(tables.scan("deliveries"))
    counts = Counter((row["fabric"], row["outcome"]) for row in rows)
    assert [fabric for fabric, outcome in counts.elements() if outcome in PENDING] == ["won"], "the echoed one"
    assert {fabric for fabric, _ in counts} == {"pcp", "won", "swarm"}
    numbers = take_numbers(tables)
    for fabric, outcomes in said.deliveries.items():
        assert outcomes == numbers.outcomes_of(fabric) == {o: n for (f, o), n in counts.items() if f == fabric}
        arrived = sum(count for outcome, count in outcomes.items() if outcome in ("delivered", "handed_over"))
        assert numbers.arrived_of(fabric) == arrived
        assert f"{arrived:,} of {sum(outcomes.values()):,} deliveries arrived" in said.text()
    assert summarize(tables).deliveries == said.deliveries
    found = {item.check: item.findings for item in said.found}
    assert {item.check: item.findings for item in survey(out).checks} == found
    assert {item.check: item.findings for item in numbers.checks} == found

    kinds = {forgotten_pcp[0]: "bad", forgotten_won[0]: "bad", echoed[0]: "unsure"}
    for address, kind in kinds.items():
        told = {row["recipient"]: row["outcome"] for row in trace_message(tables, address)["deliveries"]}
        assert told == {row["recipient"]: row["outcome"] for row in rows if row["message"] == address}
        verdicts = read_verdicts(out, Address(bytes.fromhex(address)))
        assert verdicts[0].kind == kind
        assert sum(verdict.kind == "good" for verdict in verdicts) == sum(o in ARRIVED for o in told.values())
