"""The registry, and what is true of every fabric in it."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.fabrics import REGISTRY, every_fabric, fabric_named, fabric_of, name_of
from dovetail.model.address import ADDRESS_BYTES, Address, address_of, parse_address
from dovetail.model.fabric import Refused
from dovetail.model.hop import Stage

FABRICS = every_fabric()


@pytest.mark.parametrize(
    ("server", "name"),
    [
        ("pcp://broker/server", "pcp"),
        ("https://node.example/won/resource", "won"),
        ("http://localhost:1/won/resource", "won"),
        ("swarm://chat/peer", "swarm"),
    ],
)
def test_a_server_uri_tells_its_fabric(server, name):
    assert name_of(server) == name
    assert fabric_of(server) is fabric_named(name)


def test_what_is_not_registered_is_refused():
    for server in ("ftp://x", "", "PCP://broker/server"):
        with pytest.raises(ValueError, match="not the URI"):
            fabric_of(server)
    with pytest.raises(ValueError, match="expected one of pcp, won, swarm"):
        fabric_named("../etc")


@pytest.mark.parametrize("fabric", FABRICS, ids=lambda fabric: fabric.name)
def test_the_name_is_that_of_the_registry_and_fit_for_a_path(fabric):
    assert REGISTRY[fabric.name]
    assert fabric.name.isascii()
    assert fabric.name.isalpha()
    assert fabric.name.islower()


@pytest.mark.parametrize("fabric", FABRICS, ids=lambda fabric: fabric.name)
@given(address=st.binary(min_size=ADDRESS_BYTES, max_size=ADDRESS_BYTES).map(Address))
def test_an_address_survives_the_form_people_see(fabric, address):
    assert parse_address(fabric.show_address(address)) == address
    key = fabric.key_of(address)
    assert key is None if fabric.key_bytes is None else key == address[: fabric.key_bytes]


@pytest.mark.parametrize("fabric", FABRICS, ids=lambda fabric: fabric.name)
@given(raw=st.binary(max_size=200))
def test_any_bytes_are_refused_or_read_but_never_raise(fabric, raw):
    info = fabric.read(raw, fabric.default_agreement)
    explained = fabric.explain(raw)
    identified = fabric.identify(raw)
    if isinstance(info, Refused):
        assert info.detail
        assert identified.address == address_of(raw)
    else:
        assert "error" not in explained
        assert info.address == identified.address
    fabric.show_key(raw)
    assert fabric.needle(raw) == fabric.needle(raw).lower()


@pytest.mark.parametrize("fabric", FABRICS, ids=lambda fabric: fabric.name)
def test_a_receipt_says_what_a_delivery_leaves_open(fabric):
    assert fabric.not_proven(Stage.DELIVERED)
    assert fabric.not_proven(Stage.PURGED) is None


def test_agreements_are_for_fabrics_that_have_communities():
    for fabric in FABRICS:
        if fabric.default_agreement is None:
            with pytest.raises(ValueError, match=f"messages of {fabric.name} need no agreement"):
                fabric.parse_agreements(b"")


def test_asking_for_one_fabric_does_not_load_the_others():
    code = (
        "import sys; from dovetail.fabrics import fabric_of; fabric_of('pcp://b/server'); "
        "print(sorted(name for name in sys.modules if name.startswith(('dovetail.won', 'dovetail.swarm', 'pyoxi'))))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
