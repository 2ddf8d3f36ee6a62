"""`dovetail receipt`: prove one delivery with one file; check it anywhere, offline."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dovetail.hop import Address
    from dovetail.journal.checkpoint import SignedCheckpoint
    from dovetail.receipt.consistency import View
    from dovetail.receipt.proof import Proof
    from dovetail.receipt.source import Source
    from dovetail.signing import Verifier

T = TypeVar("T")
app = typer.Typer(help="Prove one delivery with one file; check it offline.", no_args_is_help=True)

Trust = Annotated[
    list[Path],
    typer.Option("--trust", help="Keys you trust: a file with one per line, or a directory of .vkey files."),
]
Journals = Annotated[
    list[Path] | None, typer.Option("--journal", help="A journal; may be repeated.", metavar="FILE", show_default=False)
]
Lake = Annotated[Path | None, typer.Option("--lake", help="A lake of sealed journals.", metavar="DIR")]
Date = Annotated[str | None, typer.Option("--date", help="Search the lake only on this UTC day.", metavar="YYYY-MM-DD")]
Cosigned = Annotated[
    list[Path] | None,
    typer.Option("--checkpoint", help="Prove against this cosigned checkpoint; may be repeated.", metavar="FILE"),
]
Witnesses = Annotated[
    list[Path] | None, typer.Option("--witness", help="Keys of the witnesses that cosigned.", metavar="KEYS")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object per file.")]
Out = Annotated[Path | None, typer.Option("-o", "--out", help="Where to write it; stdout without it.", metavar="FILE")]


@app.command()
def build(
    address: Annotated[str, typer.Argument(help="The message: hex or wm:/..., or a beginning.", metavar="ADDRESS")],
    journal: Journals = None,
    lake: Lake = None,
    date: Date = None,
    out: Out = None,
    redact: Annotated[bool, typer.Option("--redact", help="Leave out the message's bytes: only its address.")] = False,
    counterpart: Annotated[
        list[str] | None,
        typer.Option("--counterpart", help="Only hops from or to this one; may be repeated.", metavar="URI"),
    ] = None,
    related: Annotated[
        list[str] | None,
        typer.Option("--related", help="A response to show (won); found by itself where left out.", metavar="ADDRESS"),
    ] = None,
    search: Annotated[
        int, typer.Option("--search", help="How many hops behind it to search for responses (won).", min=0)
    ] = 100_000,
    since: Annotated[
        list[Path] | None,
        typer.Option("--since", help="An older receipt or checkpoint to prove growth from.", metavar="FILE"),
    ] = None,
    checkpoint: Cosigned = None,
    witness: Witnesses = None,
) -> None:
    """Build the receipt of one message from the journals or the lake of the servers that saw it."""
    from dovetail.cli.output import say
    from dovetail.receipt.build import BuildOptions, build_receipt, find_address

    witnesses = _load_keys(witness or ())
    with _sources(journal, lake, date) as sources:
        known = [*witnesses, *(source.verifier for source in sources)]
        options = BuildOptions(
            redact=redact,
            counterparts=frozenset(counterpart or ()),
            related=None if related is None else [_parse_address(text) for text in related],
            search_hops=search,
            since=[signed.checkpoint for path in since or () for signed in _read_checkpoints(path)],
            notes=_merge_notes(checkpoint or (), known),
            witnesses=witnesses,
        )
        built = build_receipt(sources, find_address(sources, _parse_prefix(address)), options)
    for remark in built.remarks:
        say(remark)
    _write(built.data, out)


@app.command()
def complete(
    since: Annotated[str | None, typer.Option("--from", help="From this time on.", metavar="TIME")] = None,
    until: Annotated[str | None, typer.Option("--until", help="Up to and without this time.", metavar="TIME")] = None,
    conversation: Annotated[
        str | None,
        typer.Option("--conversation", help="All of the conversation that this message is in.", metavar="ADDRESS"),
    ] = None,
    journal: Journals = None,
    lake: Lake = None,
    server: Annotated[
        str | None, typer.Option("--server", help="Which server, where there are several.", metavar="URI")
    ] = None,
    trust: Annotated[
        list[Path] | None,
        typer.Option("--trust", help="Keys of servers whose journals are not here.", metavar="KEYS"),
    ] = None,
    search: Annotated[
        int, typer.Option("--search", help="How many hops behind the message to search for more.", min=0)
    ] = 100_000,
    checkpoint: Cosigned = None,
    witness: Witnesses = None,
    out: Out = None,
) -> None:
    """State that these are all: the hops of one server in a stretch of time, or the messages of one conversation.

    Give either --from and --until (TIME: 2026-11-15T20:00:00Z) or --conversation with any message of it.
    """
    from dovetail.errors import UsageError

    if (conversation is None) == (since is None) or (since is None) != (until is None):
        raise UsageError("give either --from and --until, or --conversation")
    witnesses = _load_keys(witness or ())
    with _sources(journal, lake, None) as sources:
        chosen = [source for source in sources if server is None or source.server == server]
        notes = _merge_notes(checkpoint or (), [*witnesses, *(source.verifier for source in chosen)])
        if conversation is not None:
            from dovetail.receipt.build import BuildOptions, find_address
            from dovetail.receipt.transcript import build_conversation

            options = BuildOptions(search_hops=search, notes=notes, witnesses=witnesses)
            address = find_address(chosen, _parse_prefix(conversation))
            data = build_conversation(chosen, address, _load_keys(trust or ()), options)
        else:
            data = _complete_stretch(chosen, since or "", until or "", notes, witnesses)
    _write(data, out)


def _complete_stretch(
    sources: Sequence[Source], since: str, until: str, notes: Sequence[SignedCheckpoint], witnesses: Sequence[Verifier]
) -> bytes:
    """All hops of the one server in a stretch of time."""
    from dovetail.errors import UsageError
    from dovetail.receipt.completeness import build_completeness

    if len(sources) != 1:
        raise UsageError(f"found {len(sources)} servers, expected one; choose with --server")
    (source,) = sources
    signed = next((note for note in notes if note.checkpoint.origin == source.server), None)
    return build_completeness(source, _parse_time(since), _parse_time(until), signed=signed, witnesses=witnesses)


@app.command()
def verify(
    files: Annotated[list[Path], typer.Argument(help="Receipt files.", metavar="FILE...")],
    trust: Trust,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            "--against", help="A receipt or checkpoint of another time to be consistent with.", metavar="FILE"
        ),
    ] = None,
    witnesses: Annotated[int, typer.Option(help="How many trusted witnesses must have cosigned.", min=0)] = 0,
    max_age: Annotated[
        int | None, typer.Option(help="How long ago, in seconds, a trusted witness may have seen it.", min=1)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check receipts with nothing but the trusted keys; say what they prove and what they do not."""
    from dovetail.cli.receipt_text import print_broken, print_proof
    from dovetail.errors import ReceiptError
    from dovetail.receipt.proof import Policy
    from dovetail.receipt.verify import verify_receipt

    trusted = _load_keys(trust)
    policy = Policy(now_us=_now_us(), witnesses=witnesses, max_age_s=max_age)
    others = [_read_other(path, trusted) for path in against or ()]
    is_any_broken = False
    for path in files:
        try:
            proof = verify_receipt(_read(path), trusted, policy, others)
        except ReceiptError as error:
            is_any_broken = True
            print_broken(path, error, as_json=as_json)
        else:
            print_proof(path, proof, as_json=as_json)
    if is_any_broken:
        raise typer.Exit(1)


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="A receipt file.", metavar="FILE")],
    as_json: AsJson = False,
) -> None:
    """Show what is in a receipt, for people. Proofs and signatures are checked, but nobody is trusted."""
    from dovetail.cli.output import say
    from dovetail.cli.receipt_text import print_proof
    from dovetail.receipt.format import decode_receipt, notes_of
    from dovetail.receipt.note import parse_key
    from dovetail.receipt.verify import verify_receipt

    data = _read(file)
    carried = [parse_key(note.keys[0])[0] for note in notes_of(decode_receipt(data))]
    print_proof(file, verify_receipt(data, carried), as_json=as_json, show_bytes=True)
    say("not verified: the keys are those that the file itself carries; `dovetail receipt verify` asks for yours")


@app.command()
def ask(
    journal: Annotated[Path, typer.Option("--journal", help="The journal to be witnessed.", metavar="FILE")],
    old: Annotated[
        Path | None, typer.Option("--old", help="The last checkpoint the witness has cosigned.", metavar="FILE")
    ] = None,
    out: Out = None,
) -> None:
    """Ask a witness: write a request to cosign the journal's latest checkpoint."""
    from dovetail.errors import ReceiptError
    from dovetail.journal.merkle import prove_consistency
    from dovetail.receipt.journal_source import JournalSource
    from dovetail.receipt.witness import CosignRequest, encode_request

    with JournalSource.open(journal) as source:
        signed = source.latest_checkpoint()
        if signed is None:
            raise ReceiptError(f"{journal} has no signed checkpoint yet")
        old_size = 0 if old is None else _read_checkpoints(old)[0].size
        if old_size > signed.size:
            raise ReceiptError(f"{old} has {old_size} hops, the latest checkpoint only {signed.size}")
        proof = prove_consistency(old_size, signed.size, source.node)
    _write(encode_request(CosignRequest(old_size, tuple(proof), signed.note)), out)


@app.command()
def cosign(
    request: Annotated[Path, typer.Argument(help="A request made by `receipt ask`.", metavar="REQUEST")],
    key: Annotated[Path, typer.Option("--key", help="The witness's signing key.", metavar="SKEY")],
    trust: Trust,
    seen: Annotated[Path, typer.Option("--seen", help="Where the witness remembers checkpoints.", metavar="DIR")],
    out: Out = None,
) -> None:
    """Be a witness: cosign a checkpoint after checking that the journal only grew since the last one."""
    from dovetail.keys import load_signing_key
    from dovetail.receipt.memory import remember, remembered_checkpoints
    from dovetail.receipt.witness import MAX_REQUEST_BYTES, Witness, decode_request

    witness = Witness(load_signing_key(key), _load_keys(trust), remembered_checkpoints(seen))
    with request.open("rb") as file:
        decoded = decode_request(file.read(MAX_REQUEST_BYTES + 1))
    note = witness.cosign(decoded, _now_us() // 1_000_000)
    remember(seen, note)
    _write(note.encode(), out)


@app.command()
def accuse(
    files: Annotated[
        list[Path], typer.Argument(help="Two receipts or checkpoints of one server.", metavar="FILE FILE")
    ],
    trust: Trust,
    journal: Journals = None,
    lake: Lake = None,
    out: Out = None,
) -> None:
    """Make evidence of two checkpoints that one server signed and that cannot both be true.

    For checkpoints of two sizes, a journal or lake with the hops of the larger one is needed.
    """
    from dovetail.errors import ReceiptError, UsageError
    from dovetail.receipt.evidence import build_split_view

    if len(files) != 2:
        raise UsageError(f"{len(files)} files, expected two")
    trusted = _load_keys(trust)
    failure = ReceiptError("the two have no server in common")
    with contextlib.ExitStack() as stack:
        sources = stack.enter_context(_sources(journal, lake, None)) if journal or lake else []
        by_server = {source.server: source for source in sources}
        for one in _read_checkpoints(files[0]):
            for other in _read_checkpoints(files[1]):
                if one.checkpoint.origin != other.checkpoint.origin:
                    continue
                try:
                    data = build_split_view(one, other, trusted, by_server.get(one.checkpoint.origin))
                except ReceiptError as error:
                    failure = error
                else:
                    _write(data, out)
                    return
    raise failure


@app.command()
def fork(
    addresses: Annotated[list[str], typer.Argument(help="Two messages of one author.", metavar="ADDRESS ADDRESS")],
    trust: Trust,
    journal: Journals = None,
    lake: Lake = None,
    date: Date = None,
    out: Out = None,
) -> None:
    """Make evidence of two signed messages (won) that contradict each other, as the audit's table forks has them."""
    from dovetail.errors import UsageError
    from dovetail.receipt.build import find_address
    from dovetail.receipt.evidence import build_fork

    if len(addresses) != 2:
        raise UsageError(f"{len(addresses)} addresses, expected two")
    with _sources(journal, lake, date) as sources:
        one, other = (find_address(sources, _parse_prefix(text)) for text in addresses)
        data = build_fork(sources, (one, other), _load_keys(trust))
    _write(data, out)


@contextlib.contextmanager
def _sources(journals: Sequence[Path] | None, lake: Path | None, date: str | None) -> Iterator[list[Source]]:
    """The journals and the servers of the lake; a server that is in both counts by its journal."""
    from dovetail.errors import UsageError
    from dovetail.receipt.journal_source import JournalSource

    if not journals and lake is None:
        raise UsageError("name at least one --journal, or a --lake")
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(JournalSource.open(path)) for path in journals or ()]
        sources: dict[str, Source] = {source.server: source for source in opened}
        if len(sources) != len(opened):
            raise UsageError("two of the journals are of the same server")
        if lake is not None:
            from dovetail.receipt.lake_source import open_lake

            for source in open_lake(lake, None if date is None else _parse_day(date)):
                sources.setdefault(source.server, source)
        yield list(sources.values())


def _read_checkpoints(path: Path) -> list[SignedCheckpoint]:
    """The checkpoints in a file: a note, or those of a receipt. They are not verified here."""
    from dovetail.errors import CheckpointError, ReceiptError
    from dovetail.journal.checkpoint import MAX_NOTE_BYTES, parse_checkpoint
    from dovetail.receipt.format import decode_receipt, notes_of

    data = _read(path)
    try:
        if data.startswith(b"{"):
            return [parse_checkpoint(note.checkpoint) for note in notes_of(decode_receipt(data))]
        return [parse_checkpoint(data[: MAX_NOTE_BYTES + 1].decode(errors="replace"))]
    except (CheckpointError, ReceiptError) as error:
        raise ReceiptError(f"{path}: {error}") from None


def _read_other(path: Path, trusted: Sequence[Verifier]) -> View | Proof:
    """What a file shows of journals: a receipt, which must itself be valid, or a note that a trusted key has signed."""
    from dovetail.errors import CheckpointError, ReceiptError
    from dovetail.journal.checkpoint import verify_checkpoint
    from dovetail.receipt.consistency import View
    from dovetail.receipt.verify import verify_receipt

    data = _read(path)
    try:
        if data.startswith(b"{"):
            return verify_receipt(data, trusted)
        return View(verify_checkpoint(data.decode(errors="replace"), trusted).checkpoint)
    except (CheckpointError, ReceiptError) as error:
        raise ReceiptError(f"{path}: {error}") from None


def _merge_notes(paths: Sequence[Path], keys: Sequence[Verifier]) -> list[SignedCheckpoint]:
    """Cosigned checkpoints by server; several notes of one checkpoint become one."""
    from dovetail.receipt.witness import merge_notes

    by_server: dict[str, list[str]] = {}
    for path in paths:
        for signed in _read_checkpoints(path):
            by_server.setdefault(signed.checkpoint.origin, []).append(signed.note)
    return [merge_notes(notes, keys) for notes in by_server.values()]


def _load_keys(paths: Sequence[Path]) -> list[Verifier]:
    from dovetail.keys import load_verifier_keys

    return [key for path in paths for key in load_verifier_keys(path)]


def _parse_prefix(text: str) -> bytes:
    from dovetail.hop import parse_address_prefix

    return _parse(parse_address_prefix, text)


def _parse_address(text: str) -> Address:
    from dovetail.hop import Address, parse_address

    return Address(_parse(parse_address, text))


def _parse_time(text: str) -> int:
    """Microseconds of a time in ISO 8601; UTC where it names no zone."""
    from datetime import UTC, datetime, timedelta

    def parse(text: str) -> int:
        at = datetime.fromisoformat(text)
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
        return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)

    return _parse(parse, text)


def _parse_day(text: str) -> tuple[int, int]:
    first = _parse_time(text)
    return first, first + 86_400_000_000


def _parse(parse: Callable[[str], T], text: str) -> T:
    from dovetail.errors import UsageError

    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _read(path: Path) -> bytes:
    """A file's bytes, never more than one too many."""
    from dovetail.receipt.format import MAX_RECEIPT_BYTES

    with path.open("rb") as file:
        return file.read(MAX_RECEIPT_BYTES + 1)


def _write(data: bytes, out: Path | None) -> None:
    from dovetail.cli.output import print_text

    if out is None:
        print_text(data.decode())
    else:
        out.write_bytes(data)


def _now_us() -> int:
    import time

    return time.time_ns() // 1000
