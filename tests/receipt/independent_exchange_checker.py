"""Checks exchanges from docs/reference/receipt-format.md alone, as `independent_checker` does deliveries.

Messages of pcp are read as far as the page describes: those that follow the protocol are read correctly.
"""

import datetime
import json
import struct

from receipt.independent_checker import check_note, fields, need, sha, unbase64

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def time_text(at):
    return f"{EPOCH + datetime.timedelta(microseconds=at):%Y-%m-%dT%H:%M:%S.%fZ}"


def leaf_of(hop, seq):
    head = struct.pack(
        ">BQq32s32sQ",
        1,
        seq,
        hop["at"],
        bytes.fromhex(hop["message"]),
        bytes.fromhex(hop.get("digest", "0" * 64)),
        hop.get("size", 0),
    )
    stage, reason, other = (hop.get(key, "").encode() for key in ("stage", "reason", "counterpart"))
    words = bytes([len(stage)]) + stage + bytes([len(reason)]) + reason + struct.pack(">H", len(other)) + other
    return sha(b"\0" + head + words)


def root_of(start, end, first, leaves, hashes):
    if end <= first or start >= first + len(leaves):
        return hashes.pop(0)
    if end - start == 1:
        return leaves[start - first]
    cut = start + (1 << (end - start - 1).bit_length() - 1)
    left = root_of(start, cut, first, leaves, hashes)
    return sha(b"\x01" + left + root_of(cut, end, first, leaves, hashes))


def read_ids(raw, address):
    """The id of a readable message and the one it replies to."""
    if raw is None or sha(raw) != address:
        return None
    try:
        text = raw[6 : 6 + int.from_bytes(raw[2:6], "big")] if raw[:1] == b"\x01" else raw
        message = json.loads(text)
        answers = message.get("in-reply-to" if raw[:1] == b"\x01" else "in_reply_to")
        return message["id"].lower(), answers and answers.lower()
    except (ValueError, KeyError, AttributeError, TypeError):
        return None


def check_stretch(receipt, trusted, quorum):
    """The server, its number of hops, and the hops inside the range."""
    origin, size, root = check_note(receipt["journal"], trusted, quorum)
    first, since, until = (receipt[key] for key in ("first", "from", "until"))
    need(all(type(n) is int and n >= 0 for n in (first, since, until)) and since < until, "numbers")
    for hop in receipt["hops"]:
        # in a range the message is an address, not a number
        named = {"address" if key == "message" else key: value for key, value in hop.items()}
        fields(named, "address at stage", "counterpart digest reason size")
    table, times = unbase64(receipt["hashes"]), [hop["at"] for hop in receipt["hops"]]
    hashes = [table[i : i + 32] for i in range(0, len(table), 32)]
    leaves = [leaf_of(hop, seq) for seq, hop in enumerate(receipt["hops"], first)]
    need(first + len(leaves) <= size and root_of(0, size, first, leaves, hashes) == root and not hashes, "inclusion")
    before, behind = sum(at < since for at in times), sum(at >= until for at in times)
    need(times == sorted(times) and before == (first > 0 or before), "beginning")
    need(before <= 1 >= behind and behind == (first + len(leaves) < size or behind), "end")
    return origin, size, [hop for hop in receipt["hops"] if since <= hop["at"] < until]


def check_exchange(data, trusted, quorum=0):
    """The claim of an exchange; `trusted` and `quorum` as in `independent_checker.check`."""
    receipt = json.loads(data)
    text = json.dumps(receipt, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n"
    need(text.encode() == data and receipt["receipt"] == "exchange/1", "canonical spelling, kind")
    needed = {"claim", "first", "from", "hashes", "hops", "journal", "messages", "receipt", "until"}
    need(set(receipt) == needed and set(receipt["journal"]) == {"checkpoint", "keys"}, "fields")
    origin, size, hops = check_stretch(receipt, trusted, quorum)
    need(origin.startswith("pcp://"), "fabric")
    request, *others = [message["address"] for message in receipt["messages"]]
    need(others == sorted(set(others) - {request}), "order")
    whom, kept = {}, {}
    for hop in hops:
        whom.setdefault(hop["message"], set()).update({hop["counterpart"]} if "counterpart" in hop else ())
        kept.setdefault(hop["message"], set()).update({hop["digest"]} if "digest" in hop else ())
    need({request, *others} == {request} | {a for a in whom if whom[a] & whom[request]}, "missing or added")
    ids = {}
    for message in receipt["messages"]:
        fields(message, "address", "bytes" if "bytes" in message else "text")
        raw = message["text"].encode() if "text" in message else None
        raw = unbase64(message["bytes"]) if "bytes" in message else raw
        need(sha(raw).hex() in kept[message["address"]] if raw is not None else not kept[message["address"]], "bytes")
        ids[message["address"]] = read_ids(raw, bytes.fromhex(message["address"]))
    need(ids[request], "the request cannot be read")
    known, before = {ids[request][0]}, set()
    while known != before:
        before = set(known)
        known |= {pair[0] for pair in ids.values() if pair and pair[1] in known}
    replies = [a for a in whom if a != request and ids.get(a) and ids[a][1] in known]
    period = f"from {time_text(receipt['from'])} up to and without {time_text(receipt['until'])}"
    members = f"{origin} saw {1 + len(replies)} messages of the exchange that {request} begins"
    claim = [f"{members} {period}, and these are all", f"the request is {request} with the id {ids[request][0]}"]
    claim += [f"reply {number} is {a} with the id {ids[a][0]}" for number, a in enumerate(replies, 1)]
    rest = [a for a in others if a not in replies]
    unread = sum(ids[a] is None for a in rest)
    looked_at = f"{len(rest)} other messages of its participants are here"
    claim.append(f"{looked_at}, {unread} of them without whole bytes of a message")
    claim.append(f"{origin} commits to this: its signed journal of {size} hops contains it")
    need(receipt["claim"] == claim, "claim")
    return claim
