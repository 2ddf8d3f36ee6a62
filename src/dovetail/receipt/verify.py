"""Verifies a receipt: one pure function, from the bytes of a file to what they prove.

The steps, in order; an error starts with the name of the first step that fails:

    file, form   size, JSON, canonical form, limits, order
    then for each journal
    checkpoint   it is well formed
    key, signature   the server's and all witnesses', with the keys included in the receipt
    trust        the server's key is one of the trusted keys, with the server's URI as its name
    witnesses, time   further requirements of the caller
    inclusion    each hop's leaf entry leads by its path to the root of the checkpoint (RFC 9162, 2.1.3.2)
    consistency  the journal grew from an older state, if the receipt says so (RFC 9162, 2.1.4.2)
    then for all together
    address      the bytes of each message match its address; related messages name the subject
    claim        the text in the file is the one that follows from all of this

Statements are attributed by key alone: no field of a receipt names a server. Uses no file, network, clock or database.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from dovetail.receipt.completeness import check_completeness
from dovetail.receipt.consistency import View, compare_views
from dovetail.receipt.conversation import check_conversation, find_left_out
from dovetail.receipt.delivery import check_delivery
from dovetail.receipt.fork import check_fork
from dovetail.receipt.format import Completeness, Conversation, Delivery, Exchange, Fork, SplitView, decode_receipt
from dovetail.receipt.proof import Policy, Proof
from dovetail.receipt.request_reply import check_exchange
from dovetail.receipt.split_view import check_split_view
from dovetail.tlog.keys import Verifier


def verify_receipt(
    data: bytes, trusted: Iterable[Verifier], policy: Policy | None = None, against: Iterable[View | Proof] = ()
) -> Proof:
    """What the receipt in `data` proves to a reader who trusts these keys; ReceiptError names the first failed step.

    `against` are other verified receipts, or views of the same journals, that it must be consistent with.
    """
    keys, rules, others = frozenset(trusted), policy or Policy(), list(against)
    receipt = decode_receipt(data)
    match receipt:
        case Delivery():
            proof = check_delivery(receipt, keys, rules)
        case Completeness():
            proof = check_completeness(receipt, keys, rules)
        case Fork():
            proof = check_fork(receipt, keys, rules)
        case SplitView():
            proof = check_split_view(receipt, keys, rules)
        case Conversation():
            proof = check_conversation(receipt, keys, rules)
        case Exchange():
            proof = check_exchange(receipt, keys, rules)
        case _:
            assert_never(receipt)
    if not others:
        return proof
    views = [view for other in others for view in (other.views if isinstance(other, Proof) else (other,))]
    proof = proof.with_growth(compare_views(proof.views, views))
    if isinstance(receipt, Conversation):
        for other in others:
            if isinstance(other, Proof):
                find_left_out(proof, other)
    return proof
