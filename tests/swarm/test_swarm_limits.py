"""Token buckets and the journaling of refusals."""

from __future__ import annotations

from dovetail.model.hop import Reason
from dovetail.swarm.limits import RefusalLog, TokenBucket

SECOND = 1_000_000


def test_a_bucket_gives_its_burst_and_then_its_rate():
    bucket = TokenBucket(10, 20)
    assert sum(bucket.take(1, 0) for _ in range(100)) == 20
    assert sum(bucket.take(1, SECOND) for _ in range(100)) == 10
    assert sum(bucket.take(1, 100 * SECOND) for _ in range(100)) == 20


def test_a_clock_set_back_changes_nothing():
    bucket = TokenBucket(10, 20)
    bucket.take(20, 50 * SECOND)
    assert not bucket.take(1, 10 * SECOND)
    assert bucket.take(1, 51 * SECOND)


def test_what_is_too_much_takes_nothing():
    bucket = TokenBucket(1, 5)
    assert not bucket.take(6, 0)
    assert bucket.take(5, 0)


def test_every_refusal_is_counted_and_a_bounded_share_is_journaled():
    book = RefusalLog(5)
    journaled = sum(book.note(Reason.TRUNCATED, now * SECOND // 1000) for now in range(10_000))
    assert book.counts[Reason.TRUNCATED] == 10_000
    assert journaled == book.journaled <= 50 + 5 * 10
