import io
import json

import pytest

from dovetail.cli.transcript import Transcript
from dovetail.site.supervisor import State

SITE = """
[[pcp]]
role = "hub"
[[swarm]]
name = "fleet"
role = "edge"
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "site.toml"
    path.write_text(SITE)
    return path


def test_list_says_what_would_run(dovetail, file):
    ran = dovetail("up", file, "--list", "--json")
    assert ran.code == 0
    rows = [json.loads(line) for line in ran.out.splitlines()]
    assert [(row["process"], row["role"], row["listens"]) for row in rows] == [
        ("pcp/broker", "hub", ["tcp:127.0.0.1:8142"]),
        ("swarm/fleet/peer", "edge", ["udp:127.0.0.1:4711"]),
        ("seal", "", []),
    ]
    assert rows[0]["journal"] == str(file.parent / "journals" / "pcp_broker_server.journal")


def test_list_names_the_page_and_the_audit_too(dovetail, file):
    file.write_text(SITE + '[audit]\nenabled = true\nrole = "desk"\n[dashboard]\nenabled = true\nrole = "desk"\n')
    ran = dovetail("up", file, "--list", "--json", "--role", "desk")
    rows = [json.loads(line) for line in ran.out.splitlines()]
    assert [(row["process"], row["role"], row["listens"]) for row in rows] == [
        ("audit", "desk", []),
        ("dashboard", "desk", ["tcp:127.0.0.1:8600"]),
    ]


def test_list_keeps_to_the_roles(dovetail, file):
    ran = dovetail("up", file, "--list", "--role", "edge")
    assert [line.split()[0] for line in ran.out.splitlines()] == ["process", "swarm/fleet/peer", "seal"]


def test_a_site_that_cannot_run_is_refused_with_a_line_per_problem(dovetail, file):
    ran = dovetail("up", file, "--role", "hub")
    assert (ran.code, ran.out) == (1, "")
    lines = ran.err.splitlines()
    assert len(lines) >= 4
    assert all(line.startswith("dovetail: ") for line in lines)


def test_pcp_serve_says_who_runs_tables_of_a_list(dovetail, file):
    ran = dovetail("pcp", "serve", "--config", file)
    assert (ran.code, len(ran.err.splitlines())) == (1, 1)
    assert "`dovetail up` runs [[pcp]] tables" in ran.err


@pytest.fixture
def streams():
    return io.StringIO(), io.StringIO()


def test_text_for_people_has_names_in_front_and_is_escaped(streams):
    out, err = streams
    transcript = Transcript(is_json=False, out=out, err=err)
    transcript.changed("pcp/a", State.RUNNING, "port 1")
    transcript.became_healthy(1)
    transcript.wrote("pcp/a", "a\x1b[2Jb", is_error=True)
    transcript.wrote("audit", "error lost", is_error=False)
    told, well, line = err.getvalue().splitlines()
    assert well.endswith(" all 1 processes run; Ctrl-C or SIGTERM stops them")
    assert told.endswith(" pcp/a: running: port 1")
    assert line == "pcp/a | a\\x1b[2Jb"
    assert out.getvalue() == "audit | error lost\n"


def test_json_stays_json(streams):
    out, err = streams
    transcript = Transcript(is_json=True, out=out, err=err)
    transcript.changed("pcp/a", State.GIVEN_UP, "why")
    transcript.wrote("pcp/a", '{"level": "info", "text": "t"}', is_error=True)
    transcript.wrote("pcp/a", "no json", is_error=True)
    transcript.wrote("pcp/a", "[1]", is_error=True)
    told, *lines = [json.loads(line) for line in err.getvalue().splitlines()]
    assert (told["process"], told["state"], told["detail"]) == ("pcp/a", "given up", "why")
    assert lines == [
        {"process": "pcp/a", "level": "info", "text": "t"},
        {"process": "pcp/a", "text": "no json"},
        {"process": "pcp/a", "text": "[1]"},
    ]


def test_a_reader_that_went_away_stops_nothing():
    tried = []

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            tried.append(text)
            raise BrokenPipeError

    Transcript(is_json=False, out=Gone(), err=Gone()).changed("a", State.RUNNING, "")
    assert tried
