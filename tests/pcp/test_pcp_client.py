"""The client's core: association, requests, lifetimes, and reconnecting."""

import json

import pytest

from dovetail.model.errors import LocalProtocolError
from dovetail.model.times import time_text
from dovetail.model.wire import CLOSE_TOO_BIG, CloseLink, OpenLink, SendFrames
from dovetail.pcp.client import Client, ClientOptions, ClientState
from dovetail.pcp.client_events import (
    Associated,
    AssociationRefused,
    DestinationReported,
    Disconnected,
    FailureKind,
    InventoryChanged,
    MessageReceived,
    ReplyReceived,
    RequestFailed,
)
from dovetail.pcp.codec_v1 import encode_frame
from dovetail.pcp.envelope import Envelope
from dovetail.pcp.vocabulary import CLOSE_SUPERSEDED
from pcp.pcp_frames import NOW, read_v1

ME, BROKER, OTHER = "pcp://me/controller", "pcp:///server", "pcp://other/agent"
PREFIX = "http://puppetlabs.com/"
ids = iter(f"00000000-0000-0000-0000-{number:012d}" for number in range(10_000))


def make(version: int = 1, random: float = 0.5) -> Client:
    return Client(ME, version, lambda: next(ids), lambda: random, ClientOptions(backoff_ms=200, max_backoff_ms=5_000))


def from_broker(
    kind: str, data: object = None, in_reply_to: str | None = None, sender: str = BROKER, ttl: int = 1
) -> bytes:
    from msgspec import UNSET

    envelope = Envelope(
        next(ids), kind, time_text(NOW + ttl * 1_000_000), [ME], sender, in_reply_to=in_reply_to or UNSET
    )
    return encode_frame(envelope, None if data is None else json.dumps(data).encode())


def associated(version: int = 1) -> Client:
    client = make(version)
    client.start(NOW)
    opened(client)
    if version == 1:
        (request,) = frames(client)
        response = {"id": read_v1(request)[0]["id"], "success": True}
        take(client, from_broker(PREFIX + "associate_response", response))
    assert client.state is ClientState.ASSOCIATED
    client.events()
    return client


def link_of(client: Client) -> str:
    """Its current link."""
    return f"{ME} {client._link_count}"


def opened(client: Client) -> None:
    """The link that it requested is open."""
    (asked,) = client.to_send()
    assert asked == OpenLink(link_of(client), BROKER, ME)
    client.receive_opened(asked.link, NOW)


def take(client: Client, data: bytes) -> None:
    client.receive_frames([(data, link_of(client), False)], NOW)


def frames(client: Client) -> list[bytes]:
    return [data for item in client.to_send() if isinstance(item, SendFrames) for data in item.frames]


def send(client: Client, **more: object) -> str:
    return client.send("http://example.com/ping", [OTHER], b"{}", ttl_ms=1_000, now=NOW, **more).id


def test_associates_on_open_without_a_data_chunk():
    client = make()
    client.start(NOW)
    opened(client)
    (request,) = frames(client)
    envelope, data, debug = read_v1(request)
    assert (envelope["message_type"], envelope["targets"], envelope["sender"]) == (
        PREFIX + "associate_request",
        [BROKER],
        ME,
    )
    assert (data, debug) == (None, [])
    response = {"id": envelope["id"], "success": True}
    take(client, from_broker(PREFIX + "associate_response", response))
    assert client.events() == [Associated(uri=ME)]


def test_refused_association_is_told_and_the_wire_dropped():
    client = make()
    client.start(NOW)
    opened(client)
    request = read_v1(frames(client)[0])[0]["id"]
    client.events()
    response = {"id": request, "success": False, "reason": "no"}
    take(client, from_broker(PREFIX + "associate_response", response))
    assert [type(event) for event in client.events()] == [AssociationRefused, Disconnected]
    assert client.to_send() == [CloseLink(f"{ME} 1")]


def test_association_that_does_not_come_drops_the_wire():
    client = make()
    client.start(NOW)
    opened(client)
    client.events()
    client.handle_timer(client.next_timer())
    assert [event.detail for event in client.events()] == ["no association in time"]
    assert client.to_send() == [CloseLink(f"{ME} 1")]


def test_v2_is_associated_by_its_path():
    client = make(2)
    client.start(NOW)
    opened(client)
    assert client.to_send() == []
    assert Associated(uri=ME) in client.events()


def test_reconnects_with_full_jitter_that_doubles_up_to_a_bound():
    client = make(random=0.5)
    client.start(NOW)
    client.events()
    delays = []
    now = NOW
    for _ in range(8):
        client.receive_closed(link_of(client), now, 1006, "gone")
        (lost,) = [event for event in client.events() if isinstance(event, Disconnected)]
        delays.append((lost.retry_us - now) // 1000)
        now = lost.retry_us
        client.handle_timer(now)
        assert client.to_send()[-1] == OpenLink(link_of(client), BROKER, ME)
    assert delays == [100, 200, 400, 800, 1600, 2500, 2500, 2500]


def test_an_attempt_does_not_wait_for_a_clock_that_was_set_back():
    client = associated()
    client.receive_closed(link_of(client), NOW, 1006, "gone")
    client.handle_timer(NOW - 3_600_000_000)
    assert client.to_send()[-1] == OpenLink(link_of(client), BROKER, ME)


def delays_between_losses(code: int) -> list[int]:
    """Milliseconds until the next attempt, for a client that is let in each time and then loses its link."""
    client = associated()
    delays = []
    for _ in range(4):
        client.receive_closed(link_of(client), NOW, code, "superseded")
        (lost,) = [event for event in client.events() if isinstance(event, Disconnected)]
        delays.append((lost.retry_us - NOW) // 1000)
        client.handle_timer(lost.retry_us)
        opened(client)
        (request,) = frames(client)
        take(client, from_broker(PREFIX + "associate_response", {"id": read_v1(request)[0]["id"], "success": True}))
    return delays


def test_a_loss_after_an_association_resets_the_backoff():
    assert delays_between_losses(1006) == [100, 100, 100, 100]


def test_two_clients_with_one_uri_do_not_throw_each_other_out_for_ever():
    assert delays_between_losses(4000) == [100, 200, 400, 800]


def test_a_request_of_a_superseded_client_fails_with_the_reason():
    client = associated()
    send(client, awaits_reply=True)
    client.receive_closed(link_of(client), NOW, 4000, "superseded")
    failed, lost = client.events()
    assert failed.detail == lost.detail == f"another client connected as {ME}; each needs a URI of its own"


def test_reply_answers_its_request_once():
    client = associated()
    request = send(client, awaits_reply=True)
    reply = from_broker("http://example.com/pong", {"a": 1}, request, OTHER)
    take(client, reply)
    take(client, reply)
    first, second = client.events()
    assert isinstance(first, ReplyReceived)
    assert (first.id, first.reply.json()) == (request, {"a": 1})
    assert isinstance(second, MessageReceived)


@pytest.mark.parametrize(
    ("kind", "data", "expected", "detail"),
    [
        ("error_message", {"id": "x", "description": "bad"}, FailureKind.REFUSED, "bad"),
        ("ttl_expired", {"id": "x"}, FailureKind.EXPIRED, "its lifetime was over before it was delivered"),
        ("unauthorized", None, FailureKind.UNAUTHORIZED, "no rule of the broker allows it"),
        ("version_error", {"id": "x", "target": OTHER, "reason": "bad"}, FailureKind.NOT_TRANSLATABLE, "bad"),
    ],
)
def test_failures_from_the_broker_name_the_message_and_the_reason(kind, data, expected, detail):
    client = associated()
    request = send(client, awaits_reply=True)
    take(client, from_broker(PREFIX + kind, data, request))
    (failed,) = client.events()
    assert isinstance(failed, RequestFailed)
    assert (failed.id, failed.kind, failed.detail) == (request, expected, detail)


def test_failure_id_is_found_in_the_data_where_no_reply_field_is():
    client = associated()
    request = send(client, awaits_reply=True)
    take(client, from_broker(PREFIX + "ttl_expired", {"id": request}))
    assert client.events()[0].id == request


def test_request_without_reply_times_out_with_its_lifetime():
    client = associated()
    request = send(client, awaits_reply=True)
    assert client.next_timer() == NOW + 1_000_000
    client.handle_timer(NOW + 1_000_000)
    assert client.events() == [
        RequestFailed(id=request, kind=FailureKind.TIMED_OUT, detail="no reply within its lifetime")
    ]
    assert client.next_timer() is None


@pytest.mark.parametrize(
    ("code", "said"),
    [(1006, "the connection was lost"), (CLOSE_TOO_BIG, "too large"), (CLOSE_SUPERSEDED, "another client")],
)
def test_requests_fail_when_the_wire_is_lost(code, said):
    """With the reason, where the broker has given one that concerns them."""
    client = associated()
    request = send(client, awaits_reply=True)
    client.receive_closed(link_of(client), NOW, code, "gone")
    failed = client.events()[0]
    assert (failed.id, failed.kind) == (request, FailureKind.DISCONNECTED)
    assert said in failed.detail


@pytest.mark.parametrize("targets", [[BROKER], [BROKER, BROKER], ["pcp:///broker", BROKER]])
def test_no_report_is_awaited_that_never_comes(targets):
    client = associated()
    with pytest.raises(LocalProtocolError, match="a message to the broker alone has no destination report"):
        client.send("http://example.com/ping", targets, None, ttl_ms=1_000, now=NOW, destination_report=True)
    assert (client.to_send(), client.next_timer()) == ([], None)


def test_destination_report_and_inventory_update():
    client = associated()
    message = send(client, destination_report=True)
    assert read_v1(frames(client)[0])[0]["destination_report"] is True
    take(client, from_broker(PREFIX + "destination_report", {"id": message, "targets": [OTHER]}))
    take(client, from_broker(PREFIX + "inventory_update", {"changes": [{"client": OTHER, "change": -1}]}))
    assert client.events() == [
        DestinationReported(id=message, targets=(OTHER,)),
        InventoryChanged(changes=((OTHER, -1),)),
    ]


def test_messages_whose_lifetime_is_over_are_not_handed_on():
    client = associated()
    take(client, from_broker("http://example.com/x", 1, sender=OTHER, ttl=-1))
    assert client.events() == []


def test_a_broker_that_breaks_the_rules_is_dropped():
    client = associated()
    take(client, b"garbage")
    assert isinstance(client.events()[0], Disconnected)
    assert client.to_send() == [CloseLink(f"{ME} 1")]
    take(client, from_broker("http://example.com/x", 1, sender=OTHER))
    assert client.events() == [], "its link no longer counts"


def test_sending_needs_an_association_and_good_targets():
    with pytest.raises(LocalProtocolError, match="stopped"):
        send(make())
    with pytest.raises(LocalProtocolError, match="not a PCP URI"):
        associated().send("t", ["nowhere"], None, ttl_ms=1, now=NOW)


def test_v2_has_one_target_json_data_and_no_report():
    client = associated(2)
    message = send(client)
    assert json.loads(frames(client)[0]) == {
        "id": message,
        "message_type": "http://example.com/ping",
        "target": OTHER,
        "sender": ME,
        "data": {},
    }
    for targets, data, more in (
        ([OTHER, OTHER], b"{}", {}),
        ([OTHER], b"\xff", {}),
        ([OTHER], b"{}", {"destination_report": True}),
    ):
        with pytest.raises(LocalProtocolError):
            client.send("t", targets, data, ttl_ms=1, now=NOW, **more)


def test_stopping_wants_no_connection_any_more():
    client = associated()
    client.stop(NOW)
    client.receive_closed(link_of(client), NOW)
    assert client.next_timer() is None
    assert client.to_send() == [CloseLink(f"{ME} 1")]
