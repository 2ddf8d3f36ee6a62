import tracemalloc

from dovetail.won.vocabulary import check_atom_uri, check_socket_uri

ATOM = "https://a.example/won/resource/atom/x"


def test_long_names_of_sockets_are_not_kept():
    """Sockets of messages are checked before anybody's signature is."""
    tracemalloc.start()
    try:
        for number in range(64):
            check_socket_uri(f"{ATOM}#{number:0100000d}")
        for number in range(64):
            check_atom_uri(f"{ATOM}{number}")
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 1_000_000
