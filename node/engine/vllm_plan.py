"""How vLLM divides the memory that it may take: weights, the paged cache, and what goes through the model in one step.

The arithmetic is that of node/engine/memory.py; vLLM is told the result and asked for nothing beyond it.
"""

from __future__ import annotations

from dataclasses import dataclass

from node.engine.memory import Footprint
from protocol.errors import PreflightError

BLOCK = 32
"""Tokens of a block of the cache."""
_SEQUENCES = 256  # that run at once, at most
_STEP_TOKENS = 1 << 13  # of prompts that go through the model in one step, at most


@dataclass(frozen=True)
class Plan:
    cache: int
    """Bytes of the paged cache, on all devices together."""
    tokens: int
    """Of the longest sequence that it holds."""
    sequences: int
    """That run at once."""
    step: int
    """Tokens that go through the model at once."""


def plan(of: Footprint, most: int, positions: int) -> Plan:
    """Of a model that has so many positions and may take `most` bytes. No more cache than all sequences fill at their longest."""
    free = most - fixed(of)
    working = min(free // 3, _SEQUENCES * of.row + _STEP_TOKENS * of.prefill_token)
    sequences = max(8, min(_SEQUENCES, working // 2 // of.row))
    step = max(512, min(_STEP_TOKENS, working // 2 // of.prefill_token))
    cache = min(max(0, free - max(0, working)), sequences * (positions + 2 * BLOCK) * of.cache_token)
    tokens = cache // of.cache_token // BLOCK * BLOCK - BLOCK
    return Plan(cache, tokens, sequences, max(step, sequences))


def fixed(of: Footprint) -> int:
    """Bytes that are taken whatever is computed: weights, and one step of a few sequences."""
    return of.weights + 8 * of.row + 512 * of.prefill_token


def require_room(of: Footprint, most: int, tokens: int) -> None:
    """Raises PreflightError where one sequence of so many tokens does not fit into `most` bytes."""
    if tokens > plan(of, most, tokens).tokens:
        needed = (fixed(of) + (tokens + 2 * BLOCK) * of.cache_token) >> 20
        raise PreflightError(
            f"one sequence of {tokens} tokens takes about {needed + 1} MiB of memory with the weights, and the engine may"
            f" take {most >> 20} MiB",
            hint="raise engine.memory, or use a device that has more",
        )
