import json
import sys

import pytest

from dovetail.audit.summary import FoundCheck, Summary
from dovetail.cli.output import escape, print_json, print_record, print_rows, say
from dovetail.cli.table_options import Form


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ümläut 漢字", "plain ümläut 漢字"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("two\nlines\ttab\r", "two\\nlines\\ttab\\r"),
        ("c1 \x9b del \x7f nul \0", "c1 \\x9b del \\x7f nul \\x00"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("lone \udc80", "lone \\udc80"),
    ],
)
def test_control_characters_are_made_visible(text, shown):
    assert escape(text) == shown


def test_talk_goes_to_stderr_on_one_line(capsys):
    say("a\nb")
    assert capsys.readouterr() == ("", "a\\nb\n")


def test_json_is_one_safe_line_that_means_the_same(capsys):
    value = {"text": "\x1b[2J \x9b \u202e ü \n", "number": 3, "none": None}
    print_json(value)
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or ord(c) == 0x202E for c in out.rstrip("\n"))
    assert json.loads(out) == value


def test_rows_are_aligned_columns_when_nobody_looks(capsys):
    rows = [{"name": "a", "size": 1, "hidden": 0}, {"name": "long\nname", "size": None}]
    print_rows(rows, ["name", "size"])
    assert capsys.readouterr().out == "name        size\na           1\nlong\\nname  -\n"


def test_rows_without_any_are_a_header(capsys):
    print_rows([], ["name", "size"])
    assert capsys.readouterr().out == "name  size\n"


def test_rows_as_json_hold_everything(capsys):
    print_rows([{"name": "a", "hidden": True}], ["name"], Form(as_json=True))
    assert json.loads(capsys.readouterr().out) == {"name": "a", "hidden": True}


def test_rows_on_a_terminal_take_no_markup_from_data(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    print_rows([{"name": "[red]x[/red] \x1b[31m"}], ["name"])
    assert "[red]x[/red] \\x1b[31m" in capsys.readouterr().out


def test_a_record_is_a_line_per_value(capsys):
    print_record({"name": "a", "many": ["b", "c"], "flag": True})
    assert capsys.readouterr().out == "name  a\nmany  b\n      c\nflag  yes\n"


def test_every_table_has_every_form(dovetail):
    """With a command that needs no files."""
    assert dovetail("audit", "explain", "--csv").out.startswith("table,layer,made_from,meaning\nruns,log,every table,")
    assert dovetail("audit", "explain", "--markdown").out.startswith("| table | layer |")
    assert dovetail("config", "show", "--csv").out.startswith("key,value,from\n")
    ran = dovetail("audit", "explain", "--csv", "--json")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(
    ("found", "limit", "expected"),
    [
        (["warning"], "error", False),
        (["warning"], "warning", True),
        (["note"], "warning", False),
        (["note", "error"], "error", True),
        (["error"], "warning", True),
        ([], "warning", False),
    ],
)
def test_what_fail_on_counts(found, limit, expected):
    checks = [FoundCheck(check="x", severity=each, sentence="", findings=1, examples=[]) for each in found]
    empty: dict[str, int] = {}
    summary = Summary(lake="", as_of="", hops=0, messages=empty, deliveries={}, chains=empty, servers=[], found=checks)
    assert summary.has_findings(limit) is expected
