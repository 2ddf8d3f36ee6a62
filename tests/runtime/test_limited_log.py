import asyncio
import logging

from dovetail.runtime.limited_log import MAX_LINES_PER_S, LimitedLog


class TimersAtWill(asyncio.SelectorEventLoop):
    """A loop whose timers run when the test says so."""

    def __init__(self):
        super().__init__()
        self.due = []

    def call_later(self, delay, callback, *arguments, context=None):
        self.due.append((delay, callback))


def test_lines_beyond_the_limit_of_a_second_are_counted_in_one(caplog):
    log = LimitedLog(logging.getLogger("dovetail.test"), "handshakes failed")

    async def warn(count):
        for number in range(count):
            log.warning("number %d", number)
        return asyncio.get_running_loop().due.pop()

    with asyncio.Runner(loop_factory=TimersAtWill) as runner:
        for count in (MAX_LINES_PER_S + 5, MAX_LINES_PER_S):
            caplog.clear()
            delay, end_of_second = runner.run(warn(count))
            assert delay == 1.0
            end_of_second()
            lines = [record.getMessage() for record in caplog.records]
            assert lines[:MAX_LINES_PER_S] == [f"number {number}" for number in range(MAX_LINES_PER_S)]
            assert lines[MAX_LINES_PER_S:] == (["5 more handshakes failed within a second"] if count > 20 else [])
