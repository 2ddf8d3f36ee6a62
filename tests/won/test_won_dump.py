"""`won chains`: chains from dumps of any origin, even damaged ones."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from dovetail.cli.won import app
from dovetail.won.canonical import read_quads
from dovetail.won.chain import ChainState
from dovetail.won.dump import read_dumps
from dovetail.won.message import decode_message
from dovetail.won.trig import encode_bundle, encode_document
from dovetail.won.vocabulary import MSG
from won.won_world import conversation_raws, record_conversation

RAWS = conversation_raws(record_conversation().alice)
MESSAGES = [decode_message(raw) for raw in RAWS]
FOREIGN = f"""
@prefix msg: <{MSG}> .
@prefix xsd: <http://www.w3.org/2001/XMLSchema#> .
<wm:/W1m#envelope> {{ <wm:/W1m> a msg:FromOwner ; msg:messageType msg:ConnectionMessage ; msg:timestamp "17" ;
  msg:senderSocket <https://a.example/won/resource/atom/x#s> ;
  msg:recipientSocket <https://b.example/won/resource/atom/y#s> ;
  msg:somethingNew [ a msg:Unknown ] . }}
<wm:/W1m#content-3f2> {{ <wm:/W1m> <https://example.org/whatever> 5 . }}
<wm:/W1s#envelope> {{ <wm:/W1s> a msg:FromSystem ; msg:messageType msg:SuccessResponse ; msg:timestamp 18 ;
  msg:respondingTo <wm:/W1m> ; msg:senderSocket <https://a.example/won/resource/atom/x#s> ;
  msg:recipientSocket <https://a.example/won/resource/atom/x#s> ; msg:previousMessage <wm:/W1gone> . }}
<wm:/W1r#envelope> {{ <wm:/W1r> a msg:FromSystem ; msg:messageType msg:SuccessResponse ; msg:timestamp "19"^^xsd:long ;
  msg:respondingTo <wm:/W1m> ; msg:senderSocket <https://b.example/won/resource/atom/y#s> ;
  msg:recipientSocket <https://a.example/won/resource/atom/x#s> ; msg:previousMessage <wm:/W1s> . }}
""".encode()


def read(*datas):
    return read_dumps((f"file{i}", data) for i, data in enumerate(datas))


@pytest.mark.parametrize("form", ["trig", "nquads"])
def test_own_conversation_is_rebuilt_complete_and_verified(form):
    data = encode_bundle(MESSAGES) if form == "trig" else b"".join(RAWS)
    dump = read(data)
    assert dump.findings == []
    assert {m.address for m in dump.messages.values()} == {"ok"}
    heads = [m for m in dump.messages.values() if not m.is_response]
    assert {m.state for m in heads} == {ChainState.COMPLETE}
    assert all([role for _, role in m.responses] == ["s1", "s2"] for m in heads)


def test_conversation_split_over_several_files_is_joined():
    assert read(b"".join(RAWS[::2]), b"".join(RAWS[1::2])).findings == []


def test_log_of_another_implementation_is_read_and_called_foreign():
    dump = read(FOREIGN)
    message = dump.messages["wm:/W1m"]
    assert message.state is ChainState.COMPLETE
    assert message.responses == [("wm:/W1s", "s1"), ("wm:/W1r", "s2")]
    assert {m.address for m in dump.messages.values()} == {"foreign"}
    assert [m.timestamp for m in dump.messages.values()] == ["17", "18", "19"]
    assert dump.findings == ["wm:/W1s: dangling reference: previousMessage wm:/W1gone is not in the dump"]


@pytest.mark.parametrize(
    ("gone", "state"),
    [("wm:/W1r", ChainState.AWAITING_RECIPIENT), ("wm:/W1s", ChainState.AWAITING_SENDER)],
)
def test_incomplete_chain_is_a_state_not_a_crash(gone, state):
    quads = read_quads_without(gone)
    assert read(quads).messages["wm:/W1m"].state is state


def read_quads_without(uri):
    return encode_document([q for q in read_quads(FOREIGN) if uri not in q[3]], "application/n-quads")


def test_failure_response_ends_the_wait():
    data = FOREIGN.replace(
        b"<wm:/W1r> a msg:FromSystem ; msg:messageType msg:SuccessResponse",
        b"<wm:/W1r> a msg:FromSystem ; msg:messageType msg:FailureResponse",
    )
    message = read(data).messages["wm:/W1m"]
    assert message.state is ChainState.FAILED
    assert ("wm:/W1r", "failure") in message.responses


def test_self_reference_and_cycle_are_findings():
    data = FOREIGN.replace(b"<wm:/W1gone>", b"<wm:/W1r>, <wm:/W1s>")
    findings = read(data).findings
    assert "wm:/W1s: self-reference: previousMessage names the message itself" in findings
    assert [f for f in findings if "cycle" in f] == [
        "wm:/W1s: cycle: it references itself by way of others",
        "wm:/W1r: cycle: it references itself by way of others",
    ]


def test_altered_message_is_broken_and_the_true_address_is_told():
    dump = read(b"".join(RAWS).replace(b"question 1", b"question 9"))
    broken = [m for m in dump.messages.values() if m.address == "broken"]
    assert len(broken) == 1
    assert "its content has the address wm:/Qm" in broken[0].findings[0]


def test_damaged_nquads_loses_only_the_damaged_lines():
    dump = read(b"".join(RAWS[:4]) + b"\xff\xfe garbage\n<half> <a line\n" + b"".join(RAWS[4:]))
    assert len(dump.damages) == 2
    assert len(dump.messages) == len(RAWS)
    assert {m.address for m in dump.messages.values()} == {"ok"}


def test_damaged_trig_goes_on_at_the_next_graph():
    data = FOREIGN.replace(b'msg:timestamp "17" ;', b'msg:timestamp "17 ;')
    dump = read(data)
    assert dump.damages
    assert "wm:/W1r" in dump.messages


@pytest.mark.parametrize("cut", range(0, 2000, 97))
def test_dump_cut_anywhere_never_crashes(cut):
    data = encode_bundle(MESSAGES)[:cut]
    assert read(data).damages or cut < 400 or data.rstrip().endswith(b"}")


@pytest.mark.parametrize("data", [b"", b"\x00", b"{", b"PK\x03\x04", b"<a:b> {", "ü".encode("latin-1"), b"\n" * 50])
def test_nonsense_is_reported_never_a_crash(data):
    assert read(data).messages == {}


def test_poison_graph_in_a_dump_is_a_finding():
    cliques = b"".join(
        b"_:n%d <a:p> _:n%d <%s#content> .\n" % (i, j, MESSAGES[0].uri.encode()) for i in range(9) for j in range(9)
    )
    message = read(RAWS[0] + cliques).messages[MESSAGES[0].uri]
    assert message.address == "broken"
    assert "look alike" in message.findings[0]


def test_content_cannot_pretend_to_be_another_message():
    uri = MESSAGES[0].uri.encode()
    lie = b"<%s> <%smessageType> <%sFailureResponse> <wm:/Qmx#content> .\n" % (uri, MSG.encode(), MSG.encode())
    assert read(lie + RAWS[0]).messages[MESSAGES[0].uri].type == "ConnectMessage"


def test_all_statements_in_the_default_graph_still_give_chains():
    quads = [(s, p, o, "") for m in MESSAGES for s, p, o, _ in m.quads]
    dump = read(encode_document(quads, "text/turtle"))
    assert {m.state for m in dump.messages.values() if not m.is_response} == {ChainState.COMPLETE}


def test_command_prints_one_object_per_message(tmp_path):
    path = tmp_path / "log.trig"
    path.write_bytes(FOREIGN)
    result = CliRunner().invoke(app, ["chains", str(path), "--json"], catch_exceptions=False)
    records = {record["uri"]: record for record in map(json.loads, result.stdout.splitlines())}
    assert result.exit_code == 0
    assert records["wm:/W1m"]["state"] == "complete"
    assert records["wm:/W1m"]["responses"][0] == {"uri": "wm:/W1s", "role": "s1"}
    assert records["wm:/W1s"]["previousMessage"] == ["wm:/W1gone"]
    assert records["wm:/W1s"]["state"] is None


def test_command_for_people_ends_with_findings(tmp_path):
    path = tmp_path / "log.trig"
    path.write_bytes(FOREIGN + b"<broken")
    result = CliRunner().invoke(app, ["chains", str(path)], catch_exceptions=False)
    assert result.exit_code == 3
    assert "complete" in result.stdout
    assert "findings" in result.stderr
