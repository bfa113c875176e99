"""What an engine is to the rest: two protocols, and what goes in and comes out of them.

A `Generator` makes completions with seeded sampling and proofs (a contributor, an evaluation). A `Verifier` computes other people's
completions again (a validator, a contributor's check of its own work). An `Engine` is both. Nobody but the factory
(node/engine/factory.py) knows a concrete one, and tests/engine/contract.py is what each must pass.

Imports no torch: settings and commands come by here.

Shapes: T tokens of a completion, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from protocol.errors import Unavailable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from protocol.sampling import TokenScores

    TokenIds = Sequence[int] | NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Prompt:
    """One problem's prompt: token ids, and in `keys` the unsigned 64-bit sampling key of each of its samples.

    `first`: how many tokens its samples have generated before, in earlier turns that are part of `tokens`. Sampling positions go on
    from there, and they count for `max_new_tokens`.
    """

    tokens: list[int]
    keys: tuple[int, ...]
    first: int = 0


@dataclass
class Completion:
    """One sample as it grows: token ids, their logprobs at temperature 1, and its TOPLOC proofs, of what it generated in all its turns.

    `turns` counts the generated tokens of each turn but the last, and `given` are the tokens of the reply to each of them.
    """

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    proofs: list[bytes] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    given: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True)
class Ended:
    """A sample whose newest turn ended by an end token: the number of its prompt, that of its key, and all of it so far."""

    prompt: int
    sample: int
    completion: Completion


def no_version() -> Unavailable:
    """What an engine raises that is to compute before it has loaded a version, or after a load that failed."""
    return Unavailable("the engine holds no version of the weights", hint="load one")


Reply = Callable[[Sequence[Ended]], list[list[int]]]
"""The tokens that each of these goes on from; none where that turn was its last."""


class Generator(Protocol):
    def load(self, folder: Path) -> None:
        """Loads a version: config.json and model.safetensors of `folder`, whose bytes were checked against the chain before.

        Raises ConfigError for a model that no engine computes rightly (protocol/architectures.py), IntegrityError for weights that
        are not exactly the model's. Whatever it raises, the engine then holds no version: weights are read once, straight to where they
        are computed with, and may be half of one version and half of another. Until a `load` has succeeded, everything that computes
        with them raises Unavailable.
        """
        ...

    def generate(
        self, prompts: Sequence[Prompt], *, temperature: float, max_new_tokens: int, end_tokens: frozenset[int],
        top_k: int = 0, top_p: float = 1.0, prove: bool = True,
    ) -> list[list[Completion]]:  # fmt: skip
        """Completions per prompt and key, in order; what is drawn, protocol/sampling.py defines.

        A completion ends with its first end token or after `max_new_tokens`, less the prompt's `first`. Without `prove` it has no proofs. Callers give a whole
        submission: the engine splits it as its memory allows, and what is drawn does not depend on that, but for rounding.
        Raises PreflightError where a single sequence takes more memory than it may, ConfigError where one is longer than the
        model's positions, Unavailable while no version is held.
        """
        ...


class Verifier(Protocol):
    def load(self, folder: Path) -> None:
        """As a Generator's."""
        ...

    @property
    def hidden_size(self) -> int:
        """H of the version that is loaded."""
        ...

    def prefill_in_batches(self, sequences: Sequence[tuple[TokenIds, TokenIds]]) -> Iterator[dict[int, Tensor]]:
        """Final hidden states [T, H], the rows that enter the output layer, that produced each completion's tokens.

        `sequences` are (prompt, completion). Each index comes once, in batches that the engine's memory allows; it keeps none of
        them. Raises PreflightError where a single sequence takes more memory than it may, Unavailable while no version is held.
        """
        ...

    def require_room(self, tokens: int, *, prompt: int | None = None) -> None:
        """Raises PreflightError where one sequence of so many tokens is more than the engine has memory for: to check it, and where it is
        told how many of them are the `prompt`, to generate the others too."""
        ...

    def score(
        self, hidden_TH: Tensor, tokens_T: TokenIds, *, key: int, temperature: float, top_k: int = 0, top_p: float = 1.0
    ) -> TokenScores:
        """Scores a completion's tokens against the logits of its hidden states (protocol/sampling.py), from position 0 on.

        Raises IntegrityError where the logits are no numbers: that is this machine's trouble, never the claim's. Raises Unavailable while
        no version is held.
        """
        ...


class Engine(Generator, Verifier, Protocol):
    """What a role makes for itself: nodes check their own work, so nearly all need both halves."""


@runtime_checkable
class Conversing(Protocol):
    """A generator that goes on after a reply with the keys and values that it has. Others are asked anew for each turn, with all that
    was said before as their prompt (conversing.py)."""

    def converse(
        self, prompts: Sequence[Prompt], reply: Reply, *, reply_tokens: int, temperature: float, max_new_tokens: int,
        end_tokens: frozenset[int], top_k: int = 0, top_p: float = 1.0, prove: bool = True,
    ) -> list[list[Completion]]:  # fmt: skip
        """As `generate`, but a sample goes on in another turn where `reply` gives tokens, of which one has at most `reply_tokens`.

        Proofs begin anew with each turn. Raises as `generate`, and what `reply` raises.
        """
        ...


@runtime_checkable
class Readable(Protocol):
    """An engine that shows its logits: what a run's reference probe is made with."""

    def logits(self, hidden_TH: Tensor) -> NDArray[np.float32]:
        """Logits [T, V] of hidden states, from which tokens are drawn. Raises Unavailable while no version is held."""
        ...


@runtime_checkable
class Reproducible(Protocol):
    """An engine whose bits depend on nothing but the tokens, on any machine of its build."""

    @property
    def build(self) -> str:
        """What another machine must share to compute the same bits, as one line of printable ASCII; empty where that is not promised, and
        before a version is loaded."""
        ...


def build_of(engine: Generator | Verifier) -> str:
    """The build of an engine; empty where it names none."""
    return engine.build if isinstance(engine, Reproducible) else ""


@runtime_checkable
class Restarting(Protocol):
    """An engine that computes in a process which others may replace, and which reads later versions in place."""

    vet: Callable[[], None] | None
    """Called before the work of a process that has just started, or that has read its first version in place: what it raises ends
    that work (checked_engine.py)."""

    def start(self) -> None:
        """Has a process at hand that was vetted, as before any work."""
        ...


@runtime_checkable
class Adjustable(Protocol):
    """An engine that calibration can measure: honest variants of how it computes, and weights made worse."""

    @property
    def device(self) -> str:
        """What it computes on, as the maker names it."""
        ...

    def adjust(self, *, attention: str, threads: int) -> None:
        """Computes with another attention implementation of this name, where it is not empty, and so many threads on the CPU."""
        ...

    def degrade(self, change: Callable[[Any], None]) -> None:
        """Changes the loaded model in place (node/engine/degrade.py); the next `load` undoes it."""
        ...
