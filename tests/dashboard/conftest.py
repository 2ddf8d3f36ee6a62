from __future__ import annotations

from pathlib import Path

import pytest

from dashboard.dashboard_world import write_site
from dovetail.dashboard.site_sources import Site


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Journals of a broker and two nodes; no longer being written."""
    return write_site(tmp_path_factory.mktemp("site") / "journals", before=2500, after=300)


@pytest.fixture
def site(folder: Path) -> Site:
    return Site((folder,))
