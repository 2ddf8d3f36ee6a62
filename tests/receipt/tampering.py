"""Systematic damage to a receipt: every field altered, removed, duplicated, moved or taken from another receipt."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

Path = tuple[Any, ...]


def encode(value: object) -> bytes:
    """The canonical encoding, so that only the content is wrong."""
    return (json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n").encode()


def places(value: object, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """Every nested value, with its path."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        yield (*path, key), child
        yield from places(child, (*path, key))


def _replace(receipt: Any, path: Path, value: object) -> bytes:
    changed = copy.deepcopy(receipt)
    parent = changed
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    return encode(changed)


def _remove(receipt: Any, path: Path) -> bytes:
    changed = copy.deepcopy(receipt)
    parent = changed
    for key in path[:-1]:
        parent = parent[key]
    del parent[path[-1]]
    return encode(changed)


def _variants(value: object) -> Iterator[object]:
    """Other values of the same kind, and of other kinds."""
    match value:
        case bool():
            yield not value
        case int():
            yield from (value + 1, value - 1, -value - 1, float(value), str(value), 1 << 70)
        case str():
            middle = len(value) // 2
            other = "1" if value[middle : middle + 1] == "0" else "0"
            yield from (value[:middle] + other + value[middle + 1 :], value + "0", value[:-1], value + "\n", "", 0)
        case list():
            yield from ([], [*value, *value], value[1:], value[::-1] if value[::-1] != value else [*value, 7], {})
        case dict():
            yield from ({**value, "more": 1}, {}, [], None)


def alterations(data: bytes, other: bytes) -> Iterator[tuple[str, bytes]]:
    """Damaged receipts, each with a description of the damage."""
    receipt, donor = json.loads(data), dict(places(json.loads(other)))
    for path, value in places(receipt):
        yield f"without {path}", _remove(receipt, path)
        yield f"null at {path}", _replace(receipt, path, None)
        for variant in _variants(value):
            yield f"{path} is {variant!r:.60}", _replace(receipt, path, variant)
        if path in donor and donor[path] != value:
            yield f"{path} of another receipt", _replace(receipt, path, donor[path])
