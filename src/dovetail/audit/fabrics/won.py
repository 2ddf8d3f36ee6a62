"""won: nodes forward messages to each other and deliver them to owners; responses acknowledge them in chains."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the conventional name

from dovetail.audit.fabric_audit import FabricAudit, ForkRule, Moment, Rows
from dovetail.audit.native import sha256
from dovetail.audit.transforms.chains import (
    AWAITING_RECIPIENT,
    AWAITING_SENDER,
    COMPLETE,
    FAILED,
    finish_chains,
    orphans,
    responses,
    seen_hops,
)
from dovetail.audit.transforms.deliveries import PART, owed_outcome, reach_from, refusal_outcome
from dovetail.model.fabric import Role
from dovetail.model.hop import Relation, Stage
from dovetail.model.outcome import Outcome
from dovetail.model.times import to_us
from dovetail.won.fabric import CONFLICTING_RESPONSE, FABRIC, FORKED_LOG, TWO_CREATES
from dovetail.won.settings import WonSettings
from dovetail.won.vocabulary import ATOM_TYPES, CONNECTION_TYPES, RESPONSE_TYPES, MessageType

_LIFETIME_US = WonSettings().message_lifetime_ms * 1000
"""A node gives a message up after this time by default; journals do not record the setting."""


def deliveries(rows: Rows, moment: Moment) -> DataFrame:
    """Each message with its one recipient: `delivered` means its node sent it to a client of the owner.

    Until then its node keeps it for the owner, and has confirmed that with its response; a response counts as kept as
    soon as the recipient's node has it. If the sender's node has `forwarded` it to the recipient's, whose journal lacks
    it, it is lost once that journal goes on past the loss timeout. What other nodes state counts for neither. A message
    about the sender's own atom is for its node, and arrives when the node accepts it.

    Nodes of others need not be in the lake. Then the recipient's node may have refused a message: the sender's node has
    its FailureResponse. And a response that it made, or that was forwarded to it, is owed nothing more: nobody answers
    a response.
    """
    is_for_node = F.col("type").isin(*(kind.value for kind in ATOM_TYPES), MessageType.REGISTER.value)
    is_response = F.col("type").isin(*(kind.value for kind in RESPONSE_TYPES))
    waited_us = F.lit(to_us(moment.as_of)) - F.unix_micros("unseen.at")
    is_unseen = F.col("unseen").isNotNull() & (waited_us > moment.loss_timeout_us) & F.col("given_up").isNull()
    is_kept_there = F.col("answered").isNotNull() | F.col("kept").isNotNull()
    is_at_home = F.col("from") == F.col("next")
    is_out_of_sight = is_response & (is_at_home | F.col("sent").isNotNull()) & F.col("is_in_lake").isNull()
    given_up_by = F.timestamp_micros(F.unix_micros("taken.at") + _LIFETIME_US)
    owed = owed_outcome(given_up_by, reach_from(F.col("taken.at"), F.col("reaches"), moment), moment)
    outcome = (
        F.when(is_for_node & F.col("taken").isNotNull(), Outcome.DELIVERED)
        .when(F.col("handed").isNotNull(), Outcome.DELIVERED)
        .when(F.col("refused").isNotNull() & F.col("taken").isNull(), refusal_outcome(F.col("refused.reason")))
        .when(is_unseen, Outcome.LOST)
        .when(is_kept_there | is_out_of_sight, Outcome.HANDED_OVER)
        .when(F.col("given_up").isNotNull(), Outcome.UNDELIVERABLE)
        .when(F.col("refused").isNotNull(), refusal_outcome(F.col("refused.reason")))
        .when(F.col("declined").isNotNull(), Outcome.REJECTED)
        .when(owed.isNotNull(), owed)
        .when(F.col("echoed").isNotNull(), Outcome.ECHOED)
        .otherwise(Outcome.IN_FLIGHT)
    )
    is_refused = F.col("outcome").isin(Outcome.REJECTED, Outcome.UNAUTHORIZED)
    is_given_up = F.col("outcome") == Outcome.UNDELIVERABLE
    is_owed = F.col("outcome").isin(Outcome.NO_OUTCOME, Outcome.UNREPORTED)
    by_other_node = F.struct(F.col("declined").alias("at"), F.col("next").alias("server"), F.lit(None).alias("reason"))
    failed = F.when(is_refused, F.coalesce("refused", by_other_node)).when(is_given_up, F.col("given_up"))
    is_lost = F.col("outcome") == Outcome.LOST
    end = (
        F.when(is_for_node & (F.col("outcome") == Outcome.DELIVERED), F.col("taken"))
        .when(F.col("outcome") == Outcome.DELIVERED, F.col("handed"))
        .when(F.col("kept").isNotNull() & (F.col("outcome") == Outcome.HANDED_OVER), F.col("kept"))
        .when(is_refused & F.col("refused").isNotNull(), F.struct("refused.at", "refused.server"))
        .when(is_refused, F.struct(F.col("declined").alias("at"), F.col("from").alias("server")))
        .when(is_given_up, F.struct("given_up.at", "given_up.server"))
        .when(is_owed, F.struct(given_up_by.alias("at"), F.col("taken.server").alias("server")))
    )
    return (
        _histories(rows, moment)
        .withColumn("outcome", outcome)
        .withColumn("end", end)
        .withColumn("failed", failed)
        .select(
            F.lit(FABRIC.name).alias("fabric"),
            "message",
            "type",
            "sender",
            F.when(is_for_node, F.coalesce("taken.server", "refused.server"))
            .otherwise(F.col("recipient"))
            .alias("recipient"),
            "outcome",
            F.when(is_refused, Stage.REJECTED.value)
            .when(is_given_up, Stage.UNDELIVERABLE.value)
            .when(is_lost, Stage.FORWARDED.value)
            .when(is_owed, Stage.ACCEPTED.value)
            .alias("failed_stage"),
            F.when(is_lost, F.col("unseen.server"))
            .when(is_owed, F.col("taken.server"))
            .otherwise(F.col("failed.server"))
            .alias("failed_at"),
            F.col("failed.reason").alias("reason"),
            F.coalesce("taken.at", "refused.at").alias("begun"),
            F.coalesce("taken.server", "refused.server").alias("begun_at"),
            F.coalesce("end.at", F.when(F.col("outcome") == Outcome.HANDED_OVER, F.col("answered"))).alias("finished"),
            F.col("end.server").alias("finished_at"),
            F.lit(None).cast("timestamp").alias("expires"),
            "attempts",
        )
        .select(*PART)
    )


def _histories(rows: Rows, moment: Moment) -> DataFrame:
    """One row per message: its first hop of each kind, and whether the recipient's node has answered or lacks it."""
    at = {stage: F.col("stage") == stage.value for stage in Stage}
    is_response = F.col("type").isin(*(kind.value for kind in RESPONSE_TYPES))
    known = rows.messages.select("message", "type", "sender", F.get("recipients", F.lit(0)).alias("recipient"))
    is_taken = at[Stage.ACCEPTED] | at[Stage.CREATED]
    is_there = F.col("server") == _node_of(F.col("recipient"))
    is_handed = at[Stage.DELIVERED] & (F.col("counterpart") == F.col("recipient")) & is_there
    is_kept = is_taken & is_response & is_there
    is_own = F.col("server") == _node_of(F.col("sender"))
    is_sent = at[Stage.FORWARDED] & is_own & (F.col("counterpart") == _node_of(F.col("recipient")))
    answered = (
        rows.answers.where(F.col("type") == MessageType.SUCCESS.value)
        .groupBy(F.col("parent").alias("message"), F.col("sender").alias("recipient"))
        .agg(F.min("at").alias("answered"))
    )
    declined = (
        rows.answers.where(F.col("type") == MessageType.FAILURE.value)
        .groupBy(F.col("parent").alias("message"), F.col("sender").alias("recipient"), F.col("server").alias("from"))
        .agg(F.min("at").alias("declined"))
    )
    nodes = rows.servers.select(F.col("server").alias("next"), F.lit(True).alias("is_in_lake")).hint("broadcast")
    return (
        rows.hops.join(known, on="message", how="left")
        .groupBy("message")
        .agg(
            F.any_value("type").alias("type"),
            F.any_value("sender").alias("sender"),
            F.any_value("recipient").alias("recipient"),
            F.min(F.when(is_taken, F.struct("at", "server"))).alias("taken"),
            F.min(F.when(is_handed, F.struct("at", "server"))).alias("handed"),
            F.min(F.when(is_kept, F.struct("at", "server"))).alias("kept"),
            F.min(F.when(is_sent, F.col("at"))).alias("sent"),
            F.min(F.when(at[Stage.ECHOED], F.struct("at", "server"))).alias("echoed"),
            F.min(F.when(at[Stage.REJECTED], F.struct("at", "server", "reason"))).alias("refused"),
            F.min(F.when(at[Stage.UNDELIVERABLE], F.struct("at", "server", "reason"))).alias("given_up"),
            F.count(F.when(is_handed, F.lit(1))).alias("attempts"),
        )
        .withColumn("from", _node_of(F.col("sender")))
        .withColumn("next", _node_of(F.col("recipient")))
        .join(_unseen(rows.hops, rows.servers, moment), on=["message", "from", "next"], how="left")
        .join(answered, on=["message", "recipient"], how="left")
        .join(declined, on=["message", "recipient", "from"], how="left")
        .join(nodes, on="next", how="left")
        .join(_reaches(rows.servers), F.col("taken.server") == F.col("reaching"), how="left")
    )


def _node_of(atom: Column) -> Column:
    """The node of an atom, from its URI."""
    return F.substring_index(atom, "/atom/", 1)


def _reaches(servers: DataFrame) -> DataFrame:
    return servers.select(F.col("server").alias("reaching"), "reaches").hint("broadcast")


def _unseen(hops: DataFrame, servers: DataFrame, moment: Moment) -> DataFrame:
    """Messages that were forwarded to a node whose journal lacks them, and goes on past the loss timeout."""
    is_forwarded = F.col("stage") == Stage.FORWARDED.value
    reach = reach_from(F.col("sent.at"), F.col("reaches"), moment)
    return (
        hops.where(is_forwarded & F.col("counterpart").isNotNull())
        .groupBy("message", F.col("server").alias("from"), F.col("counterpart").alias("next"))
        .agg(F.min(F.struct("at", "server")).alias("sent"))
        .join(
            hops.where(~is_forwarded).select("message", F.col("server").alias("next")).distinct(),
            on=["message", "next"],
            how="left_anti",
        )
        .join(_reaches(servers), F.col("next") == F.col("reaching"), how="inner")
        .where(F.unix_micros(reach) > F.unix_micros("sent.at") + moment.loss_timeout_us)
        .select("message", "from", "next", F.col("sent").alias("unseen"))
    )


def is_first() -> Column:
    """True for a response by the sender's node of the answered message."""
    return F.col("sender_socket").eqNullSafe(F.col("recipient_socket"))


def role() -> Column:
    """The role of a response; same as in `Fabric.read`. A response without sockets is an atom's."""
    return (
        F.when(F.col("type") == MessageType.FAILURE.value, Role.FAILURE.value)
        .when(is_first(), Role.FIRST.value)
        .otherwise(Role.SECOND.value)
    )


def chains(hops: DataFrame, messages: DataFrame, links: DataFrame) -> DataFrame:
    """Atom-specific (m, s) and connection-specific (m, s1, s2) chains."""
    seen = seen_hops(hops)
    answers = responses(links, messages, seen, Relation.RESPONDING_TO).withColumn("role", role())
    by_parent = answers.groupBy(F.col("parent").alias("message")).agg(
        *(
            F.min(F.when(F.col("role") == each.value, F.struct("made", "message", "holders", "taken"))).alias(name)
            for each, name in ((Role.FIRST, "first"), (Role.SECOND, "second"), (Role.FAILURE, "failed"))
        )
    )
    kinds = [kind.value for kind in ATOM_TYPES | CONNECTION_TYPES]
    asked = messages.where(F.col("type").isin(*kinds)).join(seen, on="message", how="left")
    joined = asked.join(by_parent, on="message", how="left")
    is_atom = F.col("type").isin(*(kind.value for kind in ATOM_TYPES))
    state = (
        F.when(F.col("failed").isNotNull(), FAILED)
        .when(F.col("first").isNull(), AWAITING_SENDER)
        .when(is_atom | F.col("second").isNotNull(), COMPLETE)
        .otherwise(AWAITING_RECIPIENT)
    )
    last = F.when(is_atom, F.col("first.made")).otherwise(F.coalesce("second.taken", "second.made"))
    sockets = F.sort_array(F.array("sender_socket", "recipient_socket"))
    known = joined.withColumn("state", state).select(
        F.lit(FABRIC.name).alias("fabric"),
        "message",
        F.when(is_atom, "atom").otherwise("connection").alias("kind"),
        "type",
        "sender",
        F.get("recipients", F.lit(0)).alias("recipient"),
        F.when(~is_atom, F.concat_ws(" ", sockets)).alias("conversation"),
        "state",
        F.col("first.message").alias("first_response"),
        F.col("second.message").alias("second_response"),
        F.col("failed.message").alias("failure"),
        F.col("made").alias("begun"),
        F.col("first.made").alias("answered"),
        F.when(F.col("state") == COMPLETE, last).alias("completed"),
        F.when(is_atom, F.array().cast("array<string>")).otherwise(_only_at()).alias("only_at"),
    )
    unknown = answers.join(messages.select(F.col("message").alias("parent")), on="parent", how="left_anti")
    return finish_chains(known.unionByName(orphans(unknown, FABRIC.name)))


def _only_at() -> Column:
    """Servers that hold a part of the chain that another server of the same chain lacks."""
    parts = F.filter(F.array("holders", "first.holders", "second.holders"), lambda held: held.isNotNull())
    everyone = F.array_distinct(F.flatten(parts))
    partial = F.filter(parts, lambda held: F.size(held) < F.size(everyone))
    return F.sort_array(F.array_distinct(F.flatten(partial)))


def _answers(taken: DataFrame, links: DataFrame) -> DataFrame:
    """Responses, distinguished by their sockets as in `Fabric.conflict_keys`."""
    named = links.where(F.col("relation") == Relation.RESPONDING_TO.value)
    sockets = F.concat_ws(" ", "sender_socket", "recipient_socket")
    return named.select(F.col("child").alias("message"), "parent").join(
        taken.select("message", "signer", "seen", sockets.alias("sockets")), on="message", how="inner"
    )


def _log_entries(taken: DataFrame, links: DataFrame) -> DataFrame:
    """Responses in the log of an atom, each with the set of responses it continues.

    In a connection two that continue the same set do not contradict each other: a side's own responses are never among
    the references of its next one.
    """
    sets = (
        links.where(F.col("relation") == Relation.PREVIOUS.value)
        .groupBy(F.col("child").alias("message"))
        .agg(F.sort_array(F.collect_set("parent")).alias("previous"))
    )
    is_entry = F.col("sender_socket").isNull() & (F.col("type") == MessageType.SUCCESS.value)
    logs = taken.where(is_entry).select("message", "signer", "sender", "seen").join(sets, on="message", how="inner")
    return logs.withColumn("parent", F.get("previous", F.lit(0)))


def _creates(taken: DataFrame, links: DataFrame) -> DataFrame:
    del links
    creates = taken.where(F.col("type") == MessageType.CREATE.value)
    return creates.withColumn("subject", F.encode("sender", "utf-8"))


def _is_against_time() -> Column:
    """Clocks of two nodes may differ, so times are compared only within one signer."""
    return (F.col("parent_created") > F.col("created")) & (F.col("parent_signer") == F.col("signer"))


def fingerprint(public_key: Column) -> Column:
    """Base64 of the hash of the key."""
    return F.base64(sha256(public_key))


AUDIT = FabricAudit(
    fabric=FABRIC,
    deliveries=deliveries,
    fingerprint=fingerprint,
    chains=chains,
    answers=Relation.RESPONDING_TO,
    forks=(
        ForkRule(
            kind=CONFLICTING_RESPONSE,
            rows=_answers,
            by=("signer", "parent", "sockets"),
            author="signer",
            subject="parent",
        ),
        ForkRule(
            kind=FORKED_LOG,
            rows=_log_entries,
            by=("signer", "sender", "previous", "parent"),
            author="signer",
            subject="parent",
        ),
        ForkRule(kind=TWO_CREATES, rows=_creates, by=("sender", "subject"), author="sender", subject="subject"),
    ),
    unique_types=(MessageType.CREATE.value,),
    against_time=_is_against_time,
    forwards=True,
    lifetime_us=_LIFETIME_US,
    overdue=Stage.FORWARDED,
)
