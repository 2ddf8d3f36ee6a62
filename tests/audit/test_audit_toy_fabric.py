"""A fourth fabric on Spark: its audit is one value in one more line of a registry."""

from __future__ import annotations

import pytest
from pyspark import cloudpickle

from dovetail.audit.fabrics import AUDITS
from dovetail.audit.run import Audit
from dovetail.audit.settings import AuditSettings
from dovetail.audit.tables import open_tables
from dovetail.lake.seal import seal_journal
from dovetail.lake.store import LocalStore
from dovetail.model.address import address_of
from fabrics import toy_fabric
from fabrics.test_toy_fabric import ANSWER, ASK, OTHER, SERVER, journal
from fabrics.toy_audit import AUDIT
from receipt import receipt_samples as samples

__all__ = ["journal"]


@pytest.fixture
def audited(spark, journal, tmp_path):
    cloudpickle.register_pickle_by_value(toy_fabric)  # Spark's Python workers do not see the tests folder
    AUDITS.append(AUDIT)
    seal_journal(journal, LocalStore(tmp_path / "lake"))
    settings = AuditSettings(trusted=samples.verifiers(SERVER))
    yield Audit(spark=spark, lake=tmp_path / "lake", tables=tmp_path / "tables", settings=settings).refresh()
    AUDITS.remove(AUDIT)
    cloudpickle.unregister_pickle_by_value(toy_fabric)


@pytest.mark.usefixtures("audited")
def test_cards_are_decoded_and_their_deliveries_told(tmp_path):
    tables = open_tables(tmp_path / "tables")
    told = {row["message"]: (row["recipient"], row["outcome"]) for row in tables.read("deliveries").to_pylist()}
    assert told == {
        address_of(ASK): ("toy://bob", "delivered"),
        address_of(ANSWER): ("toy://ann", "delivered"),
        address_of(OTHER): ("toy://cid", "in_flight"),
    }
    (link,) = tables.read("links").to_pylist()
    assert (link["child"], link["parent"], link["relation"]) == (address_of(ANSWER), b"a1", "in_reply_to")
    (server,) = tables.read("integrity").to_pylist()
    assert (server["fabric"], server["verdict"]) == ("toy", "proven")
