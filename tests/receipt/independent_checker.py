"""Checks delivery receipts from docs/reference/receipt-format.md alone: the standard library and `cryptography`.

It shares no code with Dovetail. `check` gives the claim, or raises what the first broken step raises. Not covered:
`since`, and won messages with blank nodes.
"""

import base64
import datetime
import hashlib
import json
import re
import struct

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

DEEDS = (
    "created:made {} for|accepted:accepted {} from|rejected:refused {} from|delivered:delivered {} to|"
    "echoed:echoed {} to|forwarded:forwarded {} to|undeliverable:could not deliver {} to|"
    "expired:let {} expire before delivery to|redelivered:delivered {} again to|pulled:asked for {} from|"
    "served:served {} to|purged:purged the bytes of {} of"
)
DEEDS = dict(deed.split(":") for deed in DEEDS.split("|"))
RELATIONS = {
    "responding_to": ("response", "responds to the message", "respondingTo"),
    "previous": ("successor", "names the message as its predecessor", "previousMessage"),
}
FABRICS = {"pcp": "pcp", "swarm": "swarm", "https": "won", "http": "won"}
ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def need(condition, what):
    if not condition:
        raise ValueError(what)


def sha(data):
    return hashlib.sha256(data).digest()


def unbase64(text):
    data = base64.b64decode(text, validate=True)
    need(base64.b64encode(data).decode() == text, "base64")
    return data


def unhex(text):
    need(re.fullmatch("[0-9a-f]{64}", text), "hex")
    return bytes.fromhex(text)


def fields(record, required, optional=""):
    need(set(required.split()) <= set(record) <= set(f"{required} {optional}".split()), "fields")
    need(all(value not in (None, "") or key == "text" for key, value in record.items() if key != "hashes"), "empty")


def whole(value, low=0, high=(1 << 63) - 1):
    need(type(value) is int and low <= value <= high, "number")
    return value


def time_text(at):
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return f"{epoch + datetime.timedelta(microseconds=at):%Y-%m-%dT%H:%M:%S.%fZ}"


def won_uri(address):
    number, text = int.from_bytes(b"\x12\x20" + address, "big"), ""
    while number:
        number, text = number // 58, ALPHABET[number % 58] + text
    return "wm:/" + text


def check_note(record, trusted):
    lines = record["checkpoint"].split("\n")
    origin, body, cosigners = lines[0], "\n".join(lines[:3]) + "\n", []
    need(lines[3] == lines[-1] == "" and re.fullmatch("[1-9][0-9]{0,18}", lines[1]), "note")
    for number, (line, key) in enumerate(zip(lines[4:-1], record["keys"], strict=True)):
        name, key_id, encoded = key.split("+", 2)
        kind, public = unbase64(encoded)[:1], unbase64(encoded)[1:]
        need(key_id == sha(name.encode() + b"\n" + kind + public)[:4].hex(), "key id")
        need(line.startswith(f"— {name} ") and kind == (b"\x04" if number else b"\x01"), "signature line")
        blob, signed = unbase64(line[len(f"— {name} ") :]), body
        need(blob[:4].hex() == key_id, "another key")
        if number:
            cosigners.append((name, int.from_bytes(blob[4:12], "big")))
            signed = f"cosignature/v1\ntime {cosigners[-1][1]}\n{body}"
        else:
            need(name == origin and (name, public) in trusted, "trust")
        Ed25519PublicKey.from_public_bytes(public).verify(blob[12 if number else 4 :], signed.encode())
    need([name for name, _ in cosigners] == sorted({name for name, _ in cosigners}), "witnesses")
    return origin, int(lines[1]), unbase64(lines[2])


def root_of(value, node, size, path):  # RFC 9162, 2.1.3.2
    last = size - 1
    need(node < size, "index")
    for step in path:
        need(last > 0, "path too long")
        is_right = node & 1 or node == last
        value = sha(b"\x01" + step + value) if is_right else sha(b"\x01" + value + step)
        while is_right and not node & 1 and node:
            node, last = node >> 1, last >> 1
        node, last = node >> 1, last >> 1
    need(last == 0, "path too short")
    return value


def leaf_of(hop, address, digest):
    head = struct.pack(">BQq32s32sQ", 1, hop["seq"], whole(hop["at"]), address, digest, hop.get("size", 0))
    stage, reason, other = (hop.get(key, "").encode() for key in ("stage", "reason", "counterpart"))
    return sha(b"\0" + head + struct.pack(">B", len(stage)) + stage + struct.pack(">B", len(reason)) + reason +
               struct.pack(">H", len(other)) + other)  # fmt: skip


def read_won(raw, uri):
    pattern = re.compile(r'(<\S+>) (<\S+>) (<\S+>|"(?:[^"\\]|\\.)*"\S*) (<\S+>) \.')
    quads = [pattern.fullmatch(line).groups() for line in raw.decode().split("\n")[:-1]]
    swap = re.compile(f"<{re.escape(uri)}(?=[>#])")
    lines = sorted(" ".join((*(p if p[0] == '"' else swap.sub("<wm:/SELF", p) for p in q), ".")) for q in quads)
    return sha(("\n".join(lines) + "\n").encode()), quads


def check(data, trusted):
    """The claim of a receipt; `trusted` are pairs of a server's URI and its 32-byte public key."""
    receipt = json.loads(data)
    text = json.dumps(receipt, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n"
    need(text.encode() == data and receipt["receipt"] == "delivery/1", "canonical spelling, kind")
    fields(receipt, "claim journals messages receipt")
    names, opening, tail, origins, kept = [], [], [], [], {}
    addresses = [unhex(message["address"]) for message in receipt["messages"]]
    for message in receipt["messages"]:
        fields(message, "address relation" if names else "address", "bytes text")
        noun = RELATIONS[message["relation"]][0] if names else "the message"
        names.append(f"{noun} {1 + sum(name.startswith(noun) for name in names)}" if names else noun)
    for journal in receipt["journals"]:
        fields(journal, "checkpoint hashes hops keys")
        origin, size, root = check_note(journal, trusted)
        table, used, last = unbase64(journal["hashes"]), 0, -1
        hashes = [table[i : i + 32] for i in range(0, len(table), 32)]
        for hop in journal["hops"]:
            fields(hop, "at path seq stage", "counterpart digest message reason size")
            last, number = whole(hop["seq"], last + 1), whole(hop.get("message", 1), 1) * ("message" in hop)
            digest = unhex(hop["digest"]) if "digest" in hop else bytes(32)
            for step in hop["path"]:
                used = max(used, whole(step, 0, used) + 1)
            need(whole(hop.get("size", 1), 1) and ("digest" in hop) == any(digest), "size, digest")
            path = [hashes[step] for step in hop["path"]]
            need(root_of(leaf_of(hop, addresses[number], digest), last, size, path) == root, "inclusion")
            kept.setdefault(number, set()).add(digest)
            deed, _, preposition = DEEDS[hop["stage"]].format(names[number]).rpartition(" ")
            whom = f" {preposition} {json.dumps(hop['counterpart'])}" if "counterpart" in hop else ""
            why = f", because: {hop['reason']}" if "reason" in hop else ""
            tail.append(f"{origin} {deed}{whom} at {time_text(hop['at'])}{why}")
        need(used == len(hashes) == len(set(hashes)) and len(table) % 32 == 0 and last >= 0, "hashes")
        tail.append(f"{origin} commits to this: its signed journal of {size} hops contains it")
        origins.append(origin)
    fabrics = {FABRICS[origin.partition("://")[0]] for origin in origins}
    need(origins == sorted(set(origins)) and len(fabrics) == 1 and set(kept) == set(range(len(names))), "journals")
    need(addresses[1:] == sorted(set(addresses) - {addresses[0]}), "messages")
    for number, message in enumerate(receipt["messages"]):
        uri, raw, quads = won_uri(addresses[number]), message.get("text", "").encode(), ()
        need(not {"bytes", "text"} <= set(message), "both text and bytes")
        raw = unbase64(message["bytes"]) if "bytes" in message else raw
        if {"bytes", "text"} & set(message):
            address, quads = read_won(raw, uri) if fabrics == {"won"} else (sha(raw), ())
            need(address == addresses[number] and (not quads or sha(raw) in kept[number]), "address")
        opening.append(f"{names[number]} is {uri if fabrics == {'won'} else message['address']}")
        if number:
            _, words, predicate = RELATIONS[message["relation"]]
            link = f"<{uri}> <https://w3id.org/won/message#{predicate}> <{won_uri(addresses[0])}> <{uri}#envelope>"
            need(tuple(link.split()) in quads, "relation")
            opening[-1] += f", which {words}"
        is_here = {"bytes", "text"} & set(message)
        opening[-1] += f"; its {len(raw)} bytes are here" if is_here else "; its bytes are left out"
    need(receipt["claim"] == opening + tail, "claim")
    return receipt["claim"]
