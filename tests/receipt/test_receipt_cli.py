from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

import dovetail
from dovetail.cli.main import Noun, load_noun, report
from dovetail.fabrics import address_text
from dovetail.journal.writer import JournalWriter
from dovetail.keys import create_signing_key
from dovetail.lake.seal import seal_journal
from dovetail.lake.store import LocalStore
from dovetail.model.address import address_of, won_uri
from dovetail.model.hop import Observation, Stage
from dovetail.receipt.format import MAX_RECEIPT_BYTES
from dovetail.tlog.keys import Verifier
from dovetail.won.message import decode_message
from dovetail.won.signing import SigningKey
from receipt import receipt_samples as samples
from receipt.conversation_samples import NODE_KEYS, TRUSTED, forge, speak
from receipt.exchange_samples import exchange
from receipt.receipt_samples import create

pytestmark = pytest.mark.exhaustive  # each seals a world of its own


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


@pytest.fixture
def receipt(capsys) -> Callable[..., Ran]:
    """Runs `dovetail receipt ARGUMENTS` in this process."""
    command = load_noun(Noun("receipt", ""))

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        try:
            code = command.main([str(argument) for argument in arguments], standalone_mode=False) or 0
        except Exception as error:
            code = report(error)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


@pytest.fixture
def trust(tmp_path):
    """A trust file with all keys."""
    path = tmp_path / "trusted.keys"
    path.write_text("# ours\n" + "".join(f"{verifier.text()}\n" for verifier in samples.verifiers()))
    return path


@pytest.mark.parametrize("fabric", samples.CASES)
def test_build_then_verify(receipt, trust, tmp_path, fabric):
    case = samples.CASES[fabric](tmp_path / "journals")
    journals = [part for path in case.journals for part in ("--journal", path)]
    path = tmp_path / "receipt.json"
    built = receipt("build", case.address.hex()[:12], *journals, "-o", path)
    assert (built.code, built.out, built.err.count("\n")) == (0, "", 1)
    assert built.err.startswith(f"wrote {path}: the message is {address_text(case.address, fabric)}; ")
    assert " hops, is signed by " in built.err
    verified = receipt("verify", tmp_path / "receipt.json", "--trust", trust)
    assert verified.code == 0
    assert "commits to this" in verified.out
    assert "not proven:" in verified.out
    assert verified.out.split("\n", 1)[1] == f"{dovetail.Receipt.load(path).verify(trust=trust)}\n"
    described = json.loads(receipt("verify", tmp_path / "receipt.json", "--trust", trust, "--json").out)
    assert described["valid"] is True
    assert described["fabric"] == fabric


def test_build_writes_the_same_to_stdout(receipt, tmp_path):
    case = samples.pcp_case(tmp_path)
    ran = receipt("build", case.address.hex(), "--journal", case.journals[0])
    assert ran.out.encode() == case.build()
    assert (
        ran.err == f"the message is {case.address.hex()}; what happened to it, 4 hops, is signed by {samples.BROKER}\n"
    )


def test_build_waits_until_all_is_signed(receipt, tmp_path, monkeypatch):
    path, raw = tmp_path / "live.journal", samples.pcp_message()
    signer = samples.signer_of(samples.BROKER)
    with JournalWriter.open(path, server=samples.BROKER, signer=signer, durability="relaxed") as journal:
        journal.append([Observation(at_us=samples.T0, stage=Stage.ACCEPTED, message=address_of(raw), raw=raw)])
        ran = receipt("build", address_of(raw).hex(), "--journal", path)
        assert (ran.code, "no signed checkpoint covers" in ran.err) == (1, True)
        clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: journal.checkpoint())
        monkeypatch.setattr("dovetail.api.receipts.time", clock)
        ran = receipt("build", address_of(raw).hex(), "--journal", path, "--wait", "60s")
    assert (ran.code, "1 hop, is signed by" in ran.err) == (0, True)


def test_a_beginning_of_the_address_is_enough(receipt, tmp_path):
    case = samples.won_case(tmp_path / "journals")
    for path in case.journals:
        seal_journal(path, LocalStore(tmp_path / "lake"))
    journals = [part for path in case.journals for part in ("--journal", path)]
    m, s1, s2 = samples.won_chain()
    for places in (journals, ("--lake", tmp_path / "lake")):
        for text in (m.uri[:14], m.uri[:15], m.address.hex()[:9], m.address.hex()[:10].upper()):
            assert receipt("build", text, *places).out.encode() == case.build()
        named = receipt("build", m.uri[:14], *places, "--related", s1.uri[:14], "--related", s2.address.hex()[:9])
        assert named.out.encode() == case.build()
        ambiguous = receipt("build", "wm:/Qm", *places)
        assert (ambiguous.code, ambiguous.out, ambiguous.err.count("\n")) == (1, "", 1)
        assert ambiguous.err.startswith("dovetail: several messages begin with wm:/Qm: wm:/Qm")
        assert ambiguous.err.count("wm:/Qm") == 5
        unknown = receipt("build", "wm:/QmZZZZZZZZZZZ", *places)
        assert (unknown.code, unknown.err) == (1, "dovetail: no message begins with wm:/QmZZZZZZZZZZZ\n")


def test_verify_tells_the_first_broken_step_of_each_file(receipt, trust, tmp_path):
    data = samples.pcp_case(tmp_path).build()
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_bytes(data)
    bad.write_bytes(data.replace(b"20:00:00.000009Z", b"20:00:00.000008Z"))
    ran = receipt("verify", bad, good, "--trust", trust)
    assert ran.code == 3
    assert "bad.json: not valid: claim: " in ran.err
    assert f"{good}: valid" in ran.out


def test_terminal_escapes_of_peers_are_made_visible(receipt, trust, tmp_path):
    case = samples.pcp_case(tmp_path)
    (tmp_path / "r.json").write_bytes(case.build())
    out = receipt("verify", tmp_path / "r.json", "--trust", trust).out
    assert r"agent\"3\n" in out


def test_show_prints_the_message_and_says_that_nobody_is_trusted(receipt, tmp_path):
    path = tmp_path / "r.json"
    path.write_bytes(samples.pcp_case(tmp_path).build())
    ran = receipt("show", path)
    assert ran.code == 0
    assert "restart the pump" in ran.out
    assert "not verified" in ran.err
    assert json.loads(receipt("show", path, "--json").out)["valid"] is False


def test_on_a_terminal_a_receipt_is_a_file_beside_you(receipt, tmp_path, monkeypatch):
    case = samples.CASES["pcp"](tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    ran = receipt("build", case.address.hex()[:12], "--journal", tmp_path)
    name = f"{case.address.hex()[:8]}.receipt"
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.startswith(f"wrote {name}: ")
    assert (tmp_path / name).read_bytes() == case.build()


def test_show_names_a_file_only_if_it_wrote_one(receipt, trust, tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    case = samples.pcp_case(tmp_path)
    other = tmp_path / "other.vkey"
    other.write_text(Verifier(samples.BROKER, bytes(32)).text() + "\n")
    show = ("show", case.address.hex()[:12], "--journal", case.journals[0])
    name = f"receipt of {case.address.hex()}"
    assert receipt(*show, "--trust", trust).out.startswith(f"{name}: valid (delivery, pcp)\n")
    assert json.loads(receipt(*show, "--trust", trust, "--json").out)["file"] is None
    refused = receipt(*show, "--trust", other)
    assert (refused.code, refused.err.startswith(f"{name}: not valid: ")) == (3, True)
    assert not list(here.iterdir())
    assert receipt(*show, "--trust", trust, "-o", "kept").out.startswith("kept: valid")
    assert json.loads(receipt(*show, "--trust", trust, "-o", "kept", "--json").out)["file"] == "kept"


@pytest.mark.parametrize("arguments", [("build", "zz", "--journal", "x"), ("build", "00"), ("build", "00" * 33)])
def test_misuse_is_exit_code_2(receipt, tmp_path, arguments):
    journal = samples.pcp_case(tmp_path).journals[0]
    ran = receipt(*[journal if argument == "x" else argument for argument in arguments])
    assert ran.code == 2


def test_unknown_messages_and_journals_are_one_line(receipt, tmp_path):
    journal = samples.pcp_case(tmp_path).journals[0]
    ran = receipt("build", "00" * 32, "--journal", journal)
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    ran = receipt("build", "00" * 32, "--journal", tmp_path / "none.journal")
    assert (ran.code, ran.err.count("\n")) == (1, 1)


@pytest.mark.parametrize(
    ("content", "broken"),
    [
        (None, "file: it cannot be read: No such file or directory"),
        ("directory", "file: it cannot be read: Is a directory"),
        (b"", "file: it is empty"),
        (b"hello", "form: JSON is malformed"),
        (b"\x00\xff" * 99, "form: JSON is malformed"),
        (b'{"a":1}', "form: Object missing required field `receipt`"),
        (b"[" * 100_000, "form: Expected `object`, got `array`"),
        (b'{"claim":' + b"[" * 100_000, "form: "),
        (b" " * (MAX_RECEIPT_BYTES + 1), f"file: it has more than {MAX_RECEIPT_BYTES} bytes"),
    ],
)
def test_files_that_are_no_receipts_are_told_one_by_one(receipt, trust, tmp_path, content, broken):
    path, good = tmp_path / "odd", tmp_path / "good.json"
    good.write_bytes(samples.pcp_case(tmp_path).build())
    if content == "directory":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    ran = receipt("verify", path, good, "--trust", trust)
    code = 1 if content in (None, "directory") else 3
    assert (ran.code, ran.err.count("\n")) == (code, 1)
    assert ran.err.startswith(f"{path}: not valid: {broken}")
    assert f"{good}: valid" in ran.out
    shown = receipt("show", path)
    assert (shown.code, shown.out, shown.err) == (code, "", ran.err)
    described = [
        json.loads(line) for line in receipt("verify", path, good, "--trust", trust, "--json").out.splitlines()
    ]
    assert [each["valid"] for each in described] == [False, True]
    for option in (("build", "00", "--journal", "x", "--since"), ("verify", good, "--trust", trust, "--against")):
        ran = receipt(*(tmp_path / "broker.journal" if part == "x" else part for part in option), path)
        assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
        assert ran.err.startswith(f"dovetail: {path}: ")


def test_trust_that_is_none_is_one_short_line(receipt, trust, tmp_path):
    path, empty = tmp_path / "r.json", tmp_path / "empty"
    path.write_bytes(samples.pcp_case(tmp_path).build())
    empty.touch()
    for wrong in (path, empty, tmp_path, tmp_path / "none"):
        ran = receipt("verify", path, "--trust", wrong)
        assert (ran.code, ran.out, ran.err.count("\n"), len(ran.err) < 300) == (1, "", 1, True)
    assert receipt("verify", path).code == 2


def test_options_that_do_nothing_are_told(receipt, tmp_path):
    case = samples.pcp_case(tmp_path)
    wanted = ("build", case.address.hex(), "--journal", case.journals[0])
    ran = receipt(*wanted, "--counterpart", "pcp://nobody/agent", "--counterpart", samples.AGENT)
    assert (ran.code, ran.err.split("\n")[0]) == (0, "no hop here is from or to pcp://nobody/agent")
    ran = receipt(*wanted, "--date", "2025-11-15")
    assert (ran.code, ran.err) == (2, "dovetail: --date needs --lake\n")
    ran = receipt("complete", "--journal", case.journals[0], "--from", "noon", "--until", "2025-11-16")
    assert (ran.code, ran.err.startswith("dovetail: 'noon' is not a time such as ")) == (2, True)


def test_build_from_the_lake(receipt, trust, tmp_path):
    case = samples.won_case(tmp_path / "journals")
    for path in case.journals:
        seal_journal(path, LocalStore(tmp_path / "lake"))
    out = tmp_path / "r.json"
    assert (
        receipt("build", won_uri(case.address), "--lake", tmp_path / "lake", "--date", "2025-11-15", "-o", out).code
        == 0
    )
    assert out.read_bytes() == case.build()
    ran = receipt("build", won_uri(case.address), "--lake", tmp_path / "lake", "--date", "2025-11-16")
    assert (ran.code, "no message begins with" in ran.err) == (1, True)


def test_growth_between_two_receipts(receipt, trust, tmp_path):
    case = samples.pcp_case(tmp_path / "j")
    older, newer = tmp_path / "older.json", tmp_path / "newer.json"
    older.write_bytes(case.build())
    grow(case.journals[0])
    arguments = ("build", case.address.hex(), "--journal", case.journals[0], "-o", newer)
    assert receipt(*arguments).code == 0
    ran = receipt("verify", newer, "--trust", trust, "--against", older)
    assert (ran.code, "--since" in ran.err) == (3, True)
    assert receipt(*arguments, "--since", older).code == 0
    ran = receipt("verify", newer, "--trust", trust, "--against", older)
    assert (ran.code, "only grew from 11 to 31 hops" in ran.out) == (0, True)


def test_witnessing_by_files(receipt, trust, tmp_path):
    case = samples.pcp_case(tmp_path / "j")
    create_signing_key(tmp_path / "keys", samples.WITNESSES[1])
    skey = next((tmp_path / "keys").glob("*.skey"))
    request, note, out = tmp_path / "request", tmp_path / "cosigned.note", tmp_path / "r.json"
    assert receipt("ask", "--journal", case.journals[0], "-o", request).code == 0
    cosign = ("cosign", request, "--signing-key", skey, "--trust", trust, "--seen", tmp_path / "seen", "-o", note)
    assert receipt(*cosign).code == 0
    built = receipt(
        "build", case.address.hex(), "--journal", case.journals[0],
        "--checkpoint", note, "--witness", tmp_path / "keys", "-o", out,
    )  # fmt: skip
    assert built.code == 0
    both = ("--trust", trust, "--trust", tmp_path / "keys")
    ran = receipt("verify", out, *both, "--witnesses", "1", "--max-age", "600")
    assert (ran.code, "whom you trust" in ran.out) == (0, True)
    ran = receipt("verify", out, "--trust", trust, "--witnesses", "1")
    assert (ran.code, "witnesses: 0 trusted witnesses" in ran.err) == (3, True)
    grow(case.journals[0])
    assert receipt("ask", "--journal", case.journals[0], "--old", note, "-o", request).code == 0
    assert receipt(*cosign).code == 0
    assert receipt(*cosign).code == 1


def test_accusing_a_server(receipt, trust, tmp_path):
    one = samples.pcp_case(tmp_path / "1")
    other = samples.pcp_case(tmp_path / "2", before=9)
    for name, case in (("1.json", one), ("2.json", other)):
        (tmp_path / name).write_bytes(case.build())
    evidence = tmp_path / "evidence.json"
    files = (tmp_path / "1.json", tmp_path / "2.json")
    assert receipt("accuse", *files, "--trust", trust, "-o", evidence).code == 1
    ran = receipt("accuse", *files, "--trust", trust, "--journal", other.journals[0], "-o", evidence)
    assert ran.code == 0
    ran = receipt("verify", evidence, "--trust", trust)
    assert (ran.code, "whose first 11 have the root" in ran.out) == (0, True)
    seal_journal(other.journals[0], LocalStore(tmp_path / "lake"))
    again = tmp_path / "again.json"
    assert receipt("accuse", *files, "--trust", trust, "--lake", tmp_path / "lake", "-o", again).code == 0
    assert again.read_bytes() == evidence.read_bytes()
    assert receipt("accuse", *files, "--trust", trust, "--journal", one.journals[0]).code == 1
    assert receipt("accuse", files[0], files[0], "--trust", trust).code == 1
    assert receipt("accuse", files[0], "--trust", trust).code == 2


def test_evidence_of_a_fork(receipt, tmp_path):
    one, other = create("chat"), create("other")
    observations = [
        Observation(at_us=samples.T0, stage=Stage.ACCEPTED, message=message.address, raw=message.raw)
        for message in (one, other)
    ]
    journal = samples.write(tmp_path / "a.journal", samples.NODE_A, observations)
    trust = tmp_path / "keys"
    author = Verifier(samples.ALICE, SigningKey(address_of(samples.ALICE.encode())).public.raw)
    trust.write_text(f"{samples.verifiers(samples.NODE_A)[0].text()}\n{author.text()}\n")
    out = tmp_path / "fork.json"
    ran = receipt("fork", one.uri, other.uri, "--journal", journal, "--trust", trust, "-o", out)
    assert ran.code == 0
    ran = receipt("verify", out, "--trust", trust)
    assert (ran.code, "signed both" in ran.out) == (0, True)
    assert_shown_without_keys(receipt("show", out), samples.ALICE)


def assert_shown_without_keys(ran, *names):
    """Check the output, and that it says that the message signatures could not be verified."""
    assert (ran.code, ran.err.count("\n")) == (0, 1)
    assert "it says:\n" in ran.out
    assert "proven:\n" in ran.out
    for name in names:
        assert f"  that {name} signed " in ran.out


def test_show_of_a_conversation_from_one_node(receipt, tmp_path):
    spoken = speak(tmp_path, rounds=1)
    trust, out = tmp_path / "keys", tmp_path / "all.json"
    trust.write_text("".join(f"{verifier.text()}\n" for verifier in TRUSTED))
    wanted = ("--journal", spoken.journals[0], "--conversation", spoken.said[0].uri[:12], "--trust", trust)
    built = receipt("complete", *wanted, "-o", out)
    assert (built.code, "and these are all" in built.err) == (0, True)
    assert_shown_without_keys(receipt("show", out), *(verifier.name for verifier in NODE_KEYS))
    assert receipt("verify", out, "--trust", trust).code == 0
    assert json.loads(receipt("show", out, "--json").out)["valid"] is False


def test_completeness_of_a_minute(receipt, trust, tmp_path):
    case = samples.pcp_case(tmp_path)
    out = tmp_path / "all.json"
    period = ("--from", "2025-11-15T20:00:00", "--until", "2025-11-15T20:00:01Z")
    assert receipt("complete", "--journal", case.journals[0], *period, "-o", out).code == 0
    ran = receipt("verify", out, "--trust", trust)
    assert (ran.code, "saw 7 hops of 4 messages" in ran.out) == (0, True)
    assert receipt("complete", "--journal", case.journals[0], "--from", "x", "--until", "y").code == 2
    ran = receipt("complete", "--journal", case.journals[0], *period, "--server", "pcp://other/server")
    assert ran.code == 2


@pytest.mark.exhaustive
def test_completeness_of_a_conversation(receipt, tmp_path):
    spoken = speak(tmp_path)
    trust, out = tmp_path / "keys", tmp_path / "all.json"
    trust.write_text("".join(f"{verifier.text()}\n" for verifier in TRUSTED))
    journals = [part for path in spoken.journals for part in ("--journal", path)]
    wanted = ("--conversation", spoken.said[2].uri, "--trust", trust, "-o", out)
    assert receipt("complete", *journals, *wanted).code == 0
    assert out.read_bytes() == spoken.build()
    ran = receipt("verify", out, "--trust", trust)
    assert (ran.code, "has 33 messages up to its newest responses, and these are all" in ran.out) == (0, True)
    assert_shown_without_keys(receipt("show", out), *(verifier.name for verifier in NODE_KEYS))
    stranger = tmp_path / "stranger"
    stranger.write_text("".join(f"{verifier.text()}\n" for verifier in samples.verifiers()))
    refused = receipt("verify", out, "--trust", stranger)
    assert (refused.code, "is not signed with a trusted key" in refused.err) == (3, True)
    assert receipt("complete", *journals, *wanted, "--from", "2025-11-15").code == 2
    assert receipt("complete", *journals).code == 2
    grown = tmp_path / "grown.json"
    assert receipt("complete", *journals, *wanted[:-1], grown, "--since", out).code == 0
    assert ", and begins with its journal of " in receipt("verify", grown, "--trust", trust, "--against", out).out

    delivery, shorter = tmp_path / "delivery.json", tmp_path / "shorter.json"
    last = spoken.said[-1]
    assert receipt("build", last.uri, *journals, "-o", delivery).code == 0
    assert receipt("verify", out, "--trust", trust, "--against", delivery).code == 0
    messages = [decode_message(m["text"].encode()) for m in json.loads(out.read_bytes())["messages"]]
    shorter.write_bytes(forge(spoken, [m for m in messages if last.uri not in (m.uri, m.responding_to)]))
    ran = receipt("verify", shorter, "--trust", trust, "--against", delivery)
    assert (ran.code, f"against: {last.uri} was left out" in ran.err) == (3, True)


def test_completeness_of_an_exchange(receipt, trust, tmp_path):
    said = exchange(tmp_path)
    out = tmp_path / "all.json"
    wanted = ("--journal", said.journal, "--conversation", said.address("request").hex()[:12], "-o", out)
    assert receipt("complete", *wanted, "--until", "2025-11-15T20:00:00.008500Z").code == 0
    assert "saw 5 messages of the exchange" in receipt("verify", out, "--trust", trust).out
    assert receipt("complete", *wanted).code == 0
    ran = receipt("verify", out, "--trust", trust)
    assert (ran.code, "saw 6 messages of the exchange" in ran.out) == (0, True)
    assert receipt("show", out).code == 0
    assert receipt("complete", *wanted, "--since", out).code == 2
    swarm = samples.swarm_case(tmp_path / "swarm")
    ran = receipt("complete", "--journal", swarm.journals[0], "--conversation", swarm.address.hex())
    assert (ran.code, "belongs to no conversation" in ran.err) == (2, True)


def grow(path) -> None:
    signer = samples.signer_of(samples.BROKER)
    with JournalWriter.open(path, server=samples.BROKER, signer=signer, durability="relaxed") as writer:
        writer.append([samples.noise(3_000_000 + number) for number in range(20)])
        writer.checkpoint()
