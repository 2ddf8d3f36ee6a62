"""URIs and patterns."""

import pytest

from dovetail.pcp.uri import PatternSet, has_message_type_characters, has_target_characters, parse_uri


@pytest.mark.parametrize(
    ("text", "name", "client_type"),
    [
        ("pcp://client_a/controller", "client_a", "controller"),
        ("pcp:///server", "", "server"),
        ("pcp://*/agent", "*", "agent"),
        ("pcp://host/*", "host", "*"),
    ],
)
def test_grammar_accepts(text, name, client_type):
    assert parse_uri(text) == (name, client_type)
    assert str(parse_uri(text)) == text


@pytest.mark.parametrize(
    "text", ["", "pcp:", "pcp://a", "pcp://a/", "pcp://a/b/c", "PCP://a/b", "http://a/b", " pcp://a/b", "pcp://a/b\n/c"]
)
def test_grammar_refuses(text):
    with pytest.raises(ValueError, match="is not a PCP URI"):
        parse_uri(text)


def test_grammar_has_a_length_limit():
    with pytest.raises(ValueError, match="at most 1024"):
        parse_uri("pcp://" + "a" * 1024 + "/agent")


def test_characters_are_judged_on_the_whole_ascii_string():
    assert has_message_type_characters("http://puppetlabs.com/rpc-x_1")
    assert not has_message_type_characters("http://x\0")
    assert not has_message_type_characters("a\n")
    assert not has_message_type_characters("é")
    assert not has_message_type_characters("a*")
    assert has_target_characters("pcp://*/agent")
    assert not has_target_characters("pcp://a\0/agent")
    assert not has_target_characters("pcp://é/agent")


def test_pattern_set_equals_matching_each_pattern():
    parts = ["a", "b", "*"]
    patterns = [f"pcp://{name}/{kind}" for name in parts for kind in parts]
    clients = [f"pcp://{name}/{kind}" for name in "ab" for kind in "ab"]
    for first in patterns:
        for second in patterns:
            for client in clients:
                expected = any(
                    all(part in ("*", own) for part, own in zip(parse_uri(pattern), parse_uri(client), strict=True))
                    for pattern in (first, second)
                )
                assert PatternSet([first, second]).matches(client) is expected
