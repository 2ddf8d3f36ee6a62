"""In whatever order messages and responses travel: responses commit to everything their side has seen."""

from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.won.confirmation import AtomConfirmations, ConnectionConfirmations

UNBOUNDED = 10_000


class Side:
    """One side of a connection; its confirmation list is all it remembers."""

    def __init__(self, name, limit):
        self.name = name
        self.limit = limit
        self.confirmations = ConnectionConfirmations()
        self.seen = set()
        self.made = 0

    def respond(self, graph, first=None):
        response = f"{self.name}{self.made}"
        self.made += 1
        if first is None:
            previous = self.confirmations.references_of_first(self.limit)
        else:
            previous = self.confirmations.references_of_second(first, graph[first], self.limit)
            self.take(first, graph)
        self.confirmations.append_own(response, previous, is_second=first is not None)
        graph[response] = previous
        return response

    def take(self, response, graph):
        assert set(graph[response]) <= self.confirmations.known, "a reference to what this side does not have"
        self.confirmations.append_other(response, graph[response])
        self.seen.add(response)


def ancestors(responses, graph):
    found, frontier = set(), list(responses)
    while frontier:
        for parent in graph[frontier.pop()]:
            if parent not in found:
                found.add(parent)
                frontier.append(parent)
    return found


class Channel:
    """Two sides; traffic in each direction arrives in order, on a link per sender of messages."""

    def __init__(self, limit=UNBOUNDED):
        self.graph = {}
        self.sides = {True: Side("a", limit), False: Side("b", limit)}
        self.firsts = {True: deque(), False: deque()}  # in flight to that side
        self.seconds = {True: deque(), False: deque()}

    def send(self, who):
        response = self.sides[who].respond(self.graph)
        self.firsts[not who].append(response)
        return response

    def receive(self, who, index=0):
        first = self.firsts[who][index]
        del self.firsts[who][index]
        response = self.sides[who].respond(self.graph, first)
        self.seconds[not who].append(response)
        return response

    def acknowledge(self, who, index=0):
        response = self.seconds[who][index]
        del self.seconds[who][index]
        self.sides[who].take(response, self.graph)

    def settle(self):
        for who in (True, False):
            while self.firsts[who]:
                self.receive(who)
        for who in (True, False):
            while self.seconds[who]:
                self.acknowledge(who)


# (which side acts, what it does, which of the waiting items it takes)
steps = st.lists(st.tuples(st.booleans(), st.sampled_from(["send", "take", "back"]), st.integers(0, 5)), max_size=40)


@given(steps)
@settings(max_examples=300)
def test_every_response_reaches_all_that_its_side_has_seen(script):
    channel = Channel()
    for who, verb, choice in script:
        side = channel.sides[who]
        if verb == "send":
            response = channel.send(who)
        elif verb == "take" and channel.firsts[who]:
            response = channel.receive(who, choice % len(channel.firsts[who]))
        elif verb == "back" and channel.seconds[who]:
            channel.acknowledge(who, choice % len(channel.seconds[who]))
            continue
        else:
            continue
        assert side.seen <= ancestors([response], channel.graph)
        assert response not in ancestors([response], channel.graph)


@given(
    st.integers(2, 5),
    st.lists(st.tuples(st.booleans(), st.sampled_from(["send", "take", "back"]), st.integers(1, 8)), max_size=40),
)
@settings(max_examples=300)
def test_bounded_responses_of_a_side_commit_to_all_it_has_seen(limit, script):
    channel = Channel(limit)
    for who, verb, count in script:
        for _ in range(count):
            if verb == "send":
                channel.send(who)
            elif verb == "take" and channel.firsts[who]:
                response = channel.receive(who)
                assert channel.graph[response][-1] in channel.sides[who].seen, "s2 references s1"
            elif verb == "back" and channel.seconds[who]:
                channel.acknowledge(who)
    channel.settle()
    everything = set(channel.graph)
    for round_number in range(len(everything) + 2):
        channel.send(bool(round_number % 2))
        channel.settle()
    last = channel.send(True)
    channel.settle()
    assert max(map(len, channel.graph.values())) <= limit
    assert everything <= ancestors([last], channel.graph), "the newest response commits to all before it"
    assert all(len(side.confirmations.unconfirmed) <= 3 for side in channel.sides.values())


def test_an_outage_costs_a_bounded_number_of_references_each():
    channel, limit, count = Channel(limit=8), 8, 3_000
    for _ in range(count):
        channel.send(True)
    channel.settle()
    assert max(map(len, channel.graph.values())) <= limit
    assert len(channel.sides[True].confirmations.unconfirmed) <= limit, "the newest s2 stands for those before it"
    last = channel.send(True)
    assert ancestors([last], channel.graph) == set(channel.graph) - {last}
    channel.settle()
    assert len(channel.sides[False].confirmations.unconfirmed) == 1


def test_side_that_never_refers_to_its_own_responses_is_committed_to_step_by_step():
    """The other implementation references all of its list, however long."""
    channel = Channel(limit=8)
    channel.sides[False].limit = UNBOUNDED
    for _ in range(100):
        channel.send(True)
    channel.settle()
    before = set(channel.graph)
    assert len(channel.sides[True].confirmations.unconfirmed) == 100
    for _ in range(20):
        last = channel.send(True)
        channel.settle()
    assert before <= ancestors([last], channel.graph)


@given(st.lists(st.booleans(), max_size=30))
def test_atom_container_is_one_connected_log(in_parallel):
    """Responses made before the last one was appended branch; the next one joins all branches."""
    container, graph, last_seen = AtomConfirmations(), {}, ()
    for number, is_parallel in enumerate(in_parallel):
        previous = last_seen if is_parallel else container.unconfirmed
        graph[f"s{number}"] = previous
        last_seen = previous
        container.append(f"s{number}", previous)
    graph["end"] = container.unconfirmed
    assert ancestors(["end"], graph) == {f"s{number}" for number in range(len(in_parallel))}
