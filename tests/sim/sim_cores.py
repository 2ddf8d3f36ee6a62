"""Tiny cores that do as they are told and remember what they were fed."""

from dovetail.model.address import address_of
from dovetail.model.hop import Observation, Stage


def note(text, now, stage=Stage.ACCEPTED):
    """An observation of a message that consists of `text`."""
    raw = text if isinstance(text, bytes) else text.encode()
    return Observation(at_us=now, stage=stage, message=address_of(raw), raw=raw)


class Mailbox:
    """A datagram core: journals and remembers what it gets; answers with `replies` if there are any."""

    def __init__(self, *, is_journaling=False, echo=False):
        self.received = []
        self.timers_us = []
        self.fired = []
        self.is_journaling = is_journaling
        self.echo = echo
        self._events = []
        self._outgoing = []

    def receive_datagram(self, data, sender, now):
        self.received.append((now, sender, data))
        if self.is_journaling:
            self._events.append(note(data, now))
        if self.echo:
            self._outgoing.append((sender, data))

    def handle_timer(self, now):
        due = [at for at in self.timers_us if at <= now]
        self.timers_us = [at for at in self.timers_us if at > now]
        self.fired.append((now, due))

    def next_timer(self):
        return min(self.timers_us, default=None)

    def send(self, *items):
        self._outgoing.extend(items)

    def tell(self, *events):
        self._events.extend(events)

    def events(self):
        events, self._events = self._events, []
        return events

    def to_send(self):
        outgoing, self._outgoing = self._outgoing, []
        return outgoing


class Line:
    """A stream core: remembers what it was fed, in order."""

    def __init__(self):
        self.log = []
        self.times_us = []
        self._outgoing = []

    def receive_accepted(self, stream, peer, label, now):
        self._remember(now, "accepted", stream, peer, label)

    def receive_opened(self, stream, peer, now):
        self._remember(now, "opened", stream, peer)

    def receive_frame(self, data, stream, now):
        self._remember(now, "frame", stream, data)

    def receive_closed(self, stream, code, now):
        self._remember(now, "closed", stream, code)

    def handle_timer(self, now):
        raise AssertionError("a line has no timer")

    def next_timer(self):
        return None

    def send(self, *items):
        self._outgoing.extend(items)

    def events(self):
        return []

    def to_send(self):
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def frames(self):
        return [entry[2] for entry in self.log if entry[0] == "frame"]

    def _remember(self, now, *entry):
        self.times_us.append(now)
        self.log.append(entry)


def add(world, name, core_factory=Mailbox, **options):
    """Put a place into the world; returns it."""
    return world.add_place(name, lambda boot: core_factory(), server=f"swarm://test/{name}", **options)


def send(world, name, *items, after_us=0):
    """Make a place send."""
    world.command(name, lambda core, now: core.send(*items), after_us)
