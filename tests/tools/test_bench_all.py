"""The benchmarks page: written from rows, including what failed or was missing."""

import xml.etree.ElementTree as ElementTree

import pytest
from benchmarks import all as bench
from benchmarks.charts import bars


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "PAGE", tmp_path / "benchmarks.md")
    monkeypatch.setattr(bench, "IMAGES", tmp_path / "images")

    def write(**parts: dict[str, object]) -> str:
        whole = {
            name: {"command": f"python -m {name}", "rows": [], "said": [], "failed": False, **part}
            for name, part in parts.items()
        }
        bench.write_page(bench.Results({"machine": {"processor": "2 cores"}, "parts": whole}))
        return (tmp_path / "benchmarks.md").read_text()

    return write


def test_aims_are_judged_by_what_was_measured(page):
    text = page(
        pcp={"rows": [{"workload": "a1", "dovetail us": 12.0, "jetstream us": 10.0, "of jetstream": 1.2}]},
        verify={"rows": [{"workload": "verify", "hops/s": 5}]},
    )
    assert "| a1: cost beside jetstream | <= 1.3 | 1.2 | reached |" in text
    assert "| a1: cost beside mosquitto | <= 2.9 |  | not measured |" in text
    assert "| `journal verify`, hops a second | >= 1,000,000 | 5 | **not reached** |" in text


def test_readme_gets_the_costs_and_keeps_the_rest(tmp_path, monkeypatch):
    readme = tmp_path / "README.md"
    begin, end = bench.MARKS
    readme.write_text(f"# Name\n{begin}old\n{end}more\n")
    monkeypatch.setattr(bench, "README", readme)
    rows = [{"workload": "a32", "dovetail us": 10.5, "jetstream us": 6.02}]
    bench.write_readme(bench.Results({"machine": {}, "parts": {"pcp": {"rows": rows}}}))
    text = readme.read_text()
    assert text.startswith(f"# Name\n{begin}|  | Dovetail | JetStream | NATS | mosquitto |\n")
    assert text.endswith(f"\n\n{end}more\n")
    assert "| 20 pairs, 32 messages in flight each | 10.5 | 6.02 |  |  |" in text


def test_the_costs_in_readme_are_those_of_the_page():
    _, _, rest = bench.README.read_text().partition(bench.MARKS[0])
    shown = [line.strip("| ").split(" | ") for line in rest.partition(bench.MARKS[1])[0].splitlines()[2:] if line]
    measured = bench.PAGE.read_text()
    assert [row[0] for row in shown] == list(bench.SHAPES.values())
    for column, server in enumerate(("dovetail", "jetstream", "nats", "mosquitto"), 1):
        assert f"| {server} us | {' | '.join(row[column] for row in shown)} |" in measured


def test_what_failed_and_what_was_missing_is_said(page):
    text = page(
        pcp={"said": ["not installed, or too old, so not compared: mosquitto"]},
        won={"failed": True, "said": ["no TLS"]},
    )
    assert "> not installed, or too old, so not compared: mosquitto" in text
    assert "> no TLS\n\nIt failed." in text


def test_a_benchmark_that_cannot_run_is_a_row_that_failed():
    part = bench.run_part(bench.Part("gone", ("benchmarks.gone",), "python"))
    assert part["failed"]
    assert "No module named benchmarks.gone" in part["said"][-1]


def test_a_wide_row_is_turned():
    row = {"workload": "a1", **{f"figure {number}": number for number in range(9)}}
    assert bench.raw_table([row])[:3] == ["| workload | a1 |", "|---|---|", "| figure 0 | 0 |"]


def test_a_chart_has_a_bar_for_every_figure_and_none_for_what_is_missing():
    chart = ElementTree.fromstring(bars("costs < 5", ["a1", "b4"], {"ours": [1.5, 3], "<peer>": [None, 6]}))
    texts = [each.text for each in chart.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["costs < 5", "ours", "<peer>", "a1", "1.5", "b4", "3", "6"]


def test_a_benchmark_that_does_not_end_is_stopped_with_what_it_started(monkeypatch):
    monkeypatch.setattr(bench, "TIMEOUT_SECONDS", 2)
    code = """
import subprocess, sys
print('{"workload": "first"}', flush=True)
subprocess.run([sys.executable, "-c", "import time; time.sleep(300)"])
"""
    part = bench.run_part(bench.Part("endless", ("timeit", "-n1", "-r1", code), "python"))
    assert part["failed"]
    assert part["rows"] == [{"workload": "first"}]
    assert part["said"][-1] == "no end after 2 s"
