"""What pcp frames mean to the packages above, and `dovetail pcp decode`."""

import json
import uuid

from typer.testing import CliRunner

from dovetail.cli.pcp import app
from dovetail.model.address import address_of
from dovetail.model.fabric import Link, Role
from dovetail.model.hop import Reason, Relation
from dovetail.pcp.fabric import ERROR_TYPES, FABRIC
from pcp.pcp_frames import EXPIRES, ID, NOW, SENDER, TARGET, frame_v1, frame_v2


def run(*arguments: str, stdin: str = "") -> list[dict[str, object]]:
    result = CliRunner().invoke(app, ["decode", "--json", *arguments], input=stdin)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_both_versions_from_arguments_and_stdin():
    v1 = frame_v1(b'{"a":1}', (b'{"hops":[]}', b"\xff"))
    first, second = run(v1.hex(), frame_v2(data=[1]).hex())
    assert first == {
        "version": 1,
        "id": ID,
        "message_type": "http://example.com/ping",
        "expires": EXPIRES,
        "targets": [TARGET],
        "sender": SENDER,
        "data": {"a": 1},
        "debug": [{"content": {"hops": []}}, {"content_hex": "ff"}],
        "address": address_of(v1).hex(),
        "size": len(v1),
    }
    assert (second["version"], second["data"]) == (2, [1])
    assert run(stdin=f"{v1.hex()}\n\n{frame_v2().hex()}\n")[0] == first


def test_errors_name_their_class_and_detail():
    assert run("00") == [{"error": "malformed", "detail": "read 1 bytes, expected at least 6"}]
    assert run("zz")[0]["error"] == "malformed"
    assert run(frame_v1(extra=1).hex())[0]["error"] == "invalid_schema"
    assert run("--layer", "v1", frame_v2().hex())[0]["error"] == "unsupported_version"


def test_opaque_data_is_shown_as_hex():
    assert FABRIC.explain(frame_v1(b"\x00\x01"))["data_hex"] == "0001"


def test_now_tells_whether_it_is_expired():
    assert run("--now", str(NOW // 1000), frame_v1().hex())[0]["expired"] is False
    assert run("--now", str(NOW // 1000 + 60_000), frame_v1().hex())[0]["expired"] is True


def test_a_message_of_either_version():
    v1, v2 = FABRIC.read(frame_v1()), FABRIC.read(frame_v2())
    assert (v1.version, v1.id, v1.key, v1.type) == ("1", ID, uuid.UUID(ID).bytes, "http://example.com/ping")
    assert (v1.sender, v1.recipients, v1.expires_us) == (SENDER, (TARGET,), NOW + 60_000_000)
    assert (v2.version, v2.id, v2.expires_us) == ("2", ID, None)
    assert v1.address == address_of(frame_v1())


def test_a_reply_names_the_id_of_its_request_in_any_case():
    request = "0123ABCD-0000-4000-8000-00000000000F"
    info = FABRIC.read(frame_v1(**{"in-reply-to": request}))
    assert info.links == (Link(uuid.UUID(request).bytes, Relation.IN_REPLY_TO),)
    assert FABRIC.show_key(info.links[0].parent) == request.lower()
    assert FABRIC.needle(info.links[0].parent) in frame_v1(**{"in-reply-to": request}).lower()
    assert (info.role, FABRIC.read(frame_v1()).role) == (Role.FIRST, None)


def test_an_error_of_the_broker_is_a_failure():
    for kind in ERROR_TYPES:
        assert FABRIC.read(frame_v1(message_type=kind, **{"in-reply-to": ID})).role is Role.FAILURE


def test_bytes_that_are_no_frame_are_refused_with_a_reason():
    assert FABRIC.read(b"").reason is Reason.MALFORMED
    assert FABRIC.read(b"{}").reason is Reason.INVALID_SCHEMA


def test_two_messages_with_one_id_contradict_each_other():
    one, other = FABRIC.read(frame_v1(b"1")), FABRIC.read(frame_v1(b"2"))
    assert one.address != other.address
    assert FABRIC.conflict_keys(one) == FABRIC.conflict_keys(other) == {"shared_id": one.key}
