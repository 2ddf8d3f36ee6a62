"""Terms of the closed graphs: IRIs, longs and literals, each in exactly one form."""

from __future__ import annotations

import pytest

from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Reason
from dovetail.won import compose as c
from dovetail.won import vocabulary as v
from dovetail.won.envelope import decode_iri, decode_long, literal_value


def test_literal_escapes_are_undone():
    assert literal_value(c.literal('a"b\\c\n\t\x07é😀')) == 'a"b\\c\n\t\x07é😀'
    assert literal_value('"x y"@en') == "x y"
    assert literal_value("<a:b>") == "a:b"


@pytest.mark.parametrize("term", ['"a:b"', "_:b", "<<( <a:a> <a:b> <a:c> )>>"])
def test_what_is_no_iri_is_refused(term):
    assert decode_iri("<a:b>", "it") == "a:b"
    with pytest.raises(RemoteProtocolError) as caught:
        decode_iri(term, "it")
    assert caught.value.reason is Reason.INVALID_SCHEMA


@pytest.mark.parametrize("digits", ["", "-1", "1.0", "x", "²", "1" * 19])
def test_what_is_no_long_is_refused(digits):
    assert decode_long(f'"17"{v.XSD_LONG}', "it") == 17
    with pytest.raises(RemoteProtocolError):
        decode_long(f'"{digits}"{v.XSD_LONG}', "it")
