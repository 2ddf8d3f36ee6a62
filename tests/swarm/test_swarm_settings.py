"""The agreement of a swarm is part of its address."""

from __future__ import annotations

import msgspec
import pytest

from dovetail.model.errors import ConfigError
from dovetail.swarm.content import POW_TARGET
from dovetail.swarm.settings import SwarmSettings, parse_swarm_settings


def test_defaults_are_those_of_the_text():
    settings = SwarmSettings(name="fleet")
    assert settings.rules.pow_target == POW_TARGET
    assert settings.rules.epoch_ms == settings.rules.max_future_ms == 60_000


@pytest.mark.parametrize(("epoch_ms", "is_warned_of"), [(59_999, True), (60_000, False), (86_400_000, False)])
def test_an_epoch_below_a_minute_is_warned_of(epoch_ms, is_warned_of):
    assert bool(SwarmSettings(name="x", epoch_ms=epoch_ms).warnings) == is_warned_of


def test_peers_that_disagree_have_different_addresses():
    base = SwarmSettings(name="fleet")
    others = [
        SwarmSettings(name="fleet", epoch_ms=61_000),
        SwarmSettings(name="fleet", max_ttl_epochs=7),
        SwarmSettings(name="fleet", work=99),
        SwarmSettings(name="fleet", max_future_ms=1),
        SwarmSettings(name="fleet", slot_slack=2),
        SwarmSettings(name="fleet2"),
    ]
    addresses = {settings.swarm_address for settings in [base, *others]}
    assert len(addresses) == 7
    assert len({address[:12] for address in addresses}) == 2
    assert all(len(address) == 20 for address in addresses)
    assert SwarmSettings(name="fleet").swarm_address == base.swarm_address


def test_the_secret_is_part_of_the_key_and_not_of_the_address():
    open_swarm, private = SwarmSettings(name="fleet"), SwarmSettings(name="fleet", secret="ab" * 20)
    assert open_swarm.swarm_address == private.swarm_address
    assert private.key == open_swarm.key + bytes.fromhex("ab" * 20)


def test_a_swarm_made_elsewhere_keeps_its_address():
    assert SwarmSettings(name="x", address="01" * 20).swarm_address == b"\x01" * 20


def test_a_settings_file():
    data = b'name = "fleet"\nwork = 1000\nsecret = "' + b"0a" * 20 + b'"\n'
    assert parse_swarm_settings(data, "swarm.toml") == SwarmSettings(name="fleet", work=1000, secret="0a" * 20)


@pytest.mark.parametrize(
    "data", [b"", b'name = ""', b'name = "a b"', b'name = "a"\nepoch_ms = 5', b'name = "a"\ncolour = 1', b"name = ["]
)
def test_a_settings_file_that_is_wrong(data):
    with pytest.raises(ConfigError, match=r"swarm\.toml"):
        parse_swarm_settings(data, "swarm.toml")


def test_every_setting_has_a_description():
    schema = msgspec.json.schema(SwarmSettings)["$defs"]["SwarmSettings"]["properties"]
    assert all("description" in field or "anyOf" in field for field in schema.values())
