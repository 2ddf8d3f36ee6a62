"""`dovetail swarm decode` prints the vectors' fields and refusals, one JSON object per line."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from dovetail.cli.swarm import app
from dovetail.model.errors import UsageError
from swarm.vectors import VECTORS, named, of_layer


def decode(*arguments: str, stdin: str | None = None) -> list[dict]:
    result = CliRunner().invoke(app, ["decode", *arguments], input=stdin)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0
    return [json.loads(line) for line in result.stdout.splitlines()]


def arguments_of(vector: dict) -> list[str]:
    layer = vector["layer"].removesuffix("-accept")
    options = ["--layer", layer]
    for option, key in (
        ("--now", "now"),
        ("--swarm", "dht_address"),
        ("--secret", "secret"),
        ("--max-ttl", "max_ttl_epoch"),
    ):
        if vector.get(key) is not None:
            options += [option, str(vector[key])]
    return options


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_every_vector_through_the_command_line(vector):
    lines = vector["fragments"] if "fragments" in vector else [vector["hex"]]
    (found,) = decode(*arguments_of(vector), stdin="\n".join(lines) + "\n")
    if vector["expect"] != "ok":
        assert found["error"] == vector["expect"]
        return
    assert "error" not in found
    keys = "opcode msg_hash work work_ok expiration pullable inner swarm_sig subband seq_no signature assembled_len"
    expected = vector.get("fields", {}) | {
        key: vector[key] for key in [*keys.split(), "assembled_sha256", "mask"] if key in vector
    }
    for edge in expected.get("references", []):
        edge.pop("of", None)
    assert {key: found[key] for key in expected} == expected


def test_arguments_and_standard_input_give_the_same():
    hexes = [vector["hex"] for vector in of_layer("uep12") if vector["hex"]]
    assert decode(*hexes) == decode(stdin="\n".join(hexes))
    assert len(decode(*hexes)) == len(hexes)


def test_target_and_epoch_are_options():
    (found,) = decode(named("pow_off_by_one")["hex"], "--target", "f" * 64, "--epoch-ms", "1000")
    assert found["expiration"] == found["timestamp"] + 60 * 1000


@pytest.mark.parametrize(
    "arguments",
    [["xyz"], ["--target", "zz", "00"], ["--layer", "uep10", "62" + "00" * 8]],
)
def test_misuse(arguments):
    with pytest.raises(UsageError):
        decode(*arguments)


def test_an_unknown_layer_is_refused_when_options_are_read():
    result = CliRunner().invoke(app, ["decode", "--layer", "uep9", "00"])
    assert result.exit_code == 2
    assert "'uep9' is not one of" in result.output
