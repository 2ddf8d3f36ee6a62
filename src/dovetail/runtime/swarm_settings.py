"""The settings file of a swarm, which all of its peers share."""

from __future__ import annotations

from pathlib import Path

from dovetail.keys.files import read_bounded
from dovetail.model.errors import ConfigError
from dovetail.swarm.settings import MAX_SETTINGS_BYTES, SwarmSettings, parse_swarm_settings


def load_swarm_settings(path: Path) -> SwarmSettings:
    """Load settings from a TOML file; ConfigError names the file and what is wrong."""
    return parse_swarm_settings(read_bounded(path, MAX_SETTINGS_BYTES, ConfigError), str(path))
