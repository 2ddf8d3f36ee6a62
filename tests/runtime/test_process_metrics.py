"""What every process reports about itself."""

import pytest
from prometheus_client import generate_latest

from dovetail import fast
from dovetail.runtime.metrics import new_registry


@pytest.mark.parametrize("implementation", ["native", "python"])
def test_the_implementation_in_use_is_a_label(monkeypatch, implementation):
    monkeypatch.setattr(fast, "IMPLEMENTATION", implementation)
    (line,) = [
        line for line in generate_latest(new_registry()).decode().splitlines() if line.startswith("dovetail_build")
    ]
    assert f'fast="{implementation}"' in line
