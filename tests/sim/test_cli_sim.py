"""`dovetail sim run`."""

import msgspec
import pytest
from typer.testing import CliRunner

from dovetail.cli.sim import app
from dovetail.journal.verify import verify_journal
from dovetail.model.errors import UsageError
from dovetail.sim.scenario import Setting, run_scenario
from sim.pingpong import PINGPONG

SMALL = ["--scenario", PINGPONG, "--places", "2", "--duration", "0.5"]


def invoke(*arguments):
    result = CliRunner().invoke(app, ["run", *SMALL, *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_summary_ends_with_the_digest_of_that_seed():
    result = invoke("--seed", "7")
    assert result.exit_code == 0
    expected = run_scenario(PINGPONG, 7, setting=Setting(places=2, duration_us=500_000)).digest
    assert result.stdout.splitlines()[-1].split() == ["digest", expected]
    assert "10 pings, 10 delivered, 10 acknowledged" in result.stdout


def test_json_is_one_object_per_seed():
    result = invoke("--seed", "3", "--seeds", "3", "--faults", "all", "--json")
    reports = [msgspec.json.decode(line) for line in result.stdout.splitlines()]
    assert [report["seed"] for report in reports] == [3, 4, 5]
    assert len({report["digest"] for report in reports}) == 3


def test_findings_are_printed_and_make_it_fail():
    result = invoke("--loss", "1")
    assert result.exit_code == 3
    assert "findings  1" in result.stdout
    assert "settled: the world: not settled" in result.stdout


def test_out_holds_what_is_needed_to_replay(tmp_path):
    first = invoke("--faults", "all", "--out", str(tmp_path / "world"))
    faults = str(tmp_path / "world" / "faults.json")
    assert invoke("--faults", faults).stdout == first.stdout
    report = msgspec.json.decode((tmp_path / "world" / "report.json").read_bytes())
    assert report["digest"] in first.stdout
    verdicts = [verify_journal(tmp_path / "world" / f"{place}.journal") for place in ("place-0000", "place-0001")]
    assert all(verdict.is_intact for verdict in verdicts)
    assert sum(verdict.hops for verdict in verdicts) == report["hops"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("scenario", ["pcp", "won", "swarm"])
def test_every_fabric_plays_into_real_journals(tmp_path, scenario):
    wanted = ["--scenario", scenario, "--duration", "3", "--faults", "crash,append_crash", "--json"]
    result = invoke(*wanted, "--out", str(tmp_path))
    report = msgspec.json.decode(result.stdout)
    assert (report["findings"], report["is_settled"]) == ([], True)
    verdicts = [verify_journal(path) for path in sorted(tmp_path.glob("*.journal"))]
    assert len(verdicts) == report["places"]
    assert all(verdict.is_intact for verdict in verdicts)
    assert sum(verdict.hops for verdict in verdicts) == report["hops"] > 0
    assert msgspec.json.decode(invoke(*wanted).stdout)["digest"] == report["digest"]


def test_out_is_not_written_behind_another_world(tmp_path):
    invoke("--out", str(tmp_path))
    with pytest.raises(UsageError, match="earlier world"):
        invoke("--out", str(tmp_path))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--scenario", "chess"],
        ["--faults", "flood"],
        ["--faults", "nowhere/faults.json"],
        ["--seeds", "2", "--out", "x"],
        ["--places", "20000"],
    ],
)
def test_misuse_is_told(arguments):
    with pytest.raises(UsageError):
        invoke(*arguments)
