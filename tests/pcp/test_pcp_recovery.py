"""After a restart the broker still owes what it accepted and could not hand over."""

from dovetail.model.hop import Hop, Reason, Stage
from pcp.pcp_frames import NOW
from pcp.pcp_world import World

A, B = "pcp://client_a/agent", "pcp://client_b/agent"


def journal_of(world: World) -> list[Hop]:
    hops: list[Hop] = []
    for seen in world.observations():
        hops += [
            Hop(
                server="pcp://broker/server",
                seq=len(hops),
                at_us=seen.at_us,
                fabric="pcp",
                stage=seen.stage,
                message=seen.message,
                counterpart=counterpart,
                reason=seen.reason,
                raw=seen.raw,
            )
            for counterpart in (seen.counterparts or (None,))
        ]
    return hops


def crashed_world() -> tuple[World, bytes, bytes]:
    world = World()
    a, b = world.associate("client_a"), world.associate("client_b")
    done = world.send(a, world.message(A, B))
    world.pause(b)
    owed = world.send(a, world.message(A, B, "pcp://ghost/agent", "pcp://*/agent"))
    return world, done, owed


def test_what_had_no_outcome_is_redelivered_after_a_restart():
    before, _, owed = crashed_world()
    after = World()
    after.broker.restore(journal_of(before), NOW)
    b = after.open("client_b")
    after.send(b, after.associate_request(B))
    assert after.received[b][1:] == [owed]
    assert after.hops(owed) == [(Stage.REDELIVERED, B, None)]


def test_what_expired_meanwhile_gets_its_outcome():
    before, _, owed = crashed_world()
    after = World()
    after.broker.restore(journal_of(before), NOW + 3_600_000_000)
    after.drain()
    assert after.hops(owed) == [(Stage.EXPIRED, B, Reason.LIFETIME_OVER)]
