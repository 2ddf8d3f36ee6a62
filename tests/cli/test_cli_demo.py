import json

from dovetail.cli.main import main


def test_the_demo_finds_everything_and_leaves_journals_and_lake(tmp_path, capsys):
    out = tmp_path / "demo"
    assert main(["demo", "--out", str(out), "--seed", "5"]) == 0
    table = capsys.readouterr().out
    assert "6 of 6" in table
    assert "found: hop" in table
    assert main(["journal", "verify", str(out / "journals"), "--json"]) == 0
    assert all(json.loads(line)["intact"] for line in capsys.readouterr().out.splitlines())
    assert main(["journal", "verify", str(out / "tampered.journal")]) == 1
    capsys.readouterr()
    assert main(["demo", "--out", str(out), "--seed", "5"]) == 0
    assert capsys.readouterr().out == table, "the same seed gave another outcome"


def test_the_demo_removes_nothing_that_is_not_its_own(tmp_path, capsys):
    (tmp_path / "precious").touch()
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert "not from an earlier demo" in capsys.readouterr().err
    assert (tmp_path / "precious").exists()
