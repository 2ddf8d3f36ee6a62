"""A run is repeated when files change while it reads them, and in the end done without them."""

from __future__ import annotations

import pytest

from audit.audit_worlds import BROKER, PEERS
from dovetail.audit.failures import ATTEMPTS, FileChanged, LeftOut, retried, unreadable
from dovetail.lake.layout import data_key


def key(server: str, number: int) -> str:
    return data_key(server, "pcp", "2026-11-15", 8 * number, 8 * number + 8, f"{number:08x}")


FILE, OTHER = key(BROKER, 0), key(PEERS[0], 0)


def test_a_file_that_keeps_changing_is_left_out():
    seen = []

    def work(left_out: LeftOut) -> str:
        seen.append((FILE in left_out, OTHER in left_out))
        if FILE not in left_out:
            raise FileChanged([FILE])
        return "done"

    assert retried(work) == "done"
    assert seen == [(False, False)] * ATTEMPTS + [(True, False)]


def test_a_server_whose_files_change_in_turn_does_not_stop_the_others():
    """Each attempt meets another one of its files: after some it is left out with all of them."""
    attempts = []

    def work(left_out: LeftOut) -> bool:
        changing = next((key(BROKER, number) for number in range(1000) if key(BROKER, number) not in left_out), None)
        attempts.append(changing)
        if changing is not None:
            raise FileChanged([changing])
        return OTHER in left_out

    assert retried(work) is False
    assert len(attempts) == 2 * ATTEMPTS + 1


def test_servers_that_are_added_meanwhile_do_not_prolong_it():
    """Each attempt meets a new server, whose file changes."""

    def work(left_out: LeftOut) -> int:
        attempts.append(left_out)
        servers = [f"pcp://new-{number}/server" for number in range(len(attempts))]
        known = [server for server in servers if left_out.only is None or server in left_out.only]
        if changing := [key(server, 0) for server in known if key(server, 0) not in left_out]:
            raise FileChanged(changing[-1:], servers)
        return len(known)

    attempts: list[LeftOut] = []
    assert retried(work) == ATTEMPTS


def test_files_of_many_servers_that_change_together_are_left_out_together():
    def work(left_out: LeftOut) -> int:
        attempts.append(left_out)
        if missing := [path for path in (FILE, OTHER) if path not in left_out]:
            raise FileChanged(missing)
        return len(attempts)

    attempts = []
    assert retried(work) == ATTEMPTS + 1


def test_a_failure_that_leaving_out_does_not_mend_is_raised():
    def work(left_out: LeftOut) -> None:
        attempts.append(left_out)
        raise FileChanged([FILE])

    attempts = []
    with pytest.raises(FileChanged, match="changed while it was read"):
        retried(work)
    assert len(attempts) == ATTEMPTS + 1


def test_the_file_that_spark_could_not_read_is_found_in_its_message():
    text = f"Job aborted: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///lake/{FILE}. Details:"
    assert unreadable(RuntimeError(text)) == {FILE}
    assert unreadable(RuntimeError("the disk is full")) == frozenset()
    assert unreadable(FileChanged([OTHER])) == {OTHER}
