"""The queue that applications read: bounded in number and bytes."""

import asyncio

import pytest

from dovetail.runtime.mailbox import Mailbox


@pytest.mark.parametrize(
    ("put", "kept"),
    [
        ([b"1", b"22", b"333", b"4"], [b"22", b"333", b"4"]),
        ([b"1" * 6, b"2" * 5, b"3"], [b"2" * 5, b"3"]),
        ([b"1" * 30], [b"1" * 30]),
        ([b"1", b"2" * 30], [b"2" * 30]),
        ([b"1" * 30, b"2"], [b"2"]),
    ],
    ids=["number", "bytes", "one", "a large one", "after a large one"],
)
def test_the_newest_are_kept_within_both_limits_and_the_rest_is_counted(put, kept):
    async def work() -> None:
        mailbox = Mailbox(3, len, 10)
        for item in put:
            mailbox.put(item)
        mailbox.close()
        assert mailbox.take_missed() == len(put) - len(kept)
        assert [await mailbox.get() for _ in (*kept, None)] == [*kept, None]
        assert mailbox._bytes == 0

    asyncio.run(work())
