"""Names of certificates in rules: exact, with patterns, in groups."""

import fnmatch
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counting import count_calls
from dovetail.pcp.names import Names, check_names

GROUPS = {"operators": ("boss", "*.ops.example.com"), "all": ("*",)}


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("boss", "boss", True),
        ("boss", "boss2", False),
        ("*", "anything", True),
        ("*.ops.example.com", "a.ops.example.com", True),
        ("*.ops.example.com", "ops.example.com", False),
        ("*.ops.example.com", "a.ops.example.com.evil.net", False),
        ("*.ops.example.com", "evilops.example.com", False),
        ("web-*", "web-1", True),
        ("web-*.example.com", "web-.example.com", True),
        ("web-*.example.com", "web-example.com", False),
        ("aa*aa", "aaa", False),  # the same letters do not match twice
        ("@operators", "boss", True),
        ("@operators", "x.ops.example.com", True),
        ("@operators", "agent1", False),
        ("@all", "agent1", True),
    ],
)
def test_names_and_patterns(pattern, name, expected):
    assert Names([pattern], GROUPS).match(name) is expected


@given(st.text("ab*", min_size=1, max_size=8), st.text("ab", max_size=8))
def test_patterns_match_what_a_shell_would(pattern, name):
    expected = re.fullmatch(fnmatch.translate(pattern), name) is not None
    assert Names([pattern], {}).match(name) is expected


def test_a_pattern_of_many_stars_takes_no_longer_than_its_length():
    names = Names(["a*" * 200 + "b"], {})
    assert count_calls(lambda: names.match("a" * 1000)) < 1000


def test_one_name_is_known_as_one():
    assert Names(["boss"], GROUPS).only == "boss"
    assert Names(["@operators"], GROUPS).only is None
    assert Names(["*"], GROUPS).only is None


@pytest.mark.parametrize(
    ("patterns", "allows_groups", "said"),
    [
        (["a/b"], True, "'a/b' is neither a name"),
        ([""], True, "'' is neither a name"),
        (["ä"], True, "is neither a name"),
        (["@nobody"], True, "there is no group 'nobody'"),
        (["@operators"], False, "groups hold names and patterns"),
    ],
)
def test_what_is_no_name_is_refused(patterns, allows_groups, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        check_names(patterns, GROUPS, where="types.x", allows_groups=allows_groups)
