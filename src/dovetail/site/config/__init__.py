"""The configuration: its sections, their allowed values, and reading them from a file and the environment."""

from dovetail.site.config.fields import ListenTcp, ListenUdp, Section, parse_listen
from dovetail.site.config.reader import ConfigProblems, LoadedConfig, Setting, load_config
from dovetail.site.config.sections import Config
from dovetail.site.config.warnings import find_warnings

__all__ = [
    "Config",
    "ConfigProblems",
    "ListenTcp",
    "ListenUdp",
    "LoadedConfig",
    "Section",
    "Setting",
    "find_warnings",
    "load_config",
    "parse_listen",
]
