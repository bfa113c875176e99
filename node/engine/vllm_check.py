"""The self-check of a vLLM process that has just started: a few seeded tokens with their proofs, made and then checked.

It finds a vLLM that does not call what was put into it: a draw that was left out, states of other rows or from before the output
norm, logprobs of logits that were changed. What is computed is compared with what the same process computes in a prefill. Does not
cover: a model that vLLM computes wrongly throughout, which a validator's prefill by another engine finds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from node.engine.interface import Completion
from node.engine.proofs import bits
from protocol import toploc
from protocol.constants import TOPLOC_CHUNK
from protocol.errors import Malformed, PreflightError
from protocol.sampling import TokenScores

KEYS = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)
TOKENS = 3
"""Of each completion: one from a prefill, and some from the cache."""
TEMPERATURE = 100.0
"""At which the noise decides alone: greedy decoding, or a draw by other noise, agrees with none of these tokens."""
_MARGIN = 2.0  # nats, of noise that is spread over hundreds
_LOGPROB = 1.0  # nats; logprobs of noised logits are some −10 off
_DIFFERING = 0.25  # of a proof's points, in exponent or sign; another row differs in most
_HINT = 'vLLM\'s own state differs from what this engine was written for: reinstall it, or set engine.name to "torch"'


def prompt(vocabulary: int) -> list[int]:
    return [token % vocabulary for token in range(1, 9)]


def require_right(made: list[Completion], hidden: list[Tensor], scores: list[TokenScores]) -> None:
    """Of the completions by KEYS, the states that a prefill gives and the scores of them. Raises PreflightError naming what differs."""
    for completion, states_TH, of in zip(made, hidden, scores, strict=True):
        if len(completion.tokens) != TOKENS:
            raise _wrong(f"{len(completion.tokens)} tokens were made where {TOKENS} were asked for")
        margin = float(of.margins.max())
        if not margin < _MARGIN:
            raise _wrong(f"a token is not the seeded draw: it lies {margin:.3g} nats below")
        error = float(np.abs(np.array(completion.logprobs) - of.logprobs).max())
        if not error < _LOGPROB:
            raise _wrong(f"a logprob is {error:.3g} nats from that of the model")
        _require_proof(states_TH, completion.proofs)


def _require_proof(states_TH: Tensor, proofs: list[bytes]) -> None:
    try:
        ((score,),) = toploc.score([bits(states_TH)], [proofs])
    except (Malformed, ValueError) as error:
        raise _wrong(f"no proof of its tokens was made ({error})") from error
    differing = max(score.measured["exponents"], score.measured["signs"])
    if not differing < _DIFFERING:
        raise _wrong(f"a proof is not of the model's final hidden states: {100 * differing:.0f} % of its points differ")


def require_installed(facts: dict[str, Any], device: torch.device) -> None:
    """That the runner is the one this was written for, with capture and draw in it on every rank. Raises PreflightError."""
    if foreign := [runner for runner in facts["runners"] if not runner["is_known"]]:
        raise _wrong(f"vLLM runs {foreign[0]['name']}, from which no proofs can be made")
    if not all(runner["draws"] for runner in facts["runners"]):
        raise _wrong("the seeded draw is not among vLLM's logits processors")
    if facts["async_scheduling"]:
        raise _wrong("vLLM schedules asynchronously, ahead of the tokens that the draw has to see")
    if facts["platform"] != device.type:
        raise _wrong(f"vLLM computes on {facts['platform']}, and the engine's device is {device.type}")


def _wrong(what: str) -> PreflightError:
    return PreflightError(f"the vLLM engine fails its self-check: {what}", hint=_HINT)


__all__ = ["KEYS", "TEMPERATURE", "TOKENS", "prompt", "require_installed", "require_right"]
assert TOKENS <= TOPLOC_CHUNK  # one proof
