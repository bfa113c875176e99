"""What verdicts and rules mean to a contributor, in a sentence each. What exactly is checked stands in docs/rules.md."""

from __future__ import annotations

from protocol.verdict import ALL_SAMPLES, Outcome

PAGE = "docs/rules.md"

OUTCOMES = {
    Outcome.ACCEPT: "the validator found nothing wrong; the work is paid once its window has passed",
    Outcome.SOFT: "a fault, not taken for cheating: the submission earns nothing, and too many of them suspend the seat",
    Outcome.HARD: "taken for cheating: if the verdict stands, the seat loses stake and is banned",
}
RULES = {
    "available": "the file was not at the hub in time, was too large, or is not the one that was committed to",
    "schema": "the file cannot be read as a file of rollouts",
    "identity": "the file says it is of another run, node, version or hardware class than the chain does",
    "duplicate": "this node has committed to the same file before",
    "assignment": "the prompts are not those that were this submission's to answer, or some are missing",
    "tokens": "tokens, lengths or turns are outside what the run allows",
    "termination": "a completion does not end where it has to",
    "conversation": "an answer between two turns is not what the environment says",
    "reward": "a reward is not what the environment gives for that answer",
    "computation": "the proofs do not match these weights: another model, other weights or a lower precision was computed with",
    "sampling": "the tokens are not those that the run's sampler draws from these weights",
    "history": "this seat's work taken together is noisier than honest machines are",
}
"""What is wrong, by the rule that found it."""


def link(rule: str) -> str:
    """Where a rule is described."""
    return f"{PAGE}#rule-{rule}"


def ranges(mask: int) -> str:
    """The samples that a bitmap names: `0–7, 12`; `all`; `none`."""
    if mask == ALL_SAMPLES:
        return "all"
    found, at = [], 0
    while mask >> at:
        first = at + _trailing_zeros(mask >> at)
        at = first + _trailing_zeros(~(mask >> first))
        found.append(str(first) if at == first + 1 else f"{first}–{at - 1}")
    return ", ".join(found) or "none"


def _trailing_zeros(number: int) -> int:
    return (number & -number).bit_length() - 1
