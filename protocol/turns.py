"""Turns: how tokens that the model generated and tokens that it was given alternate in one sample.

    prompt | turn 0 | answer 0 | turn 1 | answer 1 | … | last turn

A *turn* is what the model generates at a stretch. Between two turns stands an *answer*: what the environment gives, a tool's
results for instance. A sample of a single-turn environment is one turn. What follows from it, the same for all parties:

- *Units* are generated tokens, and only these: of all turns together.
- A token's *sampling position* is its number among the generated tokens, through all turns: answers take none.
- A *proof chunk* is up to 32 generated tokens of one turn; the next turn begins a new one.
- A turn ends in an end token, its only one, or at its *limit*, which is what the sample may still generate: so only the last can.
- Answers get no proofs and no loss; they are attended to like the prompt.

Vectors: tests/vectors/turns.json.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.constants import TOPLOC_CHUNK, TURNS_MAX
from protocol.errors import Malformed


@dataclass(frozen=True)
class Turns:
    """`generated`: tokens of each turn; `given`: tokens of the answer after each turn but the last. All are at least 1, but for
    a sample's only turn: whether one may be empty is not said here."""

    generated: tuple[int, ...]
    given: tuple[int, ...] = ()

    @classmethod
    def of(cls, tokens: int, answered: Sequence[int], answers: Sequence[int], given: int) -> Turns:
        """As a rollout file says it: `tokens` generated and `given` given in all, `answered` of the generated ones in each turn but
        the last, and `answers`, the tokens given after each. Raises Malformed unless all of it fits together."""
        if len(answered) >= TURNS_MAX:
            raise Malformed(f"{len(answered)} answered turns, at most {TURNS_MAX - 1} are allowed")
        if len(answered) != len(answers):
            raise Malformed(f"{len(answers)} answers to {len(answered)} turns")
        generated, of_answers = [int(n) for n in answered], [int(n) for n in answers]
        if any(n < 1 for n in generated + of_answers):
            raise Malformed("a turn or an answer has no tokens")
        if sum(of_answers) != given:
            raise Malformed(f"{given} tokens of answers that have {sum(of_answers)}")
        if generated and sum(generated) >= tokens:
            raise Malformed(f"the turns before the last have {sum(generated)} of {tokens} tokens")
        return cls((*generated, tokens - sum(generated)), tuple(of_answers))

    def __len__(self) -> int:
        return len(self.generated)

    def split(self, rows: Any) -> list[Any]:
        """What there is of each generated token (ids, hidden states, …), turn by turn; views where slicing gives views."""
        return [rows[turn] for turn in self.spans]

    def proofs_of(self, proofs: Sequence[bytes]) -> list[Sequence[bytes]]:
        """The proofs of each turn. Raises Malformed unless there are exactly as many as these turns need."""
        counts = [-(-n // TOPLOC_CHUNK) for n in self.generated]
        if len(proofs) != sum(counts):
            raise Malformed(f"{len(proofs)} proofs, and turns of {_listed(self.generated)} tokens need {sum(counts)}")
        return [proofs[first:last] for first, last in pairwise(accumulate(counts, initial=0))]

    @property
    def chunks(self) -> list[slice]:
        """Which generated tokens each proof is over: at most 32 of one turn."""
        return [
            slice(first, min(first + TOPLOC_CHUNK, turn.stop))
            for turn in self.spans
            for first in range(turn.start, turn.stop, TOPLOC_CHUNK)
        ]

    @property
    def spans(self) -> list[slice]:
        """Which generated tokens each turn consists of."""
        return [slice(first, last) for first, last in pairwise(accumulate(self.generated, initial=0))]

    @cached_property
    def mask(self) -> NDArray[np.bool_]:
        """Of every token after the prompt, in the order of the context, whether the model generated it."""
        lengths = [n for pair in zip(self.generated, (*self.given, 0), strict=True) for n in pair]
        return np.repeat([True, False] * len(self), lengths)

    @property
    def turn_of_tokens(self) -> NDArray[np.int64]:
        """Of every token after the prompt, its turn; an answer belongs to the turn that it answers."""
        return np.repeat(np.arange(len(self)), np.add(self.generated, (*self.given, 0)))

    def woven(self, completion: NDArray[Any], given: NDArray[Any]) -> NDArray[Any]:
        """What the model saw after the prompt: generated and given tokens in the order of the context."""
        if len(self) == 1:
            return completion
        tokens = np.empty(len(self.mask), completion.dtype)
        tokens[self.mask], tokens[~self.mask] = completion, given
        return tokens

    def answers_in(self, given: NDArray[Any]) -> Iterator[NDArray[Any]]:
        """The tokens of each answer."""
        return (given[first:last] for first, last in pairwise(accumulate(self.given, initial=0)))


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")


@dataclass(frozen=True)
class WrongEnd:
    """A turn that does not end where it must; `token` counts generated tokens of the sample, `expected` is their number then."""

    turn: int
    tokens: int
    expected: int
    why: str


def wrong_end(turns: Turns, completion: NDArray[Any], ends: Collection[int], most: int) -> WrongEnd | None:
    """The first turn that does not end in its only end token (`ends`), or at the limit of `most` generated tokens per sample."""
    is_end = np.isin(completion, list(ends))
    for number, turn in enumerate(turns.spans):
        found = np.flatnonzero(is_end[turn])
        length = turn.stop - turn.start
        if len(found) and found[0] != length - 1:
            return WrongEnd(number, length, int(found[0]) + 1, "tokens after the end")
        at_the_limit = turn.stop == most and number == len(turns) - 1
        if not len(found) and not at_the_limit:
            return WrongEnd(number, length, most - turn.start, "cut short")
    return None
