"""Whole small files are replaced, or left as they were, and an error names them."""

import pytest

from dovetail.journal.durable_file import replace_file


def test_a_file_is_replaced(tmp_path):
    for data in (b"old", b"new"):
        replace_file(tmp_path / "x", data)
    assert (tmp_path / "x").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("parent", ["file", "nothing"])
def test_the_error_names_the_file_and_not_its_temporary_name(tmp_path, parent):
    (tmp_path / "file").touch()
    with pytest.raises(OSError) as raised:
        replace_file(tmp_path / parent / "x", b"new")
    assert raised.value.filename == str(tmp_path / parent / "x")
