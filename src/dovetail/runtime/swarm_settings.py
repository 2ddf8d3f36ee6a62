"""The settings file of a swarm, which all of its peers share."""

from __future__ import annotations

from pathlib import Path

from dovetail.model.errors import ConfigError
from dovetail.swarm.settings import MAX_SETTINGS_BYTES, SwarmSettings, parse_swarm_settings


def load_swarm_settings(path: Path) -> SwarmSettings:
    """Load settings from a TOML file; ConfigError names the file and what is wrong."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SETTINGS_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    return parse_swarm_settings(data, str(path))
