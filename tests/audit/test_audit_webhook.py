"""Posting alerts to a real HTTP server on loopback: in order, retried, bounded, and never blocking."""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import threading
import time

import pytest

from dovetail.audit import webhook
from dovetail.audit.webhook import MAX_WAITING, PostFailed, Webhook, check_webhook, post
from dovetail.model.errors import ConfigError

FINDING = {"check": "fork.shared_id", "severity": "error", "message": "00ff", "detail": "ä"}


@contextlib.contextmanager
def hook(*answers: int):
    """A server that gives these answers, then 204; yields its URL and what was posted."""
    posted = []
    left = list(answers)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posted.append((self.headers["Content-Type"], json.loads(body)))
            self.send_response(left.pop(0) if left else 204)
            self.end_headers()

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/hook", posted
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def refused_url() -> str:
    """A port with no listener."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}/hook"


def test_findings_are_posted_as_json_in_order():
    said = []
    with hook() as (url, posted):
        sender = Webhook(url, said.append)
        for number in range(5):
            sender.put({**FINDING, "seq": number})
        sender.close()
    assert posted == [("application/json", {**FINDING, "seq": number}) for number in range(5)]
    assert said == []


def test_what_fails_for_the_moment_is_tried_again():
    said = []
    with hook(503, 429) as (url, posted):
        sender = Webhook(url, said.append, pauses_s=(0.01, 0.01))
        sender.put(FINDING)
        sender.put({**FINDING, "seq": 2})
        wait_until(lambda: len(posted) == 4)
        sender.close()
    assert [body.get("seq") for _, body in posted] == [None, None, None, 2]
    assert said == []


def test_what_is_refused_is_told_and_not_tried_again():
    said = []
    with hook(400) as (url, posted):
        sender = Webhook(url, said.append, pauses_s=(0.01,))
        sender.put(FINDING)
        sender.close()
    assert len(posted) == 1
    assert said == ["webhook: fork.shared_id is not posted: it answered 400"]


def test_it_gives_up_after_the_last_pause_and_goes_on():
    said = []
    with hook(500, 500, 500) as (url, posted):
        sender = Webhook(url, said.append, pauses_s=(0.01, 0.01))
        sender.put(FINDING)
        sender.put({**FINDING, "seq": 2})
        wait_until(lambda: len(posted) == 4)
        sender.close()
    assert said == ["webhook: fork.shared_id is not posted: it answered 500"]
    assert posted[-1][1]["seq"] == 2


def test_nobody_there_stops_nothing_and_closing_does_not_wait_for_pauses():
    said = []
    sender = Webhook(refused_url(), said.append, pauses_s=(3600,))
    sender.put(FINDING)
    sender.close()
    assert "is not posted" in said[0]


def test_what_waits_is_bounded(monkeypatch):
    monkeypatch.setattr(webhook, "post", lambda url, finding: time.sleep(0.2))
    said = []
    sender = Webhook("http://127.0.0.1:1/", said.append)
    for _ in range(MAX_WAITING + 2):
        sender.put(FINDING)
    assert said
    assert set(said) == {f"webhook: {MAX_WAITING} alerts are already waiting, fork.shared_id is not posted"}


def test_what_cannot_be_asked_at_all_is_not_tried_again():
    with pytest.raises(PostFailed) as caught:
        post("http://127.0.0.1:1/a b\n", FINDING)
    assert not caught.value.retriable


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://[", "https://", "http://host:x/", "example.org"])
def test_only_http_urls_can_be_posted_to(url):
    assert check_webhook("https://example.org/x") == "https://example.org/x"
    with pytest.raises(ConfigError, match="not an http or https URL"):
        check_webhook(url)


def wait_until(condition, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
