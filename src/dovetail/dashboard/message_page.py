"""The page of one message: its way, its hops, what it is linked to, its bytes decoded and raw."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode

import msgspec

from dovetail.dashboard.audit import Verdict
from dovetail.dashboard.markup import Html, h, lines, table, text
from dovetail.dashboard.message import Relative, Story
from dovetail.dashboard.pages import page
from dovetail.model.hop import Hop
from dovetail.report.sequence import ROLES
from dovetail.report.text import name_briefly, write_duration, write_time
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


def message_page(story: Story, picture: str, verdicts: Sequence[Verdict] = ()) -> Html:
    """Everything about one message, first of all what the audit says of it."""
    own = story.address.hex()
    short = name_briefly(story.address, story.fabric.name)
    info = story.info
    size = next((hop.size for hop in story.hops if hop.size is not None), None)
    role = ROLES.get(info.role) if info is not None and info.role is not None else None
    facts = [
        ("address", h("code", story.name)),
        ("fabric", story.fabric.name),
        *((("role", f"{role}, a response in a chain"),) if role is not None else ()),
        ("type", text(info.type) if info else "unknown"),
        ("id", h("code", text(info.id)) if info else "–"),
        ("sender", text(info.sender) if info and info.sender else "–"),
        ("size", "unknown" if size is None else f"{size:,} bytes"),
        ("seen", _seen(story)),
    ]
    links = [
        h("button", "Copy address", type="button", class_="button", data_copy=story.name),
        h("button", "Copy command", type="button", class_="button", data_copy=f"dovetail audit why {story.name}"),
        h("a", "Receipt", href=f"/message/{own}/receipt", class_="button", id="receipt"),
    ]
    if story.raw is not None:
        links.append(h("a", "Raw bytes", href=f"/message/{own}/raw", class_="button"))
    return page(
        f"Message {short}",
        h(
            "section",
            h("h1", f"Message {short}…" if role is None else f"Message {short}…, {role}"),
            *(h("p", text(verdict.words), class_=f"verdict {verdict.kind}") for verdict in verdicts),
            h("dl", *(part for name, value in facts for part in (h("dt", name), h("dd", value))), class_="facts"),
            h("p", *links, class_="buttons"),
            *(h("p", text(f"{damage.where}: {damage.text}"), class_="problem") for damage in story.damages),
            class_="hero",
        ),
        h(
            "section",
            h("h2", "Its way"),
            h("figure", h("div", Html(picture), class_="scroll", tabindex="0"), class_="picture"),
            h("h3", "Time at each server"),
            h("figure", h("div", Html(draw_waterfall(story.hops)), class_="scroll", tabindex="0"), class_="picture"),
        ),
        _hops(story),
        _relatives(story),
        _decoded(story),
        _raw(story),
        kind="message",
    )


def _seen(story: Story) -> str:
    first, last = story.hops[0], story.hops[-1]
    servers = len({hop.server for hop in story.hops})
    words = f"{write_time(first.at_us)}, {story.hops_in_all:,} hops at {servers} server{'' if servers == 1 else 's'}"
    if last is first:
        return words
    took = last.at_us - first.at_us
    return f"{words} in {write_duration(took)}" if took else f"{words} within one turn"


def _hops(story: Story) -> Html:
    begun = story.hops[0].at_us
    rows = (
        (
            h("td", write_time(hop.at_us), class_="time"),
            h("td", f"+{write_duration(hop.at_us - begun)}" if hop.at_us != begun else "", class_="number"),
            h("td", text(hop.server), class_="name"),
            h("td", f"{hop.seq:,}", class_="number"),
            h("td", stage_chip(hop)),
            h("td", text(hop.counterpart or ""), class_="name"),
        )
        for hop in story.hops
    )
    more = story.hops_in_all - len(story.hops)
    return h(
        "section",
        h("h2", "Hops"),
        table(("time", "after", "server", "hop", "stage", "counterpart"), rows, "hops"),
        h("p", f"and {more:,} more, which the receipt and `dovetail journal` show", class_="quiet") if more else None,
        id="hops",
    )


def stage_chip(hop: Hop) -> Html:
    """The stage, with the reason where there is one."""
    kind = {"rejected": "error", "undeliverable": "error", "expired": "warning", "delivered": "proven"}.get(hop.stage)
    chip = h("span", str(hop.stage), class_=f"chip {kind or ''}".strip(), title=hop.stage.sentence)
    if hop.reason is None:
        return chip
    return Html(chip + " " + h("span", str(hop.reason), class_="quiet", title=hop.reason.sentence))


def _relatives(story: Story) -> Html:
    rows = (
        (h("td", _words(each)), h("td", _link(each), class_="name"), h("td", text(each.type)))
        for each in story.relatives
    )
    remark = None
    if not story.is_search_complete:
        needle = story.info.id if story.info else story.name
        remark = h(
            "p",
            "Not everything behind this message was looked through. ",
            h("a", "Search all journals for what names it", href=f"/search?{urlencode({'text': needle})}"),
            class_="quiet",
        )
    body = table(("", "message", "type"), rows, "links") if story.relatives else h("p", "none found", class_="quiet")
    return h("section", h("h2", "Links"), body, remark, id="links")


def _words(relative: Relative) -> str:
    return _WORDS.get((relative.is_child, str(relative.relation)), str(relative.relation))


def _link(relative: Relative) -> Html:
    name = h("code", text(relative.name))
    if relative.address is None:
        return Html(name + " " + h("span", "not here", class_="chip warning"))
    return h("a", name, href=f"/message/{relative.address.hex()}")


def _decoded(story: Story) -> Html:
    fields = {} if story.raw is None else story.fabric.explain(story.raw)
    if story.error:
        body = h("p", text(story.error), class_="problem")
    else:
        pretty = msgspec.json.format(msgspec.json.encode(fields, enc_hook=str), indent=2).decode()
        cut = len(pretty) - MAX_DECODED_CHARS
        body = h("pre", lines(pretty, MAX_DECODED_CHARS), tabindex="0")
        if cut > 0:
            body = Html(body + h("p", f"and {cut:,} more characters", class_="quiet"))
    return h("section", h("h2", "Decoded"), body, id="decoded")


def _raw(story: Story) -> Html:
    if story.raw is None:
        return h("section", h("h2", "Raw"), h("p", "The bytes are not kept here.", class_="quiet"), id="raw")
    as_text = story.raw[:MAX_RAW_SHOWN].decode(errors="replace")
    parts = [h("pre", lines(as_text, MAX_RAW_SHOWN), tabindex="0")]
    if len(story.raw) > MAX_RAW_SHOWN:
        parts.append(h("p", f"the first {MAX_RAW_SHOWN:,} of {len(story.raw):,} bytes", class_="quiet"))
    dump = h("pre", _dump(story.raw[:_HEX_BYTES_SHOWN]), tabindex="0")
    parts.append(h("details", h("summary", "Hex"), dump))
    return h("section", h("h2", "Raw"), *parts, id="raw")


def _dump(data: bytes) -> Html:
    rows = []
    for start in range(0, len(data), _HEX_ROW):
        row = data[start : start + _HEX_ROW]
        shown = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        rows.append(f"{start:08x}  {row.hex(' '):{3 * _HEX_ROW}} {shown}")
    return lines("\n".join(rows), 1 << 20)
