"""Findings with one cause are one row; findings with different causes never are."""

from hypothesis import given
from hypothesis import strategies as st

from dovetail.model.hop import Reason
from dovetail.report.causes import Finding, group_by_cause, subject_of

BROKER = "pcp://broker/server"


def undeliverable(
    message: int, whom: str = "pcp://slow/agent", why: str = "slow_consumer", at: str = BROKER
) -> Finding:
    return Finding("delivery.undeliverable", at, bytes([message]), f"for {whom} {why}")


def failed(message: int) -> Finding:
    return Finding("chain.failed", "", bytes([message]), "http://example/run from pcp://boss/controller")


def test_many_messages_for_one_recipient_are_one_cause_whatever_the_reason() -> None:
    findings = [undeliverable(1), undeliverable(2, why="no_recipient"), undeliverable(3)]
    assert group_by_cause(findings) == [0, 0, 0]


def test_recipients_servers_and_checks_are_told_apart() -> None:
    others = [undeliverable(2, whom="pcp://other/agent"), undeliverable(3, at="pcp://b/server")]
    others.append(Finding("delivery.expired", BROKER, b"4", "for pcp://slow/agent"))
    assert group_by_cause([undeliverable(1), *others]) == [0, 1, 2, 3]


def test_what_follows_from_a_failed_delivery_has_its_cause() -> None:
    assert group_by_cause([failed(1), undeliverable(1), failed(2), undeliverable(2), failed(9)]) == [0, 0, 0, 0, 1]


def test_addresses_in_a_detail_do_not_make_a_cause() -> None:
    one, other = "lacks 7d1424d9ead13431, which 11 have", "lacks ba6f243ec9b650b9, which 11 have"
    assert subject_of(one) == subject_of(other) == "lacks …, which 11 have"
    assert subject_of("only at wm:/QmSGrqDJWJ3B1bXYBmbQ93xxon9r4Pw4L9r4vJwK8YFTfH") == "only at …"


def test_findings_about_no_message_are_told_apart_by_where_they_are() -> None:
    broken = [Finding("integrity.altered_row", server, None, "1 row") for server in ("a", "b", "a")]
    assert group_by_cause(broken) == [0, 1, 0]


@given(
    st.lists(
        st.builds(
            Finding,
            st.sampled_from(("delivery.lost", "chain.failed", "gap.server")),
            st.sampled_from(("", "a", "b")),
            st.none() | st.binary(max_size=1),
            st.sampled_from(("", "for x", "for y no_recipient", *(str(reason) for reason in Reason))),
        ),
        max_size=30,
    )
)
def test_every_finding_has_a_cause_and_they_are_numbered_as_they_come(findings: list[Finding]) -> None:
    numbers = group_by_cause(findings)
    assert len(numbers) == len(findings)
    assert list(dict.fromkeys(numbers)) == list(range(len(set(numbers))))
    by_message: dict[bytes, set[int]] = {}
    for finding, number in zip(findings, numbers, strict=True):
        if finding.message is not None:
            by_message.setdefault(finding.message, set()).add(number)
    assert all(len(causes) == 1 for causes in by_message.values()), "a message has one cause"
