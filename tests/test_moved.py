"""Old import paths still work, with a warning that names the new one."""

import importlib
import sys

import pytest

from dovetail._moved import MOVED


@pytest.mark.parametrize("old", sorted(set(MOVED) - {name for name in MOVED if name.startswith(("pipeline", "audit"))}))
def test_an_old_import_path_gives_the_module_of_the_new_one(old, monkeypatch):
    for name in [name for name in sys.modules if name.removeprefix("dovetail.") in MOVED]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.warns(DeprecationWarning, match=f"dovetail.{old} has moved to dovetail.{MOVED[old]}"):
        module = importlib.import_module(f"dovetail.{old}")
    assert module is importlib.import_module(f"dovetail.{MOVED[old]}")
    assert module.__spec__.name == f"dovetail.{MOVED[old]}"


def test_names_that_never_were_are_not_found():
    with pytest.raises(ModuleNotFoundError, match="dovetail.shelves"):
        importlib.import_module("dovetail.shelves")
