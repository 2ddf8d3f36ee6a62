"""The page of a message: fields by the fabrics' own decoders, parents, children, hops on every server."""

from __future__ import annotations

import pytest

from dashboard import dashboard_world as world
from dovetail.dashboard import message
from dovetail.dashboard.markup import text
from dovetail.dashboard.message_page import message_page
from dovetail.dashboard.site_sources import Site
from dovetail.model.address import address_of
from dovetail.model.hop import Observation, Reason, Relation, Stage
from dovetail.swarm.content import Content, MsgHash, Reference, encode_content

PEER = "swarm://harbour/amber"
EARLIER = encode_content(Content(timestamp_ms=world.T0 // 1000, ttl_epochs=60, payload=b"tide table"))
LATER = encode_content(
    Content(
        timestamp_ms=world.T0 // 1000 + 5,
        ttl_epochs=60,
        references=(Reference(MsgHash(address_of(EARLIER)[:8]), 0), Reference(MsgHash(b"nowhere!"), 0)),
        payload="höher".encode(),
    )
)


def trace_of(site: Site, raw: bytes) -> message.MessageTrace:
    with site.open() as (sources, _):
        trace, damages = message.trace_message(sources, address_of(raw))
    assert trace is not None
    assert damages == []
    return trace


def test_swarm_references_lead_both_ways(tmp_path):
    with world.open_writer(tmp_path / "amber.journal", PEER) as writer:
        for raw in (EARLIER, LATER):
            writer.append([world.observe(raw, Stage.ACCEPTED, "192.0.2.7:4000")])
    site = Site((tmp_path,))
    (child,) = trace_of(site, EARLIER).relatives
    assert (child.address, child.is_child, child.relation) == (address_of(LATER), True, Relation.REFERS)
    later = trace_of(site, LATER)
    assert later.fabric.explain(LATER)["payload_text"] == "höher"
    assert [each.address for each in later.relatives] == [address_of(EARLIER), None]


def test_pcp_replies_lead_both_ways(site):
    request, reply = trace_of(site, world.REQUEST), trace_of(site, world.REPLY)
    assert [(each.address, each.is_child) for each in request.relatives] == [(address_of(world.REPLY), True)]
    assert [(each.address, each.is_child) for each in reply.relatives] == [(address_of(world.REQUEST), False)]
    assert request.is_search_complete
    assert [hop.stage for hop in request.hops] == [Stage.ACCEPTED, Stage.DELIVERED]


def test_a_search_that_ran_out_of_time_says_so(site, monkeypatch):
    monkeypatch.setattr(message, "SECONDS_FOR_RELATIVES", -1.0)
    assert not trace_of(site, world.REQUEST).is_search_complete


@pytest.mark.parametrize("server", ["pcp://broker/server", "https://node.example/won/resource", PEER])
@pytest.mark.parametrize("raw", [b"", b"\x00" * 40, b"{", b"\x01\xff\xff", "\u202e<b>".encode()])
def test_bytes_that_do_not_decode_say_why(tmp_path, server, raw):
    with world.open_writer(tmp_path / "one.journal", server) as writer:
        writer.append([world.observe(raw, Stage.REJECTED, "192.0.2.7:4000", reason=Reason.MALFORMED)])
    trace = trace_of(Site((tmp_path,)), raw)
    assert trace.info is None
    assert trace.error
    assert trace.relatives == []
    assert text(trace.error) in message_page(trace, "")


def test_a_message_whose_bytes_are_gone_is_still_found_by_what_names_it(tmp_path):
    with world.open_writer(tmp_path / "amber.journal", PEER) as writer:
        pulled = Observation(at_us=world.T0, stage=Stage.PULLED, message=address_of(EARLIER))
        writer.append([pulled])
        writer.append([world.observe(LATER, Stage.ACCEPTED, "192.0.2.7:4000")])
    trace = trace_of(Site((tmp_path,)), EARLIER)
    assert trace.error == "no journal here keeps the bytes any more"
    assert [(each.address, each.is_child) for each in trace.relatives] == [(address_of(LATER), True)]
