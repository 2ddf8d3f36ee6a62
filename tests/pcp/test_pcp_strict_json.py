"""Hostile JSON: the checks are exact, and cost no more than a few looks at the document."""

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counting import count_calls
from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Reason
from dovetail.pcp import strict_json
from dovetail.pcp.codec_v1 import MAX_ENVELOPE_BYTES, decode_envelope
from dovetail.pcp.codec_v2 import decode_message
from dovetail.pcp.envelope import MAX_TARGETS, salvage
from dovetail.pcp.strict_json import MAX_NESTING, count_strings, is_nested_too_deep
from dovetail.pcp.vocabulary import (
    MAX_INVENTORY_REQUEST_BYTES,
    MAX_SUBSCRIPTION_BYTES,
    decode_inventory_request,
)
from pcp.pcp_frames import compact, envelope, frame_v2

MIB = 1 << 20
texts = st.text(alphabet='a"\\[]{}é\n', max_size=5)
values = st.recursive(
    st.none() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=12,
)


def depth_of(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


def strings_of(value: object) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(strings_of, value.values()))
    return sum(map(strings_of, value)) if isinstance(value, list) else isinstance(value, str)


@given(value=values, around=st.integers(MAX_NESTING - 6, MAX_NESTING), chunk=st.integers(1, 40), is_ascii=st.booleans())
def test_depth_and_strings_are_exact(value, around, chunk, is_ascii):
    for _ in range(around):
        value = [value, "]"]
    document = json.dumps([value, [], value], ensure_ascii=is_ascii).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strict_json, "_CHUNK_BYTES", chunk)
        assert is_nested_too_deep(document) is (depth_of([value]) > MAX_NESTING)
    assert count_strings(document) == strings_of([value, [], value])


def test_a_deep_document_is_refused_at_its_beginning():
    assert is_nested_too_deep(b"[" * MIB)
    assert count_calls(lambda: is_nested_too_deep(b"[" * MIB)) < 40


def peak_of(action, document):
    """How many times the document's size an action takes at its peak."""
    tracemalloc.start()
    try:
        action(document)
        return tracemalloc.get_traced_memory()[1] / len(document)
    finally:
        tracemalloc.stop()


def test_escaped_keys_do_not_cost_a_second_parse_of_the_payload():
    document = frame_v2()[:-1] + b',"d\\u0061ta":[' + b"[]," * (MIB // 3) + b"1]}"
    assert decode_message(document).id
    assert peak_of(decode_message, document) < 5


def test_too_many_targets_are_refused_before_they_are_read():
    raw = compact(envelope(targets=["p"] * (MAX_ENVELOPE_BYTES // 16)))

    def refuse(data):
        with pytest.raises(RemoteProtocolError, match="strings") as caught:
            decode_envelope(data)
        assert caught.value.reason is Reason.TOO_LARGE

    assert peak_of(refuse, raw) < 2
    assert peak_of(salvage, raw) < 2
    assert salvage(raw).id is not None


def test_as_many_targets_as_allowed_are_read():
    document = compact(envelope(targets=[f"pcp://{number}/x" for number in range(MAX_TARGETS)]))
    assert len(decode_envelope(document).targets) == MAX_TARGETS


def query(count: int, **more: object) -> bytes:
    return compact({"query": ["pcp://a/b"] * count, **more})


@pytest.mark.parametrize(
    ("content", "detail"),
    [
        (query(MAX_INVENTORY_REQUEST_BYTES // 12), "expected at most"),
        (query(MAX_SUBSCRIPTION_BYTES // 12, subscribe=True), "of a subscription"),
        (b'{"query":[],"query":["pcp://a/b"]}', "twice"),
        (b'{"query":[],"subscribe":true,"subscribe":false}', "twice"),
        (b'{"query":' + b"[" * 100_000, "array"),
    ],
)
def test_inventory_requests_are_bounded(content, detail):
    with pytest.raises(ValueError, match=detail):
        decode_inventory_request(content)


def test_a_query_may_be_longer_than_a_subscription():
    assert len(decode_inventory_request(query(MAX_SUBSCRIPTION_BYTES // 12, subscribe=False)).query) > 1_000
