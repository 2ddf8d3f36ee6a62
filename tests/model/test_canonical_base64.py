from __future__ import annotations

import base64
import binascii

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.model.canonical_base64 import encode_base64, parse_base64


@given(st.binary(max_size=100))
def test_what_is_encoded_is_read_back(data):
    assert encode_base64(data) == base64.b64encode(data).decode()
    assert parse_base64(encode_base64(data)) == data


@given(st.text(alphabet="AB/+=\n -_é", max_size=12))
def test_only_the_one_text_of_some_bytes_is_read(text):
    try:
        canonical = base64.b64encode(base64.b64decode(text, validate=True)).decode()
    except (binascii.Error, ValueError):
        canonical = None
    if text == canonical:
        assert encode_base64(parse_base64(text)) == text
    else:
        with pytest.raises(ValueError, match=r"^is not (in canonical )?base64$"):
            parse_base64(text)


@pytest.mark.parametrize(
    ("text", "problem"), [("AAA", "is not base64"), ("A-==", "is not base64"), ("AB==", "is not in canonical base64")]
)
def test_it_says_what_is_wrong(text, problem):
    with pytest.raises(ValueError, match=f"^{problem}$"):
        parse_base64(text)
