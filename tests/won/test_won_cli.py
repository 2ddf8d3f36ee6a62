"""`dovetail won` from the outside: arguments in, text out."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from dovetail.cli.won import app
from dovetail.won.trig import encode_bundle
from won.won_samples import build, success

runner = CliRunner()


def run(*arguments, **options):
    return runner.invoke(app, [str(argument) for argument in arguments], catch_exceptions=False, **options)


def test_decode_prints_one_object_per_message(tmp_path):
    message = build(text="hello")
    path = tmp_path / "bundle.trig"
    path.write_bytes(encode_bundle([message, success(message)]))
    result = run("decode", path, "--json")
    first, second = [json.loads(line) for line in result.stdout.splitlines()]
    assert (first["uri"], first["text"], first["address"]) == (message.uri, "hello", "ok")
    assert second["respondingTo"] == message.uri


def test_decode_reads_standard_input_and_says_why_it_refuses():
    result = run("decode", "--json", input=b"not rdf at all")
    assert json.loads(result.stdout)["error"] == "malformed"


def test_decode_for_people_escapes_control_characters(tmp_path):
    path = tmp_path / "m.nq"
    path.write_bytes(build(text="\x1b[31mred").raw)
    assert "\x1b" not in run("decode", path).stdout
