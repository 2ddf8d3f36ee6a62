"""`dovetail otel` against an OTLP receiver over real sockets: what arrives, even if the target fails."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from docs import kit
from dovetail.journal.reader import JournalReader
from dovetail.model.address import address_of
from dovetail.model.errors import ConfigError
from dovetail.otel.exporter import Exporter, Positions
from dovetail.otel.target import NotTaken, Target
from otel.otel_samples import EXCHANGE, OK, REQUEST, SERVER, attributes, receiving, seen, write
from system.up_site import DOVETAIL, ENVIRONMENT, dovetail, free_port

pytestmark = pytest.mark.system


@pytest.fixture
def journal(tmp_path):
    return write(tmp_path / "broker.journal", EXCHANGE)


def exporter(
    journal: Path, url: str, state: Path | None = None, *, timeout_s: float = 10.0, settle_s: float = 5.0
) -> Exporter:
    target = Target(f"{url}/v1/traces", timeout_s=timeout_s)
    return Exporter([journal], target, Positions(state), settle_s=settle_s, from_start=True)


def test_the_command_exports_a_journal_once(journal):
    with receiving() as receiver:
        words = ("otel", journal.parent, "--endpoint", receiver.url, "--headers", "authorization=Bearer%20t", "--once")
        ran = dovetail(*words, "--json", cwd=journal.parent)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(ran.stdout) == {"exported": 3, "refused": 0}
    (headers,) = receiver.headers
    assert (headers["path"], headers["Authorization"]) == ("/v1/traces", "Bearer t")
    (resource,) = receiver.requests[0]["resourceSpans"]
    assert attributes(resource["resource"])["service.instance.id"] == SERVER
    request, reply, lost = receiver.spans
    assert request["traceId"] == reply["traceId"] == address_of(REQUEST)[:16].hex()
    assert reply["parentSpanId"] == request["spanId"]
    assert attributes(request)["messaging.message.id"] == address_of(REQUEST).hex()
    assert lost["status"] == {"code": 2, "message": "no_recipient"}
    assert int(request["endTimeUnixNano"]) - int(request["startTimeUnixNano"]) == 2_000_000


def test_a_trace_leads_to_its_message(journal):
    with receiving() as receiver:
        exporter(journal, receiver.url).run(once=True)
    trace_id = receiver.spans[0]["traceId"]
    with JournalReader.open(journal) as reader:
        assert [row.address for row in reader.find(bytes.fromhex(trace_id))] == [address_of(REQUEST)]


def test_exporting_twice_sends_the_same_bytes(journal):
    with receiving() as receiver:
        for _ in range(2):
            exporter(journal, receiver.url).run(once=True)
    first, second = receiver.bodies
    assert first == second


def test_a_restart_goes_on_where_the_last_one_stood(journal, tmp_path):
    state = tmp_path / "state"
    with receiving() as receiver:
        exporter(journal, receiver.url, state).run(once=True)
        assert json.loads(state.read_bytes()) == {SERVER: 6}
        exporter(journal, receiver.url, state).run(once=True)
        assert len(receiver.requests) == 1
        write(journal, [seen(b"new", EXCHANGE[0].stage)])
        exporter(journal, receiver.url, state).run(once=True)
        assert len(receiver.spans) == 4


def test_a_file_that_says_no_positions_is_one_clear_line(tmp_path):
    (tmp_path / "state").write_text("[1")
    with pytest.raises(ConfigError, match="does not say where the export stands"):
        Positions(tmp_path / "state")


@pytest.mark.parametrize("status", [429, 500, 503, 404])
def test_a_target_that_is_full_is_asked_again_until_it_takes_all(journal, status, caplog):
    caplog.set_level("INFO")
    with receiving((status, {"Retry-After": "0"}, b""), OK) as receiver:
        running = exporter(journal, receiver.url, settle_s=0)
        thread = threading.Thread(target=running.run)
        thread.start()
        receiver.await_spans(5)  # nothing settles: events a millisecond apart are separate spans
        running.stopped.set()
        thread.join()
    assert len(receiver.spans) == 5
    said = [record.getMessage() for record in caplog.records if record.name == "dovetail.otel"]
    url = f"{receiver.url}/v1/traces"
    assert said == [f"{url} answered {status}: waiting and retrying", f"{url} accepts spans again"]


def test_exporting_once_what_is_not_there_is_an_error(journal):
    ran = dovetail("otel", "nowhere.journal", "--endpoint", "http://127.0.0.1:1", "--once", cwd=journal.parent)
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, "", "dovetail: no journal at nowhere.journal\n")


def test_a_redirect_is_not_followed(journal):
    with receiving() as other, receiving((302, {"Location": other.url}, b"")) as receiver:
        with pytest.raises(NotTaken, match="answered 302"):
            exporter(journal, receiver.url).run(once=True)
        assert other.headers == []


def test_what_the_target_refuses_for_good_is_left_out_and_said(journal, caplog):
    with receiving((400, {}, b"")) as receiver:
        running = exporter(journal, receiver.url)
        running.run(once=True)
    assert (running.exported, running.refused) == (0, 3)
    assert "3 spans are dropped" in caplog.text


def test_spans_that_the_target_did_not_take_are_counted(journal):
    partial = b'{"partialSuccess": {"rejectedSpans": "2", "errorMessage": "too old"}}'
    with receiving((200, {}, partial)) as receiver:
        running = exporter(journal, receiver.url)
        running.run(once=True)
    assert (running.exported, running.refused) == (1, 2)


def test_a_target_that_is_gone_fails_an_export_that_is_not_to_wait(journal):
    url = f"http://127.0.0.1:{free_port()}"
    ran = dovetail("otel", journal, "--endpoint", url, "--once", cwd=journal.parent)
    assert ran.returncode == 4
    assert ran.stderr.startswith(f"dovetail: {url}/v1/traces cannot be reached: ")
    assert ran.stderr.count("\n") == 1


def test_a_target_that_never_answers_is_given_up_in_time(journal):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(NotTaken):
            exporter(journal, url, timeout_s=0.2).run(once=True)


def test_an_answer_that_does_not_end_is_not_waited_for(journal):
    ended = threading.Event()

    def drip(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n")
            try:
                while not ended.wait(0.02):
                    connection.sendall(b" ")
            except OSError:
                pass

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=(server,))
        thread.start()
        try:
            with pytest.raises(NotTaken, match="takes too long"):
                exporter(journal, f"http://127.0.0.1:{server.getsockname()[1]}", timeout_s=0.5).run(once=True)
        finally:
            ended.set()
            thread.join()


def test_the_process_follows_a_journal_while_the_target_comes_and_goes(journal, tmp_path):
    """It waits for an absent target, sends what arrived meanwhile, and ends at SIGTERM."""
    port = free_port()
    command = [*DOVETAIL, "otel", journal, "--endpoint", f"http://127.0.0.1:{port}", "--from-start", "--settle", "0"]
    process = subprocess.Popen(command, env=ENVIRONMENT, text=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert "cannot be reached" in process.stderr.readline()
        write(journal, [seen(b"meanwhile", EXCHANGE[0].stage)])
        with receiving(port=port) as receiver:
            receiver.await_spans(6)
            write(journal, [seen(b"live", EXCHANGE[0].stage)])
            receiver.await_spans(7)
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert "exported" in out
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


DECODE = """
import sys
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
import base64, json
def to_proto_json(value, key=""):
    if isinstance(value, dict):
        return {name: to_proto_json(each, name) for name, each in value.items()}
    if isinstance(value, list):
        return [to_proto_json(each) for each in value]
    # OTLP has ids in hex where the JSON of protobuf has base64
    return base64.b64encode(bytes.fromhex(value)).decode() if key in ("traceId", "spanId", "parentSpanId") else value
request = json_format.ParseDict(to_proto_json(json.load(sys.stdin)), ExportTraceServiceRequest())
spans = request.resource_spans[0].scope_spans[0].spans
assert all(len(span.trace_id) == 16 and len(span.span_id) == 8 for span in spans)
print(len(spans), spans[0].kind, spans[0].start_time_unix_nano)
"""


def test_the_requests_are_those_of_the_protocols_own_definition(journal):
    """Every field is known to the published protocol: an unknown one would be an error."""
    python = Path(kit.program("check-jsonschema")).parent / "python"
    with receiving() as receiver:
        exporter(journal, receiver.url).run(once=True)
    said = kit.run(python, "-c", DECODE, stdin=receiver.bodies[0].decode())
    assert said.split() == ["3", "3", str(EXCHANGE[0].at_us * 1000)]


def test_no_server_loads_the_exporter():
    code = "import sys, dovetail.cli.up, dovetail.runtime.pcp_serve; print([m for m in sys.modules if 'otel' in m])"
    ran = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, text=True, capture_output=True, check=True)
    assert ran.stdout.strip() == "[]"
