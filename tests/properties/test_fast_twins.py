"""The Python and Rust twins do the same: on everything a fabric reports, and on hostile bytes."""

import hashlib
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail import fast
from dovetail.fabrics import fabric_named
from dovetail.journal import addresses, encoding, stored, stored_tree  # noqa: F401  # they register their twins
from dovetail.journal.layout import REASON_OF_CODE, STAGE_OF_CODE
from dovetail.model.address import address_of
from dovetail.model.hop import Observation, Stage
from dovetail.pcp import frame_template  # noqa: F401
from dovetail.runtime import frames  # noqa: F401
from dovetail.swarm import content  # noqa: F401
from dovetail.won import compose  # noqa: F401
from journal.worlds import START_US, expiring, random_observations

native = pytest.importorskip("dovetail_fast", reason="native/ is not built here: there is no cargo, or no network")

hashes = st.binary(min_size=32, max_size=32)


def both(name):
    return fast.TWINS[name], getattr(native, name)


def outcome(function, *arguments):
    """The result, or that there is none; error texts may differ."""
    try:
        return function(*arguments)
    except (ValueError, OverflowError, TypeError, LookupError) as error:
        return "refused", isinstance(error, ValueError)


def test_every_twin_has_its_native_one():
    assert {name for name in dir(native) if not name.startswith("_")} == {*fast.TWINS, "VERSION"}


def test_the_page_names_every_twin():
    page = Path(__file__).parents[2] / "docs" / "how-to" / "native.md"
    rows = [line.split("|")[1] for line in page.read_text().splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall("`(.*?)`", row)} >= fast.TWINS.keys()


def compare_commit(observations, recalled, names, new_names, *state):
    results = []
    for encode, hash_entries in zip(both("encode_commit"), both("hash_entries"), strict=True):
        encoded = outcome(encode, observations, recalled, names, new_names, *state)
        if isinstance(encoded, tuple) and len(encoded) == 8:
            encoded = (*encoded[:7], hash_entries(encoded[7]))
        results.append(encoded)
    assert results[0] == results[1]
    return results[0]


@given(st.integers(0, 2**32), st.integers(1, 40), st.booleans(), st.integers(0, 2**40), st.integers(1, 2**30))
@settings(max_examples=150, deadline=None)
def test_commits(seed, count, hashes_bytes, size, next_message):
    rng = random.Random(seed)
    observations = random_observations(rng, START_US, count)
    if hashes_bytes:  # if the address is the hash of the bytes, bytes are complete
        observations = [o for o in observations if o.raw is None or address_of(o.raw) == o.message] or observations[:0]
    digests = [None, hashlib.sha256(b"elsewhere").digest()]
    observations = [
        o if o.raw is not None else msgspec.structs.replace(o, digest=rng.choice([*digests, o.message]))
        for o in observations
    ]
    known = sorted({o.message for o in observations})
    recalled = {a: rng.choice([-1, 1]) * rng.randrange(1, next_message + 1) for a in known if rng.random() < 0.3}
    recalled = {a: n for a, n in recalled.items() if abs(n) < next_message}
    texts = sorted({name for o in observations for name in o.counterparts})
    names = {name: rng.choice([1, 200, 70_000, 2**32 - 1]) for name in texts}
    state = next_message, size, rng.choice([-(1 << 62), START_US, START_US + 10**9]), hashes_bytes
    split = rng.randrange(len(texts) + 1)
    first, rest = dict(list(names.items())[:split]), dict(list(names.items())[split:])
    encoded = compare_commit(observations, recalled, first, rest, *state)
    if observations:
        assert len(encoded[7]) == 32 * (encoded[0][0] - size)
    if rest:
        assert set(compare_commit(observations, recalled, first, {}, *state)) == set(rest)


@pytest.mark.parametrize(
    "bad",
    [
        Observation(at_us=1, stage=Stage.ACCEPTED, message=b"short"),
        Observation(at_us=1, stage=Stage.ACCEPTED, message=bytes(33)),
        Observation(at_us=1, stage=Stage.ACCEPTED, message=bytes(32), size=3, digest=b"short"),
        Observation(at_us=1, stage=Stage.ACCEPTED, message=bytes(32), counterparts=("a",) * ((1 << 20) + 1)),
    ],
)
def test_what_no_journal_can_hold_is_refused(bad):
    assert compare_commit([bad], {}, {"a": 1}, {}, 1, 0, 0, True) == ("refused", True)


numbers = st.integers(-40, 300) | st.integers(-(2**63), 2**64 - 1)
counterparts = (
    st.none()
    | st.integers(-1, 9)
    | st.lists(st.integers(0, 9), max_size=9).map(lambda ids: b"".join(i.to_bytes(4, "little") for i in ids))
    | st.binary(max_size=9)
)
runs = st.lists(
    st.tuples(st.integers(0, 6), st.integers(1, 13), st.integers(0, 30), st.integers(-5, 2**40), counterparts)
    | st.tuples(numbers, numbers, numbers, numbers, counterparts),
    max_size=8,
)
messages = st.lists(
    st.tuples(
        hashes,
        st.none() | st.integers(0, 20),
        st.none() | st.integers(0, 20),
        st.none() | st.just(b"") | hashes,
        st.none() | numbers,
        st.none() | st.binary(max_size=20),
    )
    | st.tuples(st.binary(max_size=33), numbers, numbers, st.binary(max_size=33), numbers, st.none()),
    max_size=8,
)


@st.composite
def rows_of(draw, values):
    """A row as a file may hold it: as it was written, with some bytes changed, or arbitrary."""
    rows = bytearray(msgspec.msgpack.encode(draw(values)))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        rows[draw(st.integers(0, len(rows) - 1))] = draw(st.integers(0, 255))
    if draw(st.integers(0, 9)) == 0:
        rows[draw(st.integers(0, len(rows))) :] = draw(st.binary(max_size=9))
    return bytes(rows)


@given(
    st.lists(rows_of(messages), max_size=3),
    rows_of(runs),
    st.integers(0, 20),
    st.integers(-(2**50), 2**63 - 1),
    st.dictionaries(st.integers(0, 9), st.text(max_size=9) | st.just("x" * 8193), max_size=9),
    st.tuples(st.integers(0, 30), st.integers(0, 60)),
)
@settings(max_examples=800, deadline=None)
def test_commits_of_a_file(message_rows, commit, seq, at_us, names, part):
    hashers = [kind(STAGE_OF_CODE, REASON_OF_CODE) for kind in both("HopHasher")]
    for asked in (0, 1, 2):  # missing input is supplied, if it can be; the last time nothing is added
        results = []
        for hasher in hashers:
            given_rows = message_rows if asked < 2 else []
            added = [outcome(hasher.add_messages, 1 + 4 * place, rows) for place, rows in enumerate(given_rows)]
            if asked:
                hasher.add_names(list(names.items()))
            results.append((added, outcome(hasher.hash_commit, seq, at_us, commit, *part)))
        assert results[0] == results[1]


@given(st.lists(st.tuples(st.integers(1, 12), st.lists(st.booleans(), max_size=9)), max_size=6), st.integers(0, 6))
@settings(max_examples=300, deadline=None)
def test_later_rows_replace_the_messages_of_earlier_ones(rows, between):
    """Each message of a row has bytes or none; a commit that only older messages name is read between two rows."""
    hashers = [kind(STAGE_OF_CODE, REASON_OF_CODE) for kind in both("HopHasher")]
    stage = Stage.FORWARDED.code
    for number, (first_id, bodies) in enumerate(rows):
        entries = [
            (bytes([number, place]) * 16, 0 if has_body else None, 3, b"", None, None)
            for place, has_body in enumerate(bodies)
        ]
        for hasher in hashers:
            assert hasher.add_messages(first_id, msgspec.msgpack.encode(entries)) == len(bodies)
            if number == between:
                hasher.hash_commit(1, START_US, msgspec.msgpack.encode([]), 0, 9)
    for message_id in range(22):
        commit = msgspec.msgpack.encode([(message_id, stage, 0, 0, None)])
        python, rust = (hasher.hash_commit(1, START_US, commit, 0, 9) for hasher in hashers)
        assert python == rust


COUNTS_MUCH = """
import resource, struct
from dovetail_fast import HopHasher, survey_messages
size = 1 << 24
rows = b"\\xdd" + struct.pack(">I", size) + bytes(size)
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
for read in (lambda: survey_messages(rows, []), lambda: HopHasher({}, {}).hash_commit(0, 0, rows, 0, 1)):
    try:
        read()
    except ValueError:
        print("refused")
"""


def test_a_row_that_counts_more_than_it_holds_takes_no_memory_for_it():
    done = subprocess.run([sys.executable, "-c", COUNTS_MUCH], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["refused", "refused"])


@given(rows_of(messages))
@settings(max_examples=600, deadline=None)
def test_messages_of_a_file(rows):
    python, rust = (outcome(function, rows, []) for function in both("survey_messages"))
    assert python == rust


def template_parts(raw):
    """The parts of a version 1 frame whose expiry has six decimal places."""
    end = 6 + int.from_bytes(raw[2:6])
    id_at, second_at = raw.index(b'"id":"') + 6, raw.index(b'"expires":"') + 11
    zone_at = raw.index(b'Z"', second_at)
    return raw[:id_at], id_at + 36, raw[id_at + 36 : second_at], second_at + 19, zone_at, raw[zone_at:end], end, 1


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0, 64, 128]), st.binary(max_size=9)), max_size=12))
@settings(max_examples=100, deadline=None)
def test_expiries_are_read_by_templates_as_by_the_fabric(drawn):
    """Stored expiries are right, wrong (64), or of truncated bytes (128)."""
    fabric, raws, rows = fabric_named("pcp"), [], []
    for number, wrong, text in drawn:
        expires_us = START_US + number * 1_000_001 + 1
        raws.append(expiring(text, expires_us))
        rows.append(
            (address_of(raws[-1]), 1, len(raws[-1]) + (wrong == 128), b"", expires_us + (wrong == 64), raws[-1])
        )
    results = []
    for survey, kind in zip(both("survey_messages"), both("Template"), strict=True):
        templates = [kind(*template_parts(raw)) for raw in raws[:1]]
        results.append(survey(msgspec.msgpack.encode(rows), templates))
    assert results[0] == results[1]
    states, _, _, unread, _ = results[0]
    assert list(states) == [0x1F | wrong for _, wrong, _ in drawn]
    assert not unread
    for raw in raws:
        assert fabric.expiry_template(raw).expiry(raw) == fabric.read(raw).expires_us


@given(st.binary(max_size=600))
@settings(max_examples=400, deadline=None)
def test_entries_of_any_bytes_are_hashed_or_refused(data):
    leaves = outcome(native.hash_entries, data)
    assert leaves == ("refused", True) or len(leaves) % 32 == 0


@given(st.binary(max_size=33 * 32) | st.integers(0, 9).map(lambda level: random.Random(level).randbytes(32 << level)))
@settings(max_examples=200, deadline=None)
def test_folds_and_checks(level):
    for name in ("fold", "checks_of"):
        python, rust = (outcome(function, level) for function in both(name))
        assert python == rust


@given(st.binary(max_size=20) | st.binary(max_size=5000))
@settings(deadline=None)
def test_digests_and_checksums(data):
    for name in ("address_of", "crc32", "work_of"):
        python, rust = both(name)
        assert python(data) == rust(data)


@given(
    st.builds(
        lambda head, middle, flags, rest: head + middle + bytes([flags]) + rest,
        st.just(b"\x79\x10\x05") | st.binary(max_size=3),
        st.binary(min_size=16, max_size=16),
        st.integers(0, 15),
        st.binary(max_size=60) | st.sampled_from([11_216, 11_236, 11_237, 11_300]).map(bytes),
    )
    | st.binary(max_size=40)
)
@settings(max_examples=600, deadline=None)
def test_content_of_a_swarm(data):
    python, rust = both("read_fields")
    assert python(data) == rust(data)


@given(st.lists(hashes, max_size=200), st.integers(1, 2**50), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_filters_and_buckets(some, first_id, seed):
    rng = random.Random(seed)
    some += [hashlib.sha256(b"%d" % rng.randrange(300)).digest() for _ in range(100)]
    python_filter, rust_filter = (kind() for kind in both("AddressFilter"))
    for _ in range(6):
        part = rng.choices(some, k=rng.randrange(50))
        action = rng.choice(["ask", "add", "hits"])
        assert getattr(python_filter, action)(part) == getattr(rust_filter, action)(part)
    python, rust = both("encode_buckets")
    assert python(some, first_id) == rust(some, first_id)
    assert list(python(some, first_id)) == list(rust(some, first_id))


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
terms = texts | st.sampled_from(
    ["<wm:/a>", "<wm:/a#x>", "<wm:/a#>", "<wm:/ab>", "<wm:/a", "<wm:/SELF#sig>", '"<wm:/a>"']
)
graphs = st.lists(st.tuples(terms, st.lists(st.tuples(terms, terms, terms), max_size=4)), max_size=4)


@given(graphs)
@settings(max_examples=300, deadline=None)
def test_graphs_of_won(some):
    for name, arguments in (("encode_graphs", ()), ("digest_graphs", ("wm:/a", "wm:/SELF", "<wm:/SELF#sig>"))):
        python, rust = both(name)
        assert python(some, *arguments) == rust(some, *arguments)
        assert python(dict(some).items(), *arguments) == rust(dict(some).items(), *arguments)


@given(hashes | st.binary(max_size=40))
@settings(deadline=None)
def test_uris_of_won(address):
    python, rust = (outcome(function, address) for function in both("won_uri"))
    assert python == rust


@pytest.mark.parametrize("is_text", [True, False])
def test_frames_of_every_length_of_length(is_text):
    payloads = [random.Random(size).randbytes(size) for size in (0, 1, 125, 126, 65_535, 65_536, 70_000)]
    python, rust = both("encode_frames")
    for some in ([], payloads, payloads[:3], tuple(payloads[::-1])):
        assert python(some, is_text) == rust(some, is_text)


HEAD, MIDDLE, TAIL = b'\1\1\0\0\0\0{"id":"', b'","expires":"', b'Z","targets":["pcp://*/agent"]}'


@given(st.data())
@settings(max_examples=600, deadline=None)
def test_templates_fit_the_same_messages(data):
    digits = data.draw(st.integers(1, 6))
    identifier = data.draw(st.uuids()).__str__().encode()
    second = data.draw(st.datetimes()).isoformat(timespec="seconds").encode()
    if data.draw(st.booleans()):
        second = data.draw(st.from_regex(rb"\A[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\Z"))
    fraction = data.draw(st.integers(0, 10**digits - 1)).__str__().encode().zfill(digits)
    envelope = HEAD + identifier + MIDDLE + second + b"." + fraction + TAIL
    body = data.draw(st.binary(max_size=12))
    chunk = b"\2" + len(body).to_bytes(4) + body
    message = bytearray(envelope + data.draw(st.sampled_from([b"", chunk, body])))
    for _ in range(data.draw(st.integers(0, 2))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.integers(0, 5)) == 0:
        del message[data.draw(st.integers(0, len(message))) :]
    second_end = len(HEAD) + 36 + len(MIDDLE) + 19
    parts = HEAD, len(HEAD) + 36, MIDDLE, second_end, second_end + 1 + digits, TAIL, len(envelope), 10 ** (6 - digits)
    python, rust = (kind(*parts).expiry(bytes(message)) for kind in both("Template"))
    assert python == rust


def test_parts_of_a_template_that_do_not_meet_are_refused():
    with pytest.raises(ValueError, match="do not follow each other"):
        native.Template(HEAD, 2, MIDDLE, 3, 4, TAIL, 5, 1)


@pytest.mark.parametrize("scenario", ["pcp", "won", "swarm"])
def test_a_world_from_one_seed_gives_the_same_journals_byte_for_byte(tmp_path, scenario):
    journals = {}
    for name in ("python", "native"):
        out = tmp_path / name
        world = ["--scenario", scenario, "--seed", "7", "--duration", "2", "--faults", "crash", "--out", str(out)]
        command = [sys.executable, "-m", "dovetail", "sim", "run", *world]
        ran = subprocess.run(
            command, env={**os.environ, "DOVETAIL_FAST": name}, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        journals[name] = {path.name: path.read_bytes() for path in out.rglob("*.journal")}
    assert journals["python"]
    assert journals["python"] == journals["native"]


@pytest.mark.parametrize(("wanted", "implementation"), [("python", "python"), ("native", "native"), ("", "native")])
def test_the_environment_decides(wanted, implementation):
    code = "from dovetail import fast; print(fast.IMPLEMENTATION)"
    environment = {**os.environ, "DOVETAIL_FAST": wanted}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout == f"{implementation}\n"
