"""The directory of an owner on a disk that loses something."""

from dovetail.runtime.won_client import AtomFile, OwnerHome
from dovetail.won.signing import SigningKey, key_quads
from dovetail.won.trig import encode_document

NODE = "https://node.example/won/resource"


def test_a_stored_key_that_the_disk_has_lost_is_wanted_and_stored_again(tmp_path):
    home = OwnerHome.create(tmp_path / "home", AtomFile(f"{NODE}/atom/ann", (f"{NODE}/atom/ann#chat",)))
    document = encode_document(key_quads(NODE, SigningKey(bytes(32)).public, f"{NODE}#data"), "application/trig")
    home.keep_document(NODE, document)
    (stored,) = (home.directory / "keys").iterdir()
    for rest in (b"", document[: len(document) // 2]):
        stored.write_bytes(rest)
        assert home.read_document(NODE) is None
        home.keep_document(NODE, document)
        assert home.read_document(NODE) == document
    assert list((home.directory / "keys").iterdir()) == [stored]
