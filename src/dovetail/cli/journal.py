"""`dovetail journal`: look into journals, check them, seal them into a lake, purge expired bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dovetail.journal.continuity import Known
    from dovetail.journal.reader import JournalReader
    from dovetail.model.fabric import Agreement
    from dovetail.model.hop import Hop
    from dovetail.tlog.checkpoint import SignedCheckpoint
    from dovetail.tlog.keys import Signer, Verifier

from dovetail.cli.client_options import EXIT_NO, AsCsv, AsMarkdown, OldSigningKey, SigningKey, Wide, needed_key

app = typer.Typer(help="Look into journals, check, seal and purge them.", no_args_is_help=True)

_FOLLOW_EVERY_S = 0.2

Journals = Annotated[
    list[Path], typer.Argument(help="Journals, or directories of them.", metavar="PATH...", show_default=False)
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
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]


@app.command("list")
def list_journals(
    paths: Journals,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_markdown: AsMarkdown = False,
    wide: Wide = False,
) -> None:
    """List journals: server, number of hops, and how far they are signed."""
    from dovetail.cli.output import print_rows
    from dovetail.journal.reader import JournalReader
    from dovetail.model.times import time_text

    rows = []
    for path in _find(paths):
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
                    "bytes": path.stat().st_size,
                    "key": reader.identity.verifier.text(),
                }
            )
    columns = ["path", "server", "hops", "messages", "signed", "last", "bytes"]
    print_rows(rows, columns, as_json=as_json, as_csv=as_csv, as_markdown=as_markdown, wide=wide)


@app.command("keys")
def print_keys(paths: Journals) -> None:
    """Print the servers' public keys, one per line, in the form that `--trust` takes."""
    from dovetail.cli.output import escape, print_text
    from dovetail.journal.reader import read_identity

    for path in _find(paths):
        print_text(escape(read_identity(path).verifier.text()) + "\n")


@app.command()
def tail(
    path: OneJournal,
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
    from dovetail.cli.output import escape, print_json, print_text
    from dovetail.journal.reader import JournalReader
    from dovetail.model.errors import UsageError

    if follow and until is not None:
        raise UsageError("--follow goes on for ever, --until ends; give one of them")
    with JournalReader.open(path) as reader:
        start = max(0, reader.size - count)
        if first is not None:
            start = first
        elif since is not None:
            start = reader.seq_at(_parse_time(since, "--since"))
        end = reader.seq_at(_parse_time(until, "--until")) if until is not None else None
        is_wanted = _message_filter(path, message)
        hops = _follow(reader, start) if follow else reader.hops(start, end)
        for hop in hops:
            if not is_wanted(hop):
                continue
            if as_json:
                print_json(_hop_record(hop))
            else:
                print_text(escape(_hop_line(hop)) + "\n")


@app.command()
def verify(
    paths: Journals,
    trust: Annotated[
        Path | None,
        typer.Option(help="Trusted keys: a file or a directory of `.vkey` files.", metavar="KEYS", show_default=False),
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
            help="A lake: the journal must have all that is sealed in it.", metavar="DIR|URL", show_default=False
        ),
    ] = None,
    seen: SeenByWitness = None,
    swarm: SwarmFile = None,
    as_json: AsJson = False,
) -> None:
    """Recompute every hash and signature; exit 3 and name the first bad row if anything is wrong."""
    from dovetail.cli.output import print_json, print_text, say
    from dovetail.cli.progress import Bar
    from dovetail.journal.reader import read_identity
    from dovetail.journal.verify import verify_journal

    trusted = _load_trust(trust)
    kept = _load_checkpoint(since)
    is_intact = True
    for path in _find(paths):
        with Bar(f"verify {path.name}", "hops") as bar:
            known = _known_elsewhere(path, lake, seen)
            agreement = None if swarm is None else _load_agreement(swarm, read_identity(path).server)
            verdict = verify_journal(
                path, trusted=trusted, since=kept, known=known, agreement=agreement, progress=bar.update
            )
        is_intact &= verdict.is_intact
        unsigned = verdict.hops - verdict.committed
        if as_json:
            print_json(
                {
                    "path": str(path),
                    "server": verdict.server,
                    "intact": verdict.is_intact,
                    "hops": verdict.hops,
                    "messages": verdict.messages,
                    "checkpoints": verdict.checkpoints,
                    "committed": verdict.committed,
                    "first": str(verdict.first) if verdict.first else None,
                    "findings": [{"seq": f.seq, "last": f.last, "detail": f.detail} for f in verdict.findings],
                }
            )
        elif verdict.is_intact:
            print_text(
                f"{path}: intact; {verdict.hops} hops and {verdict.messages} messages of {verdict.server}, "
                f"{verdict.checkpoints} checkpoints, {unsigned} hops not signed yet\n"
            )
        else:
            print_text(f"{path}: NOT intact; {verdict.first}\n")
            for finding in verdict.findings:
                say(f"  {finding}")
    if not is_intact:
        raise typer.Exit(EXIT_NO)


@app.command()
def recover(
    path: OneJournal,
    signing_key: SigningKey = None,
    key: OldSigningKey = None,
    lake: Annotated[
        str | None,
        typer.Option(help="A lake that holds sealed hops of this journal.", metavar="DIR|URL", show_default=False),
    ] = None,
    seen: SeenByWitness = None,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Go on without hops that are lost for good; the journal records that."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Rebuild a journal that was cut, rolled back or damaged, and say what is lost. Its server must not be running.

    Takes hops from the lake and from what is left of the journal, checks them against all that was signed, and keeps
    the old file. Where hops are lost for good it changes nothing and exits with 1, unless --accept-loss is given.
    """
    from dovetail.cli.output import print_record
    from dovetail.journal.recovery import recover_journal
    from dovetail.lake.location import open_store
    from dovetail.lake.reader import open_server
    from dovetail.model.errors import JournalRolledBack
    from dovetail.runtime.clock import now_us

    signer = _load_signer(needed_key(signing_key, key))
    recovery = recover_journal(
        path,
        signer=signer,
        now_us=now_us(),
        elsewhere=None if lake is None else open_server(open_store(lake), signer.verifier),
        known=_known_to_witness(seen, signer.verifier),
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
        forks = f"; {signed} of them were signed: whoever has that checkpoint can show two histories" if signed else ""
        raise JournalRolledBack(
            f"nothing was changed: {recovery.lost_text} of {path} are lost for good{forks}; find a newer copy or lake, "
            "or go on without them by --accept-loss, or start under a new name"
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
        raise JournalError(f"{path} has no checkpoint yet; its server makes one, or give --signing-key")
    print_text(latest.note)


@app.command()
def seal(
    paths: Journals,
    lake: Annotated[str, typer.Option(help="The lake's directory or URL.", metavar="DIR|s3://...")] = "lake",
    signing_key: SigningKey = None,
    key: OldSigningKey = None,
    target_mb: Annotated[int, typer.Option(help="Target file size in MiB.", min=1, max=1024)] = 128,
    as_json: AsJson = False,
) -> None:
    """Write signed hops that are not sealed yet to Parquet in the lake. Sealing again adds only new hops."""
    from dovetail.cli.output import print_rows
    from dovetail.cli.progress import Bar
    from dovetail.lake.location import open_store
    from dovetail.lake.seal import seal_journal

    rows = []
    for path in _find(paths):
        if signing_key or key:
            _sign(path, needed_key(signing_key, key))
        with Bar(f"seal {path.name}", "hops") as bar:
            manifest = seal_journal(path, open_store(lake), target_bytes=target_mb << 20, progress=bar.update)
        rows.append(
            {
                "path": str(path),
                "files": len(manifest.files) if manifest else 0,
                "hops": manifest.end - manifest.first_seq if manifest else 0,
                "bytes": sum(file.bytes for file in manifest.files) if manifest else 0,
                "sealed": manifest.end if manifest else None,
            }
        )
    print_rows(rows, ["path", "files", "hops", "bytes"], as_json=as_json)


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
    """Delete the bytes of expired messages; addresses, hops and proofs stay. The server must not be running."""
    from dovetail.cli.output import print_record
    from dovetail.fabrics import fabric_of
    from dovetail.journal.purge import purge_step
    from dovetail.journal.writer import JournalWriter
    from dovetail.lake.location import open_store
    from dovetail.lake.snapshot import read_head
    from dovetail.model.errors import UsageError
    from dovetail.runtime.clock import now_us

    now = now_us()
    until_us = now if before is None else _parse_time(before, "--before")
    if until_us > now:
        raise UsageError(f"--before {before} lies in the future: only expired messages are purged")
    signer = _load_signer(needed_key(signing_key, key))
    agreement = _load_agreement(swarm, signer.name)
    if agreement is None and fabric_of(signer.name).default_agreement is not None:
        raise UsageError("--swarm is needed: the agreement says when messages of a swarm expire")
    sealed = None
    if lake is not None:
        sealed = read_head(open_store(lake), signer.name).end
    purged = 0
    with JournalWriter.open(path, server=signer.name, signer=signer) as writer:
        writer.checkpoint()
        while step := purge_step(writer, now_us=until_us, below_seq=sealed, agreement=agreement):
            purged += step
        writer.checkpoint()
        hops = writer.size
    print_record({"path": str(path), "purged": purged, "hops": hops}, as_json=as_json)


def _find(paths: list[Path]) -> list[Path]:
    """The journals named, and those in the directories named."""
    from dovetail.journal.folder import PEER_JOURNAL, SUFFIX, find_journals
    from dovetail.model.errors import UsageError

    found = [each for path in paths for each in find_journals(path)]
    if not found:
        raise UsageError(f"no *{SUFFIX} or {PEER_JOURNAL} files in {', '.join(map(str, paths))}")
    return found


def _follow(reader: JournalReader, position: int) -> Iterator[Hop]:
    """Hops from `position` on, for ever."""
    while True:
        for hop in reader.hops(position):
            yield hop
            position = hop.seq + 1
        time.sleep(_FOLLOW_EVERY_S)


def _message_filter(path: Path, text: str | None) -> Callable[[Hop], bool]:
    from dovetail.journal.source import JournalSource
    from dovetail.receipt.sources import find_message

    if text is None:
        return lambda hop: True  # noqa: ARG005
    with JournalSource.open(path) as source:
        wanted = find_message([source], text)
    return lambda hop: hop.message == wanted


def _hop_record(hop: Hop) -> dict[str, object]:
    from dovetail.fabrics import address_text
    from dovetail.model.times import time_text

    return {
        "server": hop.server,
        "seq": hop.seq,
        "at": time_text(hop.at_us),
        "stage": str(hop.stage),
        "message": address_text(hop.message, hop.fabric),
        "counterpart": hop.counterpart,
        "reason": str(hop.reason) if hop.reason else None,
        "size": hop.size,
        "raw": hop.raw.hex() if hop.raw is not None else None,
    }


def _hop_line(hop: Hop) -> str:
    from dovetail.fabrics import address_text
    from dovetail.model.times import time_text

    reason = f" ({hop.reason})" if hop.reason else ""
    size = f" {hop.size} bytes" if hop.size is not None else ""
    message = address_text(hop.message, hop.fabric)[:20]
    return f"{hop.seq:>8} {time_text(hop.at_us)} {hop.stage:<13} {message} {hop.counterpart or '-'}{reason}{size}"


def _parse_time(text: str, option: str) -> int:
    from dovetail.model.errors import UsageError
    from dovetail.model.times import parse_time

    try:
        return parse_time(text)
    except ValueError:
        raise UsageError(f"{option} {text!r} is not a time such as 2026-01-31T12:00:00Z") from None


def _load_signer(path: Path) -> Signer:
    from dovetail.keys import load_signing_key

    return load_signing_key(path)


def _sign(path: Path, key: Path) -> None:
    """Sign a checkpoint over everything in a journal that no server is writing."""
    from dovetail.journal.writer import JournalWriter

    signer = _load_signer(key)
    with JournalWriter.open(path, server=signer.name, signer=signer) as writer:
        writer.checkpoint()


def _known_elsewhere(path: Path, lake: str | None, seen: Path | None) -> list[Known]:
    """What a lake and a witness know of a journal."""
    from dovetail.journal.reader import read_identity
    from dovetail.lake.known import known_to_lake
    from dovetail.lake.location import open_store

    if lake is None and seen is None:
        return []
    identity = read_identity(path)
    sealed = [] if lake is None else known_to_lake(open_store(lake), identity)
    return [*sealed, *_known_to_witness(seen, identity.verifier)]


def _known_to_witness(seen: Path | None, verifier: Verifier) -> list[Known]:
    from dovetail.receipt.witness_memory import known_to_witness

    return [] if seen is None else known_to_witness(seen, verifier)


def _load_agreement(path: Path | None, server: str) -> Agreement | None:
    """The agreement of the community of a server, from a file."""
    from dovetail.fabrics import fabric_of
    from dovetail.model.errors import UsageError

    if path is None:
        return None
    fabric = fabric_of(server)
    try:
        agreement = fabric.parse_agreements(path.read_bytes()).get(fabric.community(server))
    except (OSError, ValueError) as error:
        raise UsageError(f"--swarm {path}: {error}") from None
    if agreement is None:
        raise UsageError(f"--swarm {path}: it is not the agreement of {fabric.community(server)}")
    return agreement


def _load_trust(path: Path | None) -> list[Verifier]:
    from dovetail.keys import load_verifier_keys

    return [] if path is None else list(load_verifier_keys(path))


def _load_checkpoint(path: Path | None) -> SignedCheckpoint | None:
    from dovetail.model.errors import UsageError
    from dovetail.tlog.checkpoint import MAX_NOTE_BYTES, parse_checkpoint

    if path is None:
        return None
    try:
        with path.open("rb") as file:
            return parse_checkpoint(file.read(MAX_NOTE_BYTES + 1).decode())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--since {path}: {error}") from None
