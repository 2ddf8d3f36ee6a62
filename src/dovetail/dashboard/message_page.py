"""The page of one message: its route, its hops, its links, its bytes decoded and raw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import urlencode

import msgspec

from dovetail.audit.check_guides import guide_to
from dovetail.audit.server_names import name_server, name_server_briefly
from dovetail.dashboard.audit import Cause, Verdict
from dovetail.dashboard.markup import Html, breakable, h, lines, prose, table, text
from dovetail.dashboard.message import MessageTrace, Relative
from dovetail.dashboard.pages import page
from dovetail.model.hop import Hop
from dovetail.report.sequence import ROLES
from dovetail.report.text import brief_detail, name_briefly, show, write_duration, write_time
from dovetail.report.waterfall import draw_waterfall

MAX_RAW_SHOWN = 64 << 10
MAX_DECODED_CHARS = 128 << 10
_HEX_ROW = 16
_HEX_BYTES_SHOWN = 4_096
_WORDS = {
    (False, "responding_to"): "responds to",
    (True, "responding_to"): "is answered by",
    (False, "in_reply_to"): "replies to",
    (True, "in_reply_to"): "is replied to by",
    (False, "previous"): "comes after",
    (True, "previous"): "is followed by",
    (False, "refers"): "refers to",
    (True, "refers"): "is referred to by",
}


def message_page(
    trace: MessageTrace, picture: str, verdicts: Sequence[Verdict] = (), findings: Sequence[Cause] = ()
) -> Html:
    """Everything about one message, starting with what the audit says about it and what to do."""
    if trace.is_note:
        return _notes_page(trace)
    own = trace.address.hex()
    short = name_briefly(trace.address, trace.fabric.name)
    info = trace.info
    size = next((hop.size for hop in trace.hops if hop.size is not None), None)
    role = ROLES.get(info.role) if info is not None and info.role is not None else None
    facts = [
        ("address", h("code", trace.name)),
        ("fabric", trace.fabric.name),
        *((("role", f"{role}, a response in a chain"),) if role is not None else ()),
        ("type", text(info.type) if info else "unknown"),
        ("id", h("code", text(info.id)) if info else "–"),
        ("sender", text(info.sender) if info and info.sender else "–"),
        ("size", "unknown" if size is None else f"{size:,} bytes"),
        ("seen", _seen(trace)),
    ]
    links = [
        h("button", "Copy address", type="button", class_="button", data_copy=trace.name),
        h("button", "Copy command", type="button", class_="button", data_copy=f"dovetail audit why {trace.name}"),
        h("a", "Receipt", href=f"/message/{own}/receipt", class_="button", id="receipt"),
    ]
    if trace.raw is not None:
        links.append(h("a", "Raw bytes", href=f"/message/{own}/raw", class_="button"))
    return page(
        f"Message {short}",
        h(
            "section",
            h("h1", f"Message {short}…" if role is None else f"Message {short}…, {role}"),
            *(h("p", text(verdict.words), class_=f"verdict {verdict.kind}") for verdict in verdicts),
            h("dl", *(part for name, value in facts for part in (h("dt", name), h("dd", value))), class_="facts"),
            h("p", *links, class_="buttons"),
            *(h("p", text(f"{damage.where}: {damage.text}"), class_="problem") for damage in trace.damages),
            class_="hero",
        ),
        _found(findings),
        h(
            "section",
            h("h2", "Path"),
            h("figure", h("div", Html(picture), class_="scroll", tabindex="0"), class_="picture"),
            h("h3", "Time at each server"),
            h("figure", h("div", Html(draw_waterfall(trace.hops)), class_="scroll", tabindex="0"), class_="picture"),
        ),
        _hops(trace),
        _relatives(trace),
        _decoded(trace),
        _raw(trace),
        kind="message",
    )


def _notes_page(trace: MessageTrace) -> Html:
    words = "These hops are about the servers themselves (started, stopped, clock set, hops lost), not about a message."
    return page(
        "Notes", h("section", h("h1", "Notes of servers"), h("p", words, class_="lead"), class_="hero"), _hops(trace)
    )


def _found(findings: Sequence[Cause]) -> Html | None:
    """The audit's findings about the message, each with what to do."""
    if not findings:
        return None
    rows = (
        (
            h("td", h("span", text(cause.severity), class_=f"chip {cause.severity}")),
            h("td", h("a", guide.title, href=f"/audit?{urlencode({'check': cause.row['check']})}#findings")),
            h("td", prose(guide.meaning), h("div", *_particulars(cause), class_="quiet"), class_="detail"),
            h("td", prose(guide.advice), class_="detail"),
        )
        for cause in findings
        for guide in (guide_to(cause.row["check"]),)
    )
    body = table(("severity", "finding", "what was found", "what to do"), rows, "stack")
    return h("section", h("h2", "Findings"), body, id="found")


def _particulars(cause: Cause) -> Iterator[Html | str]:
    if cause.row["server"]:
        yield f"at {name_server(cause.row['server'])}: "
    yield breakable(brief_detail(cause.row["detail"] or ""))
    more = cause.checks.total() - 1
    if more:
        yield f" and {more:,} more"


def _seen(trace: MessageTrace) -> str:
    first, last = trace.hops[0], trace.hops[-1]
    servers = len({hop.server for hop in trace.hops})
    words = f"{write_time(first.at_us)}, {trace.hops_in_all:,} hops at {servers} server{'' if servers == 1 else 's'}"
    if last is first:
        return words
    took = last.at_us - first.at_us
    return f"{words} in {write_duration(took)}" if took else f"{words} within one turn"


def _hops(trace: MessageTrace) -> Html:
    begun = trace.hops[0].at_us
    rows = (
        (
            h("td", write_time(hop.at_us), class_="time"),
            h("td", f"+{write_duration(hop.at_us - begun)}" if hop.at_us != begun else "", class_="number"),
            h("td", text(name_server_briefly(hop.server)), class_="name", title=show(hop.server)),
            h("td", f"{hop.seq:,}", class_="number"),
            h("td", stage_chip(hop)),
            h("td", text(name_server(hop.counterpart or "")), class_="name", title=show(hop.counterpart or "") or None),
        )
        for hop in trace.hops
    )
    more = trace.hops_in_all - len(trace.hops)
    return h(
        "section",
        h("h2", "Hops"),
        table(("time", "after", "server", "hop", "stage", "counterpart"), rows, "hops"),
        h("p", f"and {more:,} more, which the receipt and `dovetail journal` show", class_="quiet") if more else None,
        id="hops",
    )


def stage_chip(hop: Hop) -> Html:
    """The stage, with the reason if there is one."""
    kind = {"rejected": "error", "undeliverable": "error", "expired": "warning", "delivered": "proven"}.get(hop.stage)
    chip = h("span", str(hop.stage), class_=f"chip {kind or ''}".strip(), title=hop.stage.sentence)
    if hop.reason is None:
        return chip
    return Html(chip + " " + h("span", str(hop.reason), class_="quiet", title=hop.reason.sentence))


def _relatives(trace: MessageTrace) -> Html:
    rows = (
        (h("td", _words(each)), h("td", _link(each), class_="name"), h("td", text(each.type)))
        for each in trace.relatives
    )
    remark = None
    if not trace.is_search_complete:
        needle = trace.info.id if trace.info else trace.name
        remark = h(
            "p",
            "Not all hops after this message were searched. ",
            h("a", "Search all journals for messages that refer to it", href=f"/search?{urlencode({'text': needle})}"),
            class_="quiet",
        )
    body = (
        table(("", "message", "type"), rows, "links stack") if trace.relatives else h("p", "none found", class_="quiet")
    )
    return h("section", h("h2", "Links"), body, remark, id="links")


def _words(relative: Relative) -> str:
    return _WORDS.get((relative.is_child, str(relative.relation)), str(relative.relation))


def _link(relative: Relative) -> Html:
    name = h("code", text(relative.name))
    if relative.address is None:
        return Html(name + " " + h("span", "not found", class_="chip warning"))
    return h("a", name, href=f"/message/{relative.address.hex()}")


def _decoded(trace: MessageTrace) -> Html:
    fields = {} if trace.raw is None else trace.fabric.explain(trace.raw)
    if trace.error:
        body = h("p", text(trace.error), class_="problem")
    else:
        pretty = msgspec.json.format(msgspec.json.encode(fields, enc_hook=str), indent=2).decode()
        cut = len(pretty) - MAX_DECODED_CHARS
        body = h("pre", lines(pretty, MAX_DECODED_CHARS), tabindex="0")
        if cut > 0:
            body = Html(body + h("p", f"and {cut:,} more characters", class_="quiet"))
    return h("section", h("h2", "Decoded"), body, id="decoded")


def _raw(trace: MessageTrace) -> Html:
    if trace.raw is None:
        return h("section", h("h2", "Raw"), h("p", "The bytes are not available here.", class_="quiet"), id="raw")
    as_text = trace.raw[:MAX_RAW_SHOWN].decode(errors="replace")
    parts = [h("pre", lines(as_text, MAX_RAW_SHOWN), tabindex="0")]
    if len(trace.raw) > MAX_RAW_SHOWN:
        parts.append(h("p", f"the first {MAX_RAW_SHOWN:,} of {len(trace.raw):,} bytes", class_="quiet"))
    dump = h("pre", _dump(trace.raw[:_HEX_BYTES_SHOWN]), tabindex="0")
    parts.append(h("details", h("summary", "Hex"), dump))
    return h("section", h("h2", "Raw"), *parts, id="raw")


def _dump(data: bytes) -> Html:
    rows = []
    for start in range(0, len(data), _HEX_ROW):
        row = data[start : start + _HEX_ROW]
        shown = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        rows.append(f"{start:08x}  {row.hex(' '):{3 * _HEX_ROW}} {shown}")
    return lines("\n".join(rows), 1 << 20)
