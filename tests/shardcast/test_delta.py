"""A delta gives back every byte of the file it was made for, out of its base; from a stranger it gives an error or other bytes,
never a crash and never more memory than a few blocks."""

from __future__ import annotations

import os
import random
import struct
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.errors import IntegrityError, Malformed, Oversized, ProtocolViolation
from protocol.shardcast import delta
from protocol.shardcast.delta import apply, encode

BLOCK = 512  # so that little files have many blocks
CASES, CASES_LONG = 300, 40_000
NO_END = 1 << 40


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of a test has many parts, as one of 4 MiB has."""
    monkeypatch.setattr(delta, "_PART", 32)


class Bench:
    def __init__(self, root: Path) -> None:
        self.base, self.target, self.delta, self.made = (root / name for name in ("base", "target", "delta", "made"))

    def encode(self, base: bytes | None, target: bytes, *, block: int = BLOCK, most: int = NO_END) -> bytes:
        self.target.write_bytes(target)
        if base is not None:
            self.base.write_bytes(base)
        assert encode(None if base is None else self.base, self.target, self.delta, most=most, block_bytes=block)
        return self.delta.read_bytes()

    def apply(self, written: bytes, base: bytes | None, size: int) -> bytes:
        self.delta.write_bytes(written)
        if base is not None:
            self.base.write_bytes(base)
        with self.made.open("w+b") as file:
            apply(self.delta, None if base is None else self.base, file.fileno(), size)
        return self.made.read_bytes()

    def round_trip(self, base: bytes | None, target: bytes, *, block: int = BLOCK) -> int:
        """Bytes that the delta takes."""
        written = self.encode(base, target, block=block)
        assert self.apply(written, base, len(target)) == target
        return len(written)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def weights(count: int, seed: int = 0) -> np.ndarray:
    """bf16 numbers of the spread that weights have, as words."""
    values = np.random.default_rng(seed).normal(0, 0.02, count).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype("<u2")


def stepped(words: np.ndarray, share: float, seed: int = 0) -> np.ndarray:
    """About that share of the words moved to a neighbour."""
    draw = np.random.default_rng(seed)
    moved = words.copy()
    which = draw.random(words.size) < share
    moved[which] += draw.choice(np.array([1, 65535], np.uint16), int(which.sum()))
    return moved


def together(count: int, of: Callable[..., Any]) -> Callable[..., Any]:
    """The same, of which each call waits until `count` threads are in one; more than those never are."""
    barrier, inside = threading.Barrier(count, timeout=20), threading.Semaphore(count)

    def waiting(*given: Any) -> Any:
        assert inside.acquire(blocking=False), f"more than {count} threads"
        try:
            barrier.wait()
            return of(*given)
        finally:
            inside.release()

    return waiting


# ---- what goes in comes out


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_every_file_comes_out_of_its_base_as_it_went_in(bench: Bench, data: st.DataObject) -> None:
    """Words far and near, single bytes and whole stretches changed, of any length, with any base."""
    base = bytearray(data.draw(st.binary(max_size=3000)))
    if data.draw(st.booleans()):
        base = bytearray(weights(data.draw(st.integers(0, 1500))).tobytes() + bytes(data.draw(st.integers(0, 1))))
    target = bytearray(base)
    for _ in range(data.draw(st.integers(0, 8))):
        at = data.draw(st.integers(0, max(0, len(target) - 1)))
        piece = data.draw(st.binary(max_size=data.draw(st.sampled_from([1, 2, 300]))))
        target[at : at + len(piece)] = piece[: len(target) - at] if data.draw(st.integers(0, 9)) else piece
    block = data.draw(st.sampled_from([2, 64, BLOCK, 4096]))
    bench.round_trip(bytes(base) if data.draw(st.integers(0, 5)) else None, bytes(target), block=block)


@pytest.mark.parametrize("share", [0.0, 1e-4, 0.01, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("size", [0, 1, 7, BLOCK, BLOCK + 1, 20 * BLOCK - 3])
def test_weights_with_any_share_changed_come_out_as_they_went_in(bench: Bench, share: float, size: int) -> None:
    words = weights((size + 1) // 2)
    bench.round_trip(words.tobytes()[:size], stepped(words, share).tobytes()[:size])


def test_large_blocks_come_out_as_they_went_in(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "_PART", 1 << 17)
    words = weights(5 << 20)
    size = bench.round_trip(words.tobytes(), stepped(words, 0.01).tobytes(), block=delta.BLOCK_BYTES)
    assert size < words.nbytes / 80


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int8, np.int64, np.float16])
def test_files_of_other_types_come_out_as_they_went_in(bench: Bench, kind: type) -> None:
    values = (np.random.default_rng(1).normal(0, 50, 3001)).astype(kind)
    changed = values.copy()
    changed[::37] += np.array(1, kind)
    bench.round_trip(values.tobytes(), changed.tobytes())


def test_every_distance_between_words_and_every_gap_survives(bench: Bench) -> None:
    """From each number to every other one: a band's gaps around 255 among them."""
    words = np.arange(65536, dtype="<u2")
    bench.round_trip(words.tobytes(), np.random.default_rng(2).permutation(words).tobytes(), block=4096)
    base = np.zeros(20_000, "<u2")
    for gap in (253, 254, 255, 256, 509, 510, 511, 765):
        target = base.copy()
        target[gap :: gap + 1] = 1
        bench.round_trip(base.tobytes(), target.tobytes(), block=delta.BLOCK_BYTES)
        target[0] = target[-1] = 3
        bench.round_trip(base.tobytes(), target.tobytes(), block=delta.BLOCK_BYTES)


def test_a_header_that_grew_or_a_file_that_is_new_goes_whole(bench: Bench) -> None:
    words = weights(4000).tobytes()
    for base in (None, words, b""):
        assert bench.round_trip(base, b"longer header" + words) > len(words) // 2
    assert bench.round_trip(words, words) < 20 * (len(words) // BLOCK + 2)


def test_a_chain_of_deltas_ends_with_the_last_version(bench: Bench) -> None:
    first = words = weights(20_000)
    written = []
    for step in range(8):
        after = stepped(words, 0.02, seed=step)
        written.append(bench.encode(words.tobytes(), after.tobytes()))
        words = after
    made = first.tobytes()
    for one in written:
        made = bench.apply(one, made, len(made))
    assert made == words.tobytes()


def test_a_delta_that_grows_too_large_is_given_up(bench: Bench) -> None:
    words = weights(20_000)
    bench.base.write_bytes(words.tobytes())
    bench.target.write_bytes(np.random.default_rng(0).permutation(words).tobytes())
    assert not encode(bench.base, bench.target, bench.delta, most=words.nbytes // 2, block_bytes=BLOCK)


def test_the_same_step_makes_the_same_delta(bench: Bench) -> None:
    words = weights(20_000)
    made = {bench.encode(words.tobytes(), stepped(words, 0.05).tobytes()) for _ in range(3)}
    assert len(made) == 1


# ---- what is wrong


def test_a_delta_of_another_base_is_refused_by_size_and_gives_other_bytes_otherwise(bench: Bench) -> None:
    words = weights(2000)
    target = stepped(words, 0.05)
    written = bench.encode(words.tobytes(), target.tobytes())
    for base in (None, b"", words.tobytes()[:-2]):
        bench.base.unlink()
        with pytest.raises(IntegrityError, match="another base"):
            bench.apply(written, base, words.nbytes)
        bench.base.write_bytes(b"")
    other = stepped(words, 0.9, seed=9).tobytes()
    with suppress(ProtocolViolation):
        assert bench.apply(written, other, words.nbytes) != target.tobytes()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda d: b"", Malformed),
        (lambda d: d[:10], Malformed),
        (lambda d: b"x" + d[1:], Malformed),
        (lambda d: d[:8] + struct.pack("<H", 2) + d[10:], Malformed),
        (lambda d: d[:10] + struct.pack("<I", delta.BLOCK_BYTES + 2) + d[14:], Oversized),
        (lambda d: d[:10] + struct.pack("<I", 0) + d[14:], Oversized),
        (lambda d: d[:10] + struct.pack("<I", 3) + d[14:], Oversized),
        (lambda d: d[:14] + struct.pack("<Q", 1) + d[22:], Malformed),
        (lambda d: d[:22] + struct.pack("<Q", 1 << 60) + d[30:], Malformed),
        (lambda d: d[:-1], Malformed),
        (lambda d: d + b"\0", Malformed),
        (lambda d: d[:30] + b"\x09" + d[31:], Malformed),
        (lambda d: d[:31] + struct.pack("<I", 1 << 31) + d[35:], Oversized),
    ],
    ids=[
        "empty", "half a header", "no delta", "a later form", "large blocks", "empty blocks", "odd blocks", "another base size",
        "another size", "cut short", "longer", "an unknown kind", "a huge block",
    ],
)  # fmt: skip
def test_a_delta_with_a_broken_frame_is_a_violation(bench: Bench, change: object, error: type[Exception]) -> None:
    words = weights(2000)
    written = bench.encode(words.tobytes(), stepped(words, 0.05).tobytes())
    with pytest.raises(error):
        bench.apply(change(written), words.tobytes(), words.nbytes)  # type: ignore[operator]


def framed(kind: int, payload: bytes, size: int, *, base: bool = True, length: int | None = None) -> bytes:
    head = delta._HEADER.pack(delta._MAGIC, delta._FORM, delta.BLOCK_BYTES, size if base else 0, size)
    return head + delta._BLOCK.pack(kind, len(payload) if length is None else length) + payload


def plane(content: bytes, *, size: int | None = None, compressed: bool = False) -> bytes:
    import pyarrow

    stored = pyarrow.Codec("zstd").compress(content, asbytes=True) if compressed else content
    return delta._PLANE.pack(int(compressed), len(content) if size is None else size, len(stored)) + stored


def sparse(
    gaps: bytes, changes: bytes, *, counts: tuple[int, ...] = (1,), cuts: tuple[int, ...] = (), bands: int | None = None
) -> bytes:
    head = struct.pack(f"<B{len(cuts)}H{len(counts)}I", len(counts) if bands is None else bands, *cuts, *counts)
    return head + plane(gaps) + plane(changes) + plane(bytes(len(changes)))


WORDS = 1000
HOSTILE: dict[str, bytes] = {
    "a block of the base without a base": framed(delta._SAME, b"", 2 * WORDS, base=False),
    "more behind a block": framed(delta._SAME, b"x", 2 * WORDS),
    "a bomb of zeros": framed(delta._DENSE, plane(bytes(64 << 20), compressed=True) * 2, 2 * WORDS),
    "a bomb that says it is small": framed(delta._DENSE, plane(bytes(64 << 20), size=WORDS, compressed=True) * 2, 2 * WORDS),
    "a plane of fewer bytes than said": framed(delta._DENSE, plane(bytes(WORDS - 1), size=WORDS, compressed=True) * 2, 2 * WORDS),
    "a plane of fewer bytes than words": framed(delta._DENSE, plane(bytes(WORDS - 1)) * 2, 2 * WORDS),
    "a plane of no form": framed(delta._DENSE, (b"\x02" + plane(bytes(WORDS))[1:]) * 2, 2 * WORDS),
    "a plane that compresses nothing": framed(delta._DENSE, plane(b"", compressed=True) * 2, 2 * WORDS),
    "garbage for a plane": framed(delta._DENSE, delta._PLANE.pack(1, WORDS, 50) + os.urandom(50), 2 * WORDS),
    "a plane that ends too early": framed(delta._DENSE, delta._PLANE.pack(0, WORDS, WORDS) + b"x", 2 * WORDS),
    "no bands": framed(delta._SPARSE, sparse(b"", b"", counts=()), 2 * WORDS),
    "too many bands": framed(delta._SPARSE, sparse(b"\0", b"\2", bands=200), 2 * WORDS),
    "bands out of order": framed(delta._SPARSE, sparse(b"\0", b"\2", counts=(1, 0, 0), cuts=(9, 9)), 2 * WORDS),
    "a band beyond the largest magnitude": framed(delta._SPARSE, sparse(b"\0", b"\2", counts=(1, 0), cuts=(0x8000,)), 2 * WORDS),
    "a word behind the block": framed(delta._SPARSE, sparse(b"\xff\xff\xff\xff", b"\2", counts=(1,)), 2 * WORDS),
    "a rank that its band does not have": framed(delta._SPARSE, sparse(b"\xff\xff\xff\xfe", b"\2"), 2 * WORDS),
    "a gap without an end": framed(delta._SPARSE, sparse(b"\0\xff", b"\2"), 2 * WORDS),
    "more gaps than words": framed(delta._SPARSE, sparse(b"\0\0", b"\2"), 2 * WORDS),
    "no gap for a word": framed(delta._SPARSE, sparse(b"", b"\2"), 2 * WORDS),
    "gaps without end": framed(delta._SPARSE, sparse(b"\0" * 500, b"\2"), 2 * WORDS),
    "more changes than a sparse block may have": framed(delta._SPARSE, sparse(b"\0" * 600, b"\2" * 600, counts=(600,)), 2 * WORDS),
    "a count of four thousand million": framed(delta._SPARSE, sparse(b"\0", b"\2", counts=(0xFFFFFFFF,)), 2 * WORDS),
}  # fmt: skip


@pytest.mark.parametrize("written", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_block_is_a_violation_and_takes_no_memory(bench: Bench, written: bytes) -> None:
    import pyarrow  # its own memory counts, its import does not

    before = pyarrow.total_allocated_bytes()
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolViolation):
            bench.apply(written, weights(WORDS).tobytes(), 2 * WORDS)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        assert pyarrow.total_allocated_bytes() == before
    finally:
        tracemalloc.stop()


def mangled(written: bytes, draw: random.Random) -> bytes:
    """Single bytes, numbers and stretches of a delta overwritten, moved, doubled or cut out."""
    data = bytearray(written)
    for _ in range(draw.randint(1, 4)):
        at, other = draw.randrange(len(data)), draw.randrange(len(data))
        length = draw.choice([1, 1, 2, 4, 40])
        match draw.randrange(5):
            case 0:
                data[at] = draw.randrange(256)
            case 1:
                data[at : at + length] = draw.randbytes(length)
            case 2:
                data[at : at + 4] = struct.pack("<I", draw.choice([0, 1, 255, 1 << 16, 1 << 31, (1 << 32) - 1]))
            case 3:
                del data[at : at + length]
            case _:
                data[at:at] = data[other : other + length]
        data = data or bytearray(b"x")
    return bytes(data)


def fuzzed(bench: Bench, cases: int, seed: int) -> None:
    draw = random.Random(seed)
    words = weights(600, seed)
    base = words.tobytes()
    made = [bench.encode(base, stepped(words, share, seed).tobytes()) for share in (0.001, 0.02, 0.1, 0.5)]
    made.append(bench.encode(None, base))
    for _ in range(cases):
        with suppress(ProtocolViolation, IntegrityError):
            assert len(bench.apply(mangled(draw.choice(made), draw), base, len(base))) <= len(base)


def test_mangled_deltas_raise_nothing_but_violations(bench: Bench) -> None:
    fuzzed(bench, CASES, 7)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_many_mangled_deltas_raise_nothing_but_violations(bench: Bench) -> None:
    fuzzed(bench, CASES_LONG, random.randrange(1 << 32))


@pytest.fixture
def peak(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    monkeypatch.setattr(delta, "_PART", 1 << 17)
    seen: list[int] = []
    tracemalloc.start()
    yield seen
    tracemalloc.stop()


@pytest.mark.parametrize(("threads", "share"), [(2, 0.12), (1, 0.5), (4, 0.5)])
def test_memory_grows_with_the_threads_and_not_with_the_file(
    bench: Bench, peak: list[int], threads: int, share: float
) -> None:
    """Of each block changes as much as one of its kind may, or half: numpy tells its arrays to tracemalloc."""
    words = weights(10 << 20)
    bench.base.write_bytes(words.tobytes())
    bench.target.write_bytes(stepped(words, share).tobytes())
    size = words.nbytes
    del words
    tracemalloc.reset_peak()
    assert encode(bench.base, bench.target, bench.delta, most=NO_END, threads=threads)
    with bench.made.open("w+b") as file:
        apply(bench.delta, bench.base, file.fileno(), size, threads=threads)
    assert tracemalloc.get_traced_memory()[1] < threads * delta.THREAD_BYTES
    assert bench.made.read_bytes() == bench.target.read_bytes()


def test_as_many_threads_as_the_machine_gives_work_at_once_and_write_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = weights(10 * BLOCK)
    target = stepped(base, 0.02)
    alone = bench.encode(base.tobytes(), target.tobytes())  # 20 blocks
    monkeypatch.setattr(delta.resources, "threads", {delta.THREAD_BYTES: 5}.__getitem__)
    for name in ("_encode", "_decode"):
        monkeypatch.setattr(delta, name, together(5, getattr(delta, name)))
    assert bench.encode(base.tobytes(), target.tobytes()) == alone
    assert bench.apply(alone, base.tobytes(), target.nbytes) == target.tobytes()
