from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from dovetail.cli.main import Noun, load_noun, report
from receipt import receipt_samples as samples


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


@pytest.fixture
def receipt(capsys) -> Callable[..., Ran]:
    """Runs `dovetail receipt ARGUMENTS` in this process."""
    command = load_noun(Noun("receipt", ""))

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        try:
            code = command.main([str(argument) for argument in arguments], standalone_mode=False) or 0
        except Exception as error:
            code = report(error)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


@pytest.fixture
def trust(tmp_path):
    """A trust file with all keys."""
    path = tmp_path / "trusted.keys"
    path.write_text("# ours\n" + "".join(f"{verifier.text()}\n" for verifier in samples.verifiers()))
    return path


@pytest.mark.parametrize("fabric", samples.CASES)
def test_build_then_verify(receipt, trust, tmp_path, fabric):
    case = samples.CASES[fabric](tmp_path / "journals")
    journals = [part for path in case.journals for part in ("--journal", path)]
    built = receipt("build", case.address.hex()[:12], *journals, "-o", tmp_path / "receipt.json")
    assert (built.code, built.out, built.err) == (0, "", "")
    verified = receipt("verify", tmp_path / "receipt.json", "--trust", trust)
    assert verified.code == 0
    assert "commits to this" in verified.out
    assert "not proven:" in verified.out
    described = json.loads(receipt("verify", tmp_path / "receipt.json", "--trust", trust, "--json").out)
    assert described["valid"] is True
    assert described["fabric"] == fabric


def test_build_writes_the_same_to_stdout(receipt, tmp_path):
    case = samples.pcp_case(tmp_path)
    assert receipt("build", case.address.hex(), "--journal", case.journals[0]).out.encode() == case.build()


def test_verify_tells_the_first_broken_step_of_each_file(receipt, trust, tmp_path):
    data = samples.pcp_case(tmp_path).build()
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_bytes(data)
    bad.write_bytes(data.replace(b"20:00:00.000009Z", b"20:00:00.000008Z"))
    ran = receipt("verify", bad, good, "--trust", trust)
    assert ran.code == 1
    assert "bad.json: not valid: claim: " in ran.err
    assert f"{good}: valid" in ran.out


def test_terminal_escapes_of_peers_are_made_visible(receipt, trust, tmp_path):
    case = samples.pcp_case(tmp_path)
    (tmp_path / "r.json").write_bytes(case.build())
    out = receipt("verify", tmp_path / "r.json", "--trust", trust).out
    assert r"agent\"3\n" in out


def test_show_prints_the_message_and_says_that_nobody_is_trusted(receipt, tmp_path):
    path = tmp_path / "r.json"
    path.write_bytes(samples.pcp_case(tmp_path).build())
    ran = receipt("show", path)
    assert ran.code == 0
    assert "restart the pump" in ran.out
    assert "not verified" in ran.err
    assert json.loads(receipt("show", path, "--json").out)["valid"] is False


@pytest.mark.parametrize("arguments", [("build", "zz", "--journal", "x"), ("build", "00"), ("build", "00" * 33)])
def test_misuse_is_exit_code_2(receipt, tmp_path, arguments):
    journal = samples.pcp_case(tmp_path).journals[0]
    ran = receipt(*[journal if argument == "x" else argument for argument in arguments])
    assert ran.code == 2


def test_unknown_messages_and_journals_are_one_line(receipt, tmp_path):
    journal = samples.pcp_case(tmp_path).journals[0]
    ran = receipt("build", "00" * 32, "--journal", journal)
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    ran = receipt("build", "00" * 32, "--journal", tmp_path / "none.journal")
    assert (ran.code, ran.err.count("\n")) == (1, 1)
