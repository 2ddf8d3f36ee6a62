import io
import json
import logging

import pytest

from dovetail.cli import logs


@pytest.fixture
def logged():
    """Configures logging, lets a function log, and returns the output."""

    def run(act, **options) -> str:
        stream = io.StringIO()
        handler = logs.configure(stream=stream, **options)
        try:
            act(logging.getLogger("dovetail.room"))
        finally:
            logging.getLogger("dovetail").removeHandler(handler)
        return stream.getvalue()

    return run


def fail(logger: logging.Logger) -> None:
    try:
        raise ValueError("bad\x1b[31m")
    except ValueError:
        logger.exception("it broke")


def test_text_is_one_line_with_time_level_and_room(logged):
    line = logged(lambda logger: logger.info("session opened for %s", "a"))
    date, clock, rest = line.split(" ", 2)
    assert (len(date), len(clock)) == (10, 12)
    assert rest == "INFO    dovetail.room session opened for a\n"


def test_peers_can_forge_no_line(logged):
    line = logged(lambda logger: logger.warning("from %s", "x\n2026-01-01 forged\x1b[2J"))
    assert line.endswith("from x\\x0a2026-01-01 forged\\x1b[2J\n")
    assert line.count("\n") == 1


def test_json_is_one_object_per_line_with_extras(logged):
    entry = json.loads(
        logged(lambda logger: logger.error("no\nway", extra={"peer": "p", "count": 3}), form="json", level="error")
    )
    assert entry.pop("at").endswith("+00:00")
    assert entry == {"level": "error", "logger": "dovetail.room", "text": "no\nway", "peer": "p", "count": 3}


def test_tracebacks_are_kept_and_escaped(logged):
    text = logged(fail)
    assert "\n    Traceback (most recent call last):\n" in text
    assert text.endswith("ValueError: bad\\x1b[31m\n")
    assert "ValueError: bad" in json.loads(logged(fail, form="json"))["traceback"]


def test_levels_below_are_not_shown(logged):
    assert logged(lambda logger: logger.info("x"), level="warning") == ""


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_private_key_never_gets_out(logged, form):
    pem = "-----BEGIN PRIVATE KEY-----\nMC4CAQAw\n-----END PRIVATE KEY-----\n"
    text = logged(lambda logger: logger.error("loaded %s", pem, extra={"key": pem}), form=form)
    assert "MC4CAQAw" not in text
    assert "[private key]" in text


def test_configuring_twice_does_not_double(logged):
    first = io.StringIO()
    logs.configure(stream=first)
    second = logged(lambda logger: logger.info("once"))
    assert first.getvalue() == ""
    assert second.count("once") == 1
