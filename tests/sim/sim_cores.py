"""Tiny cores that do as they are told and record what they were fed."""

from dovetail.model.address import address_of
from dovetail.model.hop import Observation, Stage
from dovetail.model.wire import Datagrams, SendFrames
from dovetail.sim import ProcessOptions


def note(text, now, stage=Stage.ACCEPTED):
    """An observation of a message that consists of `text`."""
    raw = text if isinstance(text, bytes) else text.encode()
    return Observation(at_us=now, stage=stage, message=address_of(raw), raw=raw)


class Mailbox:
    """A datagram core: journals and records what it gets; answers with `replies` if there are any."""

    def __init__(self, *, is_journaling=False, echo=False):
        self.received = []
        self.timers_us = []
        self.fired = []
        self.is_journaling = is_journaling
        self.echo = echo
        self._events = []
        self._outgoing = []

    def receive_frames(self, frames, now):
        for data, sender, _ in frames:
            self.receive_datagram(data, sender, now)

    def receive_datagram(self, data, sender, now):
        self.received.append((now, sender, data))
        if self.is_journaling:
            self._events.append(note(data, now))
        if self.echo:
            self.send((sender, data))

    def handle_timer(self, now):
        due = [at for at in self.timers_us if at <= now]
        self.timers_us = [at for at in self.timers_us if at > now]
        self.fired.append((now, due))

    def next_timer(self):
        return min(self.timers_us, default=None)

    def send(self, *items):
        self._outgoing += [Datagrams(item[0], (item[1],)) if isinstance(item, tuple) else item for item in items]

    def tell(self, *events):
        self._events.extend(events)

    def events(self):
        events, self._events = self._events, []
        return events

    def to_send(self):
        outgoing, self._outgoing = self._outgoing, []
        return outgoing


class Line:
    """A stream core: records what it was fed, in order."""

    def __init__(self):
        self.log = []
        self.times_us = []
        self._outgoing = []

    def receive_opened(self, link, now):
        self._remember(now, "opened", link)

    def receive_frames(self, frames, now):
        for data, link, _ in frames:
            self._remember(now, "frame", link, data)

    def receive_accepted(self, link, label, now):
        self._remember(now, "accepted", link, label)

    def receive_closed(self, link, code, now):
        self._remember(now, "closed", link, code)

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


def Frame(link, data):
    """One frame for one link."""
    return SendFrames((link,), (data,))


def add(world, name, core_factory=Mailbox, *, skew_us=0, drift_ppm=0, **options):
    """Add a process to the world; returns it. Commits take no time."""
    if core_factory is Line:
        options |= {"on_accepted": Line.receive_accepted, "on_closed": _report_closed}
    options = ProcessOptions(**{"commit_us": (0, 0), **options})
    server = f"swarm://test/{name}"
    return world.add_process(
        name, lambda boot: core_factory(), server=server, options=options, skew_us=skew_us, drift_ppm=drift_ppm
    )


def _report_closed(core, link, code, unsent_bytes, now):
    core.receive_closed(link, code, now)


def send(world, name, *items, after_us=0):
    """Make a process send."""
    world.command(name, lambda core, now: core.send(*items), after_us)
