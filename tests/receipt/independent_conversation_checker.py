"""Checks conversations from docs/reference/receipt-format.md alone, as `independent_checker` does deliveries."""

import datetime
import json

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from receipt.independent_checker import FABRICS, check_journal, fields, need, read_won, sha, unbase64, won_uri

MSG = "https://w3id.org/won/message#"
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def read_message(raw, address):
    """The properties of a message: property -> values, including those of the signature; and what its author signed."""
    uri, values = won_uri(address), {"previousMessage": []}
    quads, lines = read_won(raw, uri)
    need(sha(b"".join(lines)) == address, "address")
    for subject, predicate, value, graph in quads:
        if (subject, graph) in ((f"<{uri}>", f"<{uri}#envelope>"), (f"<{uri}#signature>",) * 2):
            values.setdefault(predicate[1:-1].removeprefix(MSG), []).append(value.partition("^^")[0][1:-1])
    signed = sha(b"".join(line for line in lines if not line.endswith(b" <wm:/SELF#signature> .\n")))
    return {"uri": uri, "signed": signed, "previous": values.pop("previousMessage")} | {
        name: found[0] for name, found in values.items()
    }


def check_signature(message, trusted):
    node = message["senderSocket"].partition("/atom/")[0]
    need(message["signer"] == node and unbase64(message["hash"]) == message["signed"], "signer, hash")
    keys = {sha(public): public for name, public in trusted if name == node}
    key = Ed25519PublicKey.from_public_bytes(keys[unbase64(message["publicKeyFingerprint"])])
    key.verify(unbase64(message["signatureValue"]), b"dovetail won message v1\0" + message["signed"])


def sockets_of(message, by_uri):
    asked = by_uri[message["respondingTo"]] if "respondingTo" in message else message
    pair = {asked["senderSocket"], asked["recipientSocket"]}
    if message is not asked:
        need(message["messageType"] == MSG + "SuccessResponse" and "respondingTo" not in asked, "added: no response")
        need(message["recipientSocket"] == asked["senderSocket"] and message["senderSocket"] in pair, "added: sockets")
    return frozenset(pair)


def check_conversation(data, trusted, quorum=0):
    """The claim of a conversation; `trusted` and `quorum` as in `independent_checker.check`."""
    receipt = json.loads(data)
    text = json.dumps(receipt, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n"
    need(text.encode() == data and receipt["receipt"] == "conversation/1", "canonical spelling, kind")
    fields(receipt, "claim journals messages receipt")
    addresses = [bytes.fromhex(message["address"]) for message in receipt["messages"]]
    need(addresses == sorted(set(addresses)), "order")
    journals = [check_journal(journal, addresses, trusted, quorum) for journal in receipt["journals"]]
    origins = [origin for origin, *_ in journals]
    need(origins == sorted(set(origins)) and {FABRICS[o.partition("://")[0]] for o in origins} == {"won"}, "journals")
    kept = set().union(*(digests for *_, digests in journals))
    messages = []
    for number, (record, address) in enumerate(zip(receipt["messages"], addresses, strict=True)):
        fields(record, "address text")
        messages.append(read_message(record["text"].encode(), address))
        need((number, sha(record["text"].encode())) in kept, "bytes that nobody kept")
    by_uri = {message["uri"]: message for message in messages}
    named = {uri for m in messages if "respondingTo" in m for uri in (m["respondingTo"], *m["previous"])}
    need(named <= set(by_uri), "missing")
    answered = {message.get("respondingTo") for message in messages}
    for message in messages:
        if "respondingTo" in message:
            check_signature(message, trusted)
        else:
            need(message["uri"] in answered, "added: nobody answers it")
    (pair,) = {sockets_of(message, by_uri) for message in messages}
    first, second = (json.dumps(socket) for socket in sorted(pair))
    count = len(messages)
    claim = [
        f"the conversation of {first} and {second} has {count} messages up to its newest responses, and these are all"
    ]
    for message in messages:
        if message["uri"] not in named:
            at = EPOCH + datetime.timedelta(milliseconds=int(message["timestamp"]))
            claim.append(
                f"a newest response is {message['uri']}, which {message['signer']} signed for "
                f"{at:%Y-%m-%dT%H:%M:%S.%fZ}"
            )
    for origin, size, hops, _ in journals:
        need(len({hop.get("message", 0) for hop in hops}) == len(hops), "two hops of one message")
        claim.append(f"{origin} commits to {len(hops)} of them: its signed journal of {size} hops contains them")
    need(receipt["claim"] == claim, "claim")
    return claim
