"""The configurations in the page on operating are valid, and run what the page says."""

import re
from pathlib import Path

import pytest

from dovetail.site.config import load_config
from dovetail.site.servers import Site

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
    assert load_config(path, {}).config


def test_the_short_file_runs_the_same_as_the_example(tmp_path):
    from dovetail.site.config import Config
    from dovetail.site.config.schema import example_text

    short, example = load(FILES[0], tmp_path), load(example_text(Config), tmp_path)
    assert short.members() == example.members()


def test_the_roles_of_the_page_run_what_it_says(tmp_path):
    assert [member.name for member in load(FILES[1], tmp_path, "hub").members()] == ["pcp/broker", "seal"]
    names = [member.name for member in load(FILES[1], tmp_path, "edge", "analysis").members()]
    assert names == ["swarm/fleet/peer", "seal", "audit"]
