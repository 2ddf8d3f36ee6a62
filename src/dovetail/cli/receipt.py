"""`dovetail receipt`: prove one delivery with one file; check it anywhere, offline."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.client_options import OldSigningKey, in_context, needed_key, parse_time_text
from dovetail.cli.exit_codes import EXIT_FAILED, EXIT_NO
from dovetail.cli.receipt_input import (
    choose_sources,
    default_file,
    find_message,
    is_file,
    load_keys,
    merge_note_files,
    open_sources,
    read_checkpoints,
    read_file,
    read_other,
    trusted_paths,
)
from dovetail.cli.receipt_options import (
    DEFAULT_SEARCH,
    AsJson,
    BuiltFile,
    Cosigned,
    Date,
    Journals,
    Lake,
    Out,
    Search,
    SignatureWait,
    Since,
    Trust,
    TrustOrKnown,
    Witnesses,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dovetail.journal.hop_source import HopSource
    from dovetail.receipt.build import BuildOptions
    from dovetail.tlog.checkpoint import Checkpoint, SignedCheckpoint
    from dovetail.tlog.keys import Verifier

app = typer.Typer(help="Prove one delivery with one file; check it offline.", no_args_is_help=True)


@app.command()
@in_context
def build(
    address: Annotated[
        str, typer.Argument(help="The message: hex, wm:/..., a pcp id, or a prefix of any of them.", metavar="ADDRESS")
    ],
    journals: Journals = None,
    lake: Lake = None,
    date: Date = None,
    out: BuiltFile = None,
    redact: Annotated[
        bool, typer.Option("--redact", help="Leave out the message's bytes and keep only its address.")
    ] = False,
    counterpart: Annotated[
        list[str] | None,
        typer.Option("--counterpart", help="Only hops from or to this counterpart; repeatable.", metavar="URI"),
    ] = None,
    related: Annotated[
        list[str] | None,
        typer.Option(
            "--related", help="A response to include (won); found automatically if omitted.", metavar="ADDRESS"
        ),
    ] = None,
    search: Search = DEFAULT_SEARCH,
    since: Since = None,
    checkpoint: Cosigned = None,
    witness: Witnesses = None,
    wait: SignatureWait = 0.0,
) -> None:
    """Build the receipt of one message from the journals or the lake of the servers that saw it."""
    from dovetail.api.receipts import await_signatures
    from dovetail.cli.output import say
    from dovetail.receipt.build import BuildOptions, build_receipt

    witnesses = load_keys(witness or ())
    await_signatures(lambda: open_sources(journals, lake, date), address, wait)
    with open_sources(journals, lake, date) as sources:
        known = [*witnesses, *(source.verifier for source in sources)]
        options = BuildOptions(
            redact=redact,
            counterparts=frozenset(counterpart or ()),
            related=None if related is None else [find_message(sources, text) for text in related],
            search_hops=search,
            since=_read_older(since),
            notes=merge_note_files(checkpoint or (), known),
            witnesses=witnesses,
        )
        found = find_message(sources, address)
        built = build_receipt(sources, found, options)
    for remark in built.remarks:
        say(remark)
    _write_receipt(built.data, out or default_file(found))


@app.command()
@in_context
def complete(
    since: Annotated[str | None, typer.Option("--from", help="Start of the time range.", metavar="TIME")] = None,
    until: Annotated[
        str | None, typer.Option("--until", help="End of the time range (exclusive).", metavar="TIME")
    ] = None,
    conversation: Annotated[
        str | None,
        typer.Option("--conversation", help="The whole conversation that contains this message.", metavar="ADDRESS"),
    ] = None,
    journals: Journals = None,
    lake: Lake = None,
    server: Annotated[
        str | None, typer.Option("--server", help="The server, where there are several.", metavar="URI")
    ] = None,
    trust: Annotated[
        list[Path] | None,
        typer.Option("--trust", help="Keys of servers whose journals are elsewhere.", metavar="KEYS"),
    ] = None,
    search: Search = DEFAULT_SEARCH,
    older: Since = None,
    checkpoint: Cosigned = None,
    witness: Witnesses = None,
    out: Out = None,
) -> None:
    """Prove completeness: all hops of one server in a time range, or all messages of one conversation.

    Give either --from and --until (TIME: 2026-11-15T20:00:00Z), or --conversation with any message of it (won) or with
    the request (pcp), whose replies --until this time are shown.
    """
    from dovetail.model.errors import UsageError

    if (conversation is None) == (since is None) or (conversation is None and until is None):
        raise UsageError("give either --from and --until, or --conversation")
    if conversation is None and older:
        raise UsageError("--since needs --conversation")
    witnesses = load_keys(witness or ())
    with open_sources(journals, lake, None) as sources:
        chosen = [source for source in sources if server is None or source.server == server]
        notes = merge_note_files(checkpoint or (), [*witnesses, *(source.verifier for source in chosen)])
        if conversation is not None:
            from dovetail.receipt.build import BuildOptions

            options = BuildOptions(
                search_hops=search,
                notes=notes,
                witnesses=witnesses,
                since=_read_older(older),
            )
            data = _complete_conversation(chosen, conversation, until, load_keys(trust or ()), options)
        else:
            data = _complete_period(chosen, since or "", until or "", notes, witnesses)
    _write_receipt(data, out)


def _complete_conversation(
    sources: Sequence[HopSource], text: str, until: str | None, keys: Sequence[Verifier], options: BuildOptions
) -> bytes:
    """All messages of a conversation, or of an exchange at the one server that had the request."""
    from dovetail.fabrics import fabric_named
    from dovetail.model.errors import UsageError
    from dovetail.model.fabric import Thread

    address = find_message(sources, text)
    holders = [source for source in sources if source.hops_of(address)]
    threads = {fabric_named(source.fabric).thread for source in holders}
    if threads == {Thread.EXCHANGE}:
        from dovetail.receipt.request_reply import build_exchange

        if options.since:
            raise UsageError("--since applies to conversations, not to requests and their replies")
        if len(holders) != 1:
            raise UsageError(f"{len(holders)} servers had the request, expected one; choose with --server")
        (source,) = holders
        signed = next((note for note in options.notes if note.checkpoint.origin == source.server), None)
        until_us = None if until is None else parse_time_text(until)
        return build_exchange(source, address, until_us, signed=signed, witnesses=options.witnesses)
    if threads != {Thread.CONVERSATION}:
        raise UsageError(f"{text} belongs to no conversation: its fabric has no conversations")
    if until is not None:
        raise UsageError("--until applies to requests and their replies, not to conversations")
    from dovetail.receipt.build_conversation import build_conversation

    return build_conversation(sources, address, keys, options)


def _complete_period(
    sources: Sequence[HopSource],
    since: str,
    until: str,
    notes: Sequence[SignedCheckpoint],
    witnesses: Sequence[Verifier],
) -> bytes:
    """All hops of the one server in a time range."""
    from dovetail.model.errors import UsageError
    from dovetail.receipt.completeness import build_completeness

    if len(sources) != 1:
        raise UsageError(f"found {len(sources)} servers, expected one; choose with --server")
    (source,) = sources
    signed = next((note for note in notes if note.checkpoint.origin == source.server), None)
    return build_completeness(
        source, parse_time_text(since), parse_time_text(until), signed=signed, witnesses=witnesses
    )


@app.command()
@in_context
def verify(
    files: Annotated[list[Path], typer.Argument(help="Receipt files.", metavar="FILE")],
    trust: TrustOrKnown = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            "--against", help="An earlier or later receipt or checkpoint that must be consistent.", metavar="FILE"
        ),
    ] = None,
    witnesses: Annotated[int, typer.Option(help="Minimum number of trusted witnesses.", min=0)] = 0,
    max_age: Annotated[
        int | None, typer.Option(metavar="SECONDS", help="Maximum age of a trusted witness's cosignature.", min=1)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check receipts using only the trusted keys; print what they prove and what they do not.

    Exits with 3 if any is not valid, with 1 if any cannot be read.
    """
    from dovetail.cli.receipt_text import print_broken, print_proof
    from dovetail.model.errors import ReceiptError
    from dovetail.receipt.proof import Policy
    from dovetail.receipt.verify import verify_receipt
    from dovetail.runtime.clock import now_us

    trusted = load_keys(trusted_paths(trust))
    policy = Policy(now_us=now_us(), witnesses=witnesses, max_age_s=max_age)
    others = [read_other(path, trusted) for path in against or ()]
    code = 0
    for path in files:
        try:
            data = read_file(path)
        except ReceiptError as error:
            code = EXIT_FAILED
            print_broken(path, error, as_json=as_json)
            continue
        try:
            proof = verify_receipt(data, trusted, policy, others)
        except ReceiptError as error:
            code = code or EXIT_NO
            print_broken(path, error, as_json=as_json)
        else:
            print_proof(path, proof, as_json=as_json)
    if code:
        raise typer.Exit(code)


@app.command()
@in_context
def show(
    subject: Annotated[
        str,
        typer.Argument(
            help="A message: hex, wm:/..., a pcp id, or a prefix; or a receipt file.", metavar="ADDRESS|FILE"
        ),
    ],
    journals: Journals = None,
    lake: Lake = None,
    trust: TrustOrKnown = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Also save the receipt.", metavar="FILE")] = None,
    wait: SignatureWait = 15.0,
    as_json: AsJson = False,
) -> None:
    """Prove one delivery at once: build its receipt, verify it with the trusted keys, print what it proves.

    Of a receipt FILE the contents are printed, by the keys that it carries itself: no key is trusted.
    """
    if is_file(subject):
        _show_file(Path(subject), as_json=as_json)
        return
    from dovetail.api.receipts import Receipt
    from dovetail.cli.output import say
    from dovetail.cli.receipt_text import print_broken, print_proof
    from dovetail.model.errors import ReceiptError

    trusted = trusted_paths(trust)
    journals, lake = choose_sources(journals, lake)
    receipt = Receipt.build(subject, journals=journals, lake=lake, wait=wait)
    for remark in receipt.remarks:
        say(remark)
    if out is not None:
        receipt.save(out)
    name = out or f"receipt of {receipt.subject}"
    try:
        proof = receipt.verify(trust=trusted)
    except ReceiptError as error:
        print_broken(name, error, as_json=as_json)
        raise typer.Exit(EXIT_NO) from None
    print_proof(name, proof, as_json=as_json)


def _show_file(file: Path, *, as_json: bool) -> None:
    from dovetail.cli.output import say
    from dovetail.cli.receipt_text import print_broken, print_proof
    from dovetail.model.errors import ReceiptError
    from dovetail.receipt.format import decode_receipt, notes_of
    from dovetail.receipt.proof import Policy
    from dovetail.receipt.verify import verify_receipt
    from dovetail.tlog.note import parse_key

    code = EXIT_FAILED
    try:
        data = read_file(file)
        code = EXIT_NO
        carried = [parse_key(note.keys[0])[0] for note in notes_of(decode_receipt(data))]
        proof = verify_receipt(data, carried, Policy(needs_authors_keys=False))
    except ReceiptError as error:
        print_broken(file, error, as_json=as_json)
        raise typer.Exit(code) from None
    print_proof(file, proof, as_json=as_json, show_bytes=True)
    say("not verified: the keys are from the file itself; `dovetail receipt verify` uses the keys that you trust")


@app.command()
def ask(
    journal: Annotated[Path, typer.Option("--journal", help="The journal to be witnessed.", metavar="FILE")],
    old: Annotated[
        Path | None, typer.Option("--old", help="The last checkpoint the witness has cosigned.", metavar="FILE")
    ] = None,
    out: Out = None,
) -> None:
    """Write a request for a witness to cosign the journal's latest checkpoint."""
    from dovetail.journal.source import JournalSource
    from dovetail.model.errors import ReceiptError
    from dovetail.receipt.witness import CosignRequest, encode_request
    from dovetail.tlog.tree import prove_consistency

    with JournalSource.open(journal) as source:
        signed = source.latest_checkpoint()
        if signed is None:
            raise ReceiptError(f"{journal} has no signed checkpoint yet")
        old_size = 0 if old is None else read_checkpoints(old)[0].size
        if old_size > signed.size:
            raise ReceiptError(f"{old} has {old_size} hops, the latest checkpoint only {signed.size}")
        proof = prove_consistency(old_size, signed.size, source.node)
    request = encode_request(CosignRequest(old_size, tuple(proof), signed.note))
    _write(request, out, f"asks to cosign the journal of {signed.size} hops of {signed.checkpoint.origin}")


@app.command()
def cosign(
    request: Annotated[Path, typer.Argument(help="A request made by `receipt ask`.", metavar="REQUEST")],
    trust: Trust,
    seen: Annotated[
        Path, typer.Option("--seen", help="Directory where the witness stores checkpoints.", metavar="DIR")
    ],
    signing_key: Annotated[
        Path | None,
        typer.Option("--signing-key", help="The witness's signing key.", metavar="SKEY", show_default=False),
    ] = None,
    key: OldSigningKey = None,
    out: Out = None,
) -> None:
    """Act as a witness: cosign a checkpoint after checking that the journal has only grown."""
    from dovetail.keys import load_signing_key
    from dovetail.receipt.witness import MAX_REQUEST_BYTES, Witness, decode_request
    from dovetail.receipt.witness_memory import remember, remembered_checkpoints
    from dovetail.runtime.clock import now_us
    from dovetail.tlog.checkpoint import parse_checkpoint

    signer = load_signing_key(needed_key(signing_key, key))
    witness = Witness(signer, load_keys(trust), remembered_checkpoints(seen))
    with request.open("rb") as file:
        decoded = decode_request(file.read(MAX_REQUEST_BYTES + 1))
    note = witness.cosign(decoded, now_us() // 1_000_000)
    remember(seen, note)
    checkpoint = parse_checkpoint(note).checkpoint
    _write(note.encode(), out, f"{signer.name} cosigned the journal of {checkpoint.size} hops of {checkpoint.origin}")


@app.command()
@in_context
def accuse(
    files: Annotated[
        list[Path], typer.Argument(help="Two receipts or checkpoints of one server.", metavar="FILE FILE")
    ],
    trust: TrustOrKnown = None,
    journals: Journals = None,
    lake: Lake = None,
    out: Out = None,
) -> None:
    """Build evidence from two checkpoints that one server signed and that contradict each other.

    For checkpoints of two sizes, a journal or lake with the hops of the larger one is needed.
    """
    from dovetail.model.errors import ReceiptError, UsageError
    from dovetail.receipt.build_evidence import build_split_view

    if len(files) != 2:
        raise UsageError(f"{len(files)} files, expected two")
    trusted = load_keys(trusted_paths(trust))
    failure = ReceiptError("the two have no server in common")
    with contextlib.ExitStack() as stack:
        sources = stack.enter_context(open_sources(journals, lake, None)) if journals or lake else []
        by_server = {source.server: source for source in sources}
        for one in read_checkpoints(files[0]):
            for other in read_checkpoints(files[1]):
                if one.checkpoint.origin != other.checkpoint.origin:
                    continue
                try:
                    data = build_split_view(one, other, trusted, by_server.get(one.checkpoint.origin))
                except ReceiptError as error:
                    failure = error
                else:
                    _write_receipt(data, out)
                    return
    raise failure


@app.command()
@in_context
def fork(
    addresses: Annotated[list[str], typer.Argument(help="Two messages of one author.", metavar="ADDRESS ADDRESS")],
    trust: TrustOrKnown = None,
    journals: Journals = None,
    lake: Lake = None,
    date: Date = None,
    out: Out = None,
) -> None:
    """Build evidence from two signed messages (won) that contradict each other, as listed in the table forks."""
    from dovetail.model.errors import UsageError
    from dovetail.receipt.build_evidence import build_fork

    if len(addresses) != 2:
        raise UsageError(f"{len(addresses)} addresses, expected two")
    with open_sources(journals, lake, date) as sources:
        one, other = (find_message(sources, text) for text in addresses)
        data = build_fork(sources, (one, other), load_keys(trusted_paths(trust)))
    _write_receipt(data, out)


def _read_older(paths: Sequence[Path] | None) -> list[Checkpoint]:
    return [signed.checkpoint for path in paths or () for signed in read_checkpoints(path)]


def _write_receipt(data: bytes, out: Path | None) -> None:
    from dovetail.cli.receipt_text import summarise

    _write(data, out, summarise(data))


def _write(data: bytes, out: Path | None, summary: str) -> None:
    """Write the data to the file or stdout, and one line for the user to stderr."""
    from dovetail.cli.output import print_text, say
    from dovetail.journal.durable_file import replace_file

    if out is None:
        print_text(data.decode())
        say(summary)
    else:
        replace_file(out, data)
        say(f"wrote {out}: {summary}")
