from __future__ import annotations

import pytest

from receipt import receipt_samples as samples


@pytest.fixture(scope="session")
def receipts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """One valid receipt of each fabric."""
    return {name: make(tmp_path_factory.mktemp(name)).build() for name, make in samples.CASES.items()}
