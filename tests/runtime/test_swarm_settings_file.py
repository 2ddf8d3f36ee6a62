import pytest

from dovetail.model.errors import ConfigError
from dovetail.runtime.swarm_settings import load_swarm_settings
from dovetail.swarm.settings import MAX_SETTINGS_BYTES, SwarmSettings


def test_a_settings_file(tmp_path):
    path = tmp_path / "swarm.toml"
    path.write_text('name = "fleet"\nwork = 1000\n')
    assert load_swarm_settings(path) == SwarmSettings(name="fleet", work=1000)


def test_a_settings_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.toml cannot be read: No such file"):
        load_swarm_settings(tmp_path / "none.toml")


def test_a_settings_file_that_is_too_large(tmp_path):
    path = tmp_path / "swarm.toml"
    path.write_text("#" * (MAX_SETTINGS_BYTES + 1))
    with pytest.raises(ConfigError, match=f"expected at most {MAX_SETTINGS_BYTES}"):
        load_swarm_settings(path)
