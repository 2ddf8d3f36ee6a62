"""Per-message functions, in native code if it is installed.

Such a function is written in Python in its own module and marked `@twin`. If the module `dovetail_fast` (`native/`, in
Rust) is installed, its function of the same name replaces it; tests check that both give the same results. The choice
is made here, once, at import: `DOVETAIL_FAST=python` ignores the native module, `DOVETAIL_FAST=native` fails without
it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar

VARIABLE = "DOVETAIL_FAST"
VERSION = 6
"""Version of the native module: another version has other functions and is not used."""

T = TypeVar("T", bound=Callable[..., Any])


def choose(wanted: str) -> tuple[ModuleType | None, str]:
    """The native module, or None, and why; raises ImportError if it is requested and unavailable."""
    if wanted == "python":
        return None, f"{VARIABLE} says so"
    if wanted not in ("", "native"):
        raise ImportError(f"{VARIABLE} is {wanted!r}, expected native or python")
    try:
        native = import_module("dovetail_fast")
        why = f"dovetail_fast has version {native.VERSION}, expected {VERSION}"
        if native.VERSION == VERSION:
            return native, "dovetail_fast is installed"
    except ImportError:
        why = "dovetail_fast is not installed"
    if wanted:
        raise ImportError(f"{VARIABLE} is native: {why}")
    return None, why


_native, REASON = choose(os.environ.get(VARIABLE, ""))
IMPLEMENTATION = "python" if _native is None else "native"
TWINS: dict[str, Callable[..., Any]] = {}
"""The Python functions and classes that have a native twin, by name."""


def twin(python: T) -> T:
    """Use the native function or class of the same name, if there is one."""
    TWINS[python.__name__] = python
    return python if _native is None else getattr(_native, python.__name__)
