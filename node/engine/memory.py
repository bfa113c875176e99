"""What an engine may take of a device's memory, and how many rows go through a model at once within it.

The plan is an estimate from the model's sizes, made before anything is allocated: weights, the key-value cache with every row at its
longest, what a layer makes of it while a step runs, logits, and the widest activations of a prefill. It bounds what grows with the
work; what the libraries take for themselves, some hundred MiB, is beside it. Does not cover: memory that other programs take
meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from node.engine.interface import Prompt
from protocol.errors import PreflightError, Unavailable

_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)(%|MiB|GiB)")
_UNITS = {"MiB": 1 << 20, "GiB": 1 << 30}
_ROWS = {"cpu": 256}
_ROWS_ELSEWHERE = 1024
_EXHAUSTED = (
    "out of memory",
    "can't allocate memory",
)  # as CUDA and the CPU's allocator say it, in plain RuntimeErrors


def parse(text: str, total: int) -> int:
    """Bytes of "80%" (of `total`), "24GiB" or "500MiB". Raises ValueError."""
    found = _AMOUNT.fullmatch(text)
    number = float(found[1]) if found else 0.0
    if found is None or number <= 0 or (found[2] == "%" and number > 100):
        raise ValueError('expected a share such as "80%", or an amount such as "24GiB" or "500MiB"')
    return int(number * (total / 100 if found[2] == "%" else _UNITS[found[2]]))


def rows_most(device: str) -> int:
    """Rows that decode at once on a device of this type, at most: more make no product faster, and take memory."""
    return _ROWS.get(device, _ROWS_ELSEWHERE)


def exhausted(error: BaseException) -> Unavailable | None:
    """`error` as a sentence where it says that the device's memory was used up, by whatever library; None for anything else."""
    is_said = isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _EXHAUSTED)
    if not is_said and not isinstance(error, MemoryError):
        return None
    said = str(error).partition("\n")[0][:200] or type(error).__name__
    return Unavailable(
        f"the engine ran out of memory: {said}",
        hint="see what else uses this device; where nothing does, lower engine.memory",
    )


@contextmanager
def told() -> Iterator[None]:
    """Around what asks an engine: raises Unavailable where the device's memory was used up, whatever the engine or its library raises."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if (said := exhausted(error)) is not None:
            raise said from error
        raise


@dataclass(frozen=True)
class Footprint:
    """Bytes that one model takes on its device."""

    weights: int
    cache_token: int
    """The cache of one token of one row, with what a layer makes of it while a step runs."""
    row: int
    """What a row takes beside its cache, however long it is: logits, and the states of an open proof."""
    prefill_token: int
    """The widest activations of one token."""
    pair: int
    """Mask or scores of attention, for each pair of tokens of a row; 0 where a fused kernel needs neither."""

    def decoding(self, tokens: int) -> int:
        """A row that has grown to so many tokens."""
        return self.row + tokens * self.cache_token

    def prefilling(self, tokens: int, width: int, *, cached: bool) -> int:
        """So many tokens at once, padding included, in rows of `width`."""
        kept = self.cache_token if cached else 0
        return tokens * (self.prefill_token + kept + width * self.pair)


@dataclass(frozen=True)
class DecodingPlan:
    """How a submission is decoded: `rows` at once, and prompts of so many tokens, padding included, in one prefill."""

    rows: int
    prefill_tokens: int


@dataclass(frozen=True)
class MemoryBudget:
    """`most` bytes for everything, of which the model's weights take theirs."""

    most: int
    of: Footprint

    @property
    def free(self) -> int:
        return self.most - self.of.weights

    def rows(self, prompt: int, completion: int) -> int:
        """Rows of so many tokens that fit beside the prefill of one; none where this is below 1."""
        return (self.free - self.of.prefilling(prompt, prompt, cached=True)) // self.of.decoding(prompt + completion)

    def require_row(self, prompt: int, completion: int) -> None:
        """Raises PreflightError where not a single row of so many tokens is decoded."""
        if self.rows(prompt, completion) < 1:
            row = self.of.decoding(prompt + completion)
            raise self._too_little(prompt + completion, self.of.prefilling(prompt, prompt, cached=True) + row)

    def plan(self, prompts: Sequence[Prompt], max_new_tokens: int, *, rows: int, prefill_tokens: int) -> DecodingPlan:
        """At most so many rows and tokens, and what fits: rows at their longest, beside a prefill of the longest prompt.

        Raises PreflightError where a single row does not fit.
        """
        longest = max(len(prompt.tokens) for prompt in prompts)
        self.require_row(longest, max_new_tokens)
        one = self.of.prefilling(longest, longest, cached=True)
        row = self.of.decoding(longest + max_new_tokens)
        fit = self.rows(longest, max_new_tokens)
        taken = max(1, min(rows, fit, sum(len(prompt.keys) for prompt in prompts)))
        spare = (self.free - taken * row) // max(1, one // longest)
        return DecodingPlan(taken, max(longest, min(prefill_tokens, spare)))

    def prefill_batches(self, lengths: Sequence[int], most_tokens: int) -> list[list[int]]:
        """Indices by ascending length, in batches that fit and hold at most `most_tokens`, padding included; a longer one is alone.

        Raises PreflightError where a single sequence does not fit.
        """
        batches: list[list[int]] = []
        for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
            rows = len(batches[-1]) + 1 if batches else 1
            if batches and rows * lengths[i] <= most_tokens and self._fits(rows, lengths[i]):
                batches[-1].append(i)
                continue
            if not self._fits(1, lengths[i]):
                raise self._too_little(lengths[i], self.of.prefilling(lengths[i], lengths[i], cached=False))
            batches.append([i])
        return batches

    def _fits(self, rows: int, width: int) -> bool:
        return self.of.prefilling(rows * width, width, cached=False) <= self.free

    def _too_little(self, tokens: int, needed: int) -> PreflightError:
        return PreflightError(
            f"one sequence of {tokens} tokens takes about {_mib(needed)} MiB of memory, beside {_mib(self.of.weights)} MiB for the"
            f" weights, and the engine may take {_mib(self.most)} MiB of both",
            hint="raise engine.memory, or use a device that has more",
        )


def _mib(count: int) -> int:
    return -(-count >> 20)
