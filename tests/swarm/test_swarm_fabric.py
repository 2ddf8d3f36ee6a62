"""What swarm messages mean to the packages above."""

import pytest

from dovetail.model.fabric import Agreement, Link, Refused
from dovetail.model.hop import Reason, Relation
from dovetail.swarm.content import Content, Reference, encode_content, message_address
from dovetail.swarm.fabric import FABRIC
from dovetail.swarm.settings import SwarmSettings
from swarm.vectors import of_layer

T_MS = 1_763_236_800_123
ANY_WORK = Agreement(epoch_ms=60_000, work_target=1 << 256)
VECTORS = [vector for vector in of_layer("uep12") if vector.get("opcode", 0x10) == 0x10]
JUDGED_LATER = {"TtlTooLong", "FromFuture", "Expired"}


def encode(**fields):
    return encode_content(Content(**({"timestamp_ms": T_MS, "ttl_epochs": 3} | fields)))


def test_a_message_with_its_references():
    edges = tuple(Reference(bytes([i] * 8), diff) for i, diff in enumerate((0, -5, 7, -0x8000)))
    raw = encode(references=edges, payload=b"hi")
    info = FABRIC.read(raw, ANY_WORK)
    expires_us = (T_MS + 3 * 60_000) * 1000
    assert (info.address, info.key, info.id) == (message_address(raw), info.address[:8], info.address[:8].hex())
    assert (info.type, info.created_us, info.expires_us, info.work_valid) == ("content", T_MS * 1000, expires_us, True)
    times = (expires_us, expires_us + 300_000_000, expires_us - 420_000_000, None)
    assert info.links == tuple(Link(edge.msg_hash, Relation.REFERS, at) for edge, at in zip(edges, times, strict=True))
    assert (info.role, info.signed, info.sender, info.recipients) == (None, None, None, ())


def test_without_an_agreement_nobody_knows_lifetime_and_work():
    info = FABRIC.read(encode(references=(Reference(b"12345678", 1),)))
    assert (info.expires_us, info.work_valid, info.links[0].parent_expires_us) == (None, None, None)


def test_work_is_judged_by_the_target_of_the_swarm():
    assert FABRIC.read(encode(), FABRIC.default_agreement).work_valid is False
    assert FABRIC.read(encode(), ANY_WORK).work_valid is True


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_vectors_are_read_or_refused_as_they_say(vector):
    info = FABRIC.read(bytes.fromhex(vector["hex"]), FABRIC.default_agreement)
    if vector["expect"] == "ok" or vector["expect"] in JUDGED_LATER:
        assert info.work_valid is True
    elif vector["expect"] == "BadProofOfWork":
        assert info.work_valid is False
    else:
        assert isinstance(info, Refused)


def test_an_explanation_shows_text_and_does_not_judge_the_work():
    fields = FABRIC.explain(encode(payload="grüße".encode()))
    assert (fields["payload_text"], fields["timestamp"]) == ("grüße", T_MS)
    assert "work_ok" not in fields
    assert FABRIC.explain(b"\x78\x10")["error"] == "BadIndicator"
    assert FABRIC.read(b"\x78\x10").reason is Reason.BAD_INDICATOR


def test_the_community_is_the_swarm_in_the_uri():
    assert FABRIC.community("swarm://chat/peer-1") == "chat"
    assert FABRIC.community("pcp://broker/server") == ""


def test_an_agreement_is_known_by_the_name_and_the_address_of_its_swarm():
    agreed = SwarmSettings(name="chat", epoch_ms=5_000, work=2)
    found = FABRIC.parse_agreements(b'name = "chat"\nepoch_ms = 5000\nwork = 2\n')
    agreement = Agreement(epoch_ms=5_000, work_target=1 << 255)
    assert found == {"chat": agreement, agreed.swarm_address.hex(): agreement}
    with pytest.raises(ValueError, match="name"):
        FABRIC.parse_agreements(b"")
