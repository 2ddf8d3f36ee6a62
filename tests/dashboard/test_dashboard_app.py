"""The pages: what they show, who gets access, and that peers' text stays text."""

from __future__ import annotations

import asyncio
import json
import sqlite3

import pytest

from dashboard import dashboard_world as world
from dashboard.asgi import ask
from dovetail.audit.check_guides import guide_to
from dovetail.dashboard.app import build_app
from dovetail.dashboard.guard import Access, read_token
from dovetail.dashboard.hub import Hub, Sources
from dovetail.dashboard.markup import breakable
from dovetail.dashboard.site_sources import Site
from dovetail.model.address import NO_MESSAGE, address_of, won_uri
from dovetail.model.errors import ConfigError
from dovetail.model.hop import Observation, Reason, Stage
from dovetail.receipt.verify import verify_receipt
from report.sample_tables import HOSTILE as HOSTILE_NAMES
from report.sample_tables import World, small_world
from report.sample_tables import address as address_in_sample

TOKEN = "correct-horse-battery"


def build(site, *, host="127.0.0.1", token=None, tables=None, names=()):
    sources = Sources(site, tables)
    hub = Hub(sources)

    async def look_once():
        async with hub.running():
            pass

    asyncio.run(look_once())
    return build_app(sources, Access.build(host, names, token), hub)


@pytest.fixture
def app(site):
    return build(site)


def message(raw: bytes) -> str:
    return f"/message/{address_of(raw).hex()}"


def test_every_page_forbids_what_it_does_not_need(app):
    for address in ("/", "/search", "/audit", message(world.REQUEST), "/nowhere", "/static/dashboard.js"):
        policy = ask(app, address).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_only_get_is_answered(app, method):
    for address in ("/", "/login", "/api/search"):
        assert ask(app, address, method=method).status == 405


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8600", "", "127.0.0.1.evil.example", "192.0.2.7"])
def test_other_names_are_turned_away_on_loopback(app, host):
    assert ask(app, "/", host=host).status == 421


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8600", "[::1]:8600", "LOCALHOST:1"])
def test_own_names_are_answered(app, host):
    assert ask(app, "/", host=host).status == 200


def test_off_loopback_named_hosts_and_addresses_are_answered(site):
    app = build(site, host="0.0.0.0", token=TOKEN, names=["dash.example"])
    bearer = f"Bearer {TOKEN}"
    assert ask(app, "/", host="dash.example", authorization=bearer).status == 200
    assert ask(app, "/", host="192.0.2.7:8600", authorization=bearer).status == 200
    assert ask(app, "/", host="evil.example", authorization=bearer).status == 421


def test_a_token_is_asked_for_everywhere(site):
    app = build(site, token=TOKEN)
    for address in ("/", "/search", "/audit", message(world.REQUEST), f"{message(world.REQUEST)}/receipt"):
        assert ask(app, address).status == 303
        assert ask(app, address, accept="*/*").status == 401
        assert ask(app, address, authorization=f"Bearer {TOKEN}x").status == 303
        assert ask(app, address, authorization=f"Bearer {TOKEN}").status in (200, 409)
    for address in ("/api/live", "/api/events", "/api/search?any=pump"):
        assert ask(app, address).status == 401


def test_the_health_is_told_without_a_token_and_is_not_well_on_old_figures(site, monkeypatch):
    app = build(site, host="0.0.0.0", token=TOKEN)
    answer = ask(app, "/healthz", host="[::]:8600", accept="*/*")
    assert (answer.status, answer.text) == (200, "ok\n")
    monkeypatch.setattr("dovetail.dashboard.hub.STALE_S", -1)
    answer = ask(app, "/healthz")
    assert answer.status == 503
    assert answer.text.startswith("the journals were last read ")


def test_the_cookie_lets_in_and_is_not_the_token(site):
    app = build(site, token=TOKEN)
    assert ask(app, "/login").status == 200
    assert ask(app, "/login", authorization="Bearer wrong").status == 401
    answer = ask(app, "/login", authorization=f"Bearer {TOKEN}")
    assert answer.status == 204
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert ask(app, "/", cookie=cookie.partition(";")[0]).status == 200
    assert ask(app, "/", cookie=f"dovetail_dashboard={'0' * 64}").status == 303


@pytest.mark.parametrize("content", ["short\n", "two words of some length", "ü" * 20, "x" * 5000])
def test_useless_tokens_are_refused(tmp_path, content):
    (tmp_path / "token").write_text(content)
    with pytest.raises(ConfigError):
        read_token(tmp_path / "token")


def test_a_message_page_tells_everything(app):
    page = ask(app, message(world.REQUEST)).text
    for words in ("restart the pump", world.AGENT, world.CONTROLLER, world.REQUEST_ID, "is replied to by", "<svg"):
        assert words in page
    assert address_of(world.REPLY).hex() in page
    assert "replies to" in ask(app, message(world.REPLY)).text


def test_a_chain_is_shown_over_all_journals(app):
    first, *responses = world.won_chain()
    page = ask(app, f"/message/{first.address.hex()}").text
    assert world.NODE_A in page
    assert world.NODE_B in page
    for response in responses:
        assert response.address.hex() in page
    second = ask(app, f"/message/{responses[1].uri.removeprefix('wm:/')}").text
    assert "responds to" in second
    assert "comes after" in second


def test_hostile_text_is_only_text(app):
    page = ask(app, message(world.HOSTILE)).text
    assert "<script>window" not in page
    assert "<img" not in page
    assert "\u202e" not in page
    assert "&lt;script&gt;window.hacked" in page
    answer = ask(app, "/api/search?text=hacked&stage=delivered").text
    assert "\u202e" not in answer
    assert len(answer) < 3000


def test_hostile_parameters_are_only_text(app):
    for address in ("/search?any=%22%3E%3Cscript%3E", "/search?since=%3Cscript%3E", "/message/%3Cscript%3E"):
        assert "<script>" not in ask(app, address).text


def test_receipts_and_raw_bytes_can_be_downloaded(app):
    raw = ask(app, f"{message(world.REQUEST)}/raw")
    assert raw.body == world.REQUEST
    assert raw.headers["content-disposition"].startswith("attachment")
    receipt = ask(app, f"{message(world.REQUEST)}/receipt")
    assert receipt.status == 200
    proof = verify_receipt(receipt.body, [world.signer_of(world.BROKER).verifier])
    assert proof is not None


def test_unknown_messages_and_pages_are_one_line(app):
    for address in ("/message/0x", f"/message/{'0' * 64}", f"/message/{'0' * 64}/receipt", "/message/x/raw", "/x"):
        answer = ask(app, address)
        assert answer.status in (404, 409)
        assert "Traceback" not in answer.text


def test_the_beginning_of_an_address_leads_to_its_message(app):
    whole = message(world.REQUEST)
    for digits in (12, 13):
        answer = ask(app, whole[: len("/message/") + digits])
        assert (answer.status, answer.headers["location"]) == (307, whole)
    sent = world.won_chain()[0].address
    answer = ask(app, f"/message/{won_uri(sent).removeprefix('wm:/')[:20]}")
    assert (answer.status, answer.headers["location"]) == (307, f"/message/{sent.hex()}")
    for short in ("00", "0" * 16, world.REQUEST_ID):
        answer = ask(app, f"/message/{short}")
        assert (answer.status, answer.headers["location"]) == (307, f"/search?address={short}")


def test_a_damaged_journal_does_not_break_any_page(tmp_path):
    folder = world.write_site(tmp_path / "journals")
    with sqlite3.connect(folder / "broker.journal") as connection:
        connection.execute("UPDATE commits SET runs = zeroblob(4) WHERE first_seq = 0")
        connection.execute("UPDATE messages SET rows = zeroblob(4) WHERE first_id = 1")
    connection.close()
    (folder / "junk.journal").write_bytes(b"junk" * 5000)
    app = build(Site((folder,)))
    state = json.loads(ask(app, "/api/live").body)
    assert {alert["about"] for alert in state["alerts"]} == {"broker.journal", "junk.journal"}
    assert all("journal verify" in alert["advice"] for alert in state["alerts"])
    assert len(state["servers"]) == 3
    chain = world.won_chain()
    assert ask(app, f"/message/{chain[0].address.hex()}").status == 200
    lost = ask(app, message(world.REQUEST))
    assert lost.status == 404
    assert "cannot be read in full" in lost.text
    assert ask(app, message(world.REPLY)).status == 200
    answer = json.loads(ask(app, "/api/search?text=ladder").body)
    assert answer["results"]
    assert any("junk.journal" in each["where"] for each in answer["damages"])


def test_the_audit_is_shown_in_pages(site, tmp_path):
    root = small_world(names=HOSTILE_NAMES).write(tmp_path / "out")
    app = build(site, tables=root)
    page = ask(app, "/audit").text
    assert "fork.cycle" in page
    assert "<script>window" not in page
    only = ask(app, "/audit?check=fork.cycle").text
    assert "1 to 1 of 1" in only
    assert ask(app, "/audit?offset=99999").status == 200
    state = json.loads(ask(app, "/api/live").body)
    titles = {alert["about"]: alert["title"] for alert in state["alerts"] if alert["what"] == "audit"}
    assert titles["fork.cycle"] == guide_to("fork.cycle").title, "the words that the findings have"


def test_findings_of_one_cause_share_a_row(site, tmp_path):
    audited = World()
    for number in range(7):
        for check, detail in (
            ("chain.failed", "bulk from pcp://boss/controller"),
            ("delivery.undeliverable", "for pcp://sluggard/watcher slow_consumer"),
        ):
            audited.find(check, "pcp", address_in_sample("bulk", number), at=number, detail=detail)
    app = build(site, tables=audited.write(tmp_path / "out"))
    page = ask(app, "/audit").text
    assert "14 findings, 1 cause" in page
    assert "Undeliverable</strong> (7)" in page
    assert "also: Failure response (7)" in page
    assert "for pcp://sluggard/<wbr>watcher slow_consumer (7)" in page
    assert "7 messages" in page
    each = ask(app, "/audit?show=each").text
    assert "1 to 14 of 14" in each


def test_an_alert_says_where_and_what_to_do(site, tmp_path):
    audited = World()
    for number in range(5):
        audited.find("integrity.altered_row", "pcp", None, f"pcp://{number}/server", at=number)
    state = json.loads(ask(build(site, tables=audited.write(tmp_path / "out")), "/api/live").body)
    (alert,) = state["alerts"]
    assert alert["where"] == "0, 1, 2 and 2 more"
    assert alert["advice"] == guide_to("integrity.altered_row").advice


def test_a_finding_without_a_server_is_where_its_message_was_seen(site, tmp_path):
    audited = World()
    audited.find("fork.shared_id", "pcp", address_of(world.REQUEST), detail="two")
    page = ask(build(site, tables=audited.write(tmp_path / "out")), "/audit").text
    assert f'title="{world.BROKER}"' in page.partition('id="findings"')[2]


def test_a_message_page_says_what_the_audit_found_and_what_to_do(site, tmp_path):
    audited = World()
    found = address_of(world.REQUEST)
    audited.find("fork.shared_id", "pcp", found, detail="pcp://boss/controller: two")
    for number in range(4):
        audited.find("gap.server", "pcp", found, "pcp://late/server", at=number, detail=f"lacks {number}")
    audited.add("deliveries", fabric="pcp", message=found, recipient="b", outcome="handed_over")
    page = ask(build(site, tables=audited.write(tmp_path / "out")), message(world.REQUEST)).text
    guide = guide_to("fork.shared_id")
    for words in (guide.title, guide.meaning, guide.advice, 'href="/audit?check=fork.shared_id#findings"'):
        assert words in page, "it arrived, and yet something is wrong with it"
    assert "at pcp://late/server: lacks 0 and 3 more" in page


def test_each_message_of_a_fork_leads_to_it(site, tmp_path):
    audited = World()
    other, name = address_in_sample("the other"), address_of(world.REPLY).hex()[:16]
    audited.find("fork.shared_id", "pcp", other, detail=f"pcp://boss/controller: {other.hex()[:16]}, {name}")
    audited.find("fork.cycle", "pcp", other, detail=f"pcp://{name}/controller: {other.hex()[:16]}")
    page = ask(build(site, tables=audited.write(tmp_path / "out")), message(world.REPLY)).text
    assert guide_to("fork.shared_id").title in page
    assert guide_to("fork.cycle").meaning not in page, "a name that somebody chose"


def test_notes_of_servers_are_not_shown_as_a_message(tmp_path):
    with world.open_writer(tmp_path / "a.journal", world.BROKER) as writer:
        writer.append([Observation(at_us=world.T0, stage=Stage.NOTED, message=NO_MESSAGE, reason=Reason.STOPPED)])
    page = ask(build(Site((tmp_path,))), f"/message/{NO_MESSAGE.hex()}").text
    assert "Notes of servers" in page
    assert "stopped" in page
    assert "Receipt" not in page
    assert "bytes" not in page


def test_no_audit_is_said(site, tmp_path):
    state = json.loads(ask(build(site), "/api/live").body)
    assert (state["errors"], state["warnings"]) == (None, None), "0 would say that all is well"
    assert "There is no audit to show" in ask(build(site), "/audit").text
    assert "holds no audit" in ask(build(site, tables=tmp_path), "/audit").text


def test_bad_queries_are_one_line(app):
    assert ask(app, "/api/search?stage=eaten").status == 400
    assert json.loads(ask(app, "/api/search?token=!").body)["error"].startswith("the token")
    assert ask(app, "/search?since=yesterday").status == 400


def test_a_long_uri_breaks_after_slashes_and_stays_inert():
    assert breakable("for https://a/b<i>/c") == "for https://a/<wbr>b&lt;i&gt;/<wbr>c"
