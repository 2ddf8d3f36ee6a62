"""Files of the tables that several runs share."""

from __future__ import annotations

import errno
import os

import pytest

from dovetail.audit import store as module


@pytest.mark.parametrize("has_links", [True, False])
def test_files_that_stay_are_linked_or_else_copied(tmp_path, monkeypatch, has_links):
    if not has_links:

        def refuse(*_):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

        monkeypatch.setattr(module.os, "link", refuse)
    source, target = tmp_path / "old", tmp_path / "new"
    source.mkdir()
    target.mkdir()
    files = [source / name for name in ("one.parquet", "two.parquet")]
    for file in files:
        file.write_bytes(file.name.encode())
    module._link_files(files, target)
    for file in files:
        assert (target / file.name).read_bytes() == file.name.encode()
        assert (target / file.name).samefile(file) == has_links
