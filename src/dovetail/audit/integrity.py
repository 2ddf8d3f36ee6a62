"""Judges servers: are their hops complete, in order, unaltered, and signed?

Spark has scanned each file once (`merkle_scan`); here the subtree roots of the files are combined in journal order and
compared with every signed checkpoint. That is one hash per file, so every run repeats it, and a late manifest is
treated as if it had been there from the start.

A valid checkpoint proves every hop before it, whatever else is wrong with a manifest. A server is `proven` only if
every leaf it announces folds to a signed root; nothing else is accepted instead. Without pinned keys a server's first
manifest vouches for its key, and no later one may bring another. Such a proof shows that the lake is consistent, not
who wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dovetail.audit.ingest_log import MAX_AHEAD_US, FileFact, ManifestFact
from dovetail.audit.merkle_scan import Part
from dovetail.audit.proven_files import stated_keys
from dovetail.fabrics import is_server_name, name_of
from dovetail.lake.layout import parse_data_key, server_slug
from dovetail.lake.manifest import Manifest, SealedFile
from dovetail.lake.retained import UNSIGNED
from dovetail.model.errors import CheckpointError
from dovetail.tlog.checkpoint import parse_checkpoint, verify_checkpoint
from dovetail.tlog.keys import Verifier, parse_verifier
from dovetail.tlog.tree import Frontier, verify_consistency

MAX_DETAIL_CHARS = 400


@dataclass(frozen=True, slots=True)
class Break:
    """One fault: the check it fails, where, and from which hop on."""

    check: str
    file: str | None
    seq: int | None
    detail: str


@dataclass(slots=True)
class Verdict:
    """What is known about one server."""

    server: str
    fabric: str | None
    hops: int = 0
    signed_hops: int = 0
    signed_at_us: int | None = None
    proven_hops: int = 0
    missing_hops: int = 0
    repeated_hops: int = 0
    backwards: int = 0
    checkpoints: int = 0
    proven_checkpoints: int = 0
    key_source: str = "lake"
    announced_hops: int = 0
    keys: set[bytes] = field(default_factory=set)
    """The public keys with which its checkpoints verify."""
    breaks: list[Break] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """`broken` takes precedence over `incomplete`, and that over `proven`."""
        if any(item.check not in _INCOMPLETE | _HARMLESS for item in self.breaks):
            return "broken"
        is_whole = 0 < self.proven_hops == self.announced_hops
        return "proven" if is_whole and not any(item.check in _INCOMPLETE for item in self.breaks) else "incomplete"

    def add(self, check: str, detail: str, *, file: str | None = None, seq: int | None = None) -> None:
        """Record one break."""
        self.breaks.append(Break(check, file, seq, detail[:MAX_DETAIL_CHARS]))

    def add_file(self, check: str, detail: str, file: SealedFile, seq: int | None = None) -> None:
        """Record one break of a file, from its first hop on unless another is given."""
        self.add(check, detail, file=file.path, seq=file.first_seq if seq is None else seq)

    def row(self) -> tuple[object, ...]:
        """The row of the table `integrity`."""
        breaks = sorted(
            {(b.check, b.file, b.seq, b.detail) for b in self.breaks},
            key=lambda b: (b[2] if b[2] is not None else -1, b[0], b[1] or "", b[3]),
        )
        return (
            self.fabric,
            self.server,
            self.verdict,
            self.hops,
            self.signed_hops,
            self.signed_at_us,
            self.proven_hops,
            self.missing_hops,
            self.repeated_hops,
            self.backwards,
            self.checkpoints,
            self.proven_checkpoints,
            self.key_source,
            breaks,
        )


_INCOMPLETE = frozenset({"integrity.missing_hops", "integrity.no_manifest"})
_HARMLESS = frozenset(
    {
        "integrity.time_backwards",
        "integrity.file_rewritten",
        "integrity.unannounced_file",
        "integrity.time_ahead",
        "integrity.false_replacement",
        "integrity.forged_manifest",
        "integrity.kept_unsigned",
        "integrity.shared_key",
    }
)


def judge_servers(
    manifests: Sequence[ManifestFact],
    files: Sequence[FileFact],
    *,
    trusted: Sequence[Verifier] = (),
    changed: Sequence[tuple[ManifestFact, str]] = (),
    unannounced: Sequence[str] = (),
    missing: Iterable[str] = (),
    altered: Iterable[tuple[FileFact, str]] = (),
    false: Sequence[ManifestFact] = (),
    now_us: int | None = None,
) -> list[Verdict]:
    """One verdict per server, and one without a name for files of no known server.

    `altered` are files that have changed since they were read, with what happened; `false` are manifests that are
    forged or falsely claim to replace others; `now_us` is the auditor's time.
    """
    pinned: dict[str, list[Verifier]] = {}
    for verifier in trusted:
        pinned.setdefault(verifier.name, []).append(verifier)
    read = {fact.path: fact for fact in files}
    gone = frozenset(missing)
    by_server: dict[str, list[tuple[ManifestFact, Manifest]]] = {}
    for fact in manifests:
        if fact.manifest is not None:
            by_server.setdefault(fact.manifest.server, []).append((fact, fact.manifest))
    verdicts = _Verdicts(
        _judge(server, own, read, gone, pinned.get(server, []), bool(trusted)) for server, own in by_server.items()
    )
    verdicts.note_shared_keys()
    verdicts.note_absent(manifests, pinned)
    for fact, what in changed:
        owner = verdicts.of(fact.manifest.server if fact.manifest else "")
        owner.add("integrity.manifest_changed", f"the manifest {what}", file=fact.path)
    for fact in false:
        _note_false(verdicts, fact)
    for path in unannounced:
        verdicts.stray.add("integrity.unannounced_file", "no manifest announces this file; it is ignored", file=path)
    for file in files:
        part = file.part
        if now_us is not None and part is not None and part.last_at_us > now_us + MAX_AHEAD_US:
            text = f"{(part.last_at_us - now_us) // 1_000_000} s ahead of the auditor's clock"
            verdicts.of(file.server).add("integrity.time_ahead", text, file=file.path, seq=part.last_seq)
    for file, what in altered:
        owner = verdicts.of(file.server, slug_of(file.path))
        owner.add("integrity.file_altered", what, file=file.path)
    return verdicts.all()


class _Verdicts:
    """The verdicts of all servers, by name and by directory; `stray` is for what belongs to none of them."""

    def __init__(self, verdicts: Iterable[Verdict]) -> None:
        self._all = list(verdicts)
        self._by_name = {verdict.server: verdict for verdict in self._all}
        self._by_directory = {server_slug(server): verdict for server, verdict in self._by_name.items()}
        self.stray = Verdict("", None)

    def note_shared_keys(self) -> None:
        """Two names with one key are one party: that both say the same proves no more than that one says it."""
        by_key: dict[bytes, list[Verdict]] = {}
        for verdict in self._all:
            for key in verdict.keys:
                by_key.setdefault(key, []).append(verdict)
        for sharing in by_key.values():
            names = sorted(verdict.server for verdict in sharing)
            for verdict in sharing if len(sharing) > 1 else ():
                others = ", ".join(name for name in names if name != verdict.server)
                verdict.add("integrity.shared_key", f"its key is also that of {others}")

    def note_absent(self, manifests: Iterable[ManifestFact], pinned: Iterable[str]) -> None:
        """Add servers without a readable manifest: those with an unreadable one, and those whose key was given."""
        for fact in manifests:
            if fact.manifest is None:
                # without a readable manifest, a server is listed by the name of its directory
                directory = fact.path.split("/")[1]
                if directory not in self._by_directory:
                    self._add(directory, Verdict(directory, None))
                found = self._by_directory[directory]
                found.add("integrity.bad_manifest", fact.error or "cannot be read", file=fact.path)
        for server in pinned:
            if server_slug(server) not in self._by_directory and is_server_name(server):
                found = self._by_name[server] = Verdict(server, name_of(server), key_source="pinned")
                self._add(server_slug(server), found)
                found.add("integrity.no_manifest", "its key was given, but the lake has nothing of it")

    def _add(self, directory: str, verdict: Verdict) -> None:
        self._by_directory[directory] = verdict
        self._all.append(verdict)

    def of(self, server: str, directory: str = "") -> Verdict:
        """The verdict of the server with this name, or else with this directory."""
        return self._by_name.get(server) or self._by_directory.get(directory, self.stray)

    def all(self) -> list[Verdict]:
        """Sorted by server."""
        stray = [self.stray] if self.stray.breaks else []
        return sorted([*self._all, *stray], key=lambda verdict: verdict.server)


def _note_false(verdicts: _Verdicts, fact: ManifestFact) -> None:
    assert fact.manifest is not None
    owner = verdicts.of(fact.manifest.server)
    if fact.manifest.is_compaction:
        text = "it does not have the hops that it claims to replace; it is ignored"
        owner.add("integrity.false_replacement", text, file=fact.path)
    else:
        hops = f"hops {fact.manifest.first_seq} to {fact.manifest.end - 1}"
        owner.add("integrity.forged_manifest", f"{hops}: it is ignored", file=fact.path)
    # it may be a damaged one: nothing is proven about hops that no other announces
    owner.announced_hops = max(owner.announced_hops, fact.manifest.end)


def _judge(
    server: str,
    manifests: list[tuple[ManifestFact, Manifest]],
    read: Mapping[str, FileFact],
    gone: frozenset[str],
    pinned: list[Verifier],
    is_pinning: bool,
) -> Verdict:
    manifests = sorted(manifests, key=lambda pair: (pair[1].first_seq, pair[1].end, pair[0].path))
    verdict = Verdict(server, _fabric(server), checkpoints=sum(1 + len(manifest.earlier) for _, manifest in manifests))
    verdict.key_source = "pinned" if pinned else "lake"
    verdict.announced_hops = max(manifest.end for _, manifest in manifests)
    tree: Frontier | None = Frontier()
    position, previous_key, is_unbroken = 0, manifests[0][1].key, True
    last_at_us: int | None = None
    for fact, manifest in manifests:
        is_signed = _check_signature(verdict, fact, manifest, pinned, is_pinning)
        if is_signed:
            verdict.keys |= {key.public_key for key in pinned or stated_keys(manifest)}
        if manifest.key != previous_key:
            verdict.add(
                "integrity.key_changed", "signed with another key than before", file=fact.path, seq=manifest.first_seq
            )
            previous_key = manifest.key
        if manifest.first_seq != position:
            _note_misplaced(verdict, fact, manifest, position)
            tree, is_unbroken = None, False
        for file in manifest.files:
            last_at_us = _judge_file(verdict, manifest, file, read.get(file.path), file.path in gone, last_at_us)
            own = read.get(file.path)
            is_unbroken = is_unbroken and own is not None and own.is_proven(file, server)
            if tree is not None:
                # the announced root, not the recomputed one: if the checkpoint is valid, what was announced is what was
                # signed, and one altered file does not invalidate the proof of the files after it
                tree.append(bytes.fromhex(file.root), file.level)
        position = max(position, manifest.end)
        if is_signed and manifest.end > verdict.signed_hops:
            last = read.get(manifest.files[-1].path)
            verdict.signed_hops = manifest.end
            verdict.signed_at_us = last.part.last_at_us if last is not None and last.part is not None else None
        if is_signed and tree is not None and _has_signed_root(verdict, fact, manifest, tree):
            verdict.proven_checkpoints += 1 + _prove_earlier(verdict, fact, manifest, pinned, is_pinning)
            verdict.proven_hops = manifest.end if is_unbroken else verdict.proven_hops
    return verdict


def _note_misplaced(verdict: Verdict, fact: ManifestFact, manifest: Manifest, position: int) -> None:
    if manifest.first_seq > position:
        verdict.missing_hops += manifest.first_seq - position
        verdict.add(
            "integrity.missing_hops", f"hops {position} to {manifest.first_seq - 1} are in no manifest", seq=position
        )
        return
    verdict.add(
        "integrity.overlapping_manifests",
        f"hops from {manifest.first_seq} are announced a second time",
        file=fact.path,
        seq=manifest.first_seq,
    )


def _has_signed_root(verdict: Verdict, fact: ManifestFact, manifest: Manifest, tree: Frontier) -> bool:
    signed = manifest.signed_checkpoint()
    if tree.root() == signed.root:
        return True
    verdict.add(
        "integrity.root_mismatch",
        f"{manifest.end} hops lead to root {tree.root().hex()[:16]}..., signed is {signed.root.hex()[:16]}...",
        file=fact.path,
        seq=manifest.first_seq,
    )
    return False


def _prove_earlier(
    verdict: Verdict, fact: ManifestFact, manifest: Manifest, pinned: list[Verifier], is_pinning: bool
) -> int:
    """Number of checkpoints kept by a compaction that are signed and are prefixes of the manifest's own one."""
    roots = {manifest.end: manifest.signed_checkpoint().root}
    proven = 0
    for earlier in reversed(manifest.earlier):
        try:
            signed = parse_checkpoint(earlier.note)
            if earlier.end not in roots:
                raise CheckpointError(f"a checkpoint of {earlier.end} hops, which it builds on, is missing")
            proof = [bytes.fromhex(item) for item in earlier.proof]
            verify_consistency(signed.size, signed.root, earlier.end, roots[earlier.end], proof)
        except (CheckpointError, ValueError) as error:
            verdict.add("integrity.root_mismatch", f"an earlier checkpoint: {error}", file=fact.path)
            continue
        roots[signed.size] = signed.root
        proven += _check_signature(verdict, fact, manifest, pinned, is_pinning, earlier.note)
    return proven


def _check_signature(
    verdict: Verdict,
    fact: ManifestFact,
    manifest: Manifest,
    pinned: list[Verifier],
    is_pinning: bool,
    note: str | None = None,
) -> bool:
    try:
        verifiers = pinned if is_pinning else [parse_verifier(manifest.key)]
        verify_checkpoint(note or manifest.checkpoint, verifiers)
    except CheckpointError as error:
        verdict.add("integrity.bad_signature", str(error), file=fact.path, seq=manifest.first_seq)
        return False
    return True


def _judge_file(
    verdict: Verdict,
    manifest: Manifest,
    file: SealedFile,
    fact: FileFact | None,
    is_gone: bool,
    last_at_us: int | None,
) -> int | None:
    """Record what is wrong with one file; returns the time of its last hop."""
    if fact is None or fact.part is None:
        verdict.missing_hops += file.rows
        why = "it is gone" if fact is None else fact.error or "it is gone"
        verdict.add_file("integrity.missing_file", f"hops {file.first_seq} to {file.end - 1}: {why}", file)
        return last_at_us
    part = fact.part
    verdict.hops += part.rows
    if is_gone:
        verdict.add_file("integrity.missing_file", "it was read by an earlier run and is now missing", file)
    _judge_rows(verdict, manifest, file, part)
    if last_at_us is not None and part.first_at_us < last_at_us:
        verdict.backwards += 1
        verdict.add_file("integrity.time_backwards", "at the start of this file", file, part.first_seq)
    if fact.kept_error is not None:
        check = "integrity.kept_unsigned" if fact.kept_error == UNSIGNED else "integrity.kept_lost"
        verdict.add_file(check, f"the fields retained of removed bytes: {fact.kept_error}", file)
    if not fact.is_proven(file, manifest.server):
        if not any(item.file == file.path and item.check not in _HARMLESS for item in verdict.breaks):
            text = f"hops {file.first_seq} to {file.end - 1} do not lead to the announced root"
            verdict.add_file("integrity.subtree_mismatch", text, file)
        return part.last_at_us
    if (part.first_at_us, part.last_at_us) != (file.first_at_us, file.last_at_us):
        verdict.add_file("integrity.false_times", "its manifest states other times than its hops have", file)
    if not fact.is_whole:
        text = "its bytes differ from the manifest, but its hops are the same"
        verdict.add_file("integrity.file_rewritten", text, file)
    return part.last_at_us


def _judge_rows(verdict: Verdict, manifest: Manifest, file: SealedFile, part: Part) -> None:
    if part.servers != [manifest.server]:
        others = ", ".join(name for name in part.servers if name != manifest.server)
        verdict.add_file("integrity.foreign_rows", f"has rows of {others}", file, part.first_seq)
    if part.invalid:
        rows = "row differs" if part.invalid == 1 else "rows differ"
        text = f"{part.invalid} {rows} from what was sealed, first at hop {part.first_invalid}"
        verdict.add("integrity.altered_row", text, file=file.path, seq=part.first_invalid)
    if part.breaks or part.first_seq != file.first_seq or part.rows != file.rows:
        _note_order(verdict, file, part)
    if part.backwards:
        verdict.backwards += part.backwards
        text = f"{part.backwards} times"
        verdict.add("integrity.time_backwards", text, file=file.path, seq=part.first_backwards)


def _note_order(verdict: Verdict, file: SealedFile, part: Part) -> None:
    lacking = max(0, file.rows - part.rows)
    extra = max(0, part.rows - file.rows)
    verdict.missing_hops += lacking
    verdict.repeated_hops += extra
    first = part.first_break if part.first_break is not None else min(part.first_seq, file.first_seq)
    if part.first_break is None and part.first_seq == file.first_seq:
        first = part.last_seq + 1
    check = "integrity.removed_rows" if lacking else "integrity.repeated_rows" if extra else "integrity.order"
    text = f"{part.rows} rows, but {file.rows} were sealed; the order breaks at hop {first}"
    verdict.add_file(check, text, file, first)


def slug_of(path: str) -> str:
    """The server that a file's key names."""
    name = parse_data_key(path)
    return "" if name is None else name.slug


def _fabric(server: str) -> str | None:
    try:
        return name_of(server)
    except ValueError:
        return None
