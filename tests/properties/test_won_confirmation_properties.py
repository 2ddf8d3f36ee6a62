"""Whatever order messages and responses travel in: a response commits to everything its side has seen."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.won.confirmation import AtomConfirmations, ConnectionConfirmations


class Side:
    """One side of a connection, with what it must remember by its confirmation list alone."""

    def __init__(self, name):
        self.name = name
        self.confirmations = ConnectionConfirmations()
        self.seen = set()
        self.made = 0

    def respond(self, graph):
        response = f"{self.name}{self.made}"
        self.made += 1
        previous = self.confirmations.unconfirmed
        self.confirmations.append_own(response, previous)
        graph[response] = previous
        return response

    def take(self, response, graph):
        preview = self.confirmations.preview_other(response, graph[response])
        self.confirmations.append_other(response, graph[response])
        assert self.confirmations.unconfirmed == preview
        self.seen.add(response)


def ancestors(response, graph):
    found, frontier = set(), [response]
    while frontier:
        for parent in graph[frontier.pop()]:
            if parent not in found:
                found.add(parent)
                frontier.append(parent)
    return found


# (which side acts, what it does, which of the waiting things it takes)
steps = st.lists(st.tuples(st.booleans(), st.sampled_from(["send", "take", "back"]), st.integers(0, 5)), max_size=40)


@given(steps)
@settings(max_examples=300)
def test_every_response_reaches_all_that_its_side_has_seen(script):
    graph = {}
    sides = {True: Side("a"), False: Side("b")}
    messages = {True: [], False: []}  # first responses on their way to that side
    answers = {True: [], False: []}  # second responses on their way back
    for who, verb, choice in script:
        side = sides[who]
        if verb == "send":
            response = side.respond(graph)
            messages[not who].append(response)
        elif verb == "take" and messages[who]:
            side.take(messages[who].pop(choice % len(messages[who])), graph)
            response = side.respond(graph)
            answers[not who].append(response)
        elif verb == "back" and answers[who]:
            side.take(answers[who].pop(choice % len(answers[who])), graph)
            continue
        else:
            continue
        assert side.seen <= ancestors(response, graph)
        assert response not in ancestors(response, graph)


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
    assert ancestors("end", graph) == {f"s{number}" for number in range(len(in_parallel))}
