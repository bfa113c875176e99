"""Replies: what an environment says between two turns of a sample, as tokens, and when the turn before was the last.

The same for who generates and who checks. A turn that ended by an end token is followed by a reply unless

- the environment says nothing, or its text has no tokens,
- the sample has as many turns, or generated tokens, as the run spec allows,
- the reply does not fit into what is left of the spec's `reply_tokens`: it is given whole or not at all.

The text stands in the spec's `reply_template` and is tokenised by itself, by the run's tokenizer: tokens of turns beside it are never
merged with it. Special tokens that a text spells out become those tokens, as they do in a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocol.constants import REPLY_CALLS_MAX, REPLY_CHARS_MAX
from protocol.errors import Malformed, Oversized
from protocol.rollout import ToolResult

if TYPE_CHECKING:
    from protocol.runspec import SamplingSpec
    from protocol.tokenizer import Tokenizer


@dataclass(frozen=True)
class Asked:
    """A conversation so far: the number of its problem, the text of each turn, and from which turn on replies are wanted."""

    problem: int
    turns: Sequence[str]
    first: int = 0
    claims: Sequence[str | None] = ()
    """What somebody else says that the first call of each turn gave; where there is nothing, or None, it is to be found out here."""

    def claim(self, turn: int) -> str | None:
        return self.claims[turn] if turn < len(self.claims) else None


@dataclass(frozen=True)
class SoFar:
    """How much of a sample there is when a turn ends: turns, generated tokens, and tokens of replies."""

    turns: int
    generated: int
    given: int


def may_follow(sampling: SamplingSpec, so_far: SoFar) -> bool:
    """Whether there is room for another turn."""
    return so_far.turns < sampling.turns and so_far.generated < sampling.max_new_tokens


def tokens_of(sampling: SamplingSpec, tokenizer: Tokenizer, reply: ToolResult | None, so_far: SoFar) -> list[int]:
    """What the model goes on from; nothing where the turn was the last."""
    if reply is None or not may_follow(sampling, so_far):
        return []
    tokens = tokenizer.encode(sampling.reply_template.replace("{reply}", reply.text))
    return tokens if so_far.given + len(tokens) <= sampling.reply_tokens else []


def bounded(reply: str | ToolResult | None) -> ToolResult | None:
    """What an environment's method gave. Raises Malformed for what is no reply, or is more than one may be."""
    if reply is None:
        return None
    made = ToolResult(reply) if isinstance(reply, str) else reply
    if not isinstance(made, ToolResult) or not isinstance(made.text, str):
        raise Malformed("an environment replies with something that is neither text nor a ToolResult")
    if len(made.text) > REPLY_CHARS_MAX or len(made.calls) > REPLY_CALLS_MAX:
        raise Malformed(
            f"a reply of {len(made.text)} characters and {len(made.calls)} calls, at most {REPLY_CHARS_MAX} and {REPLY_CALLS_MAX} may be"
        )
    try:
        made.text.encode()
        for call in made.calls:
            call.parse(call.encode())
    except (ValueError, Oversized) as error:
        raise Malformed(f"a reply cannot be written down: {error}") from error
    return made
