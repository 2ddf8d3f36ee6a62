import json
import tomllib

import pytest
from msgspec import NODEFAULT

from dovetail.site.config import Config
from dovetail.site.config.schema import example_of, keys_of, sections_of, toml_value


@pytest.fixture
def file(tmp_path):
    return tmp_path / "dovetail.toml"


def test_check_says_ok_on_stderr_only(dovetail, file):
    file.write_text("[lake]\nseal_interval_s = 30\n")
    ran = dovetail("config", "check", file)
    assert (ran.code, ran.out) == (0, "")
    assert f"{file}: ok, 1 of " in ran.err


def test_check_lists_every_problem(dovetail, file):
    file.write_text('[lake]\nseal_interval_s = 0\n[logs]\nlevel = "loud"\n')
    ran = dovetail("config", "check", file)
    assert ran.code == 3
    assert ran.err.splitlines() == [
        f"dovetail: {file}: lake.seal_interval_s = 0: must be a whole number from 1 to 86400",
        f'dovetail: {file}: logs.level = "loud": must be "debug" or "info" or "warning" or "error"',
    ]


def test_check_as_json(dovetail, file):
    file.write_text("[lake\n")
    ran = dovetail("config", "check", file, "--json")
    assert ran.code == 3
    answer = json.loads(ran.out)
    assert answer["ok"] is False
    assert answer["problems"][0].startswith(f"{file}:1:6: ")


def test_check_warns_of_rules_that_let_anybody_command_all(dovetail, file):
    file.write_text('[[pcp]]\nname = "hub"\nrules = [{ allow = true }]\n')
    ran = dovetail("config", "check", file, "--json")
    assert ran.code == 0
    (warning,) = json.loads(ran.out)["warnings"]
    assert warning.startswith(
        "pcp[0] hub: a client with any certificate may connect as any type and send anything to every client"
    )
    assert f"dovetail: {file}: warning: {warning}" in ran.err


def test_show_tells_where_each_value_came_from(dovetail, file, monkeypatch):
    file.write_text('[lake]\nseal_interval_s = 30\ndirectory = "l"\n')
    monkeypatch.setenv("DOVETAIL_LOGS__LEVEL", "debug")
    ran = dovetail("config", "show", file, "--json")
    settings = {row["key"]: (row["value"], row["from"]) for row in map(json.loads, ran.out.splitlines())}
    assert settings["lake.seal_interval_s"] == (30, "file")
    assert settings["lake.directory"] == (str(file.parent / "l"), "file")
    assert settings["logs.level"] == ("debug", "DOVETAIL_LOGS__LEVEL")
    assert settings["lake.target_file_mb"] == (128, "default")
    assert set(settings) == {key.name for key in keys_of(Config)}


def test_show_without_a_file_shows_the_defaults(dovetail):
    ran = dovetail("config", "show")
    assert ran.code == 0
    assert ran.out.startswith("key ")


def flatten(table, prefix=""):
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def test_example_is_a_whole_valid_file_of_defaults_and_examples(dovetail, file):
    text = dovetail("config", "example").out
    file.write_text(text)
    checked = dovetail("config", "check", file)
    assert (checked.code, len(checked.err.splitlines())) == (0, 1), "neither problem nor warning"
    written = tomllib.loads(text)
    for heading, section in sections_of(Config):
        found = written[heading.strip("[]")]
        values = dict(flatten(found[0] if heading.startswith("[[") else found))
        given = {
            key.name: key.default if example_of(key.kind) is NODEFAULT else example_of(key.kind)
            for key in keys_of(section)
        }
        expected = dict(flatten({name: value for name, value in given.items() if value is not None}))
        assert {name: toml_value(value) for name, value in values.items()} == {
            name: toml_value(value) for name, value in expected.items()
        }


def test_a_file_that_is_not_there_is_an_error(dovetail, tmp_path):
    assert dovetail("config", "check", tmp_path / "none.toml").code == 1
    ran = dovetail("config", "show", tmp_path / "none.toml")
    assert ran.code == 1
    assert ran.err == f"dovetail: {tmp_path / 'none.toml'} cannot be read: No such file or directory\n"
