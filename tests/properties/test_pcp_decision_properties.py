"""A frame that matches a template is treated exactly as if decoded and decided: same hops, frames, closes."""

from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.pcp.codec_v1 import decode_frame
from dovetail.pcp.frame_template import match_template
from dovetail.pcp.settings import ALLOW_ALL, PcpSettings, Rule
from pcp.pcp_frames import BROKER, EXPIRES, ID, SENDER, TARGET, frame_v1
from pcp.pcp_world import World

OTHER = "pcp://client_c/agent"
RULES = (Rule(allow=False, message_type="http://example.com/no"), Rule(allow=False, target=OTHER), *ALLOW_ALL)
STRICT_RULES = (Rule(allow=False, target=TARGET, message_type="http://example.com/*"), *RULES)
IDS = (ID, "0a1B2c3D-0000-4000-8000-00000000000f", ID[:-1] + "g", ID[:-1])
TIMES = (
    EXPIRES,
    "2026-11-15T20:00:01.500000Z",
    "2026-11-15T19:58:59.999999Z",  # expired
    "2026-11-15T19:59:00.000000Z",  # expired just now
    "2026-11-15T20:00:00.5Z",
    "2026-11-15T20:00:00.000000+00:00",
    "2026-13-15T20:00:00.000000Z",
    "2026-11-15T20:00:00.00000xZ",
)
# The usual values come first and most often, so that templates are created and match.
USUAL = {"message_type": "http://example.com/ping", "targets": [TARGET], "sender": SENDER}
UNUSUAL = st.fixed_dictionaries(
    {},
    optional={
        "message_type": st.sampled_from(("http://example.com/no", "http://example.com/p\u00e9", "")),
        "targets": st.sampled_from(([OTHER], ["pcp://ghost/agent"], ["pcp://*/agent"], [TARGET, TARGET], [BROKER], [])),
        "sender": st.sampled_from((OTHER, "pcp://*/controller", "client_a")),
        "destination_report": st.booleans(),
        "in_reply_to": st.sampled_from(IDS),
    },
)
FIELDS = st.tuples(st.sampled_from(IDS), st.sampled_from(TIMES), st.just({}) | st.just({}) | UNUSUAL)
CONTENTS = st.tuples(st.sampled_from((b"x", b"another", b"", None)), st.sampled_from(((), (), (), (b"{}",))))
EXPIRES_AT = frame_v1().index(EXPIRES.encode())
EDITS = st.lists(
    st.tuples(
        st.integers(0, 260) | st.integers(-12, -1) | st.integers(EXPIRES_AT, EXPIRES_AT + len(EXPIRES)),
        st.integers(0, 2),
        st.sampled_from(b'0aF-:.TZ+ "\\{},\x00\x01\x02\xff'),
    ),
    min_size=1,
    max_size=2,
)
FRAMES = st.builds(
    lambda fields, contents, edits: edit(
        frame_v1(*contents, **USUAL | fields[2], id=fields[0], expires=fields[1]), edits
    ),
    FIELDS,
    CONTENTS,
    st.just([]) | EDITS,
)
ACTIONS = st.sampled_from(("pause", "resume", "close", "open", "rules"))


def edit(frame: bytes, edits: list[tuple[int, int, int]]) -> bytes:
    """Bytes replaced, inserted or left out."""
    edited = bytearray(frame)
    for at, kind, value in edits:
        at %= len(edited)
        edited[at : at + (kind != 1)] = b"" if kind == 2 else bytes((value,))
    return bytes(edited)


class Pair:
    """Two brokers with the same clients; the second forgets its templates before every frame."""

    def __init__(self) -> None:
        self.worlds = World(rules=RULES), World(rules=RULES)
        self.matches = 0
        for world in self.worlds:
            self.sender = world.associate("client_a", "controller")
            self.receiver = world.associate("client_b")

    def act(self, action: str) -> None:
        for world in self.worlds:
            match action:
                case "pause":
                    world.pause(self.receiver)
                case "resume":
                    world.resume(self.receiver)
                case "close":
                    world.close(self.receiver)
                case "open":
                    opened = world.open("client_b")
                    world.send(opened, world.associate_request(TARGET))
                case "rules":
                    rules = STRICT_RULES if world.broker.settings.rules == RULES else RULES
                    world.broker.change_rules(PcpSettings(rules=rules), world.now)
                    world.drain()
        if action == "open":
            self.receiver = opened

    def send(self, frame: bytes, is_text: bool = False) -> None:
        fast, slow = self.worlds
        session = fast.broker._sessions[str(self.sender)]
        if session.template is not None and match_template(session.template, frame) is not None:
            self.matches += 1
            decoded = decode_frame(frame)
            envelope = decoded.envelope
            decision = fast.broker._decide(
                session, envelope.sender, envelope.message_type, envelope.targets, is_expired=False
            )
            assert match_template(session.template, frame) == decoded.expires_us
            if not session.decision.receiver.is_closing:
                assert decision == session.decision
        slow.broker._sessions[str(self.sender)].drop_template()
        for world in self.worlds:
            world.send(self.sender, frame, is_text)

    def assert_equal(self) -> None:
        fast, slow = self.worlds
        assert fast.events == slow.events
        assert fast.received == slow.received


def test_templates_are_made_and_fit_in_these_worlds():
    pair = Pair()
    for number in range(5):
        pair.send(frame_v1(b"%d" % number, **USUAL))
    assert pair.matches == 3
    pair.assert_equal()


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(st.tuples(FRAMES, st.sampled_from((False, False, False, True))) | ACTIONS, max_size=12))
def test_a_template_and_a_full_decision_give_the_same_decision_hops_and_frames(steps):
    pair = Pair()
    for step in steps:
        for number in range(3):  # the template exists whenever the clients' state allows it
            pair.send(frame_v1(b"%d" % number, **USUAL))
        if isinstance(step, str):
            pair.act(step)
        else:
            pair.send(*step)
    for world in pair.worlds:
        world.pass_time(120_000)
    pair.assert_equal()
