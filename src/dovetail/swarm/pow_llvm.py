"""The proof-of-work search over 16, 8 or 4 nonces at once, compiled by LLVM for the machine it runs on.

Theory of operation. SHA-256 works on 32-bit words, and nonces are independent of each other, so each vector lane
carries one nonce. This module generates the search as LLVM text: straight-line code for the 64 rounds, on
`<lanes x i32>` values, 16 lanes if the processor has AVX-512, 8 with AVX2, 4 otherwise (SSE2, NEON). The nonce is in
the first block of the preimage, bytes 7 to 14:

    word 1 = 79 10 05 n0    word 2 = n1 n2 n3 n4    word 3 = n5 n6 n7 t0      (n0 is the nonce's lowest byte)

so no midstate can be shared, but blocks 2 to n are the same for every nonce: `expand` prepares their message schedule
(with the round constants added) once per message, and the rounds take each word by a broadcast from memory.

Only the first word of the digest is compared here, against the first word of the target; hashlib then checks a
candidate fully, and the search continues after it if it fails. Compiled functions are called through ctypes, which
releases the interpreter lock, so threads search in parallel. Compiling takes about 0.3 s, once per process.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Final

import llvmlite.binding as llvm  # type: ignore[import-untyped]

from dovetail.swarm.content import NONCES, WORK_NONCE_OFFSET, with_nonce, work_of, work_preimage

BLOCK_BYTES: Final = 64
_ROUNDS: Final = 64
_INITIAL: Final = (
    0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19,
)  # fmt: skip


def _round_constants() -> list[int]:
    """The first 32 bits of the fractional parts of the cube roots of the first 64 primes."""
    primes: list[int] = []
    number = 2
    while len(primes) < _ROUNDS:
        if all(number % prime for prime in primes):
            primes.append(number)
        number += 1
    return [_cube_root(prime << 96) & 0xFFFFFFFF for prime in primes]


def _cube_root(value: int) -> int:
    low, high = 0, 1 << (value.bit_length() // 3 + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**3 <= value else (low, middle - 1)
    return low


class _Writer:
    """Writes straight-line LLVM text over one word type: `i32` or `<lanes x i32>`."""

    def __init__(self, lanes: int, prefix: str) -> None:
        self.lanes = lanes
        self.type = "i32" if lanes == 1 else f"<{lanes} x i32>"
        self._suffix = "i32" if lanes == 1 else f"v{lanes}i32"
        self._prefix = prefix
        self._names = 0
        self.lines: list[str] = []

    def _name(self) -> str:
        self._names += 1
        return f"%{self._prefix}{self._names}"

    def emit(self, text: str) -> str:
        name = self._name()
        self.lines.append(f"{name} = {text}")
        return name

    def constant(self, value: int) -> str:
        signed = value - (1 << 32) if value >> 31 else value
        return str(signed) if self.lanes == 1 else f"splat (i32 {signed})"

    def add(self, first: str, *others: str) -> str:
        for other in others:
            first = self.emit(f"add {self.type} {first}, {other}")
        return first

    def xor(self, first: str, *others: str) -> str:
        for other in others:
            first = self.emit(f"xor {self.type} {first}, {other}")
        return first

    def both(self, first: str, second: str) -> str:
        return self.emit(f"and {self.type} {first}, {second}")

    def either(self, first: str, second: str) -> str:
        return self.emit(f"or {self.type} {first}, {second}")

    def shift_right(self, word: str, bits: int) -> str:
        return self.emit(f"lshr {self.type} {word}, {self.constant(bits)}")

    def shift_left(self, word: str, bits: int) -> str:
        return self.emit(f"shl {self.type} {word}, {self.constant(bits)}")

    def rotate(self, word: str, bits: int) -> str:
        operands = f"{self.type} {word}, {self.type} {word}, {self.type} {self.constant(bits)}"
        return self.emit(f"call {self.type} @llvm.fshr.{self._suffix}({operands})")

    def swap_bytes(self, word: str) -> str:
        return self.emit(f"call {self.type} @llvm.bswap.{self._suffix}({self.type} {word})")

    def splat(self, scalar: str) -> str:
        if self.lanes == 1:
            return scalar
        one = self.emit(f"insertelement {self.type} poison, i32 {scalar}, i64 0")
        return self.emit(f"shufflevector {self.type} {one}, {self.type} poison, <{self.lanes} x i32> zeroinitializer")

    def load(self, pointer: str, index: str | int) -> str:
        address = self.emit(f"getelementptr inbounds i32, ptr {pointer}, i64 {index}")
        return self.emit(f"load i32, ptr {address}, align 4")

    def next_schedule_word(self, words: list[str]) -> str:
        """FIPS 180-4, 6.2.2 step 1, from the 16 words before."""
        w15, w2 = words[1], words[14]
        small0 = self.xor(self.rotate(w15, 7), self.rotate(w15, 18), self.shift_right(w15, 3))
        small1 = self.xor(self.rotate(w2, 17), self.rotate(w2, 19), self.shift_right(w2, 10))
        return self.add(words[0], small0, words[9], small1)

    def round(self, state: list[str], scheduled: str) -> list[str]:
        """FIPS 180-4, 6.2.2 step 3; `scheduled` is the schedule word with the round constant added."""
        a, b, c, d, e, f, g, h = state
        big1 = self.xor(self.rotate(e, 6), self.rotate(e, 11), self.rotate(e, 25))
        choose = self.xor(g, self.both(e, self.xor(f, g)))
        temporary1 = self.add(self.add(h, scheduled), choose, big1)
        big0 = self.xor(self.rotate(a, 2), self.rotate(a, 13), self.rotate(a, 22))
        majority = self.either(self.both(a, b), self.both(c, self.either(a, b)))
        return [self.add(temporary1, self.add(big0, majority)), a, b, c, self.add(d, temporary1), e, f, g]


def _expand_text() -> str:
    """`expand(words, scheduled, blocks)`: the schedules of whole blocks, round constants added."""
    writer = _Writer(1, "x")
    constants = _round_constants()
    words = [writer.load("%block", index) for index in range(16)]
    for index in range(_ROUNDS):
        if index >= 16:
            words = [*words[1:], writer.next_schedule_word(words)]
        word = words[15] if index >= 16 else words[index]
        scheduled = writer.add(word, writer.constant(constants[index]))
        address = writer.emit(f"getelementptr inbounds i32, ptr %out, i64 {index}")
        writer.lines.append(f"store i32 {scheduled}, ptr {address}, align 4")
    body = "\n  ".join(writer.lines)
    return f"""
define void @expand(ptr %words, ptr %scheduled, i64 %blocks) {{
entry:
  %none = icmp eq i64 %blocks, 0
  br i1 %none, label %done, label %each
each:
  %number = phi i64 [ 0, %entry ], [ %following, %each ]
  %first = mul i64 %number, 16
  %block = getelementptr inbounds i32, ptr %words, i64 %first
  %place = mul i64 %number, 64
  %out = getelementptr inbounds i32, ptr %scheduled, i64 %place
  {body}
  %following = add i64 %number, 1
  %finished = icmp eq i64 %following, %blocks
  br i1 %finished, label %done, label %each
done:
  ret void
}}
"""


def _first_block(writer: _Writer) -> list[str]:
    """The compression of block one, whose words 1 to 3 carry the nonce of each lane."""
    lanes = writer.lanes
    wide = f"<{lanes} x i64>"
    numbers = ", ".join(f"i64 {lane}" for lane in range(lanes))
    one = writer.emit(f"insertelement {wide} poison, i64 %nonce, i64 0")
    base = writer.emit(f"shufflevector {wide} {one}, {wide} poison, <{lanes} x i32> zeroinitializer")
    nonces = writer.emit(f"add {wide} {base}, <{numbers}>")
    low = writer.emit(f"trunc {wide} {nonces} to {writer.type}")
    upper = writer.emit(f"lshr {wide} {nonces}, splat (i64 32)")
    high = writer.emit(f"trunc {wide} {upper} to {writer.type}")

    words = [writer.splat(writer.load("%first", index)) for index in range(16)]
    words[1] = writer.either(words[1], writer.both(low, writer.constant(0xFF)))
    words[2] = writer.swap_bytes(writer.either(writer.shift_right(low, 8), writer.shift_left(high, 24)))
    words[3] = writer.either(words[3], writer.swap_bytes(writer.shift_right(high, 8)))

    initial = [writer.constant(value) for value in _INITIAL]
    state = initial
    for index, constant in enumerate(_round_constants()):
        if index >= 16:
            words = [*words[1:], writer.next_schedule_word(words)]
        word = words[15] if index >= 16 else words[index]
        state = writer.round(state, writer.add(word, writer.constant(constant)))
    return [writer.add(value, before) for value, before in zip(state, initial, strict=True)]


def _search_text(lanes: int) -> str:
    """`search(first, scheduled, blocks, start, turns, limit)`: the offset of the first candidate, or -1."""
    opening = _Writer(lanes, "a")
    first = _first_block(opening)
    inner = _Writer(lanes, "b")
    state = [f"%s{index}" for index in range(8)]
    mixed = state
    for index in range(_ROUNDS):
        mixed = inner.round(mixed, inner.splat(inner.load("%block", index)))
    chained = [inner.add(value, before) for value, before in zip(mixed, state, strict=True)]
    vector = opening.type

    def phis(names: str, values: list[str]) -> str:
        joined = zip(first, values, strict=True)
        return "\n  ".join(
            f"%{names}{index} = phi {vector} [ {a}, %turn ], [ {b}, %blockwise ]" for index, (a, b) in enumerate(joined)
        )

    head, body = "\n  ".join(opening.lines), "\n  ".join(inner.lines)
    return f"""
define i64 @search(ptr %first, ptr %scheduled, i64 %blocks, i64 %start, i64 %turns, i32 %limit) #0 {{
entry:
  %one = insertelement {vector} poison, i32 %limit, i64 0
  %limits = shufflevector {vector} %one, {vector} poison, <{lanes} x i32> zeroinitializer
  br label %turn
turn:
  %number = phi i64 [ 0, %entry ], [ %following, %missed ]
  %offset = mul i64 %number, {lanes}
  %nonce = add i64 %start, %offset
  {head}
  %single = icmp eq i64 %blocks, 0
  br i1 %single, label %judge, label %blockwise
blockwise:
  %at = phi i64 [ 0, %turn ], [ %after, %blockwise ]
  {phis("s", chained)}
  %place = mul i64 %at, 64
  %block = getelementptr inbounds i32, ptr %scheduled, i64 %place
  {body}
  %after = add i64 %at, 1
  %finished = icmp eq i64 %after, %blocks
  br i1 %finished, label %judge, label %blockwise
judge:
  %word = phi {vector} [ {first[0]}, %turn ], [ {chained[0]}, %blockwise ]
  %below = icmp ule {vector} %word, %limits
  %bits = bitcast <{lanes} x i1> %below to i{lanes}
  %any = icmp ne i{lanes} %bits, 0
  br i1 %any, label %found, label %missed
missed:
  %following = add i64 %number, 1
  %over = icmp eq i64 %following, %turns
  br i1 %over, label %nothing, label %turn
found:
  %lane = call i{lanes} @llvm.cttz.i{lanes}(i{lanes} %bits, i1 true)
  %lane64 = zext i{lanes} %lane to i64
  %result = add i64 %offset, %lane64
  ret i64 %result
nothing:
  ret i64 -1
}}
"""


MAX_LANES: Final = 16
"""The number of lanes with AVX-512."""


def host_lanes() -> int:
    """How many 32-bit lanes the widest vectors of this machine have."""
    features = llvm.get_host_cpu_features()
    if features.get("avx512f") and features.get("avx512bw"):
        return MAX_LANES
    return 8 if features.get("avx2") else 4


@functools.cache
def _compile(lanes: int) -> tuple[Any, Any, Any]:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    width = lanes * 32
    suffix = f"v{lanes}i32"
    vector = f"<{lanes} x i32>"
    text = f"""
declare {vector} @llvm.fshr.{suffix}({vector}, {vector}, {vector})
declare {vector} @llvm.bswap.{suffix}({vector})
declare i32 @llvm.fshr.i32(i32, i32, i32)
declare i{lanes} @llvm.cttz.i{lanes}(i{lanes}, i1)
{_expand_text()}
{_search_text(lanes)}
attributes #0 = {{ nounwind "min-legal-vector-width"="{width}" "prefer-vector-width"="{width}" }}
"""
    module = llvm.parse_assembly(text)
    module.verify()
    target = llvm.Target.from_default_triple()
    features = llvm.get_host_cpu_features()
    if lanes < MAX_LANES:
        # build what a machine without AVX-512 would run: AVX-512 instructions also speed up narrow vectors
        features.update({name: False for name in features if name.startswith("avx512")})
    machine = target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=3, jit=True)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    words = ctypes.POINTER(ctypes.c_uint32)
    expand = ctypes.CFUNCTYPE(None, words, words, ctypes.c_uint64)(engine.get_function_address("expand"))
    search = ctypes.CFUNCTYPE(
        ctypes.c_int64, words, words, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32
    )(engine.get_function_address("search"))
    return engine, expand, search


class VectorSearch:
    """The search with the machine's vectors; one instance may be used by many threads."""

    def __init__(self, lanes: int | None = None) -> None:
        self.lanes = lanes or host_lanes()
        self.name = f"llvm, {self.lanes} lanes"
        self._engine, self._expand, self._search = _compile(self.lanes)

    def find(self, message: bytes, target: int, start: int, count: int) -> int | None:
        """See `pow.WorkSearch.find`; `count` is rounded up to whole vectors."""
        first, scheduled, blocks = self._prepare(message)
        limit = min(target >> 224, 0xFFFFFFFF)
        examined = 0
        while examined < count:
            turns = -(-(count - examined) // self.lanes)
            nonce = (start + examined) % NONCES
            offset: int = self._search(first, scheduled, blocks, nonce, turns, limit)
            if offset < 0:
                return None
            candidate = (nonce + offset) % NONCES
            if int.from_bytes(work_of(with_nonce(message, candidate))) < target:
                return candidate
            examined += offset + 1
        return None

    def _prepare(self, message: bytes) -> tuple[Any, Any, int]:
        preimage = work_preimage(message)
        head, tail = preimage[:WORK_NONCE_OFFSET], preimage[WORK_NONCE_OFFSET + 8 :]
        padded = head + bytes(8) + tail + b"\x80"
        padded += bytes(-(len(padded) + 8) % BLOCK_BYTES) + (8 * len(preimage)).to_bytes(8)
        words = [int.from_bytes(padded[at : at + 4]) for at in range(0, len(padded), 4)]
        blocks = len(padded) // BLOCK_BYTES - 1
        first = (ctypes.c_uint32 * 16)(*words[:16])
        rest = (ctypes.c_uint32 * max(1, len(words) - 16))(*words[16:])
        scheduled = (ctypes.c_uint32 * max(1, 64 * blocks))()
        self._expand(rest, scheduled, blocks)
        return first, scheduled, blocks
