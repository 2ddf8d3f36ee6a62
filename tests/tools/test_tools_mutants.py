"""`tools/mutants.py` changes one thing at a time, and runs the tests on the changed sources."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def mutants():
    spec = importlib.util.spec_from_file_location("tools_mutants", ROOT / "tools" / "mutants.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_mutant_has_one_change(mutants):
    source = "def f(a, b):\n    if a < b and b is not None:\n        return a + 1\n    return True\n"
    found = {text.removeprefix("def f(a, b):\n") for _, _, text in mutants.mutate(source)}
    kept = "    if a < b and b is not None:\n        return a + 1\n    return True"
    assert found == {
        kept.replace("a < b", "a <= b"),
        kept.replace("is not None", "is None"),
        kept.replace(" and ", " or "),
        kept.replace("if a < b and b is not None", "if not (a < b and b is not None)"),
        kept.replace("a + 1", "a - 1"),
        kept.replace("a + 1", "a + 2"),
        kept.replace("True", "False"),
    }


def test_every_module_and_test_that_is_named_exists(mutants):
    for module, tests in mutants.TARGETS.items():
        assert (ROOT / "src" / "dovetail" / module).exists()
        assert all((ROOT / test).exists() for test in tests.split())


def test_a_mutant_is_seen_by_the_tests_of_its_module(mutants, tmp_path):
    """The tests run on the copy, not on the original sources."""
    package = tmp_path / "src" / "dovetail"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('the copy')\n")
    assert not mutants.survives(tmp_path / "src", "tests/model/test_durations.py")


def test_nothing_is_concluded_from_tests_that_fail_without_a_mutant(mutants, monkeypatch, capsys):
    monkeypatch.setitem(mutants.TARGETS, "swarm/content.py", "tests/tools/no_such_test.py")
    monkeypatch.setattr("sys.argv", ["mutants.py", "swarm/content.py"])
    assert mutants.main() == 1
    said = capsys.readouterr()
    assert "swarm/content.py fail on the unchanged module" in said.err
    assert said.out == "", "no mutant is counted as found"
