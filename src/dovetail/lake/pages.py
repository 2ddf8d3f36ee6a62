"""Walks the headers of Parquet pages before any page is read: how much each really holds.

The sizes in a file's footer are only claims. A page's header says how many bytes its reader allocates; so all headers
are walked first, by a small reader of Thrift's compact protocol that is bounded in depth and length. A page with fewer
or more bytes than its header says is an error of the codec, not a surprise in memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

MAX_PAGE_HEADER_BYTES = 1 << 20
_MAX_DEPTH = 8
_MAX_FIELDS = 4096
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(13)
_TYPE, _UNCOMPRESSED, _COMPRESSED, _DATA, _DICTIONARY, _DATA_V2 = 1, 2, 3, 5, 7, 8
_NUM_VALUES = 1
_VALUES = {0: (_DATA, 2), 2: (_DICTIONARY, 2), 3: (_DATA_V2, 4)}
"""By kind of page, the field that has the header of its values, and in that, their encoding."""

_ENCODINGS = frozenset({0, 2, 3, 5, 6, 7, 8})
"""Plain, dictionaries, run lengths and deltas: other readers than ours know no others."""
_DATA_PAGES, _DICTIONARY_PAGE = (0, 3), 2


class BadPages(ValueError):
    """Pages that no honest writer creates."""


class Pages(NamedTuple):
    """What the pages of one column chunk contain."""

    bytes: int
    values: int
    dictionary_bytes: int


def walk_pages(chunk: bytes, values: int, max_bytes: int) -> Pages:
    """Walk the headers of a column chunk that should have this many values; BadPages if anything is out of bounds."""
    position = total = seen = 0
    dictionary: int | None = None
    while seen < values:
        header, position = _Reader(chunk, position).read_page_header()
        kind, size, stored = (header.get(name) for name in (_TYPE, _UNCOMPRESSED, _COMPRESSED))
        if not isinstance(size, int) or not isinstance(stored, int) or size < 0 or stored < 0:
            raise BadPages("a page has no size")
        if position + stored > len(chunk):
            raise BadPages("a page is longer than its column")
        total += size
        if total > max_bytes:
            raise BadPages(f"a column has pages of over {max_bytes} bytes")
        place, encoding = _VALUES.get(kind or 0, (0, 0))
        inner = header.get(place)
        if isinstance(inner, dict) and inner.get(encoding) not in _ENCODINGS:
            raise BadPages("a page has an unusual encoding")
        if kind in _DATA_PAGES:
            count = inner.get(_NUM_VALUES) if isinstance(inner, dict) else None
            if not isinstance(count, int) or not 0 < count <= values - seen:
                raise BadPages("pages have other numbers of values than their column")
            seen += count
        elif kind == _DICTIONARY_PAGE and dictionary is None and not seen:
            dictionary = size
        else:
            raise BadPages(f"a page of kind {kind} is not expected here")
        position += stored
    return Pages(total, seen, dictionary or 0)


class _Reader:
    """The part of Thrift's compact protocol that page headers use."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data, self._position = data, position
        self._end = min(len(data), position + MAX_PAGE_HEADER_BYTES)
        self._fields = 0

    def read_page_header(self) -> tuple[dict[int, Any], int]:
        return self._read_struct(0), self._position

    def _read_struct(self, depth: int) -> dict[int, Any]:
        if depth > _MAX_DEPTH:
            raise BadPages("a page header is too deep")
        fields: dict[int, Any] = {}
        number = 0
        while (head := self._byte()) != _STOP:
            self._fields += 1
            if self._fields > _MAX_FIELDS:
                raise BadPages("a page header has too many fields")
            number = number + (head >> 4) if head >> 4 else self._integer()
            fields[number] = self._value(head & 0x0F, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (_TRUE, _FALSE):
            return kind == _TRUE
        if kind == _BYTE:
            return self._byte()
        if kind in (_I16, _I32, _I64):
            return self._integer()
        if kind == _DOUBLE:
            return self._skip(8)
        if kind == _BINARY:
            return self._skip(self._varint())
        if kind in (_LIST, _SET):
            head = self._byte()
            count = head >> 4 if head >> 4 != 15 else self._varint()
            if count > _MAX_FIELDS:
                raise BadPages("a page header has too long a list")
            return [self._value(head & 0x0F, depth + 1) for _ in range(count)]
        if kind == _STRUCT:
            return self._read_struct(depth + 1)
        raise BadPages(f"a page header has a value of kind {kind}")

    def _skip(self, count: int) -> None:
        self._position += count
        if self._position > self._end:
            raise BadPages("a page header does not end")

    def _byte(self) -> int:
        if self._position >= self._end:
            raise BadPages("a page header does not end")
        self._position += 1
        return self._data[self._position - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise BadPages("a page header has a number that is too long")

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
