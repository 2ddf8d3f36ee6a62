import os
import stat
from pathlib import Path

import pytest

from dovetail.keys.files import MAX_FILE_BYTES, read_file, write_private, write_public
from dovetail.model.errors import KeyFileError


@pytest.fixture(autouse=True)
def open_umask():
    """The weakest mask: any restriction is then our own doing."""
    old = os.umask(0)
    yield
    os.umask(old)


def test_a_private_file_was_never_open_to_others(tmp_path, monkeypatch):
    modes = []
    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write_private(tmp_path / "keys" / "k", b"secret")
    assert modes == [0o600, 0o700]


def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(KeyFileError, match="cannot be written: No space left on device"):
        write_private(tmp_path / "k", b"secret")
    assert list(tmp_path.iterdir()) == []


def test_force_replaces_the_file_and_keeps_it_private(tmp_path):
    path = tmp_path / "k"
    path.write_bytes(b"old")
    path.chmod(0o666)
    with pytest.raises(KeyFileError, match="exists; --force overwrites it"):
        write_private(path, b"new")
    assert path.read_bytes() == b"old"
    write_private(path, b"new", force=True)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["k"]


def test_a_pipe_is_read_unless_nobody_writes_to_it(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(KeyFileError, match="pipe is a pipe that nobody writes to"):
        read_file(tmp_path / "pipe")
    reading, writing = os.pipe()
    os.write(writing, b"a key")
    os.close(writing)
    assert read_file(Path(f"/dev/fd/{reading}")) == b"a key"
    os.close(reading)


def test_a_dangling_link_is_not_written_through(tmp_path):
    target = tmp_path / "elsewhere"
    (tmp_path / "k").symlink_to(target)
    with pytest.raises(KeyFileError, match="exists"):
        write_private(tmp_path / "k", b"x")
    assert not target.exists()


def test_public_files_are_readable(tmp_path):
    write_public(tmp_path / "p", b"x")
    assert stat.S_IMODE((tmp_path / "p").stat().st_mode) == 0o644


def test_reading_is_bounded(tmp_path):
    (tmp_path / "big").write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    with pytest.raises(KeyFileError, match="expected at most"):
        read_file(tmp_path / "big")
