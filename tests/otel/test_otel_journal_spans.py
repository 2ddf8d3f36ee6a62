"""Spans of a journal: the same however often and from whatever position it is read, in bounded memory."""

import pytest

from dovetail.journal.reader import JournalReader
from dovetail.model.address import address_of
from dovetail.model.hop import Stage
from dovetail.otel import journal_spans
from dovetail.otel.journal_spans import JournalSpans
from dovetail.otel.spans import span_id
from otel.otel_samples import AGENT, EXCHANGE, LOST, REPLY, REQUEST, SECOND, SERVER, T0, seen, write
from pcp.pcp_frames import frame_v1


@pytest.fixture
def journal(tmp_path):
    return write(tmp_path / "journal", EXCHANGE)


def spans_of(path, position=0, settle_s=5.0):
    with JournalReader.open(path) as reader:
        spans = JournalSpans(reader, settle_s=settle_s, position=position)
        found, is_at_end = [], False
        while not is_at_end:
            closed, is_at_end = spans.read(0.0)
            found += closed
        return found + spans.finish()


def test_request_and_reply_are_one_trace(journal):
    request, reply, lost = spans_of(journal)
    assert [span.trace_id for span in (request, reply, lost)] == [
        address_of(REQUEST)[:16],
        address_of(REQUEST)[:16],
        address_of(LOST)[:16],
    ]
    assert reply.parent_span_id == request.span_id == span_id(SERVER, address_of(REQUEST))
    assert [event.name for event in reply.events] == ["accepted", "delivered"]
    assert lost.failure == "no_recipient"


def test_exporting_twice_is_the_same(journal):
    assert spans_of(journal) == spans_of(journal)


@pytest.mark.parametrize("position", range(1, 6))
def test_from_wherever_it_is_read_its_spans_are_among_those_of_the_whole(journal, position):
    assert all(span in spans_of(journal) for span in spans_of(journal, position))


def test_without_a_position_it_begins_at_the_end(journal):
    assert spans_of(journal, None) == []


def test_a_hop_that_comes_late_begins_a_span_below_the_first(journal):
    write(journal, [seen(REQUEST, Stage.REDELIVERED, AGENT, at_us=T0 + 60 * SECOND)])
    *_, late = spans_of(journal)
    assert late.parent_span_id == span_id(SERVER, address_of(REQUEST))
    assert late.span_id == span_id(SERVER, address_of(REQUEST), 6)
    assert late.trace_id == address_of(REQUEST)[:16]
    assert late in spans_of(journal, 6)


def test_spans_close_by_the_clock_and_a_restart_goes_on_where_they_began(journal):
    with JournalReader.open(journal) as reader:
        spans = JournalSpans(reader, settle_s=5.0, position=0)
        assert spans.read(now_s=100.0) == ([], True)
        assert (spans.position, spans.done) == (6, 0)
        closed, _ = spans.read(now_s=105.0)
        assert len(closed) == 3
        assert spans.done == 6


def test_spans_close_by_the_hops_that_follow(journal):
    write(journal, [seen(b"other", Stage.ACCEPTED, at_us=T0 + 3600 * SECOND)])
    with JournalReader.open(journal) as reader:
        spans = JournalSpans(reader, settle_s=5.0, position=0)
        closed, _ = spans.read(now_s=0.0)
        assert len(closed) == 3
        assert spans.done == 6


def test_open_spans_are_bounded_and_what_comes_later_gives_the_same_span_again(journal, monkeypatch):
    whole = spans_of(journal)
    monkeypatch.setattr(journal_spans, "SLICE_HOPS", 1)
    monkeypatch.setattr(journal_spans, "MAX_OPEN_HOPS", 0)
    found = spans_of(journal)
    assert [span.span_id for span in found] == [span.span_id for span in whole for _ in range(2)]
    assert found[1::2] == whole


def test_a_reply_beyond_the_window_begins_a_trace_of_its_own(journal, monkeypatch):
    monkeypatch.setattr(journal_spans, "WINDOW_HOPS", 1)
    assert [span.trace_id for span in spans_of(journal)][1] == address_of(REPLY)[:16]


def test_of_two_messages_with_one_id_the_first_is_the_question(tmp_path):
    twin = frame_v1(b"twin", id="6f1e7a46-1c1c-4b5e-9d1a-2f1f6a3c9b11", sender=AGENT, targets=[AGENT])
    journal = write(tmp_path / "twins", EXCHANGE[:2], [seen(twin, Stage.ACCEPTED)], EXCHANGE[2:4])
    reply = spans_of(journal)[2]
    assert reply.trace_id == address_of(REQUEST)[:16]
