"""`dovetail journal`: inspect journals, verify them, seal them into a lake, purge expired bytes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dovetail.journal.reader import JournalReader
    from dovetail.model.address import Address
    from dovetail.model.hop import Hop

from dovetail.cli.client_options import OldSigningKey, SigningKey, in_context, needed_key, parse_time_text, read_context
from dovetail.cli.exit_codes import EXIT_NO
from dovetail.cli.journal_input import (
    find_given,
    known_elsewhere,
    load_agreement,
    load_checkpoint,
    one_journal,
    seen_by_witness,
)
from dovetail.cli.option_groups import takes_groups
from dovetail.cli.table_options import AsJson, Form

app = typer.Typer(help="Inspect, verify, seal and purge journals.", no_args_is_help=True)

_FOLLOW_EVERY_S = 0.2

Journals = Annotated[
    list[Path] | None,
    typer.Argument(
        help="Journals, or directories of them; from the context by default.", metavar="PATH", show_default=False
    ),
]
OneJournal = Annotated[Path, typer.Argument(help="A journal.", metavar="PATH", show_default=False)]
SeenByWitness = Annotated[
    Path | None,
    typer.Option(
        "--seen", help="Checkpoints that a witness stores (`receipt cosign --seen`).", metavar="DIR", show_default=False
    ),
]
SwarmFile = Annotated[
    Path | None,
    typer.Option("--swarm", help="The agreement of the journal's swarm (TOML).", metavar="FILE", show_default=False),
]


@app.command("list")
@in_context
@takes_groups
def list_journals(paths: Journals = None, *, form: Form) -> None:
    """List journals: server, number of hops, and how far they are signed."""
    from dovetail.cli.output import print_rows
    from dovetail.journal.reader import JournalReader
    from dovetail.model.times import time_text

    rows = []
    for path in find_given(paths):
        with JournalReader.open(path) as reader:
            checkpoint = reader.latest_checkpoint()
            last = next(reader.hops(reader.size - 1), None) if reader.size else None
            rows.append(
                {
                    "path": str(path),
                    "server": reader.identity.server,
                    "fabric": str(reader.identity.fabric),
                    "hops": reader.size,
                    "messages": reader.message_count,
                    "signed": checkpoint.size if checkpoint else 0,
                    "last": time_text(last.at_us) if last else None,
                    "bytes": path.stat().st_size + _wal_bytes(path),
                    "key": reader.identity.verifier.text(),
                }
            )
    columns = ["path", "server", "hops", "messages", "signed", "last", "bytes"]
    print_rows(rows, columns, form)


def _wal_bytes(path: Path) -> int:
    """Size of the write-ahead log, which has the newest hops of a live journal."""
    try:
        return path.with_name(f"{path.name}-wal").stat().st_size
    except OSError:
        return 0


@app.command("keys")
@in_context
def print_keys(paths: Journals = None) -> None:
    """Print the servers' public keys, one per line, in the form that `--trust` takes."""
    from dovetail.cli.output import escape, print_text
    from dovetail.journal.reader import read_identity

    for path in find_given(paths):
        print_text(escape(read_identity(path).verifier.text()) + "\n")


@app.command()
@in_context
def tail(
    path: Annotated[
        Path | None,
        typer.Argument(help="A journal; from the context by default.", metavar="PATH", show_default=False),
    ] = None,
    count: Annotated[
        int, typer.Option("--count", "-n", help="Number of hops to print, counted from the end.", min=0)
    ] = 20,
    first: Annotated[int | None, typer.Option("--from", help="Start at this sequence number instead.", min=0)] = None,
    since: Annotated[str | None, typer.Option(help="Start at this time instead (ISO 8601).", metavar="TIME")] = None,
    until: Annotated[str | None, typer.Option(help="End before this time (ISO 8601).", metavar="TIME")] = None,
    message: Annotated[
        str | None,
        typer.Option(help="Only hops of this message: hex, wm:/..., a pcp id, or a prefix.", metavar="ADDRESS"),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing hops as they are written.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print hops: the latest, or from a position or time on. Works on a live journal."""
    from dovetail.cli.journal_text import print_hop
    from dovetail.journal.reader import JournalReader
    from dovetail.model.errors import UsageError

    if follow and until is not None:
        raise UsageError("--follow never ends and --until does; give only one")
    path = one_journal(path)
    with JournalReader.open(path) as reader:
        start = max(0, reader.size - count)
        if first is not None:
            start = first
        elif since is not None:
            start = reader.seq_at(parse_time_text(since, "--since"))
        end = reader.seq_at(parse_time_text(until, "--until")) if until is not None else None
        wanted = None if message is None else _find_message(path, message)
        hops: Iterator[Hop]
        if follow:
            hops = (hop for hop in _follow(reader, start) if wanted in (None, hop.message))
        elif wanted is None:
            hops = reader.hops(start, end)
        else:
            begin = 0 if first is None and since is None else start  # all of the message's hops
            hops = (hop for hop in reader.hops_of(wanted) if hop.seq >= begin and (end is None or hop.seq < end))
        for hop in hops:
            print_hop(hop, as_json=as_json)


@app.command()
@in_context
def verify(
    paths: Journals = None,
    trust: Annotated[
        Path | None,
        typer.Option(
            help="Trusted keys: a file or a directory of `.vkey` files; with the journals of the context, its own.",
            metavar="KEYS",
            show_default=False,
        ),
    ] = None,
    since: Annotated[
        Path | None,
        typer.Option(
            help="A checkpoint kept elsewhere; the journal must be consistent with it.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    lake: Annotated[
        str | None,
        typer.Option(
            help="A lake: the journal must have all that is sealed in it.", metavar="DIR|s3://...", show_default=False
        ),
    ] = None,
    seen: SeenByWitness = None,
    swarm: SwarmFile = None,
    as_json: AsJson = False,
) -> None:
    """Recompute every hash and signature; exit 3 and name the first bad row if anything is wrong."""
    from dovetail.cli.journal_text import print_verdict
    from dovetail.cli.progress import Bar
    from dovetail.journal.reader import read_identity
    from dovetail.journal.verify import verify_journal
    from dovetail.keys import load_verifier_keys

    trusted = load_verifier_keys(*([trust] if trust else [] if paths else map(Path, read_context().trust)))
    kept = load_checkpoint(since)
    is_intact = True
    for path in find_given(paths):
        with Bar(f"verify {path.name}", "hops") as bar:
            known = known_elsewhere(path, lake, seen)
            agreement = None if swarm is None else load_agreement(swarm, read_identity(path).server)
            verdict = verify_journal(
                path, trusted=trusted, since=kept, known=known, agreement=agreement, progress=bar.update
            )
        is_intact &= verdict.is_intact
        print_verdict(path, verdict, as_json=as_json)
    if not is_intact:
        raise typer.Exit(EXIT_NO)


@app.command()
def recover(
    path: OneJournal,
    signing_key: SigningKey = None,
    key: OldSigningKey = None,
    lake: Annotated[
        str | None,
        typer.Option(help="A lake that holds sealed hops of this journal.", metavar="DIR|s3://...", show_default=False),
    ] = None,
    seen: SeenByWitness = None,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Continue without permanently lost hops; the journal records this."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Rebuild a journal that was truncated, rolled back or damaged, and report what is lost. Stop its server first.

    Takes hops from the lake and from what is left of the journal, checks them against all that was signed, and keeps
    the old file. If hops are permanently lost, it changes nothing and exits with 1, unless --accept-loss is given.
    """
    from dovetail.cli.output import print_record
    from dovetail.journal.recovery import recover_journal
    from dovetail.keys import load_signing_key
    from dovetail.lake.location import open_store
    from dovetail.lake.reader import open_server
    from dovetail.model.errors import JournalRolledBack
    from dovetail.runtime.clock import now_us

    signer = load_signing_key(needed_key(signing_key, key))
    recovery = recover_journal(
        path,
        signer=signer,
        now_us=now_us(),
        elsewhere=None if lake is None else open_server(open_store(lake), signer.verifier),
        known=seen_by_witness(seen, signer.verifier),
        accepts_loss=accept_loss,
    )
    print_record(
        {
            "path": str(path),
            "hops": recovery.hops,
            "restored": recovery.restored,
            "lost": recovery.lost,
            "lost_signed": max(0, recovery.signed_end - recovery.hops),
            "old_file": None if recovery.kept_as is None else str(recovery.kept_as),
        },
        as_json=as_json,
    )
    if not recovery.is_done:
        signed = max(0, recovery.signed_end - recovery.hops)
        forks = f"; {signed} of them were signed: anyone with that checkpoint can prove two histories" if signed else ""
        raise JournalRolledBack(
            f"nothing was changed: {recovery.lost_text} of {path} are permanently lost{forks}; find a newer copy or "
            "lake, or continue without them with --accept-loss, or start under a new name"
        )


@app.command()
def checkpoint(path: OneJournal, signing_key: SigningKey = None, key: OldSigningKey = None) -> None:
    """Print the latest signed checkpoint, for safekeeping; with --signing-key, sign one over all hops first."""
    from dovetail.cli.output import print_text
    from dovetail.journal.reader import JournalReader
    from dovetail.model.errors import JournalError

    if signing_key or key:
        _sign(path, needed_key(signing_key, key))
    with JournalReader.open(path) as reader:
        latest = reader.latest_checkpoint()
    if latest is None:
        raise JournalError(f"{path} has no checkpoint yet; its server signs one, or pass --signing-key")
    print_text(latest.note)


@app.command()
@in_context
@takes_groups
def seal(
    paths: Journals = None,
    lake: Annotated[
        str | None,
        typer.Option(
            help="The lake; from the context by default, else `lake`.", metavar="DIR|s3://...", show_default=False
        ),
    ] = None,
    signing_key: SigningKey = None,
    key: OldSigningKey = None,
    target_mb: Annotated[int, typer.Option(metavar="MIB", help="Target file size in MiB.", min=1, max=1024)] = 128,
    *,
    form: Form,
) -> None:
    """Write signed hops that are not sealed yet to Parquet in the lake. Sealing again adds only new hops.

    A journal that lacks hops which the lake has, such as an old copy, is refused; the others are sealed.
    """
    from dovetail.cli.output import print_rows, say
    from dovetail.cli.progress import Bar
    from dovetail.lake.location import open_store
    from dovetail.lake.seal import seal_journal
    from dovetail.model.errors import JournalError

    lake = lake or read_context().lake or "lake"
    rows, refused = [], list[JournalError]()
    for path in find_given(paths):
        try:
            if signing_key or key:
                _sign(path, needed_key(signing_key, key), lake)
            with Bar(f"seal {path.name}", "hops") as bar:
                manifest = seal_journal(path, open_store(lake), target_bytes=target_mb << 20, progress=bar.update)
        except JournalError as error:
            refused.append(error)
            continue
        rows.append(
            {
                "path": str(path),
                "files": len(manifest.files) if manifest else 0,
                "hops": manifest.end - manifest.first_seq if manifest else 0,
                "bytes": sum(file.bytes for file in manifest.files) if manifest else 0,
                "sealed": manifest.end if manifest else None,
            }
        )
    if rows:
        print_rows(rows, ["path", "files", "hops", "bytes"], form)
    for each in refused[1:]:
        say(str(each))
    if refused:
        raise refused[0]


@app.command()
def purge(
    path: OneJournal,
    signing_key: SigningKey = None,
    key: OldSigningKey = None,
    before: Annotated[
        str | None,
        typer.Option(help="Purge messages that expired before this time (not in the future).", metavar="TIME"),
    ] = None,
    lake: Annotated[
        str | None,
        typer.Option(
            help="Purge only messages that are sealed in this lake.", metavar="DIR|s3://...", show_default=False
        ),
    ] = None,
    swarm: SwarmFile = None,
    as_json: AsJson = False,
) -> None:
    """Delete the bytes of expired messages; addresses, hops and proofs stay. The server must not be running.

    What a server still needs after a crash, to record an outcome for every recipient, is kept.
    """
    from dovetail.cli.output import print_record, say
    from dovetail.fabrics import fabric_of
    from dovetail.journal.continuity import Known
    from dovetail.journal.purge import purge_step
    from dovetail.journal.writer import JournalWriter
    from dovetail.keys import load_signing_key
    from dovetail.lake.head import read_head
    from dovetail.lake.known import known_by
    from dovetail.lake.location import open_store
    from dovetail.model.errors import UsageError
    from dovetail.runtime.clock import now_us

    now = now_us()
    until_us = now if before is None else parse_time_text(before, "--before")
    if until_us > now:
        raise UsageError(f"--before {before} lies in the future: only expired messages are purged")
    signer = load_signing_key(needed_key(signing_key, key))
    agreement = load_agreement(swarm, signer.name)
    if agreement is None and fabric_of(signer.name).default_agreement is not None:
        raise UsageError("--swarm is needed: the agreement says when messages of a swarm expire")
    sealed, known = None, list[Known]()
    if lake is not None:
        head = read_head(open_store(lake), signer.verifier)
        sealed, known = head.end, known_by(head, open_store(lake))
    purged = 0
    with JournalWriter.open(path, server=signer.name, signer=signer, known=known) as writer:
        writer.checkpoint()
        unfinished = fabric_of(signer.name).unfinished(writer.reader.hops())
        if unfinished:
            say(f"messages kept until the server has started again and settled them: {len(unfinished)}")
        while step := purge_step(writer, now_us=until_us, below_seq=sealed, agreement=agreement, keep=unfinished):
            purged += step
        writer.checkpoint()
        hops = writer.size
    print_record({"path": str(path), "purged": purged, "hops": hops}, as_json=as_json)


def _follow(reader: JournalReader, position: int) -> Iterator[Hop]:
    """Hops from `position` on, without end."""
    while True:
        for hop in reader.hops(position):
            yield hop
            position = hop.seq + 1
        time.sleep(_FOLLOW_EVERY_S)


def _find_message(path: Path, text: str) -> Address:
    from dovetail.cli.receipt_input import find_message
    from dovetail.journal.source import JournalSource

    with JournalSource.open(path) as source:
        return find_message([source], text)


def _sign(path: Path, key: Path, lake: str | None = None) -> None:
    """Sign a checkpoint over everything in a journal that no server is writing, and that continues the lake."""
    from dovetail.journal.writer import JournalWriter
    from dovetail.keys import load_signing_key
    from dovetail.lake.known import known_to_lake
    from dovetail.lake.location import open_store

    signer = load_signing_key(key)
    known = [] if lake is None else known_to_lake(open_store(lake), signer.verifier)
    with JournalWriter.open(path, server=signer.name, signer=signer, known=known) as writer:
        writer.checkpoint()
