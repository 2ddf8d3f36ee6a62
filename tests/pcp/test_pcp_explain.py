"""`dovetail pcp decode`."""

import json

from typer.testing import CliRunner

from dovetail.cli.pcp import app
from dovetail.model.address import address_of
from dovetail.pcp.explain import explain_frame
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
    assert explain_frame(frame_v1(b"\x00\x01"))["data_hex"] == "0001"


def test_now_tells_whether_it_is_expired():
    assert run("--now", str(NOW // 1000), frame_v1().hex())[0]["expired"] is False
    assert run("--now", str(NOW // 1000 + 60_000), frame_v1().hex())[0]["expired"] is True
