from concurrent.futures import ThreadPoolExecutor

import pytest

from dovetail.journal.message_survey import MAX_HANDOVER_BYTES, RowHandover
from dovetail.journal.messages import MessagesRow

LARGE = bytes(MAX_HANDOVER_BYTES // 4)


def rows(count):
    """Rows of two messages each; that number n is of the commit at hop 10 n."""
    return [MessagesRow(1 + 2 * number, 2, 10 * number, LARGE) for number in range(count)]


@pytest.fixture
def pool():
    with ThreadPoolExecutor(1) as pool:
        yield pool


def test_rows_are_handed_over_in_order_however_many_there_are(pool):
    heads = RowHandover()
    putting = pool.submit(lambda: [heads.put(row) for row in rows(40)])
    assert [heads.take(10 * number) for number in range(40)] == rows(40)
    putting.result()


def test_rows_of_commits_that_nobody_asks_for_are_discarded(pool):
    heads = RowHandover()
    putting = pool.submit(lambda: [heads.put(row) for row in rows(40)])
    assert heads.take(390) == rows(40)[39]
    putting.result()


def test_a_commit_without_new_messages_has_no_row(pool):
    heads = RowHandover()
    pool.submit(lambda: [heads.put(row) for row in rows(2)]).result()
    assert heads.take(5) is None
    assert heads.take(10) == rows(2)[1]
    assert heads.take(0) is None


def test_nobody_waits_for_a_thread_that_has_ended(pool):
    heads = RowHandover()
    putting = pool.submit(lambda: [heads.put(row) for row in rows(40)])
    assert heads.take(0) == rows(1)[0]
    heads.close()
    putting.result()
    assert heads.take(10_000) is None
