"""Lossless differences between two files of weights: what training with a small learning rate changes, and no more.

A file is taken as 16-bit words, as bf16 weights are. A step of reinforcement learning moves about one word in a hundred, most
of these to a neighbouring number, and the small ones more often than the large. So a block of words is written as

    same      nothing: no word changed
    sparse    for each of a few bands of magnitude, gaps between its changed words, and by how much these changed
    dense     by how much every word changed
    whole     the words themselves: there is no base, or it has another size

and all of it as planes of bytes under Zstandard. The bands are the base's, which both sides hold: within one, changes are
evenly spread, and that saves a fifth. Any bytes survive the round trip, float32 and headers among them; they only take more.

    header    "murmdelt"  form u16  block bytes u32  base bytes u64  target bytes u64              all little-endian
    blocks    kind u8  bytes u32  payload
    sparse    bands u8  cuts u16 × (bands - 1), ascending  count u32 × bands; per band: plane of gaps, of low and of high bytes
    plane     compressed u8  raw bytes u32  stored bytes u32  content

A gap is as many bytes of 255 as fit into it and one of what is left; a change is new - old as a signed word, zigzag. It is read
strictly and in bounded memory, but not trusted: whoever applies one checks the hashes of what comes out.

Source of the idea: PULSE (arXiv 2602.03839). It does not know which version is which (protocol/shardcast/manifest.py does).
"""

from __future__ import annotations

import errno
import io
import os
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray

from protocol import resources
from protocol.errors import IntegrityError, Malformed, Oversized

BLOCK_BYTES = 4 << 20
"""Bytes of weights that a thread works on at once, and the most that a file may say. Changing it breaks: nothing below the cap."""
THREAD_BYTES = 8 * BLOCK_BYTES
"""The most that a thread holds. Measured: 29 MiB for a block of which half the words change, 10 MiB after a step of training."""

_MAGIC, _FORM = b"murmdelt", 1
_HEADER = struct.Struct("<8sHIQQ")
_BLOCK = struct.Struct("<BI")
_PLANE = struct.Struct("<BII")
_SAME, _SPARSE, _DENSE, _WHOLE = range(4)
_BANDS = 3  # of each sparse block that is written; more cost time and save next to nothing
_BANDS_MAX = 8  # that are read
_DENSE_SHARE = 8  # a block is dense when more than one word in this many changed
_READ_SHARE = 4  # a sparse block is refused when it changes more
_PART = 1 << 17  # words that are enumerated at once: their indices stay in the processor's cache
_LEVEL = 1  # of Zstandard: higher ones save a hundredth
_ESCAPE = 255
_MAGNITUDE = np.uint16(0x7FFF)

Words = NDArray[np.uint16]
Bytes = NDArray[np.uint8]
Indices = NDArray[np.int64]
_In = TypeVar("_In")
_Out = TypeVar("_Out")


def encode(
    base: Path | None,
    target: Path,
    delta: Path,
    *,
    most: int,
    block_bytes: int = BLOCK_BYTES,
    threads: int | None = None,
) -> bool:
    """Writes to `delta` what makes `target` out of `base`; False, and an unfinished file, once it has more than `most` bytes.

    Without a base, or with one of another size, it holds the whole target. Raises OSError. `threads`: as many as the machine has cores
    and memory for, where nobody says; each takes at most `THREAD_BYTES`. The file is the same.
    """
    threads = threads or resources.threads(THREAD_BYTES)
    size = target.stat().st_size
    if base is not None and base.stat().st_size != size:
        base = None
    with delta.open("wb") as file, target.open("rb", 0) as new, (base or target).open("rb", 0) as old:
        file.write(_HEADER.pack(_MAGIC, _FORM, block_bytes, 0 if base is None else size, size))

        def block(offset: int) -> bytes:
            length = min(block_bytes, size - offset)
            words = _read(new, offset, length)
            return _encode_whole(words) if base is None else _encode(_read(old, offset, length), words)

        with ThreadPoolExecutor(threads, thread_name_prefix="delta") as pool:
            for record in _in_order(pool, block, range(0, size, block_bytes), threads + 1):
                file.write(record)
                if file.tell() > most:
                    return False
        return True


def apply(delta: Path, base: Path | None, target: int, size: int, *, threads: int | None = None) -> None:
    """Writes the file that `delta` makes out of `base` into the open file `target`, which is to have `size` bytes, by `threads` as in
    `encode`.

    Raises ProtocolViolation for anything that is no delta, IntegrityError where it belongs to another base, OSError.
    """
    threads = threads or resources.threads(THREAD_BYTES)
    with delta.open("rb") as file:
        block_bytes, base_size = _header(file, size)
        if base_size and (base is None or base.stat().st_size != base_size):
            raise IntegrityError(f"{delta.name} belongs to another base than is here")
        with (base if base is not None and base_size else Path(os.devnull)).open("rb", 0) as old:

            def block(record: _Record) -> None:
                length = min(block_bytes, size - record.offset)
                words = _read(old, record.offset, length) if base_size else None
                content = _decode(record, words, (length + 1) // 2).data.cast("B")[:length]
                done = 0
                while done < length:
                    done += os.pwrite(target, content[done:], record.offset + done)

            with ThreadPoolExecutor(threads, thread_name_prefix="delta") as pool:
                for _ in _in_order(pool, block, _records(file, block_bytes, size), threads + 1):
                    pass
        if file.read(1):
            raise Malformed("a delta goes on behind its last block")


# ---- the file


@dataclass(frozen=True)
class _Record:
    offset: int
    kind: int
    payload: bytes


def _header(file: BinaryIO, size: int) -> tuple[int, int]:
    """Bytes of a block, and of the base; 0 where there is none."""
    head = file.read(_HEADER.size)
    if len(head) != _HEADER.size:
        raise Malformed("a delta ends within its header")
    magic, form, block_bytes, base_size, target_size = _HEADER.unpack(head)
    if magic != _MAGIC or form != _FORM:
        raise Malformed(f"this is no delta of form {_FORM}")
    if not 2 <= block_bytes <= BLOCK_BYTES or block_bytes % 2:
        raise Oversized(f"a delta has blocks of {block_bytes} bytes")
    if target_size != size or base_size not in (0, size):
        raise Malformed(f"a delta from {base_size} to {target_size} bytes, where {size} are wanted")
    return block_bytes, base_size


def _records(file: BinaryIO, block_bytes: int, size: int) -> Iterator[_Record]:
    for offset in range(0, size, block_bytes):
        head = file.read(_BLOCK.size)
        if len(head) != _BLOCK.size:
            raise Malformed("a delta ends before its last block")
        kind, length = _BLOCK.unpack(head)
        if length > 2 * block_bytes + 1024:
            raise Oversized(f"a block of a delta has {length} bytes")
        payload = file.read(length)
        if len(payload) != length:
            raise Malformed("a delta ends within a block")
        yield _Record(offset, kind, payload)


def _read(file: io.RawIOBase, offset: int, count: int) -> Words:
    """`count` bytes from `offset` as words, an odd one filled up with 0."""
    buffer = np.zeros((count + 1) // 2, "<u2")
    view = buffer.data.cast("B")[:count]
    done = 0
    while done < len(view):
        got = os.preadv(file.fileno(), [view[done:]], offset + done)
        if not got:
            raise OSError(errno.EIO, "a file is shorter than it was")
        done += got
    return buffer


def _in_order(pool: ThreadPoolExecutor, of: Callable[[_In], _Out], given: Iterable[_In], ahead: int) -> Iterator[_Out]:
    """`of` each of `given`, in order; at most `ahead` of them are under way or wait to be taken."""
    under_way: deque[Future[_Out]] = deque()
    for one in given:
        under_way.append(pool.submit(of, one))
        if len(under_way) >= ahead:
            yield under_way.popleft().result()
    while under_way:
        yield under_way.popleft().result()


# ---- writing a block


def _encode(base: Words, target: Words) -> bytes:
    changed = np.flatnonzero(base != target)
    if not changed.size:
        return _BLOCK.pack(_SAME, 0)
    if changed.size * _DENSE_SHARE > base.size:
        return _record(_DENSE, _byte_planes(_zigzag(base, target)))
    return _record(_SPARSE, _sparse(base, target, changed))


def _encode_whole(words: Words) -> bytes:
    return _record(_WHOLE, _byte_planes(words))


def _record(kind: int, payload: bytes) -> bytes:
    return _BLOCK.pack(kind, len(payload)) + payload


def _zigzag(base: Words, target: Words) -> Words:
    """Small numbers for words that are close to each other, whichever is larger."""
    change = (target - base).view(np.int16)
    return ((change << 1) ^ (change >> 15)).view(np.uint16)


def _sparse(base: Words, target: Words, changed: Indices) -> bytes:
    before = base[changed]
    cuts = _cuts(base, before)
    changes = _zigzag(before, target[changed])
    bands = np.searchsorted(cuts, before & _MAGNITUDE, side="right")
    ranks = _ranks(base, cuts, changed, bands)
    counts = [rank.size for rank in ranks]
    head = struct.pack(f"<B{len(cuts)}H{len(counts)}I", len(counts), *cuts, *counts)
    return head + b"".join(
        _plane(_escaped(rank)) + _byte_planes(changes[bands == band]) for band, rank in enumerate(ranks)
    )


def _cuts(base: Words, before: Words) -> Words:
    """The magnitudes at which up to `_BANDS` bands meet, such that where the changes lie takes the fewest bits.

    Cuts are powers of two: how often a word changes depends on the distance to its neighbour. `before` are those that change.
    """
    if base.size < 64 * _BANDS:
        return np.zeros(0, np.uint16)
    some = base[:: max(1, base.size >> 17)]  # enough to count by
    every = np.bincount((some >> 7) & 255, minlength=256) * (base.size / some.size)
    changed = np.bincount((before >> 7) & 255, minlength=256)
    edges = np.concatenate([[0], np.flatnonzero(every), [256]])
    of_all, of_changed = (np.concatenate([[0], np.cumsum(n)])[edges] for n in (np.maximum(every, changed), changed))
    among, ones = of_all - of_all[:, None], of_changed - of_changed[:, None]
    share = np.clip(ones / np.maximum(among, 1), 1e-9, 1 - 1e-9)
    bits = np.triu(among * -(share * np.log2(share) + (1 - share) * np.log2(1 - share)))
    total = np.triu(bits[0][:, None] + bits + bits[:, -1][None, :]) + np.tril(np.full(bits.shape, np.inf), -1)
    first, second = np.unravel_index(np.argmin(total), total.shape)
    chosen = {int(edges[first]), int(edges[second])} - {0, 256}
    return np.array(sorted(chosen), np.uint16) << np.uint16(7)


def _ranks(base: Words, cuts: Words, changed: Indices, bands: Indices) -> list[Indices]:
    """For each band, which of its words changed, counted among themselves."""
    found: list[list[Indices]] = [[] for _ in range(len(cuts) + 1)]
    passed = [0] * len(found)
    for start, end in _slices(changed, base.size):
        part, within, of = base[start : start + _PART], changed[end[0] : end[1]] - start, bands[end[0] : end[1]]
        for band, members in enumerate(_members(part, cuts)):
            where = within[of == band]
            found[band].append((where if members is None else np.searchsorted(members, where)) + passed[band])
            passed[band] += part.size if members is None else members.size
    return [np.concatenate(each) for each in found]


def _slices(positions: Indices, size: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """The parts of a block by where they begin, each with the range of sorted `positions` that lie in it."""
    starts = range(0, size, _PART)
    bounds = np.searchsorted(positions, [*starts, size])
    for number, start in enumerate(starts):
        yield start, (int(bounds[number]), int(bounds[number + 1]))


def _members(part: Words, cuts: Words) -> Iterator[Indices | None]:
    """Indices of the words of each band; None: all of them."""
    if not len(cuts):
        yield None
        return
    magnitude = part & _MAGNITUDE
    below = magnitude < cuts[0]
    yield np.flatnonzero(below)
    for cut in cuts[1:]:
        next_below = magnitude < cut
        yield np.flatnonzero(next_below & ~below)
        below = next_below
    yield np.flatnonzero(~below)


def _escaped(ranks: Indices) -> Bytes:
    gaps = np.diff(ranks, prepend=-1) - 1
    full = gaps // _ESCAPE
    plane = np.full(int(full.sum()) + gaps.size, _ESCAPE, np.uint8)
    plane[np.cumsum(full + 1) - 1] = gaps - _ESCAPE * full
    return plane


def _byte_planes(words: Words) -> bytes:
    return _plane(words.astype(np.uint8)) + _plane((words >> np.uint16(8)).astype(np.uint8))


def _plane(content: Bytes) -> bytes:
    import pyarrow  # roles that never see a delta do without it

    packed = pyarrow.Codec("zstd", compression_level=_LEVEL).compress(content, asbytes=True)
    if len(packed) < content.size:
        return _PLANE.pack(1, content.size, len(packed)) + packed
    return _PLANE.pack(0, content.size, content.size) + content.tobytes()


# ---- reading a block


def _decode(record: _Record, base: Words | None, size: int) -> Words:
    """The block's `size` words. Raises ProtocolViolation."""
    payload = _Payload(record.payload)
    if record.kind == _WHOLE:
        words = payload.words(size)
    elif base is None:
        raise Malformed(f"a delta without a base has a block of kind {record.kind}")
    elif record.kind == _SAME:
        words = base
    elif record.kind == _DENSE:
        words = base + _unzigzag(payload.words(size))
    elif record.kind == _SPARSE:
        words = _apply_sparse(payload, base)
    else:
        raise Malformed(f"a delta has a block of kind {record.kind}")
    payload.require_end()
    return words


def _unzigzag(changes: Words) -> Words:
    return (changes >> np.uint16(1)) ^ (np.uint16(0) - (changes & np.uint16(1)))


def _apply_sparse(payload: _Payload, base: Words) -> Words:
    (bands,) = payload.numbers("B", 1)
    if not 1 <= bands <= _BANDS_MAX:
        raise Malformed(f"a block of a delta has {bands} bands")
    cuts = np.array(payload.numbers("H", bands - 1), np.uint16)
    if np.any(cuts > _MAGNITUDE) or np.any(cuts[1:] <= cuts[:-1]):
        raise Malformed("the bands of a delta are out of order")
    counts = payload.numbers("I", bands)
    if sum(counts) * _READ_SHARE > base.size + _READ_SHARE:
        raise Oversized(f"a sparse block of {base.size} words changes {sum(counts)}")
    ranks, changes = [], []
    for count in counts:
        ranks.append(_unescaped(payload.plane(count + base.size // _ESCAPE + 1), count))
        changes.append(_unzigzag(payload.words(count)))
    return _changed(base, cuts, ranks, changes)


def _unescaped(plane: Bytes, count: int) -> Indices:
    """Ranks in a band out of the gaps between them."""
    ends = np.flatnonzero(plane != _ESCAPE)
    if ends.size != count or (plane.size and plane[-1] == _ESCAPE):
        raise Malformed(f"a delta has {ends.size} gaps for {count} words")
    return np.cumsum(plane, dtype=np.int64)[ends] + np.arange(count)


def _changed(base: Words, cuts: Words, ranks: list[Indices], changes: list[Words]) -> Words:
    words = base.copy()
    passed, done = [0] * len(ranks), [0] * len(ranks)
    for start in range(0, base.size, _PART):
        part = words[start : start + _PART]
        for band, members in enumerate(_members(base[start : start + _PART], cuts)):
            count = part.size if members is None else members.size
            end = int(np.searchsorted(ranks[band], passed[band] + count))
            here = slice(done[band], end)
            where = ranks[band][here] - passed[band]
            part[where if members is None else members[where]] += changes[band][here]
            passed[band] += count
            done[band] = end
    if done != [rank.size for rank in ranks]:
        raise Malformed("a delta changes words that its block does not have")
    return words


class _Payload:
    """What is left to read of a block."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def numbers(self, kind: str, count: int) -> tuple[int, ...]:
        form = f"<{count}{kind}"
        return struct.unpack(form, self._take(struct.calcsize(form)))

    def words(self, count: int) -> Words:
        low, high = self.plane(count), self.plane(count)
        if low.size != count or high.size != count:
            raise Malformed(f"a delta has {low.size} and {high.size} bytes for {count} words")
        return low.astype("<u2") | (high.astype("<u2") << np.uint16(8))

    def plane(self, most: int) -> Bytes:
        """A plane of at most `most` bytes."""
        compressed, size, stored = _PLANE.unpack(self._take(_PLANE.size))
        if size > most:
            raise Oversized(f"a plane of a delta has {size} bytes, more than {most}")
        content = self._take(stored)
        if compressed == 1:
            return np.frombuffer(_unpacked(content, size), np.uint8)
        if compressed != 0 or stored != size:
            raise Malformed("a plane of a delta is of no known form")
        return np.frombuffer(content, np.uint8)

    def require_end(self) -> None:
        if self._data:
            raise Malformed("a block of a delta goes on behind its end")

    def _take(self, count: int) -> memoryview:
        if count > len(self._data):
            raise Malformed("a block of a delta ends too early")
        taken, self._data = self._data[:count], self._data[count:]
        return taken


def _unpacked(content: memoryview, size: int) -> bytes:
    """Exactly `size` bytes: the decoder is given room for no more, whatever the frame says of itself."""
    import pyarrow

    if not size:
        raise Malformed("a plane of a delta compresses nothing")
    try:
        return bytes(pyarrow.Codec("zstd").decompress(content, size, asbytes=True))
    except (OSError, ValueError) as error:
        raise Malformed(f"a plane of a delta does not decompress: {error}") from error
