"""What an engine may take of a device's memory, and how many rows go through a model at once within it.

The plan is an estimate from the model's sizes, made before anything is allocated: weights, the key-value cache at its longest, one
layer's copies of it, logits, and the widest activations of a prefill. It bounds what grows with the work; what the libraries
take for themselves, some hundred MiB, is beside it. Does not cover: memory that other programs take meanwhile.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from node.engine.interface import Prompt
from protocol.errors import PreflightError, Unavailable

_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)(%|MiB|GiB)")
_UNITS = {"MiB": 1 << 20, "GiB": 1 << 30}
_EXHAUSTED = (
    "out of memory",
    "can't allocate memory",
)  # as CUDA and the CPU's allocator say it, in plain RuntimeErrors
_CGROUP = Path("/sys/fs/cgroup/memory.max")


def parse(text: str, total: int) -> int:
    """Bytes of "80%" (of `total`), "24GiB" or "500MiB". Raises ValueError."""
    found = _AMOUNT.fullmatch(text)
    number = float(found[1]) if found else 0.0
    if found is None or number <= 0 or (found[2] == "%" and number > 100):
        raise ValueError('expected a share such as "80%", or an amount such as "24GiB" or "500MiB"')
    return int(number * (total / 100 if found[2] == "%" else _UNITS[found[2]]))


def machine_bytes() -> int:
    """Memory of this machine or, where it is less, of the container that this process runs in."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = _CGROUP.read_text().strip()
    except OSError:
        return pages
    return min(pages, int(limit)) if limit.isdigit() else pages


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


@dataclass(frozen=True)
class Footprint:
    """Bytes that one model takes on its device."""

    weights: int
    cache_token: int
    """The cache of one token of one row, with what is copied of it while a step runs."""
    row: int
    """What a row takes beside its cache, however long it is: logits, and the states of an open proof."""
    prefill_token: int
    """The widest activations of one token."""
    pair: int
    """The attention mask, for each pair of tokens of a row."""

    def decoding(self, tokens: int) -> int:
        """A row that has grown to so many tokens."""
        return self.row + tokens * self.cache_token

    def prefilling(self, rows: int, width: int, *, cached: bool) -> int:
        """Rows of so many tokens, padding included, that go through the model at once."""
        kept = self.cache_token if cached else 0
        return rows * width * (self.prefill_token + kept + width * self.pair)


@dataclass(frozen=True)
class MemoryBudget:
    """`most` bytes for everything, of which the model's weights take theirs."""

    most: int
    of: Footprint

    @property
    def free(self) -> int:
        return self.most - self.of.weights

    def decode_batches(self, prompts: Sequence[Prompt], max_new_tokens: int) -> list[list[Prompt]]:
        """The prompts in order, in batches that fit; one whose samples do not fit together is in several, with some keys in each.

        Raises PreflightError where a single row does not fit.
        """
        batches: list[list[Prompt]] = []
        batch: list[Prompt] = []
        for prompt in prompts:
            left = prompt.keys
            while left:
                room = self._room(batch, prompt, max_new_tokens)
                if room > 0:
                    batch.append(replace(prompt, keys=left[:room]))
                    left = left[room:]
                elif batch:
                    batches.append(batch)
                    batch = []
                else:
                    longest = len(prompt.tokens) + max_new_tokens
                    raise self._too_little(longest, max(self._prefilled([prompt]), self.of.decoding(longest)))
        return [*batches, batch] if batch else batches

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
                raise self._too_little(lengths[i], self.of.prefilling(1, lengths[i], cached=False))
            batches.append([i])
        return batches

    def _fits(self, rows: int, width: int) -> bool:
        return self.of.prefilling(rows, width, cached=False) <= self.free

    def _room(self, batch: Sequence[Prompt], prompt: Prompt, max_new_tokens: int) -> int:
        """How many samples of this prompt the batch can take."""
        together = [*batch, prompt]
        if self._prefilled(together) > self.free:
            return 0
        width = max(len(p.tokens) for p in together)
        return self.free // self.of.decoding(width + max_new_tokens) - sum(len(p.keys) for p in batch)

    def _prefilled(self, prompts: Sequence[Prompt]) -> int:
        return self.of.prefilling(len(prompts), max(len(p.tokens) for p in prompts), cached=True)

    def _too_little(self, tokens: int, needed: int) -> PreflightError:
        return PreflightError(
            f"one sequence of {tokens} tokens takes about {_mib(needed)} MiB of memory, beside {_mib(self.of.weights)} MiB for the"
            f" weights, and the engine may take {_mib(self.most)} MiB of both",
            hint="raise engine.memory, or use a device that has more",
        )


def _mib(count: int) -> int:
    return -(-count >> 20)
