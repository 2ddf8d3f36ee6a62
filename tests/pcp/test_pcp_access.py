"""The access log: one line, separated and parseable."""

import shlex

from dovetail.model.address import Address
from dovetail.model.hop import Reason
from dovetail.pcp.events import MessageHandled
from dovetail.runtime.pcp_access import format_message


def line(**changes: object) -> str:
    fields = {
        "outcome": "routed",
        "address": Address(b"\1" * 32),
        "id": "some-id",
        "message_type": "http://example.com/ping",
        "sender": "pcp://a/b",
        "targets": ("pcp://c/d",),
        "recipients": 1,
        "size": 10,
    }
    return format_message(MessageHandled(**{**fields, **changes}))


def test_fields_are_key_value():
    assert line() == (
        "outcome=routed id=some-id type=http://example.com/ping sender=pcp://a/b targets=pcp://c/d "
        "recipients=1 size=10 address=" + "01" * 32
    )


def test_what_a_peer_wrote_cannot_forge_a_field_or_a_line():
    text = line(outcome="rejected", reason=Reason.MALFORMED, message_type='x outcome=delivered "\n', detail="a b")
    assert "\n" not in text
    fields = dict(part.split("=", 1) for part in shlex.split(text.replace("\\n", "")))
    assert fields["outcome"] == "rejected"
    assert fields["reason"] == "malformed"
    assert fields["detail"] == "a b"


def test_many_targets_are_counted():
    assert ",+92 " in line(targets=tuple(f"pcp://c{number}/d" for number in range(100)))
