"""A sieve finds what Arrow's own comparison of every value finds."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.audit import membership_filter as sieve
from dovetail.audit.membership_filter import Sieve

pytestmark = pytest.mark.exhaustive

# few different bytes, so that values share tails, begin alike and are found; lengths around the eight bytes looked at
values = st.one_of(st.none(), st.binary(max_size=3), st.lists(st.sampled_from(b"ab"), max_size=18).map(bytes))


def chunked(parts: list[list[bytes | None]]) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(part, pa.binary()) for part in parts], pa.binary())


def places_of(column: pa.ChunkedArray, wanted: pa.Array) -> list[int]:
    is_wanted = pc.is_in(column, value_set=wanted.drop_null()).to_pylist()
    return [place for place, one in enumerate(is_wanted) if one]


@settings(deadline=None)
@given(parts=st.lists(st.lists(values, max_size=12), max_size=4), wanted=st.lists(values, max_size=8))
def test_it_finds_exactly_the_wanted_values(parts, wanted):
    column, asked = chunked(parts), pa.array(wanted, pa.binary())
    assert Sieve(asked).find(column).to_pylist() == places_of(column, asked)


@settings(deadline=None)
@given(parts=st.lists(values, min_size=1, max_size=20), cut=st.tuples(st.integers(0, 19), st.integers(0, 19)))
def test_parts_of_arrays_are_looked_through_as_parts(parts, cut):
    whole = pa.array(parts, pa.binary())
    part = whole.slice(*cut)
    assert Sieve(part).find(pa.chunked_array([whole])).to_pylist() == places_of(pa.chunked_array([whole]), part)
    assert Sieve(whole).find(pa.chunked_array([part])).to_pylist() == places_of(pa.chunked_array([part]), whole)


def test_few_others_pass_the_marks():
    rng = random.Random(4)
    wanted = pa.array([rng.randbytes(32) for _ in range(3_000)], pa.binary())
    others = pa.array([rng.randbytes(32) for _ in range(30_000)], pa.binary())
    marked = Sieve(wanted)
    hits = marked._marks[marked._places(others)].sum()
    assert hits < 2 * len(others) / sieve._MARKS_PER_VALUE
    assert not len(marked.find(pa.chunked_array([others])))
