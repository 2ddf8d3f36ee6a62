"""Functions that every message passes, in native code where it is installed.

Such a function is written in Python where it belongs, and marked `@twin`. Where the module `dovetail_fast` (`native/`,
in Rust) is installed, its function of the same name takes that place; both give the same results, and tests hold them
equal. Which one is in use is decided here, once, at import: `DOVETAIL_FAST=python` keeps the native module out,
`DOVETAIL_FAST=native` fails without it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar

VARIABLE = "DOVETAIL_FAST"
VERSION = 1
"""Of the native module: another version of it has other functions, and is not used."""

T = TypeVar("T", bound=Callable[..., Any])


def choose(wanted: str) -> tuple[ModuleType | None, str]:
    """The native module, or None, and why; ImportError where it is asked for and cannot be had."""
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
"""The functions and classes in Python that have a native twin, by name."""


def twin(python: T) -> T:
    """Use the native function or class of the same name, if there is one."""
    TWINS[python.__name__] = python
    return python if _native is None else getattr(_native, python.__name__)
