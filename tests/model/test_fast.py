"""Which implementation is chosen, and why."""

import sys
from types import SimpleNamespace

import pytest

from dovetail import fast


def test_python_where_it_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "dovetail_fast", SimpleNamespace(VERSION=fast.VERSION))
    assert fast.choose("python") == (None, "DOVETAIL_FAST says so")


def test_native_where_it_is_installed(monkeypatch):
    module = SimpleNamespace(VERSION=fast.VERSION)
    monkeypatch.setitem(sys.modules, "dovetail_fast", module)
    for wanted in ("", "native"):
        assert fast.choose(wanted) == (module, "dovetail_fast is installed")


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (None, "dovetail_fast is not installed"),
        (SimpleNamespace(VERSION=0), f"dovetail_fast has version 0, expected {fast.VERSION}"),
    ],
)
def test_python_where_there_is_no_native_one_that_fits(monkeypatch, module, why):
    monkeypatch.setitem(sys.modules, "dovetail_fast", module)
    assert fast.choose("") == (None, why)
    with pytest.raises(ImportError, match=f"DOVETAIL_FAST is native: {why}"):
        fast.choose("native")


def test_a_word_that_is_none_is_refused():
    with pytest.raises(ImportError, match="expected native or python"):
        fast.choose("rust")
