"""What a writer remembers of its messages: the newest without reading the file, the oldest not at all."""

from __future__ import annotations

import sqlite3

import pytest

from dovetail.journal.catalogue import Limits
from dovetail.journal.database import connect_writer
from dovetail.model.address import address_of
from dovetail.model.hop import Stage
from journal.worlds import observe, open_writer

LIMITS = Limits(messages_kept=64, names_kept=8, index_after_messages=4, index_after_runs=1000)
MESSAGES = 300


@pytest.fixture
def asked() -> list[str]:
    """Queries of the address index, as they are made."""
    return []


@pytest.fixture
def writer(tmp_path, asked):
    def connect(path):
        connection = connect_writer(path)
        assert isinstance(connection, sqlite3.Connection)
        connection.set_trace_callback(lambda sql: asked.append(sql) if "FROM address_runs JOIN" in sql else None)
        return connection

    with open_writer(tmp_path / "a.journal", connect=connect, limits=LIMITS) as opened:
        for number in range(MESSAGES):
            opened.append([observe(b"%d" % number)])
        asked.clear()
        yield opened


def deliver(writer, number):
    writer.append([observe(b"%d" % number, Stage.DELIVERED, "pcp://a/agent", raw=None)])


def test_a_recent_message_is_known_without_asking_the_file(writer, asked):
    for number in range(MESSAGES - LIMITS.messages_kept // 2, MESSAGES):
        deliver(writer, number)
    assert not asked
    assert writer.reader.message_count == MESSAGES


def test_memory_is_bounded_and_what_it_forgot_is_found_in_the_file(writer, asked):
    for number in range(MESSAGES - 2 * LIMITS.messages_kept):
        asked.clear()
        deliver(writer, number)
        assert asked, f"message {number} is still remembered"
    assert writer.reader.message_count == MESSAGES


def test_what_was_looked_up_once_is_remembered(writer, asked):
    deliver(writer, 0)
    assert asked
    asked.clear()
    deliver(writer, 0)
    assert not asked


def test_every_commit_of_a_message_is_found_by_its_address(writer):
    for number in (3, 3, MESSAGES - 1, 3):
        deliver(writer, number)
    writer.append([observe(b"3", Stage.SERVED, raw=None), observe(b"new"), observe(b"3", Stage.PULLED, raw=None)])
    stages = [hop.stage for hop in writer.reader.hops_of(address_of(b"3"))]
    assert stages == [Stage.ACCEPTED, *[Stage.DELIVERED] * 3, Stage.SERVED, Stage.PULLED]
    writer.index()
    assert [hop.stage for hop in writer.reader.hops_of(address_of(b"3"))] == stages
