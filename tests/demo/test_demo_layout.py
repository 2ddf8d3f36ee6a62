import shutil
from collections import namedtuple

import pytest

from dovetail.audit import jars
from dovetail.cli.demo_screen import open_screen
from dovetail.demo.layout import MIN_FREE_BYTES, Layout
from dovetail.demo.run import run_demo
from dovetail.model.errors import DovetailError, PipelineError, UsageError


def test_only_what_an_earlier_demo_made_is_removed(tmp_path):
    layout = Layout(tmp_path / "out")
    layout.prepare()
    (layout.journals / "old.journal").touch()
    mine = layout.out / "notes.txt"
    mine.write_text("precious")
    layout.prepare()
    assert list(layout.journals.iterdir()) == []
    assert mine.read_text() == "precious"
    layout.clear()
    assert list(layout.out.iterdir()) == [mine]
    mine.unlink()
    layout.prepare()
    layout.clear()
    assert not layout.out.exists()


def test_what_a_demo_makes_is_for_its_owner_alone(tmp_path):
    layout = Layout(tmp_path / "out")
    layout.prepare()
    assert {each.stat().st_mode & 0o777 for each in (layout.out, layout.journals, layout.logs)} == {0o700}


def test_a_directory_or_file_of_somebody_else_is_refused(tmp_path):
    (tmp_path / "precious").touch()
    with pytest.raises(UsageError, match="not from an earlier demo"):
        Layout(tmp_path).prepare()
    with pytest.raises(UsageError, match="not a directory"):
        Layout(tmp_path / "precious").prepare()
    assert (tmp_path / "precious").exists()


def test_private_keys_go_and_journals_stay(tmp_path):
    layout = Layout(tmp_path / "out")
    layout.prepare()
    (layout.site / "keys").mkdir()
    (layout.site / "keys" / "node.skey").touch()
    layout.tidy()
    assert not layout.site.exists()
    assert layout.journals.is_dir()


def test_a_disk_without_room_is_refused_before_anything_starts(tmp_path, monkeypatch):
    usage = namedtuple("Usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, MIN_FREE_BYTES - 1))
    with pytest.raises(DovetailError, match="free some space, or choose another directory with --out"):
        Layout(tmp_path / "out").prepare()
    assert not (tmp_path / "out").exists()


def test_without_delta_lake_nothing_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr(jars, "directory", lambda environment=None: tmp_path)
    missing = pytest.raises(PipelineError, match=r"delta-spark.* is missing; fetch it with `.* -m dovetail.audit.jars`")
    with missing, open_screen() as screen:
        run_demo(tmp_path / "out", 1, 1, screen, keep=False)
    assert not (tmp_path / "out").exists()
