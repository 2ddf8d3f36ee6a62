"""A synthetic lake for the audit's benchmark, written column by column directly in the lake's layout.

Most of it belongs to one swarm peer, or to several that each hold all messages of the swarm; a broker and two nodes add
their shares. Every file is a subtree of its journal's tree, every manifest is signed, and every address and leaf is the
correct hash, so the audit treats it like any other lake.

Each swarm file is generated from its own seed, so that several processes can write files in parallel. Its messages
refer to those of the previous chunk, some to the previous large file; one reference in ten thousand has a parent that
does not exist.
"""

from __future__ import annotations

import hashlib
import random
import uuid
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dovetail.audit.settings import AuditSettings
from dovetail.fabrics import name_of
from dovetail.lake.layout import data_key, manifest_prefix, range_manifest_name
from dovetail.lake.manifest import MANIFEST_FORMAT, Manifest, SealedFile, encode_manifest
from dovetail.lake.rows import LAKE_SCHEMA
from dovetail.lake.snapshot import commit
from dovetail.lake.store import LocalStore
from dovetail.model.address import Address, address_of
from dovetail.model.fabric import Agreement
from dovetail.model.hop import Hop, Stage
from dovetail.model.times import time_text
from dovetail.pcp.codec_v1 import encode_frame
from dovetail.pcp.envelope import Envelope
from dovetail.swarm import content as c
from dovetail.tlog.checkpoint import Checkpoint, sign_checkpoint
from dovetail.tlog.keys import Signer
from dovetail.tlog.leaf import NO_DIGEST, encode_entry
from dovetail.tlog.tree import Frontier, aligned_ranges, fold_perfect, hash_leaf
from dovetail.won import compose, vocabulary
from dovetail.won.message import Message
from dovetail.won.signing import SigningKey
from dovetail.won.vocabulary import Direction, MessageType

BROKER = "pcp://bench/server"
NODE_A, NODE_B = "https://a.bench/won/resource", "https://b.bench/won/resource"
PEER_LAG_MS = 5
"""How much later each peer accepts a message than the peer before it."""
T0_MS = 1_763_164_800_000
MAX_LEVEL = 18
CHUNK = 8192
PAYLOAD_BYTES = 160
TTL_EPOCHS = 60
"""One hour: in lakes of more than 4 million messages, as many expire between two runs as are added."""
_GAP_SHARE = 1e-4
_FAR_SHARE = 0.2
_ENTRY_HEAD = b"\x00\x01"
_ENTRY_TAIL = b"\x08accepted\x00\x00\x00"
_HASH_BYTES = 32

POW_TARGET = (1 << 256) - (1 << 256) // 10_000
"""One message in ten thousand lacks work: mining ten million would take longer than anything measured here."""

AGREEMENT = Agreement(epoch_ms=c.ContentRules().epoch_ms, work_target=POW_TARGET)
SETTINGS = AuditSettings(agreements={"": AGREEMENT})
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Shares:
    """How many messages of each fabric."""

    swarm: int
    pcp: int
    won: int

    @classmethod
    def of(cls, swarm: int) -> Shares:
        """5 % pcp relative to the swarm; at most 30,000 won messages, since signing makes them slow to generate."""
        return cls(swarm, swarm // 20, min(swarm // 100, 30_000))


class LakeWriter:
    """Writes a lake and adds to it, one manifest per server and call."""

    def __init__(self, lake: Path, processes: int = 2, peers: int = 1, form: int = MANIFEST_FORMAT) -> None:
        self.lake = lake
        self.processes = processes
        self.peers = peers
        self.form = form
        self._trees: dict[str, Frontier] = {}
        self._numbers: dict[str, int] = {}
        self._large: tuple[int, int] | None = None

    def seal(self, shares: Shares) -> int:
        """Add these messages, announce them, and return the number of hops."""
        before = sum(tree.size for tree in self._trees.values())
        if shares.swarm:
            self._seal_swarm(shares.swarm)
        if shares.pcp:
            self._seal_hops(BROKER, pcp_hops(shares.pcp, self._size(BROKER)))
        if shares.won:
            at_a, at_b = won_hops(shares.won, self._size(NODE_A), self._size(NODE_B))
            self._seal_hops(NODE_A, at_a)
            self._seal_hops(NODE_B, at_b)
        return sum(tree.size for tree in self._trees.values()) - before

    def _size(self, server: str) -> int:
        return self._trees.setdefault(server, Frontier()).size

    def _seal_swarm(self, count: int) -> None:
        first = self._size(peer_name(0))
        ranges = aligned_ranges(first, first + count, MAX_LEVEL)
        before = []
        for own in ranges:
            before.append(self._large)
            if 1 << own[1] >= CHUNK:
                self._large = own
        with ProcessPoolExecutor(self.processes) as pool:
            files = list(pool.map(partial(write_swarm_files, self.lake, self.peers), before, ranges))
        for number in range(self.peers):
            self._size(peer_name(number))
            self._announce(peer_name(number), [of_peers[number] for of_peers in files])

    def _seal_hops(self, server: str, hops: list[Hop]) -> None:
        first = self._size(server)
        files = []
        for start, level in aligned_ranges(first, first + len(hops), MAX_LEVEL):
            rows = hops[start - first : start - first + (1 << level)]
            digests = [NO_DIGEST if hop.raw is None else hashlib.sha256(hop.raw).digest() for hop in rows]
            leaves = [hash_leaf(encode_entry(hop, digest)) for hop, digest in zip(rows, digests, strict=True)]
            table = pa.table(
                [
                    [server] * len(rows),
                    [hop.seq for hop in rows],
                    pa.array([hop.at_us for hop in rows], pa.int64()).cast(LAKE_SCHEMA.field("at").type),
                    [str(hop.stage) for hop in rows],
                    [hop.message for hop in rows],
                    [hop.counterpart for hop in rows],
                    [None] * len(rows),
                    [hop.raw for hop in rows],
                    [hop.size for hop in rows],
                    [None if digest == NO_DIGEST else digest for digest in digests],
                    [leaf[:8] for leaf in leaves],
                ],
                schema=LAKE_SCHEMA,
            )
            files.append(write_file(self.lake, server, table, fold_perfect(leaves)))
        self._announce(server, files)

    def _announce(self, server: str, files: list[SealedFile]) -> None:
        tree = self._trees[server]
        first = tree.size
        for file in files:
            tree.append(bytes.fromhex(file.root), file.level)
        signer = Signer(server, Ed25519PrivateKey.from_private_bytes(key_seed(server)))
        manifest = Manifest(
            format=self.form,
            server=server,
            fabric=name_of(server),
            key=signer.verifier.text(),
            checkpoint=sign_checkpoint(Checkpoint(server, tree.size, tree.root()), signer).note,
            frontier=[peak.hex() for peak in tree.peaks()],
            files=files,
        )
        store = LocalStore(self.lake)
        if self.form != MANIFEST_FORMAT:  # without numbers: named after its hops
            name = range_manifest_name(first, tree.size)
            assert store.create(f"{manifest_prefix(server)}{name}.json", encode_manifest(manifest))
            return
        self._numbers[server] = self._numbers.get(server, -1) + 1
        assert commit(store, manifest, self._numbers[server], lambda _: True) is not None


def key_seed(owner: str) -> bytes:
    """The secret key of a server or party of this lake."""
    return hashlib.sha256(owner.encode()).digest()


# swarm, by columns


def peer_name(number: int) -> str:
    """The name of the peer with this number."""
    return f"swarm://bench/{number:040x}"


def write_swarm_files(
    lake: Path, peers: int, previous: tuple[int, int] | None, own: tuple[int, int]
) -> list[SealedFile]:
    """Write one file per peer, given its range (first position and level) and that of the large file before it."""
    first, end = own[0], own[0] + (1 << own[1])
    tables: list[list[pa.Table]] = [[] for _ in range(peers)]
    leaves: list[list[bytes]] = [[] for _ in range(peers)]
    before = None if previous is None else first_keys(*previous)
    parents = before
    for start in range(first, end, CHUNK):
        rows = min(CHUNK, end - start)
        raw, offsets = swarm_messages(start, rows, None if start == first else parents, before)
        addresses = hash_slices(raw, offsets)
        parents = np.frombuffer(addresses, np.uint8).reshape(rows, _HASH_BYTES)[:, : c.HASH_BYTES]
        for number in range(peers):
            hashes = swarm_leaves(number, start, addresses, offsets)
            tables[number].append(swarm_table(number, start, raw, offsets, addresses, hashes))
            leaves[number].append(hashes)
    return [
        write_file(lake, peer_name(number), pa.concat_tables(tables[number]), fold_bytes(b"".join(leaves[number])))
        for number in range(peers)
    ]


def first_keys(first: int, level: int) -> Bytes:
    """The keys of the first messages of a file; they have no references, so the seed alone reproduces them."""
    rows = min(CHUNK, 1 << level)
    raw, offsets = swarm_messages(first, rows, None, None)
    return np.frombuffer(hash_slices(raw, offsets), np.uint8).reshape(rows, _HASH_BYTES)[:, : c.HASH_BYTES]


def swarm_messages(first: int, rows: int, parents: Bytes | None, before: Bytes | None) -> tuple[bytes, list[int]]:
    """Messages from position `first` as one buffer with offsets; without `parents` they refer to nothing."""
    rng = np.random.default_rng(first)
    counts = rng.integers(0, c.MAX_REFERENCES + 1, rows) if parents is not None else np.zeros(rows, np.int64)
    times = T0_MS + np.arange(first, first + rows)
    head = c.FIXED_BYTES + c.MAX_REFERENCES * c.REFERENCE_BYTES
    matrix = np.zeros((rows, head + PAYLOAD_BYTES), np.uint8)
    matrix[:, :3] = (c.INDICATOR, c.OPCODE_CONTENT, c.VERSION)
    matrix[:, c.NONCE_OFFSET : c.TIME_OFFSET] = rng.integers(0, 256, (rows, 8), np.uint8)
    matrix[:, c.TIME_OFFSET : c.TTL_OFFSET] = times.astype("<u8").view(np.uint8).reshape(rows, 8)[:, :6]
    matrix[:, c.TTL_OFFSET : c.FLAGS_OFFSET] = np.frombuffer(TTL_EPOCHS.to_bytes(2, "little"), np.uint8)
    matrix[:, c.FLAGS_OFFSET] = counts
    matrix[:, head:] = rng.integers(0, 256, (rows, PAYLOAD_BYTES), np.uint8)
    if parents is not None:
        for ordinal in range(c.MAX_REFERENCES):
            at = c.FIXED_BYTES + ordinal * c.REFERENCE_BYTES
            chosen = parents[rng.integers(0, len(parents), rows)]
            if before is not None:
                far = rng.random(rows) < _FAR_SHARE
                chosen[far] = before[rng.integers(0, len(before), far.sum())]
            lost = rng.random(rows) < _GAP_SHARE
            chosen[lost] = rng.integers(0, 256, (lost.sum(), c.HASH_BYTES), np.uint8)
            matrix[:, at : at + c.HASH_BYTES] = chosen
    columns = np.arange(matrix.shape[1])
    ends = c.FIXED_BYTES + counts * c.REFERENCE_BYTES
    kept = (columns < ends[:, None]) | (columns >= head)
    offsets = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
    return matrix[kept].tobytes(), offsets.tolist()


def swarm_leaves(number: int, first: int, addresses: bytes, offsets: list[int]) -> bytes:
    """The leaf hashes of a peer's hops; entries are encoded as in `journal.layout`."""
    rows = len(offsets) - 1
    seqs = np.arange(first, first + rows)
    digests = np.frombuffer(addresses, np.uint8).reshape(rows, _HASH_BYTES)
    entries = np.concatenate(
        [
            np.tile(np.frombuffer(_ENTRY_HEAD, np.uint8), (rows, 1)),
            seqs.astype(">u8").view(np.uint8).reshape(rows, 8),
            ((T0_MS + seqs + number * PEER_LAG_MS) * 1000).astype(">i8").view(np.uint8).reshape(rows, 8),
            digests,
            digests,
            np.diff(offsets).astype(">u8").view(np.uint8).reshape(rows, 8),
            np.tile(np.frombuffer(_ENTRY_TAIL, np.uint8), (rows, 1)),
        ],
        axis=1,
    )
    width = entries.shape[1]
    return hash_slices(entries.tobytes(), list(range(0, rows * width + 1, width)))


def swarm_table(number: int, first: int, raw: bytes, offsets: list[int], addresses: bytes, leaves: bytes) -> pa.Table:
    """A peer's hops in the schema of a file of the lake."""
    rows = len(offsets) - 1
    address = fixed_binary(addresses, _HASH_BYTES)
    shorts = np.frombuffer(leaves, np.uint8).reshape(rows, _HASH_BYTES)[:, :8].tobytes()
    seqs = np.arange(first, first + rows)
    return pa.table(
        [
            pa.array([peer_name(number)]).take(pa.array(np.zeros(rows, np.int32))),
            seqs,
            pa.array((T0_MS + seqs + number * PEER_LAG_MS) * 1000).cast(LAKE_SCHEMA.field("at").type),
            pa.array([Stage.ACCEPTED.value]).take(pa.array(np.zeros(rows, np.int32))),
            address,
            pa.nulls(rows, pa.string()),
            pa.nulls(rows, pa.string()),
            binary(raw, np.array(offsets, np.int32)),
            np.diff(offsets),
            address,
            fixed_binary(shorts, 8),
        ],
        schema=LAKE_SCHEMA,
    )


def hash_slices(data: bytes, offsets: list[int]) -> bytes:
    """SHA-256 of each slice, concatenated."""
    sha256 = hashlib.sha256
    return b"".join([sha256(data[start:end]).digest() for start, end in pairwise(offsets)])


def fold_bytes(leaves: bytes) -> bytes:
    """The root of a perfect subtree from its concatenated leaf hashes."""
    sha256 = hashlib.sha256
    while len(leaves) > _HASH_BYTES:
        leaves = b"".join([sha256(b"\x01" + leaves[i : i + 64]).digest() for i in range(0, len(leaves), 64)])
    return leaves


def fixed_binary(data: bytes, width: int) -> pa.Array:
    """Values of one width as a binary column."""
    return binary(data, np.arange(0, len(data) + 1, width, dtype=np.int32))


def binary(data: bytes, offsets: npt.NDArray[np.int32]) -> pa.Array:
    """A binary column over one buffer."""
    return pa.Array.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data)]
    )


def write_file(lake: Path, server: str, table: pa.Table, root: bytes) -> SealedFile:
    """Write one file of the lake as sealing does."""
    first, rows = table["seq"][0].as_py(), table.num_rows
    times = table["at"].cast(pa.int64())
    date = table["at"][0].as_py().date()
    path = lake / data_key(server, name_of(server), date, first, first + rows, root.hex()[:8])
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression="zstd", use_dictionary=["server", "stage", "counterpart"])
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return SealedFile(
        path=str(path.relative_to(lake)),
        first_seq=first,
        rows=rows,
        first_at_us=times[0].as_py(),
        last_at_us=times[-1].as_py(),
        bytes=path.stat().st_size,
        sha256=digest,
        root=root.hex(),
    )


# pcp and won, message by message


def pcp_hops(messages: int, first: int) -> list[Hop]:
    """Messages through one broker, every third an answer to the one before; all but one in a hundred are delivered."""
    rng = random.Random(first)
    hops: list[Hop] = []
    asked: str | None = None
    for number in range(messages):
        at_us = T0_MS * 1000 + (first + len(hops)) * 10_000
        sender, target = (f"pcp://agent{rng.randrange(1000)}/agent" for _ in range(2))
        before = asked if asked is not None and number % 3 == 1 else msgspec.UNSET
        asked = str(uuid.UUID(int=rng.getrandbits(128)))
        expires = time_text(at_us + 3600 * 1_000_000)
        raw = encode_frame(
            Envelope(asked, "http://bench/work", expires, [target], sender, in_reply_to=before), b'{"n":%d}' % number
        )
        hops.append(_hop(BROKER, first + len(hops), at_us, Stage.ACCEPTED, address_of(raw), sender, raw))
        if number % 100:
            hops.append(_hop(BROKER, first + len(hops), at_us + 400, Stage.DELIVERED, address_of(raw), target))
    return hops


def won_hops(messages: int, first_a: int, first_b: int) -> tuple[list[Hop], list[Hop]]:
    """Conversations across two nodes, three messages a chain; the first sealing also has both atoms' Creates."""
    atoms = {node: f"{node}/atom/one" for node in (NODE_A, NODE_B)}
    keys = {owner: SigningKey(key_seed(owner)) for owner in (*atoms, *atoms.values())}
    logs: dict[str, list[Hop]] = {NODE_A: [], NODE_B: []}
    firsts = {NODE_A: first_a, NODE_B: first_b}

    def see(node: str, at_us: int, stage: Stage, message: Message, who: str | None, *, keep: bool) -> None:
        seq = firsts[node] + len(logs[node])
        logs[node].append(_hop(node, seq, at_us, stage, message.address, who, message.raw if keep else None))

    start_ms = T0_MS + (first_a + first_b) * 100
    if not first_a:
        for node, atom in atoms.items():
            create = compose.compose(
                type=MessageType.CREATE,
                direction=Direction.OWNER,
                signer=atom,
                key=keys[atom],
                timestamp_ms=start_ms,
                envelope=[(vocabulary.P_ATOM, f"<{atom}>")],
                content=compose.atom_content(atom, [f"{atom}#chat"], keys[atom].public),
            )
            answer = compose.respond(
                create, success=True, signer=node, key=keys[node], timestamp_ms=start_ms + 1, atom=atom
            )
            see(node, start_ms * 1000, Stage.ACCEPTED, create, atom, keep=True)
            see(node, start_ms * 1000 + 10, Stage.CREATED, answer, None, keep=True)
    chats = [f"{atom}#chat" for atom in atoms.values()]
    for number in range(messages // 3):
        ms = start_ms + number * 500
        said = compose.compose(
            type=MessageType.CONNECTION,
            direction=Direction.OWNER,
            signer=atoms[NODE_A],
            key=keys[atoms[NODE_A]],
            timestamp_ms=ms,
            envelope=compose.socket_pair(*chats),
            content=compose.text_content(f"text {first_a} {number}"),
        )
        answers = []
        for step, (node, own) in enumerate(zip((NODE_A, NODE_B), chats, strict=True), 1):
            answers.append(
                compose.respond(
                    said,
                    success=True,
                    signer=node,
                    key=keys[node],
                    timestamp_ms=ms + step,
                    connection=f"{atoms[node]}/c/one",
                    sender_socket=own,
                    recipient_socket=chats[0],
                )
            )
        at = ms * 1000
        see(NODE_A, at, Stage.ACCEPTED, said, atoms[NODE_A], keep=True)
        see(NODE_A, at + 10, Stage.CREATED, answers[0], None, keep=True)
        see(NODE_A, at + 20, Stage.FORWARDED, said, NODE_B, keep=False)
        see(NODE_B, at + 20_000, Stage.ACCEPTED, said, NODE_A, keep=True)
        see(NODE_B, at + 20_000, Stage.ACCEPTED, answers[0], NODE_A, keep=True)
        see(NODE_B, at + 20_010, Stage.CREATED, answers[1], None, keep=True)
        see(NODE_B, at + 20_020, Stage.DELIVERED, said, atoms[NODE_B], keep=False)
        see(NODE_B, at + 20_030, Stage.FORWARDED, answers[1], NODE_A, keep=False)
        see(NODE_A, at + 40_000, Stage.ACCEPTED, answers[1], NODE_B, keep=True)
    return logs[NODE_A], logs[NODE_B]


def _hop(
    server: str, seq: int, at_us: int, stage: Stage, message: Address, counterpart: str | None, raw: bytes | None = None
) -> Hop:
    return Hop(
        server=server,
        seq=seq,
        at_us=at_us,
        fabric=name_of(server),
        stage=stage,
        message=message,
        counterpart=counterpart,
        raw=raw,
        size=None if raw is None else len(raw),
    )
