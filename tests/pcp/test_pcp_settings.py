"""Settings from a table, as in a configuration file."""

import msgspec
import pytest

from dovetail.model.errors import ConfigError
from dovetail.pcp.settings import PcpSettings, Rule


def test_a_table_becomes_settings():
    table = {
        "name": "broker.example.com",
        "port": 0,
        "metrics_port": 9100,
        "rules": [{"sender": "pcp://*/controller", "message_type": "http://x/*", "allow": True}],
        "bodies": [{"message_type": "*", "bodies": "address"}],
    }
    settings = msgspec.convert(table, PcpSettings)
    assert settings.rules == (Rule(sender="pcp://*/controller", message_type="http://x/*", allow=True),)
    assert settings.server_uri == "pcp://broker.example.com/server"


@pytest.mark.parametrize(
    "table",
    [
        {"unknown": 1},
        {"port": 70_000},
        {"metrics_port": -1},
        {"rules": [{"sender": "nobody", "allow": True}]},
        {"rules": [{"sender": "pcp://*/*"}]},
        {"durability": "maybe"},
        {"max_message_bytes": 0},
        {"mount_v1": "no slash"},
        {"name": "a b"},
        {"rules": [{"sender": "pcp://@nobody/controller", "allow": True}]},
        {"rules": [{"target": "pcp://a b/controller", "allow": True}]},
        {"types": {"controller": ["@nobody"]}},
        {"groups": {"a": ["@b"], "b": ["x"]}},
        {"groups": {"a b": ["x"]}},
    ],
)
def test_what_is_not_allowed_is_refused(table):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(table, PcpSettings)


def test_mounts_must_differ():
    with pytest.raises(ConfigError):
        PcpSettings(mount_v1="/x", mount_v2="/x")


def test_a_rule_describes_itself():
    assert Rule(allow=False, name="quiet").describe() == "quiet: deny pcp://*/* -> pcp://*/* *"
