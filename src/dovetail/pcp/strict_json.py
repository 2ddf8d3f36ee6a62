"""The JSON that a broker accepts: valid UTF-8, bounded nesting, and no duplicate key in an object it reads.

msgspec is fast and strict but lets the last of two equal keys win, so two readers of one envelope could disagree about
its sender. The check must be cheap on the hot path, so it counts before it parses: in JSON without backslashes every
string has exactly two quotation marks, so a document whose fields need n strings and that has 2n marks has no
duplicates. Only documents with backslashes need a second, slow parse.
"""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

MAX_NESTING = 64
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_AS_ARRAYS = bytes.maketrans(b"{}", b"[]")
_any_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class DuplicateKeyError(ValueError):
    """A JSON object has a duplicate key."""


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
    brackets = _STRINGS.sub(b"", document).translate(_AS_ARRAYS, _NOT_BRACKETS)
    for _ in range(MAX_NESTING):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def has_duplicate_key(document: bytes, strings: int) -> bool:
    """True if the outer object, whose distinct fields need this many strings, has a duplicate key."""
    if 0x5C not in document:  # a backslash
        return document.count(b'"') != 2 * strings
    return _outer_object_repeats(document)


def _outer_object_repeats(document: bytes) -> bool:
    repeats = False

    def judge(pairs: list[tuple[str, object]]) -> dict[str, object]:
        nonlocal repeats
        read = dict(pairs)
        repeats = len(read) != len(pairs)
        return read

    json.loads(document, object_pairs_hook=judge)  # the outer object is checked last, so its verdict stays
    return repeats


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


def decode_strict(document: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode a typed document of bounded nesting without duplicate keys anywhere; ValueError says what is wrong.

    For the few documents that the broker acts on; not for the hot path.
    """
    decode_any(document)

    def judge(pairs: list[tuple[str, object]]) -> dict[str, object]:
        read = dict(pairs)
        if len(read) != len(pairs):
            raise DuplicateKeyError("a key stands twice in an object")
        return read

    json.loads(document, object_pairs_hook=judge)
    try:
        return decoder.decode(document)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None
