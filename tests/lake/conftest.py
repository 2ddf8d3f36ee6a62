"""Stores of every kind that a lake may be in."""

from __future__ import annotations

import itertools

import pytest

from dovetail.lake.store import LocalStore
from lake.s3_servers import fresh_store, run_moto, run_versitygw, use

_numbers = itertools.count()
KINDS = ("directory", "moto", pytest.param("versitygw", marks=pytest.mark.system))


@pytest.fixture(scope="session")
def moto():
    """An S3 server in this process."""
    with run_moto() as server:
        yield server


@pytest.fixture(scope="session")
def versitygw(tmp_path_factory):
    """A real S3 server, if it is installed."""
    with run_versitygw(tmp_path_factory.mktemp("versitygw")) as server:
        yield server


@pytest.fixture(params=KINDS)
def any_store(request, tmp_path):
    """An empty store; a test with it runs for each kind."""
    if request.param == "directory":
        yield LocalStore(tmp_path / "lake")
    else:
        with use(request.getfixturevalue(request.param)):
            yield fresh_store(f"lake-{next(_numbers)}")
