"""Checks delivery receipts from docs/reference/receipt-format.md alone: the standard library and `cryptography`.

It shares no code with Dovetail and raises at the first broken step. Not covered: `since`, blank nodes of won messages.
"""

import base64
import datetime
import hashlib
import json
import re
import struct

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

DEEDS = "created:made {} for|accepted:accepted {} from|rejected:refused {} from|"
DEEDS += "echoed:echoed {} to|forwarded:forwarded {} to|undeliverable:could not deliver {} to|served:served {} to|"
DEEDS += "expired:let {} expire before delivery to|delivered/1:delivered {} to|redelivered/1:delivered {} again to|"
DEEDS += "pulled:asked for {} from|routed:found {} to be for|purged:purged the bytes of {} of|"
DEEDS += "delivered/2:handed {} over to_the_connection_of|redelivered/2:handed {} over again to_the_connection_of"
DEEDS = dict(deed.split(":") for deed in DEEDS.split("|"))
RELATIONS = {"responding_to": ("response", ", which responds to the message", "respondingTo")}
RELATIONS["previous"] = ("successor", ", which names the message as its predecessor", "previousMessage")
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


def fields(record, required, optional=""):
    need(set(required.split()) <= set(record) <= set(f"{required} {optional}".split()), "fields")
    need(all(value not in (None, "") or key == "text" for key, value in record.items() if key != "hashes"), "empty")
    need(all(re.fullmatch("[0-9a-f]{64}", record.get(key, "0" * 64)) for key in ("address", "digest")), "hex")
    numbers = [(key in ("size", "message"), record[key]) for key in ("at", "seq", "size", "message") if key in record]
    need(all(type(number) is int and least <= number < 1 << 63 for least, number in numbers), "number")


def won_uri(address):
    number, text = int.from_bytes(b"\x12\x20" + address, "big"), ""
    while number:
        number, text = number // 58, ALPHABET[number % 58] + text
    return "wm:/" + text


def check_note(record, trusted, quorum):
    lines = record["checkpoint"].split("\n")
    origin, body, witnesses, counted = lines[0], "\n".join(lines[:3]) + "\n", [], set()
    need(lines[3] == lines[-1] == "" and re.fullmatch("[1-9][0-9]{0,18}", lines[1]), "note")
    for number, (line, key) in enumerate(zip(lines[4:-1], record["keys"], strict=True)):
        name, key_id, encoded = key.split("+", 2)
        kind, public = unbase64(encoded)[:1], unbase64(encoded)[1:]
        need(key_id == sha(name.encode() + b"\n" + kind + public)[:4].hex(), "key id")
        need(line.startswith(f"— {name} ") and kind == (b"\x04" if number else b"\x01"), "signature line")
        blob = unbase64(line[len(f"— {name} ") :])
        need(blob[:4].hex() == key_id and (number or (name == origin and (name, public) in trusted)), "trust")
        witnesses += [name] if number else []
        counted |= {public} if (name, public) in trusted else set()
        head = f"cosignature/v1\ntime {int.from_bytes(blob[4:12], 'big')}\n" if number else ""
        Ed25519PublicKey.from_public_bytes(public).verify(blob[12 if number else 4 :], (head + body).encode())
    counted -= {public for name, public in trusted if name.partition("://")[0] in FABRICS}
    need(witnesses == sorted(set(witnesses)) and len(counted) >= quorum, "witnesses, quorum")
    return origin, int(lines[1]), unbase64(lines[2])


def check_path(hop, address, digest, path, size, root):  # the leaf, then RFC 9162, 2.1.3.2
    head = struct.pack(">BQq32s32sQ", 1, hop["seq"], hop["at"], address, digest, hop.get("size", 0))
    stage, reason, other = (hop.get(key, "").encode() for key in ("stage", "reason", "counterpart"))
    words = bytes([len(stage)]) + stage + bytes([len(reason)]) + reason + struct.pack(">H", len(other)) + other
    value, node, last = sha(b"\0" + head + words), hop["seq"], size - 1
    for step in path:
        need(0 < last >= node, "path too long")
        is_right = node & 1 or node == last
        value = sha(b"\x01" + step + value) if is_right else sha(b"\x01" + value + step)
        while is_right and not node & 1 and node:
            node, last = node >> 1, last >> 1
        node, last = node >> 1, last >> 1
    need(last == 0 and value == root, "inclusion")


def check_journal(journal, addresses, trusted, quorum):
    fields(journal, "checkpoint hashes hops keys")
    origin, size, root = check_note(journal, trusted, quorum)
    table, used, last, kept = unbase64(journal["hashes"]), 0, -1, set()
    hashes = [table[i : i + 32] for i in range(0, len(table), 32)]
    for hop in journal["hops"]:
        fields(hop, "at path seq stage", "counterpart digest message reason size")
        number, digest = hop.get("message", 0), bytes.fromhex(hop.get("digest", "0" * 64))
        for step in hop["path"]:
            need(type(step) is int and 0 <= step <= used, "path")
            used = max(used, step + 1)
        need(hop["seq"] > last and ("digest" in hop) == any(digest), "order, digest")
        check_path(hop, addresses[number], digest, [hashes[step] for step in hop["path"]], size, root)
        last, kept = hop["seq"], kept | {(number, digest)}
    need(used == len(hashes) == len(set(hashes)) and len(table) % 32 == 0 and last >= 0, "hashes")
    return origin, size, journal["hops"], kept


def read_won(raw, uri):
    pattern = re.compile(r'(<\S+>) (<\S+>) (<\S+>|"(?:[^"\\]|\\.)*"\S*) (<\S+>) \.')
    quads = [pattern.fullmatch(line).groups() for line in raw.decode().split("\n")[:-1]]
    own = f"<{re.escape(uri)}(?=[>#])"
    terms = [[term if term[0] == '"' else re.sub(own, "<wm:/SELF", term) for term in quad] for quad in quads]
    return quads, sorted(" ".join((*quad, ".\n")).encode() for quad in terms)


def check(data, trusted, quorum=0):
    """The claim; `trusted` are pairs of name and 32-byte public key, `quorum` how many of them must have cosigned."""
    receipt = json.loads(data)
    text = json.dumps(receipt, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n"
    need(text.encode() == data and receipt["receipt"] in ("delivery/1", "delivery/2"), "canonical spelling, kind")
    fields(receipt, "claim journals messages receipt")
    names, claim = [], []
    addresses = [bytes.fromhex(message["address"]) for message in receipt["messages"]]
    journals = [check_journal(journal, addresses, trusted, quorum) for journal in receipt["journals"]]
    origins, (fabric,) = [j[0] for j in journals], {FABRICS[j[0].partition("://")[0]] for j in journals}
    kept = set().union(*(j[3] for j in journals))
    need(origins == sorted(set(origins)) and {number for number, _ in kept} == set(range(len(addresses))), "journals")
    need(addresses[1:] == sorted(set(addresses) - {addresses[0]}), "messages")
    for number, (message, address) in enumerate(zip(receipt["messages"], addresses, strict=True)):
        fields(message, "address relation" if number else "address", "bytes" if "bytes" in message else "text")
        noun, words, predicate = RELATIONS[message["relation"]] if number else ("the message", "", "")
        names.append(f"{noun} {1 + sum(name.startswith(noun) for name in names)}" if number else noun)
        uri, is_here = won_uri(address), {"bytes", "text"} & set(message)
        raw = unbase64(message["bytes"]) if "bytes" in message else message.get("text", "").encode()
        quads, lines = read_won(raw, uri) if fabric == "won" else ((), [raw])
        need(not is_here or sha(b"".join(lines)) == address, "address")
        need(not is_here or fabric != "won" or (number, sha(raw)) in kept, "bytes that nobody kept")
        link = f"<{uri}> <https://w3id.org/won/message#{predicate}> <{won_uri(addresses[0])}> <{uri}#envelope>"
        need(not number or tuple(link.split()) in quads, "relation")
        what = f"its {len(raw)} bytes are here" if is_here else "its bytes are left out"
        claim.append(f"{names[number]} is {uri if fabric == 'won' else message['address']}{words}; {what}")
    for origin, size, hops, _ in journals:
        for hop in hops:
            deed = DEEDS[hop["stage"] + receipt["receipt"][-2:] * hop["stage"].endswith("delivered")]
            deed, _, preposition = deed.format(names[hop.get("message", 0)]).rpartition(" ")
            whom = f" {preposition.replace('_', ' ')} {json.dumps(hop['counterpart'])}" if "counterpart" in hop else ""
            why = f", because: {hop['reason']}" if "reason" in hop else ""
            at = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=hop["at"])
            claim.append(f"{origin} {deed}{whom} at {at:%Y-%m-%dT%H:%M:%S.%fZ}{why}")
        claim.append(f"{origin} commits to this: its signed journal of {size} hops contains it")
    need(receipt["claim"] == claim, "claim")
    return claim
