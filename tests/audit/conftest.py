"""One Spark session for all tests of the audit, started on first use."""

from __future__ import annotations

import pytest

from audit.audit_worlds import open_test_session


@pytest.fixture(scope="session")
def spark():
    return open_test_session()
