"""Rules that change while clients are connected."""

import json

from dovetail.model.hop import Reason, Stage
from dovetail.pcp.settings import ALLOW_ALL, PcpSettings, Rule
from pcp.pcp_frames import BROKER, SENDER, TARGET, read_v1
from pcp.pcp_world import INVENTORY, World

NO_PINGS = (Rule(allow=False, message_type="http://example.com/ping", name="no pings"), *ALLOW_ALL)


def change(world: World, *rules: Rule) -> list[int]:
    refused = world.broker.change_rules(PcpSettings(rules=rules), world.now)
    world.drain()
    return refused


def test_new_rules_decide_about_the_next_message_also_where_the_old_verdict_was_remembered():
    world = World()
    sender, receiver = world.associate("client_a", "controller"), world.associate("client_b")
    first = world.send(sender, world.message(SENDER, TARGET))
    assert change(world, *NO_PINGS) == []
    world.assert_rejected(world.send(sender, world.message(SENDER, TARGET)), Reason.UNAUTHORIZED)
    assert change(world, *ALLOW_ALL) == []
    third = world.send(sender, world.message(SENDER, TARGET))
    assert world.received[receiver] == [first, third]


def test_a_trace_tells_the_new_rules():
    world = World()
    change(world, *NO_PINGS)
    assert not world.broker.trace(SENDER, "http://example.com/ping", [TARGET]).is_allowed
    assert world.broker.settings.rules == NO_PINGS


def test_what_was_accepted_under_the_old_rules_is_delivered():
    world = World()
    sender, receiver = world.associate("client_a", "controller"), world.associate("client_b")
    world.pause(receiver)
    frame = world.send(sender, world.message(SENDER, TARGET))
    change(world, *NO_PINGS)
    world.resume(receiver)
    assert world.received[receiver] == [frame]


def test_connections_that_may_not_associate_any_more_are_named():
    world = World()
    world.open("client_d")  # not associated: the rules decide when it requests it
    sender, receiver, modern = (
        world.associate("client_a", "controller"),
        world.associate("client_b"),
        world.connect_v2("client_c"),
    )
    assert change(world, Rule(allow=False, sender="pcp://*/agent", target=BROKER), *ALLOW_ALL) == [receiver, modern]
    assert change(world, Rule(allow=True, sender="pcp://*/agent")) == [sender]
    assert change(world, *ALLOW_ALL) == []


def test_a_subscription_ends_where_the_rules_do_not_allow_it_any_more():
    world = World(inventory_batch_ms=50)
    watcher = world.associate("client_a", "controller")
    query = json.dumps({"query": ["pcp://*/*"], "subscribe": True}).encode()
    world.send(watcher, world.message(SENDER, BROKER, message_type=INVENTORY, data=query))
    change(world, *NO_PINGS)
    world.associate("client_b")
    world.pass_time(100)
    kinds = [envelope["message_type"].rpartition("/")[2] for envelope, _ in world.replies(watcher)]
    assert kinds == ["inventory_response", "inventory_update"]
    change(world, Rule(allow=False, message_type=INVENTORY), *ALLOW_ALL)
    world.associate("client_c")
    world.pass_time(100)
    assert len(world.received[watcher]) == 2


def test_the_journal_tells_which_rules_decide():
    world = World()
    change(world, *NO_PINGS)
    created, delivered = world.observations()
    assert (created.stage, delivered.stage, delivered.counterparts) == (Stage.CREATED, Stage.DELIVERED, (BROKER,))
    assert created.message == delivered.message
    fields, data, _ = read_v1(created.raw)
    assert (fields["message_type"], fields["targets"]) == ("dovetail:rules_changed", [BROKER])
    assert [rule["name"] for rule in json.loads(data)["rules"]] == ["no pings", "allow all"]


def test_types_and_groups_change_with_the_rules_and_stand_in_the_journal():
    world = World()
    sender, agent = world.associate("client_a", "controller"), world.associate("client_b")
    settings = PcpSettings(
        rules=ALLOW_ALL, types={"controller": ("@bosses",), "agent": ("*",)}, groups={"bosses": ("x",)}
    )
    assert world.broker.change_rules(settings, world.now) == [sender]
    world.drain()
    data = json.loads(read_v1(world.observations()[-2].raw)[1])
    assert (data["types"], data["groups"]) == ({"controller": ["@bosses"], "agent": ["*"]}, {"bosses": ["x"]})
    again = world.open("client_c")
    world.send(again, world.associate_request("pcp://client_c/controller"))
    assert world.replies(again)[-1][1]["success"] is False
    assert "may not claim the client type 'controller'" in world.replies(again)[-1][1]["reason"]
    assert agent not in [connection for connection, _ in world.closes()]


def test_a_v2_client_may_claim_only_the_types_of_its_certificate():
    world = World(types={"controller": ["boss"], "agent": ["*"]})
    world.connect_v2("client_a", "controller")
    assert [code for _, code in world.closes()] == [4002]
    world.connect_v2("boss", "controller")
    assert world.inventory() == {"pcp://boss/controller"}
