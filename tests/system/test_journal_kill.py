"""kill -9 while appending: everything acknowledged is there, nothing is duplicated, the file opens again."""

import os
import random
import subprocess
import sys
import textwrap

import pytest

from dovetail.journal.reader import JournalReader
from dovetail.journal.verify import verify_journal
from dovetail.model.errors import JournalLocked
from journal.worlds import open_writer

pytestmark = pytest.mark.system

WRITER = textwrap.dedent(
    """
    import sys, threading
    from pathlib import Path
    from dovetail.journal.journal import Journal, JournalOptions
    from journal.worlds import SERVER, SIGNER, observe

    path, round_ = Path(sys.argv[1]), sys.argv[2]
    options = JournalOptions(checkpoint_interval_s=0.01)
    journal = Journal.open(path, server=SERVER, signer=SIGNER, options=options)
    lock = threading.Lock()

    def work(number):
        for i in range(100_000):
            text = f"{round_} {number} {i}"
            journal.append([observe(text.encode())])
            with lock:
                print(text, flush=True)

    for number in range(4):
        threading.Thread(target=work, args=(number,)).start()
    """
)


def start_writer(path, round_):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(round_)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_kill_9_loses_nothing_acknowledged_and_doubles_nothing(tmp_path):
    path = tmp_path / "a.journal"
    rng = random.Random(3)
    acknowledged = []
    for round_ in range(6):
        process = start_writer(path, round_)
        wanted = rng.randrange(20, 400)
        for line in process.stdout:
            acknowledged.append(line.strip())
            if len(acknowledged) % 400 == wanted:
                break
        process.kill()
        acknowledged += [line.strip() for line in process.stdout.read().split("\n")[:-1]]
        process.wait()
        process.stdout.close()
        with JournalReader.open(path) as reader:
            found = [hop.raw.decode() for hop in reader.hops()]
            assert [hop.seq for hop in reader.hops()] == list(range(len(found)))
        assert len(found) == len(set(found)), "something was doubled"
        assert set(acknowledged) <= set(found), "something acknowledged was lost"
    with open_writer(path) as journal:
        journal.checkpoint()
    verdict = verify_journal(path)
    assert verdict.findings == []
    assert verdict.checkpoints > 6


def test_another_process_follows_while_it_is_written_and_cannot_write(tmp_path):
    path = tmp_path / "a.journal"
    process = start_writer(path, 0)
    try:
        for _ in range(50):
            process.stdout.readline()
        with pytest.raises(JournalLocked, match=f"process {process.pid}"):
            open_writer(path)
        with JournalReader.open(path) as reader:
            seen = reader.size
            assert seen >= 50
            for _ in range(50):
                process.stdout.readline()
            assert reader.size > seen
            assert len(list(reader.hops(0, seen))) == seen
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    open_writer(path).close()
