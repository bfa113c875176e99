"""Engines that are wrong in one way each: the engine of NumPy (numpy_engine.py), changed. Most of them are at one with themselves, so that
nothing but a comparison with the model and the protocol finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from node.engine.interface import Completion, Prompt
from node.engine.settings import EngineSettings
from protocol import sampling, toploc
from protocol.errors import IntegrityError, PreflightError
from protocol.sampling import TokenScores
from tests.engine.numpy_engine import WEIGHTS, NumpyEngine, load_file

Made = list[list[Completion]]
Check = tuple[str, str]
"""Name of the check of EngineContract that must refuse a mutant, and a piece of what it must say."""
MUTANTS: dict[str, tuple[type[NumpyEngine], Check]] = {}


def mutant(name: str, check: str, complaint: str) -> Callable[[type[NumpyEngine]], type[NumpyEngine]]:
    def register(kind: type[NumpyEngine]) -> type[NumpyEngine]:
        MUTANTS[name] = (kind, (check, complaint))
        return kind

    return register


def asks_otherwise(name: str, check: str, complaint: str, **changes: Callable[[Any], Any]) -> None:
    """A mutant that generates, and scores, as if other arguments had been given."""

    def changed(given: dict[str, Any]) -> dict[str, Any]:
        return {key: changes.get(key, lambda same: same)(value) for key, value in given.items()}

    class Otherwise(NumpyEngine):
        def generate(self, prompts: Sequence[Prompt], **asked: Any) -> Made:
            new_key = changes.get("key", lambda same: same)
            asked_now = [replace(prompt, keys=tuple(new_key(key) for key in prompt.keys)) for prompt in prompts]
            return super().generate(asked_now, **changed(asked))

        def score(self, hidden_TH: Tensor, tokens_T: Any, **asked: Any) -> TokenScores:
            return super().score(hidden_TH, tokens_T, **changed(asked))

    mutant(name, check, complaint)(Otherwise)


def answers_otherwise(name: str, check: str, complaint: str, change: Callable[[Completion], None]) -> None:
    """A mutant whose completions are changed after they were made."""

    class Otherwise(NumpyEngine):
        def generate(self, prompts: Sequence[Prompt], **asked: Any) -> Made:
            made = super().generate(prompts, **asked)
            for group in made:
                for completion in group:
                    change(completion)
            return made

    mutant(name, check, complaint)(Otherwise)


DRAWN = "test_every_token_is_the_protocols_draw_from_the_models_logits"
ASKED = "test_every_request_is_drawn_as_it_asks"
BITS = "test_every_bit_of_a_key_counts"
ENDS = "test_a_completion_ends_with_its_first_end_token"
LENGTH = "test_a_completion_is_as_long_as_asked"
LATER = "test_a_later_turn_goes_on_where_its_sample_stands"
TURNS = "test_a_conversation_goes_on_after_all_that_was_said"
BESIDE = "test_what_is_asked_beside_it_changes_nothing"
PROOFS = "test_proofs_are_of_the_models_hidden_states"
PREFILL = "test_a_prefill_gives_the_models_hidden_states"
SCORE = "test_a_score_is_the_protocols"
REFUSED = "test_nothing_is_computed_after_a_load_that_was_refused"
NO_DRAW = "is not the draw of the protocol"

# ---- what is drawn -------------------------------------------------------------------------------------------------------

asks_otherwise("other noise", DRAWN, NO_DRAW, key=lambda key: key ^ 0x5555)
asks_otherwise("temperature ignored", ASKED, NO_DRAW, temperature=lambda _: 1.0)
asks_otherwise("greedy with noise", ASKED, NO_DRAW, temperature=lambda of: of or 1.0)
asks_otherwise(
    "temperature of less than 1 ignored", ASKED, NO_DRAW, temperature=lambda of: of if of == 0 else max(of, 1.0)
)
asks_otherwise("top_k ignored", ASKED, NO_DRAW, top_k=lambda _: 0)
asks_otherwise("top_k one too large", ASKED, NO_DRAW, top_k=lambda of: of and of + 1)
asks_otherwise("top_p ignored", ASKED, NO_DRAW, top_p=lambda _: 1.0)
asks_otherwise("keys of 32 bits", BITS, NO_DRAW, key=lambda key: key & 0xFFFFFFFF)
asks_otherwise("keys of 63 bits", BITS, NO_DRAW, key=lambda key: key & ((1 << 63) - 1))
asks_otherwise("end tokens ignored", ENDS, "goes on after an end token", end_tokens=lambda _: frozenset())
asks_otherwise("one token too few", LENGTH, "not by an end token", max_new_tokens=lambda of: max(1, of - 1))
asks_otherwise("one token too many", LENGTH, "at most 1 were asked for", max_new_tokens=lambda of: of + 1)
asks_otherwise("never proves", PROOFS, "has 0 proofs", prove=lambda _: False)
asks_otherwise("always proves", "test_no_proofs_are_made_where_none_are_wanted", "nobody wanted", prove=lambda _: True)


@mutant("positions from 1 on", DRAWN, NO_DRAW)
class LatePositions(NumpyEngine):
    def _complete(self, prompt: list[int], key: int, first: int, most: int, *rest: Any) -> Completion:
        made = super()._complete([*prompt[:-1]], key, first, most + 1, *rest)
        return Completion(made.tokens[1:], made.logprobs[1:], made.proofs)


@mutant("every turn begins anew", LATER, NO_DRAW)
class Anew(NumpyEngine):
    def generate(self, prompts: Sequence[Prompt], *, max_new_tokens: int, **asked: Any) -> Made:
        left = max_new_tokens - prompts[0].first
        return super().generate([replace(prompt, first=0) for prompt in prompts], max_new_tokens=left, **asked)


@mutant("earlier turns do not count", LATER, "tokens, and its sample may have")
class Uncounted(NumpyEngine):
    def generate(self, prompts: Sequence[Prompt], *, max_new_tokens: int, **asked: Any) -> Made:
        return super().generate(prompts, max_new_tokens=max_new_tokens + prompts[0].first, **asked)


@mutant("earlier turns are forgotten", TURNS, "has other logprobs")
class ShortMemory(NumpyEngine):
    def generate(self, prompts: Sequence[Prompt], **asked: Any) -> Made:
        cut = [replace(prompt, tokens=prompt.tokens[-3:]) if prompt.first else prompt for prompt in prompts]
        return super().generate(cut, **asked)


@mutant("prompt ignored", DRAWN, "from that of the model")
class Promptless(NumpyEngine):
    def generate(self, prompts: Sequence[Prompt], **asked: Any) -> Made:
        return super().generate([replace(prompt, tokens=[0]) for prompt in prompts], **asked)


@mutant("only the prompt's end is read", DRAWN, "from that of the model")
class ShortSighted(NumpyEngine):
    def generate(self, prompts: Sequence[Prompt], **asked: Any) -> Made:
        return super().generate([replace(prompt, tokens=prompt.tokens[-4:]) for prompt in prompts], **asked)


@mutant("one completion for every key it has seen", ASKED, NO_DRAW)
class Remembering(NumpyEngine):
    def _complete(self, prompt: list[int], key: int, *rest: Any) -> Completion:
        kept: dict[Any, Completion] = self.__dict__.setdefault("kept", {})
        if (*prompt, key) not in kept:
            kept[*prompt, key] = super()._complete(prompt, key, *rest)
        return kept[*prompt, key]


@mutant("padding counts as a prompt", BESIDE, "logprobs differ by")
class Padding(NumpyEngine):
    def generate(self, prompts: Sequence[Prompt], **asked: Any) -> Made:
        width = max(len(prompt.tokens) for prompt in prompts)
        padded = [[0] * (width - len(prompt.tokens)) + prompt.tokens for prompt in prompts]
        return super().generate([replace(p, tokens=ids) for p, ids in zip(prompts, padded, strict=True)], **asked)


@mutant("noise by the row of the batch", BESIDE, "parts from the other at token")
class Rows(NumpyEngine):
    def generate(self, prompts: Sequence[Prompt], **asked: Any) -> Made:
        return super().generate(
            [replace(prompt, keys=tuple(key + row for key in prompt.keys)) for row, prompt in enumerate(prompts)],
            **asked,
        )


@mutant("noise of its own", "test_the_same_keys_give_the_same_tokens", "other tokens the second time")
class Unseeded(NumpyEngine):
    def generate(self, prompts: Sequence[Prompt], **asked: Any) -> Made:
        self.calls = getattr(self, "calls", 0) + 1
        return super().generate(
            [replace(p, keys=tuple(k + 1000 * self.calls for k in p.keys)) for p in prompts], **asked
        )


@mutant("completions of a prompt in another order", DRAWN, NO_DRAW)
class Turned(NumpyEngine):
    def generate(self, prompts: Sequence[Prompt], **asked: Any) -> Made:
        return [group[::-1] for group in super().generate(prompts, **asked)]


@mutant("one completion for each prompt", DRAWN, "completions were made for prompts with")
class OneEach(NumpyEngine):
    def generate(self, prompts: Sequence[Prompt], **asked: Any) -> Made:
        return [group[:1] for group in super().generate(prompts, **asked)]


@mutant("end token left out", ENDS, "not by an end token")
class Endless(NumpyEngine):
    def _complete(
        self, prompt: list[int], key: int, first: int, most: int, ends: frozenset[int], *rest: Any
    ) -> Completion:
        made = super()._complete(prompt, key, first, most, ends, *rest)
        if made.tokens[-1] in ends:
            made.tokens.pop()
            made.logprobs.pop()
        return made


# ---- what is said of it --------------------------------------------------------------------------------------------------


def last_logprob(value: float, completion: Completion) -> None:
    completion.logprobs[-1] = value


answers_otherwise("a logprob is NaN", DRAWN, "logprobs that are no numbers", partial(last_logprob, float("nan")))
answers_otherwise("a logprob is infinite", DRAWN, "logprobs that are no numbers", partial(last_logprob, -float("inf")))
answers_otherwise("no logprobs", DRAWN, "has 0 logprobs for", lambda made: made.logprobs.clear())
answers_otherwise(
    "logprobs of the token after",
    DRAWN,
    "nats from that of the model",
    lambda made: made.logprobs.append(made.logprobs.pop(0)),
)
answers_otherwise(
    "no proof of the short last chunk",
    PROOFS,
    "has 1 proofs for 40 tokens",
    lambda made: made.proofs[:] and made.proofs.pop(),
)
answers_otherwise(
    "proofs in another order", LENGTH, "proofs that cannot be read: a proof over", lambda made: made.proofs.reverse()
)


@mutant("logprobs at the drawing temperature", ASKED, "from that of the model at temperature 1")
class Tempered(NumpyEngine):
    def _complete(self, prompt: list[int], key: int, *rest: Any) -> Completion:
        made = super()._complete(prompt, key, *rest)
        warmth = rest[-1]["temperature"] or 1.0
        logits = self._states([*prompt, *made.tokens])[len(prompt) - 1 : -1] @ self._loaded.T / warmth
        made.logprobs = sampling.score(logits, np.array(made.tokens), key=key, temperature=1.0).logprobs.tolist()
        return made


class Proving(NumpyEngine):
    """Makes proofs of changed rows."""

    def rows(self, states: Any) -> Any:
        raise NotImplementedError

    def _complete(self, prompt: list[int], key: int, *rest: Any) -> Completion:
        made = super()._complete(prompt, key, *rest)
        states = self._states([*prompt, *made.tokens])[len(prompt) - 1 : -1]
        made.proofs = toploc.prove([toploc.bf16_bits(self.rows(states))])[0]
        return made


@mutant("proofs a row late", PROOFS, "is not of the model's hidden states")
class LateProofs(Proving):
    def rows(self, states: Any) -> Any:
        return np.roll(states, 1, 0)


@mutant("one row of a proof is another's", PROOFS, "is not of the model's hidden states")
class ForeignRow(Proving):
    def rows(self, states: Any) -> Any:
        states = states.copy()
        states[5] = -states[5]
        return states


@mutant("proofs of nothing", PROOFS, "is not of the model's hidden states")
class NullProofs(Proving):
    def rows(self, states: Any) -> Any:
        return np.zeros_like(states)


# ---- checking ------------------------------------------------------------------------------------------------------------


class Prefilling(NumpyEngine):
    """Gives changed hidden states."""

    def changed(self, i: int, hidden: Tensor) -> Tensor:
        raise NotImplementedError

    def prefill_in_batches(self, sequences: Sequence[tuple[Any, Any]]) -> Iterator[dict[int, Tensor]]:
        for batch in super().prefill_in_batches(sequences):
            yield {i: self.changed(i, hidden) for i, hidden in batch.items()}


@mutant("prefill a row late", PREFILL, "from those of the model")
class LateRows(Prefilling):
    def changed(self, i: int, hidden: Tensor) -> Tensor:
        return hidden.roll(1, 0)


@mutant("prefill without the last row", PREFILL, "has hidden states")
class FewRows(Prefilling):
    def changed(self, i: int, hidden: Tensor) -> Tensor:
        return hidden[:-1]


@mutant("prefill of NaN", PREFILL, "from those of the model")
class NanRows(Prefilling):
    def changed(self, i: int, hidden: Tensor) -> Tensor:
        return torch.full_like(hidden, torch.nan)


@mutant("prefill forgets one", PREFILL, "indices .* came of")
class Forgetful(NumpyEngine):
    def prefill_in_batches(self, sequences: Sequence[tuple[Any, Any]]) -> Iterator[dict[int, Tensor]]:
        return super().prefill_in_batches(sequences[:-1] if len(sequences) > 1 else sequences)


@mutant("prefill of other sequences", PREFILL, "has hidden states|from those of the model")
class Mixed(NumpyEngine):
    def prefill_in_batches(self, sequences: Sequence[tuple[Any, Any]]) -> Iterator[dict[int, Tensor]]:
        return super().prefill_in_batches(sequences[::-1])


@mutant("every score is perfect", SCORE, "margins with")
class Flattering(NumpyEngine):
    def score(self, hidden_TH: Tensor, tokens_T: Any, **asked: Any) -> TokenScores:
        found = super().score(hidden_TH, tokens_T, **asked)
        return replace(found, margins=np.zeros_like(found.margins))


@mutant("a score's positions start again", SCORE, "margins with")
class Restarting(NumpyEngine):
    def score(self, hidden_TH: Tensor, tokens_T: Any, **asked: Any) -> TokenScores:
        parts = [
            super(Restarting, self).score(hidden_TH[at : at + 128], tokens_T[at : at + 128], **asked)
            for at in range(0, len(tokens_T), 128)
        ]
        return TokenScores.joined(parts)


@mutant("a score's logprobs are NaN", SCORE, "logprobs with")
class NanScores(NumpyEngine):
    def score(self, hidden_TH: Tensor, tokens_T: Any, **asked: Any) -> TokenScores:
        found = super().score(hidden_TH, tokens_T, **asked)
        return replace(found, logprobs=np.full_like(found.logprobs, np.nan))


@mutant("a score knows no rivals", SCORE, "gaps with")
class Unrivalled(NumpyEngine):
    def score(self, hidden_TH: Tensor, tokens_T: Any, **asked: Any) -> TokenScores:
        found = super().score(hidden_TH, tokens_T, **asked)
        return replace(found, gaps=np.full_like(found.gaps, np.inf))


@mutant("a score's ranges are those of the drawn token", SCORE, "ranges with")
class Narrow(NumpyEngine):
    def score(self, hidden_TH: Tensor, tokens_T: Any, **asked: Any) -> TokenScores:
        found = super().score(hidden_TH, tokens_T, **asked)
        return replace(found, ranges=-found.logprobs)


@mutant("a score takes the tokens for the draws", SCORE, "other tokens are drawn")
class Believing(NumpyEngine):
    def score(self, hidden_TH: Tensor, tokens_T: Any, **asked: Any) -> TokenScores:
        return replace(super().score(hidden_TH, tokens_T, **asked), drawn=np.asarray(tokens_T, np.int64))


@mutant("a score's leads have the wrong sign", SCORE, "leads with")
class Backwards(NumpyEngine):
    def score(self, hidden_TH: Tensor, tokens_T: Any, **asked: Any) -> TokenScores:
        found = super().score(hidden_TH, tokens_T, **asked)
        return replace(found, leads=-found.leads)


@mutant("scores what is no number", "test_logits_that_are_no_numbers_are_this_machines_trouble", "DID NOT RAISE")
class Numb(NumpyEngine):
    def score(self, hidden_TH: Tensor, tokens_T: Any, **asked: Any) -> TokenScores:
        return super().score(hidden_TH.nan_to_num(0, 0, 0), tokens_T, **asked)


# ---- versions and memory -------------------------------------------------------------------------------------------------


@mutant("loads once", "test_a_reload_is_a_reload_of_everything", NO_DRAW)
class Stubborn(NumpyEngine):
    def load(self, folder: Path) -> None:
        if self._table is None:
            super().load(folder)


@mutant("loads half of another version", "test_a_reload_is_a_reload_of_everything", NO_DRAW)
class Half(NumpyEngine):
    def load(self, folder: Path) -> None:
        before = self._table
        super().load(folder)
        if before is not None:
            self._table = np.concatenate([self._loaded[:32], before[32:]])


@mutant("loads what is broken", "test_an_engine_that_refused_its_first_version_takes_the_next", "DID NOT RAISE")
class Trusting(NumpyEngine):
    def load(self, folder: Path) -> None:
        self._table = load_file(folder / WEIGHTS)["table"]


@mutant("goes on with the version before a refused one", REFUSED, "DID NOT RAISE")
class Clinging(NumpyEngine):
    def load(self, folder: Path) -> None:
        before = self._table
        try:
            super().load(folder)
        except IntegrityError:
            self._table = before
            raise


@mutant("computes with half of a refused version", REFUSED, "DID NOT RAISE")
class Mixing(NumpyEngine):
    def load(self, folder: Path) -> None:
        before = self._table
        try:
            super().load(folder)
        except IntegrityError:
            if before is not None:
                self._table = np.concatenate([np.zeros_like(before[:32]), before[32:]])
            raise


class Partly(NumpyEngine):
    """Refuses to generate after a load that was refused, and does something else."""

    before: Any = None

    def load(self, folder: Path) -> None:
        self.before = self._table if self._table is not None else self.before
        super().load(folder)

    def with_the_one_before(self) -> NumpyEngine:
        other = NumpyEngine("float32", EngineSettings())
        other._table = self.before if self._table is None else self._table
        return other


@mutant("prefills after a refusal", REFUSED, "DID NOT RAISE")
class PartlyPrefilling(Partly):
    def prefill_in_batches(self, sequences: Sequence[tuple[Any, Any]]) -> Iterator[dict[int, Tensor]]:
        return self.with_the_one_before().prefill_in_batches(sequences)


@mutant("scores after a refusal", REFUSED, "DID NOT RAISE")
class PartlyScoring(Partly):
    def score(self, hidden_TH: Tensor, tokens_T: Any, **asked: Any) -> TokenScores:
        return self.with_the_one_before().score(hidden_TH, tokens_T, **asked)


@mutant("little memory changes draws", "test_little_memory_changes_nothing_of_the_work", "with little memory")
class Tight(NumpyEngine):
    def generate(self, prompts: Sequence[Prompt], **asked: Any) -> Made:
        tight = self._most < 1 << 20
        return super().generate([replace(p, keys=tuple(k + tight for k in p.keys)) for p in prompts], **asked)


@mutant(
    "says nothing of too little memory", "test_too_little_memory_is_said_before_anything_is_computed", "DID NOT RAISE"
)
class Boundless(NumpyEngine):
    def generate(self, prompts: Sequence[Prompt], **asked: Any) -> Made:
        try:
            return super().generate(prompts, **asked)
        except PreflightError:
            self._most = 1 << 30
            return super().generate(prompts, **asked)


@mutant("has room for whatever is asked", "test_too_little_memory_is_said_before_anything_is_computed", "DID NOT RAISE")
class Roomy(NumpyEngine):
    def require_room(self, tokens: int, *, prompt: int | None = None) -> None:
        """There is always room."""
