"""The configurations on the operations page are valid and run what the page says; `up` prints what it shows."""

import os
import re
import signal
import socket
import tempfile
from pathlib import Path

import pytest

from docs.shown import assert_printed, shown
from dovetail.site.config import find_warnings, load_config
from dovetail.site.servers import Site
from system.up_site import free_port, running

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "operate.md"
FILES = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def load(text: str, directory: Path, *roles: str) -> Site:
    path = directory / "site.toml"
    path.write_text(text)
    return Site.choose(load_config(path, {}).config, roles)


@pytest.mark.parametrize("number", range(len(FILES)))
def test_each_is_valid(number, tmp_path):
    path = tmp_path / "site.toml"
    path.write_text(FILES[number])
    assert find_warnings(load_config(path, {}).config) == []


def test_the_short_file_runs_the_same_as_the_example(tmp_path):
    from dovetail.site.config import Config
    from dovetail.site.config.schema import example_text

    short, example = load(FILES[0], tmp_path), load(example_text(Config), tmp_path)
    assert short.processes() == example.processes()


def test_the_roles_of_the_page_run_what_it_says(tmp_path):
    assert [process.name for process in load(FILES[1], tmp_path, "hub").processes()] == ["pcp/broker", "seal"]
    names = [process.name for process in load(FILES[1], tmp_path, "edge", "analysis").processes()]
    assert names == ["swarm/fleet/peer", "seal", "audit"]


@pytest.mark.system
def test_up_prints_what_the_page_shows():
    with tempfile.TemporaryDirectory(prefix="up") as name:
        listen = f"127.0.0.1:{free_port(socket.SOCK_DGRAM)}"
        (Path(name) / "site.toml").write_text(f'[[swarm]]\nname = "x"\nwork = 1\nlisten = ["{listen}"]\n')
        with running(Path(name), "site.toml") as up:
            up.await_line("all 2 processes run")
            os.kill(up.pid_of("swarm/x/peer"), signal.SIGKILL)
            up.await_line("all 2 processes run", 2)
            assert up.stop() == 0
        assert_printed(shown(PAGE), "\n".join(up.lines))
