"""The JSON that a broker accepts: valid UTF-8, bounded nesting, and no duplicate key in an object it reads.

msgspec is fast and strict but lets the last of two equal keys win, so two readers of one envelope could disagree about
its sender. The check must be cheap, so it counts: in valid JSON every string has exactly two quotation marks that are
not escaped, so a document whose fields need n strings and that has 2n such marks has no duplicates.

Nothing here takes much longer, or much more memory, than the document itself, whatever its sender wrote.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from typing import Any

import msgspec

MAX_NESTING = 64
_CHUNK_BYTES = 1 << 16
_BITS = bytes.maketrans(b"[{]}", b"1100")
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEPS = [[1 if byte >> bit & 1 else -1 for bit in reversed(range(8))] for byte in range(256)]
_SUMS = bytes(sum(steps) & 0xFF for steps in _STEPS)
_PEAKS = bytes(max(itertools.accumulate(steps, initial=0)) for steps in _STEPS)
_any_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def is_utf8(document: bytes) -> bool:
    """True if the bytes are valid UTF-8."""
    if document.isascii():
        return True
    try:
        document.decode()
    except UnicodeDecodeError:
        return False
    return True


def is_nested_too_deep(document: bytes) -> bool:
    """True if arrays and objects are nested deeper than MAX_NESTING levels; not recursive."""
    if document.count(b"[") + document.count(b"{") <= MAX_NESTING:
        return False
    depth = start = 0
    is_in_string = False
    while start < len(document):
        chunk = document[start : start + _CHUNK_BYTES]
        if (len(chunk) - len(chunk.rstrip(b"\\"))) % 2:
            chunk = document[start : start + _CHUNK_BYTES + 1]  # do not part an escape
        start += len(chunk)
        pieces = _drop_escapes(chunk).split(b'"')
        bits = b"".join(pieces[is_in_string::2]).translate(_BITS, _NOT_BRACKETS)
        is_in_string ^= len(pieces) % 2 == 0
        opened = bits.count(b"1")
        if depth + opened > MAX_NESTING and depth + _count_levels(bits) > MAX_NESTING:
            return True
        depth += 2 * opened - len(bits)
    return False


def _count_levels(bits: bytes) -> int:
    """How many levels deep the brackets lead, an opening one a 1 and a closing one a 0; eight of them in one step."""
    bits += b"0" * (-len(bits) % 8)
    packed = int(bits, 2).to_bytes(len(bits) // 8)
    before = itertools.accumulate(memoryview(packed.translate(_SUMS)).cast("b"), initial=0)
    levels: Iterator[int] = map(operator.add, before, packed.translate(_PEAKS))
    return max(levels)


def _drop_escapes(document: bytes) -> bytes:
    """The document with each quotation mark the beginning or the end of a string."""
    return document.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in document else document


def count_strings(document: bytes) -> int:
    """How many strings valid JSON has, keys included."""
    return _drop_escapes(document).count(b'"') // 2


def decode_any(document: bytes) -> Any:
    """Decode any JSON value of bounded nesting; ValueError says what is wrong."""
    if is_nested_too_deep(document):
        raise ValueError(f"nested more than {MAX_NESTING} levels deep")
    if not is_utf8(document):
        raise ValueError("not UTF-8")
    try:
        return _any_decoder.decode(document)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from None
