"""Cheats in the proofs alone: the text is honest, and nobody did the work that the proofs stand for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from cheats.catalogue import add, cheat
from cheats.scene import Scene
from node.engine.proofs import bits
from node.judging.candidate import Candidate
from protocol import toploc
from protocol.constants import TOPLOC_CHUNK, TOPLOC_FIELD, TOPLOC_K
from protocol.rollout import Sample

_ONE = 0x3F80  # 1.0 in bf16


def _everywhere(scene: Scene, sequence: int, proofs: Callable[[Sample], Sequence[bytes]]) -> Candidate:
    rows = [replace(s, proofs=tuple(proofs(s))) for s in scene.honest(sequence).file.samples]
    return scene.rewritten(sequence, rows)


def _forged(change: Callable[[Sample], Sequence[bytes]], name: str, what: str) -> None:
    add(lambda scene, sequence: _everywhere(scene, sequence, change), name, what, "computation")


_forged(lambda s: [bytes(len(p)) for p in s.proofs], "null proofs", "Proofs of zero bytes.")
_forged(
    lambda s: [b"\xff" * len(p) for p in s.proofs],
    "proofs of ones",
    "Proofs whose coefficients are no elements of the field.",
)
_forged(lambda s: [b"" for _ in s.proofs], "empty proofs", "Proofs without a byte.")
_forged(lambda s: (), "missing proofs", "No proofs at all.")
_forged(lambda s: [p[:-2] for p in s.proofs], "short proofs", "Proofs with a coefficient less.")
_forged(lambda s: [*s.proofs, s.proofs[-1]], "an extra proof", "One proof more than there are chunks.")


@cheat("computation")
def a_proof_too_few(scene: Scene, sequence: int) -> Candidate:
    """The last chunk of an answer has no proof."""
    return scene.with_row(sequence, scene.longest(sequence), lambda s: replace(s, proofs=s.proofs[:-1]))


@cheat("computation")
def replayed_proofs(scene: Scene, sequence: int) -> Candidate:
    """Proofs of another submission's answers of the same length."""
    known: dict[int, bytes] = {}
    for other in (sequence + 1, sequence + 2):
        for sample in scene.honest(other).file.samples:
            known |= {len(proof): proof for proof in sample.proofs}
    return _everywhere(scene, sequence, lambda s: [known[len(p)] for p in s.proofs])


@cheat("computation")
def one_replayed_proof(scene: Scene, sequence: int) -> Candidate:
    """The proof of an answer's first chunk is that of an answer to another prompt; among answers to one prompt some are alike."""
    samples = scene.honest(sequence).file.samples
    row = scene.longest(sequence)
    others = [sample for sample in samples if list(sample.prompt) != list(samples[row].prompt)]
    first = max(others, key=lambda sample: len(sample.completion)).proofs[0]
    return scene.with_row(sequence, row, lambda s: replace(s, proofs=(first, *s.proofs[1:])))


def _polynomial(coefficients: Sequence[int], size: int, modulus: int = TOPLOC_FIELD) -> bytes:
    """A proof of these coefficients, as long as `size` bytes need."""
    words = [modulus, *coefficients, *[0] * TOPLOC_K][: size // 2]
    return b"".join(word.to_bytes(2, "big") for word in words)


_forged(
    lambda s: [_polynomial([_ONE], len(p)) for p in s.proofs],
    "constant polynomial",
    "Polynomials that are 1.0 everywhere.",
)


def _chunks(scene: Scene, sequence: int) -> list[toploc.Bits]:
    """Activations of a submission, chunk by chunk."""
    samples = scene.honest(sequence).file.samples
    states = scene.run.engine.prefill([(s.prompt.tolist(), s.completion.tolist()) for s in samples])
    chunks = [bits(h)[i : i + TOPLOC_CHUNK].reshape(-1) for h in states for i in range(0, len(h), TOPLOC_CHUNK)]
    return [chunk for chunk in chunks if chunk.size >= TOPLOC_K]


@cheat("computation")
def constant_of_typical_size(scene: Scene, sequence: int) -> Candidate:
    """Polynomials that are everywhere what the largest activations of other submissions are in the middle."""
    values = np.sort(np.concatenate([toploc.largest(chunk[None])[1][0] for chunk in _chunks(scene, sequence + 1)]))
    middle = int(values[len(values) // 2])
    return _everywhere(scene, sequence, lambda s: [_polynomial([middle], len(p)) for p in s.proofs])


@cheat("computation")
def index_prior(scene: Scene, sequence: int) -> Candidate:
    """Polynomials through the places where another submission has its largest activations, and what it has there."""
    channels = _by_channel(scene, sequence + 1)
    return _everywhere(scene, sequence, lambda s: toploc.prove([np.tile(channels, (len(s.completion), 1))])[0])


def _by_channel(scene: Scene, sequence: int) -> toploc.Bits:
    """What each channel of a submission's states typically holds where it is among the largest; 0 where it never is."""
    hidden = scene.run.engine.hidden_size
    known: dict[int, list[int]] = {}
    for chunk in _chunks(scene, sequence):
        indices, values = toploc.largest(chunk[None])
        for index, value in zip(indices[0], values[0], strict=True):
            known.setdefault(int(index) % hidden, []).append(int(value))
    channels = np.zeros(hidden, np.uint16)
    for channel, seen in known.items():
        channels[channel] = sorted(seen)[len(seen) // 2]
    return channels


@cheat("computation")
def table_of_channels(scene: Scene, sequence: int) -> Candidate:
    """The modulus is the hidden size, so that one polynomial is a table of what each channel usually holds."""
    channels = _by_channel(scene, sequence + 1)
    hidden = len(channels)

    def table(size: int) -> bytes:
        points = np.arange((size - 2) // 2)
        values = channels[points % hidden].astype(np.int64)
        return _polynomial(toploc._interpolate(points[None], values[None])[0].tolist(), size, hidden)

    return _everywhere(scene, sequence, lambda s: [table(len(p)) for p in s.proofs])
