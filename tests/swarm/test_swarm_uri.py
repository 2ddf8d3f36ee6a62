"""URIs of peers and endpoints."""

from __future__ import annotations

from dovetail.swarm.uri import endpoint_uri, peer_uri, swarm_name_of


def test_the_name_of_the_swarm_comes_back_from_a_peers_uri():
    assert peer_uri("board", b"\x05" * 20) == "swarm://board/" + "05" * 20
    assert swarm_name_of(peer_uri("board", b"\x05" * 20)) == "board"


def test_other_uris_name_no_swarm():
    assert endpoint_uri("192.0.2.7:4711") == "udp://192.0.2.7:4711"
    for uri in (
        "udp://192.0.2.7:4711",
        "pcp://board/server",
        "swarm:///peer",
        "xswarm://board/peer",
        "swarm://board",
        "",
    ):
        assert swarm_name_of(uri) == ""
