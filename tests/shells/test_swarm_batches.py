"""Many datagrams in few system calls: nothing is cut elsewhere, reordered or lost unseen."""

from __future__ import annotations

import errno
import random
import socket
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.shells.swarm_batches import MAX_PLAIN, MAX_RUN_BYTES, MAX_SEGMENTS, BatchSender, split_runs

HERE = ("127.0.0.1", 9)
THERE = ("127.0.0.2", 9)


@settings(deadline=None)
@given(st.lists(st.sampled_from([0, 1, 7, 300, 301, 1418]), max_size=300))
def test_runs_are_what_the_kernel_cuts_into_the_same_datagrams(sizes):
    datagrams = [number.to_bytes(4)[-size:].ljust(size, b"x") if size else b"" for number, size in enumerate(sizes)]
    runs = list(split_runs(datagrams))
    assert [datagram for run in runs for datagram in run] == datagrams
    for run in runs:
        assert 1 <= len(run) <= MAX_SEGMENTS
        assert sum(map(len, run)) <= MAX_RUN_BYTES
        if len(run) > 1:
            size = len(run[0])
            whole = b"".join(run)
            assert [whole[at : at + size] for at in range(0, len(whole), size)] == list(run)


@pytest.mark.system
@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
@pytest.mark.parametrize("sizes", [[300] * 150, [300, 200, 300, 301, 301, 12, 1418, 1418, 1418, 100]])
def test_all_arrive_in_order_over_loopback(sizes, family, host):
    chance = random.Random(5)
    datagrams = [chance.randbytes(size) for size in sizes]
    with (
        socket.socket(family, socket.SOCK_DGRAM) as receiver,
        socket.socket(family, socket.SOCK_DGRAM) as opened,
    ):
        try:
            receiver.bind((host, 0))
        except OSError:
            pytest.skip(f"no {host} here")
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        receiver.settimeout(5)
        opened.setblocking(False)
        assert BatchSender(opened).send(receiver.getsockname(), datagrams) == 0
        assert [receiver.recv(2048) for _ in datagrams] == datagrams


class Wire:
    """A socket that takes single datagrams and answers runs with an error, for some receivers or all."""

    def __init__(self, code: int, refused=(HERE, THERE)) -> None:
        self.code = code
        self.refused = refused
        self.runs = 0
        self.sent: list[bytes] = []

    def sendmsg(self, buffers, ancillary, flags, address) -> int:
        self.runs += 1
        if address in self.refused:
            raise OSError(self.code, "refused")
        self.sent += buffers
        return sum(map(len, buffers))

    def sendto(self, data, address) -> int:
        if address == THERE and self.code == errno.ENETUNREACH:
            raise OSError(self.code, "refused")
        self.sent.append(data)
        return len(data)


needs_segments = pytest.mark.skipif(sys.platform != "linux", reason="only Linux cuts runs")


@needs_segments
@pytest.mark.parametrize("code", [errno.EIO, errno.EINVAL, errno.EMSGSIZE, errno.ENOPROTOOPT])
def test_where_runs_are_not_possible_datagrams_go_one_by_one_from_then_on(code):
    wire = Wire(code, refused=(HERE,))
    sender = BatchSender(wire)
    for _ in range(3):
        assert sender.send(HERE, [b"aa", b"bb", b"c"]) == 0
    assert wire.sent == [b"aa", b"bb", b"c"] * 3
    assert wire.runs == 1
    assert sender.send(THERE, [b"aa", b"bb"]) == 0
    assert wire.runs == 2


@needs_segments
def test_a_full_buffer_is_counted_as_loss_and_does_not_end_runs():
    wire = Wire(errno.EAGAIN)
    sender = BatchSender(wire)
    assert sender.send(HERE, [b"aa"] * 5) == 5
    assert sender.send(HERE, [b"aa"] * 5) == 5
    assert wire.runs == 2
    assert wire.sent == []


def test_no_route_is_counted_as_loss():
    wire = Wire(errno.ENETUNREACH)
    assert BatchSender(wire).send(THERE, [b"aa", b"bb", b"cc"]) == 3
    assert BatchSender(wire).send(THERE, [b"aa"]) == 1


@needs_segments
def test_what_is_remembered_about_receivers_is_bounded():
    wire = Wire(errno.EIO, refused=[("127.0.0.1", port) for port in range(MAX_PLAIN + 1)])
    sender = BatchSender(wire)
    for port in range(MAX_PLAIN + 1):
        sender.send(("127.0.0.1", port), [b"aa", b"bb"])
    assert wire.runs == MAX_PLAIN + 1
    sender.send(("127.0.0.1", 0), [b"aa", b"bb"])
    assert wire.runs == MAX_PLAIN + 2
