"""Many datagrams in few system calls: nothing is split wrongly, reordered or silently lost."""

from __future__ import annotations

import contextlib
import errno
import random
import socket
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.runtime.swarm_batches import (
    MAX_PLAIN,
    MAX_RUN_BYTES,
    MAX_SEGMENTS,
    BatchReceiver,
    BatchSender,
    split_runs,
)

HERE = ("127.0.0.1", 9)
THERE = ("127.0.0.2", 9)

needs_segments = pytest.mark.skipif(sys.platform != "linux", reason="only Linux cuts runs")


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


SIZES = [[300] * 150, [300, 200, 300, 301, 301, 12, 1418, 1418, 1418, 100]]
HOSTS = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]


@contextlib.contextmanager
def bound(family, host, count=2):
    """Non-blocking sockets on loopback that keep what was sent to them."""
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(socket.socket(family, socket.SOCK_DGRAM)) for _ in range(count)]
        for each in opened:
            try:
                each.bind((host, 0))
            except OSError:
                pytest.skip(f"no {host} here")
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            each.setblocking(False)
        yield opened


@pytest.mark.system
@pytest.mark.parametrize(("family", "host"), HOSTS)
@pytest.mark.parametrize("sizes", SIZES)
def test_all_arrive_in_order_over_loopback(sizes, family, host):
    chance = random.Random(5)
    datagrams = [chance.randbytes(size) for size in sizes]
    with bound(family, host) as (receiver, opened):
        receiver.settimeout(5)
        assert BatchSender(opened).send(receiver.getsockname(), datagrams) == 0
        assert [receiver.recv(2048) for _ in datagrams] == datagrams


@pytest.mark.system
@pytest.mark.parametrize(("family", "host"), HOSTS)
@pytest.mark.parametrize("sizes", [*SIZES, [0, 0, 1, 1, 2047, 2048, 2049, 5000, 5000, 7], [300] * 64])
@pytest.mark.parametrize("is_gathered", [True, False])
def test_what_is_received_together_is_cut_into_the_datagrams_that_were_sent(is_gathered, sizes, family, host):
    chance = random.Random(5)
    datagrams = [chance.randbytes(size) for size in sizes]
    with bound(family, host) as (opened, sender):
        receiver = BatchReceiver(opened, 2048)
        if is_gathered:
            assert BatchSender(sender).send(opened.getsockname(), datagrams) == 0
        else:
            for datagram in datagrams:
                sender.sendto(datagram, opened.getsockname())
        ((address, received),) = receiver.receive(1000)
        assert address == sender.getsockname()
        assert received == [datagram[:2048] for datagram in datagrams]
        assert receiver.receive(1000) == []


@pytest.mark.system
def test_senders_are_told_apart_and_their_order_is_kept():
    with bound(*HOSTS[0], count=3) as (opened, first, second):
        receiver = BatchReceiver(opened, 2048)
        to = opened.getsockname()
        BatchSender(first).send(to, [b"a", b"b"])
        BatchSender(first).send(to, [b"c"])
        BatchSender(second).send(to, [b"d", b"e"])
        BatchSender(first).send(to, [b"f"])
        one, other = first.getsockname(), second.getsockname()
        assert receiver.receive(9) == [(one, [b"a", b"b", b"c"]), (other, [b"d", b"e"]), (one, [b"f"])]


@needs_segments
@pytest.mark.system
def test_so_many_are_received_and_what_came_with_the_last_of_them():
    with bound(*HOSTS[0]) as (opened, sender):
        receiver = BatchReceiver(opened, 2048)
        for number in range(10):
            BatchSender(sender).send(opened.getsockname(), [bytes([number]), bytes([number])])
        counts = [len(datagrams) for _ in range(4) for _, datagrams in receiver.receive(3)]
        assert counts == [4, 4, 4, 4]


def test_where_the_kernel_gathers_nothing_datagrams_come_one_by_one():
    class Plain:
        def __init__(self) -> None:
            self.held = [(b"x" * 10, HERE), (b"y", HERE), (b"z", THERE)]

        def setsockopt(self, *option) -> None:
            raise OSError(errno.ENOPROTOOPT, "not here")

        def recvfrom(self, size):
            if not self.held:
                raise OSError(errno.EIO, "broken")
            data, address = self.held.pop(0)
            return data[:size], address

    assert BatchReceiver(Plain(), 4).receive(9) == [(HERE, [b"xxxx", b"y"]), (THERE, [b"z"])]


class Wire:
    """A socket that accepts single datagrams and fails for batches, for some receivers or all."""

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
