"""UEP-12, Anti-Spamming: the search with hashlib and with vectors finds the same nonces."""

from __future__ import annotations

import hashlib

import pytest

from dovetail.swarm.content import NONCES, POW_TARGET, Content, check_work, decode_content, encode_content, with_nonce
from dovetail.swarm.pow import HashlibSearch, best_search, expected_hashes, solve
from swarm.vectors import of_layer

pytestmark = pytest.mark.exhaustive  # the kernels are compiled first

SOLVED = [vector for vector in of_layer("uep12") if "nonce_search_start" in vector]
EASY = (1 << 256) // 50


def vector_searches():
    pow_llvm = pytest.importorskip("dovetail.swarm.pow_llvm")
    return [pow_llvm.VectorSearch(lanes) for lanes in {4, 8, pow_llvm.host_lanes()}]


@pytest.mark.parametrize("vector", SOLVED, ids=lambda vector: vector["name"])
def test_the_search_increases_from_its_start_and_finds_the_nonce_of_the_vector(vector):
    message = bytes.fromhex(vector["hex"])
    nonce, start = vector["fields"]["pow_nonce"], vector["nonce_search_start"]
    blank = with_nonce(message, 0)
    for search in vector_searches():
        assert search.find(blank, POW_TARGET, start, 1 << 20) == nonce
    if nonce - start < 30_000:
        assert HashlibSearch().find(blank, POW_TARGET, start, 1 << 20) == nonce


@pytest.mark.parametrize("size", [20, 55, 56, 63, 64, 65, 119, 120, 128, 500, 1400, 11_256])
def test_hashlib_and_vectors_agree_at_every_padding(size):
    message = encode_content(Content(timestamp_ms=1_700_000_000_123, ttl_epochs=7, payload=b"x" * (size - 20)))
    for start in (0, 250, (1 << 40) - 3, NONCES - 9):
        expected = HashlibSearch().find(message, EASY, start, 2000)
        for search in vector_searches():
            assert search.find(message, EASY, start, 2000) == expected


def test_the_search_wraps_at_the_largest_nonce():
    message = encode_content(Content(timestamp_ms=1, ttl_epochs=1, payload=b"wrap"))
    for search in (HashlibSearch(), *vector_searches()):
        solved = solve(message, EASY, NONCES - 1, search)
        check_work(solved, EASY)
        assert decode_content(solved).pow_nonce < 2000


def test_nothing_found_is_none():
    message = encode_content(Content(timestamp_ms=1, ttl_epochs=1))
    for search in (HashlibSearch(), *vector_searches()):
        assert search.find(message, 1, 0, 1000) is None


def test_a_target_above_every_work_takes_the_first_nonce():
    message = encode_content(Content(timestamp_ms=1, ttl_epochs=1))
    for search in (HashlibSearch(), *vector_searches()):
        assert search.find(message, 1 << 256, 77, 10) == 77


def test_solving_can_be_cancelled_and_tells_its_progress():
    message = encode_content(Content(timestamp_ms=1, ttl_epochs=1))
    told: list[int] = []
    assert (
        solve(message, 1, 0, best_search(), run=100, is_cancelled=lambda: len(told) == 3, progress=told.append) is None
    )
    assert told == [100, 200, 300]


def test_expected_hashes():
    assert expected_hashes(POW_TARGET) == 100_000
    assert expected_hashes(1 << 256) == 1


def test_round_constants_hash_as_the_standard_library_does():
    pow_llvm = pytest.importorskip("dovetail.swarm.pow_llvm")
    message = encode_content(Content(timestamp_ms=5, ttl_epochs=1, payload=bytes(200)))
    nonce = pow_llvm.VectorSearch().find(message, POW_TARGET, 0, 1 << 22)
    solved = with_nonce(message, nonce)
    preimage = solved[13:17] + solved[:13] + solved[17:]
    assert int.from_bytes(hashlib.sha256(preimage).digest()) < POW_TARGET
