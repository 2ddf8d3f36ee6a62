"""Misuse of the command ends with one line that says what to do."""

from __future__ import annotations

import socket

import pytest

from dovetail.cli.main import main


def one_line(capsys) -> str:
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_a_port_in_use_is_named(capsys, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["dashboard", "--journals", str(tmp_path), "--port", str(port)]) == 1
    line = one_line(capsys)
    assert f"port {port} of 127.0.0.1 is in use" in line
    assert "choose another port" in line


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "nothing to show"),
        (["--journals", "nowhere"], 1, "nowhere does not exist"),
        (["--journals", ".", "--host", "0.0.0.0"], 2, "--token-file"),
        (["--journals", ".", "--metrics", "x"], 2, "NAME=URL"),
        (["--journals", ".", "--token-file", "missing"], 1, "missing"),
        (["--journals", ".", "--host", "192.0.2.1", "--token-file", "token"], 1, "not an address of this machine"),
        (["--journal", "."], 2, "--journal"),
    ],
)
def test_misuse_is_one_line(capsys, tmp_path, monkeypatch, arguments, code, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "token").write_text("a-token-that-is-long-enough\n")
    assert main(["dashboard", *arguments]) == code
    assert words in one_line(capsys)
