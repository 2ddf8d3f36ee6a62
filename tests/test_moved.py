"""Old import paths still work, with a warning that names the new one."""

import importlib
import sys
import warnings

import pytest

from dovetail._moved import MOVED

SPARK = "pipeline."
"""Modules that import pyspark, which takes seconds; one rule moves them all."""


@pytest.mark.parametrize("old", [name for name in sorted(MOVED) if not name.startswith(SPARK)])
def test_an_old_import_path_gives_the_module_of_the_new_one(old, monkeypatch):
    for name in [name for name in sys.modules if name.removeprefix("dovetail.") in MOVED]:
        monkeypatch.delitem(sys.modules, name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module = importlib.import_module(f"dovetail.{old}")
    assert f"dovetail.{old} has moved to dovetail.{MOVED[old]}" in [str(each.message) for each in caught]
    assert module is importlib.import_module(f"dovetail.{MOVED[old]}")
    assert module.__spec__.name == f"dovetail.{MOVED[old]}"


def test_names_that_never_were_are_not_found():
    with pytest.raises(ModuleNotFoundError, match=r"dovetail\.shelves"):
        importlib.import_module("dovetail.shelves")
