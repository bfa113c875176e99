"""What every engine must pass. Derive a class from `EngineContract`, say how an engine is made, and pytest runs all of it:

    class TestMine(EngineContract):
        @pytest.fixture(scope="class")
        @classmethod
        def setting(cls, tmp_path_factory): return Setting(make=…, reference=…, version=…, another=…, broken=…, …)

It asks for nothing but the interface (node/engine/interface.py), and believes nothing that an engine says of itself: tokens, logprobs,
proofs, hidden states and scores are compared with protocol/sampling.py and protocol/toploc.py on what a `reference` computes, which
shares no code with the engine. tests/engine/test_contract.py runs it for the engine on torch and for a small engine of NumPy alone, which
shows what the least is that one has to do; tests/engine/test_mutants.py shows that each check refuses an engine that is wrong in one way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from node.engine.conversing import context_of, converse
from node.engine.interface import Completion, Ended, Engine, Prompt
from node.engine.proofs import bits
from protocol import sampling, toploc
from protocol.constants import TOPLOC_CHUNK
from protocol.errors import IntegrityError, Malformed, PreflightError, Unavailable
from protocol.turns import Turns

NEW_TOKENS = 40
"""More than a chunk of a proof, so that there is a short last one."""
NEVER: frozenset[int] = frozenset()
PLAIN: Mapping[str, Any] = {"temperature": 1.0}
DISTRIBUTIONS: Sequence[Mapping[str, Any]] = (
    PLAIN,
    {"temperature": 0.6},
    {"temperature": 1.5},
    {"temperature": 0},
    {"temperature": 1.0, "top_k": 3},
    {"temperature": 1.0, "top_p": 0.6},
    {"temperature": 0.8, "top_k": 6, "top_p": 0.9},
)
KEYS = (0, 1, 1 << 32, (1 << 63) + 1, (1 << 64) - 1)
_DIFFERING = (
    2  # exponents or signs of a proof's 128 points that rounding to bfloat16 may turn; a foreign row turns more
)

Array = NDArray[np.float32]
Reference = Callable[[Path, Sequence[int]], tuple[Array, Array]]
"""Of a version and a sequence of T tokens: the hidden states [T, H] that enter the output layer, and the logits [T, V]. Computed in
float32, a sequence at a time, by nothing of the engine's."""


@dataclass(frozen=True)
class Setting:
    """One engine, and what it is tried with."""

    make: Callable[[str], Engine]
    """An engine in float32 whose setting `memory` is this text; it holds no weights."""
    reference: Reference
    version: Path
    another: Path
    """Two versions of one model."""
    broken: Sequence[Path]
    """Versions that are not to be loaded; with one of them an engine that reads weights in place finds out at the last tensor."""
    vocabulary: int
    little: str
    """Memory for one of `prompts`' rows, and not for all of them together."""
    too_little: str
    """Memory for none."""
    prompt_lengths: Sequence[int] = (5, 19, 11)
    samples: int = 3
    rounding: float = 1e-3
    """What logits of the same tokens may differ by, in nats. Measured for torch in float32: below 1e-5."""

    def loaded(self, memory: str = "1GiB") -> Engine:
        engine = self.make(memory)
        engine.load(self.version)
        return engine

    @property
    def prompts(self) -> list[Prompt]:
        rng = np.random.default_rng(0)
        drawn = [rng.integers(0, self.vocabulary, length).tolist() for length in self.prompt_lengths]
        return [Prompt(ids, tuple(100 * i + k for k in range(self.samples))) for i, ids in enumerate(drawn)]

    @property
    def longest(self) -> int:
        return max(self.prompt_lengths) + NEW_TOKENS

    def one_each(self) -> list[Prompt]:
        return [replace(prompt, keys=prompt.keys[:1]) for prompt in self.prompts]

    def expected(
        self, prompt: Sequence[int], completion: Sequence[int], version: Path | None = None
    ) -> tuple[Array, Array]:
        """The reference's hidden states [T, H] and logits [T, V] that produce the completion's tokens."""
        hidden, logits = self.reference(version or self.version, [*prompt, *completion])
        rows = slice(len(prompt) - 1, len(prompt) + len(completion) - 1)
        return hidden[rows], logits[rows]


def generate(
    engine: Engine, prompts: Sequence[Prompt], *, ends: frozenset[int] = NEVER, most: int = NEW_TOKENS, prove: bool = True,
    distribution: Mapping[str, Any] = PLAIN,
) -> list[Completion]:  # fmt: skip
    """The completions of all prompts, flat."""
    made = engine.generate(prompts, max_new_tokens=most, end_tokens=ends, prove=prove, **distribution)
    found, asked = [len(group) for group in made], [len(prompt.keys) for prompt in prompts]
    assert found == asked, f"{found} completions were made for prompts with {asked} keys"
    return [completion for group in made for completion in group]


def conversed(engine: Engine, prompts: Sequence[Prompt], *, ends: frozenset[int]) -> list[Completion]:
    """The samples of all prompts, flat, of three turns at most: each end is followed by a few tokens."""

    def told(ended: Sequence[Ended]) -> list[list[int]]:
        return [
            [5 + len(one.completion.tokens) % 7, 9]
            if len(one.completion.turns) < 2 and len(one.completion.tokens) < NEW_TOKENS
            else []
            for one in ended
        ]

    made = converse(engine, prompts, told, reply_tokens=4, end_tokens=ends, max_new_tokens=NEW_TOKENS, **PLAIN)
    return [completion for group in made for completion in group]


def asked_for(prompts: Sequence[Prompt]) -> Iterator[tuple[list[int], int]]:
    return ((prompt.tokens, key) for prompt in prompts for key in prompt.keys)


def tokens(completions: Sequence[Completion]) -> list[list[int]]:
    return [completion.tokens for completion in completions]


def require_same(found: Sequence[Completion], expected: Sequence[Completion], what: str, rounding: float) -> None:
    """The same tokens; where one differs the draws were as good as equal, and from there on everything may."""
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        where = f"{what}: completion {number}"
        same = [a == b for a, b in zip(one.tokens, other.tokens, strict=False)]
        until = same.index(False) if False in same else len(same)
        assert until >= len(same) // 2, f"{where} parts from the other at token {until}: ties are rare"
        assert until < len(same) or len(one.tokens) == len(other.tokens), (
            f"{where} has {len(one.tokens)} tokens, not {len(other.tokens)}"
        )
        error = np.abs(np.array(one.logprobs[:until]) - other.logprobs[:until])
        assert (error < rounding).all(), f"{where}: logprobs differ by up to {error.max():.3g}"


def require_drawn(
    setting: Setting, prompts: Sequence[Prompt], made: Sequence[Completion], *, ends: frozenset[int] = NEVER,
    most: int = NEW_TOKENS, distribution: Mapping[str, Any] = PLAIN, version: Path | None = None,
) -> None:  # fmt: skip
    """Each completion is what protocol/sampling.py draws from the reference's logits, but where two tokens are as good as equal."""
    for (prompt, key), completion in zip(asked_for(prompts), made, strict=True):
        where = f"the completion of {len(prompt)} tokens by key {key} with {dict(distribution)}"
        ids = np.array(completion.tokens)
        assert 1 <= len(ids) <= most, f"{where} has {len(ids)} tokens, at most {most} were asked for"
        assert not set(completion.tokens[:-1]) & ends, f"{where} goes on after an end token"
        assert len(ids) == most or completion.tokens[-1] in ends, (
            f"{where} stops after {len(ids)} of {most} tokens, and not by an end token"
        )
        assert ((ids >= 0) & (ids < setting.vocabulary)).all(), f"{where} holds a token outside the vocabulary"
        _, logits = setting.expected(prompt, completion.tokens, version)
        scores = sampling.score(logits, ids, key=key, **distribution)
        worst = int(scores.margins.argmax())
        assert scores.margins[worst] < setting.rounding, (
            f"{where}: token {worst} is not the draw of the protocol; it lies {scores.margins[worst]:.3g} nats below"
        )
        claimed = np.array(completion.logprobs)
        assert claimed.shape == ids.shape, f"{where} has {len(claimed)} logprobs for {len(ids)} tokens"
        assert np.isfinite(claimed).all(), f"{where} has logprobs that are no numbers"
        error = np.abs(claimed - scores.logprobs)
        assert error.max() < setting.rounding, (
            f"{where}: the logprob of token {int(error.argmax())} is {error.max():.3g} nats from that of the model at temperature 1"
        )


def require_proved(setting: Setting, prompts: Sequence[Prompt], made: Sequence[Completion]) -> None:
    """Proofs are of the reference's hidden states, but for the rounding of single values."""
    for (prompt, key), completion in zip(asked_for(prompts), made, strict=True):
        where = f"the completion of {len(prompt)} tokens by key {key}"
        count, needed = len(completion.proofs), toploc.chunk_count(len(completion.tokens))
        assert count == needed, f"{where} has {count} proofs for {len(completion.tokens)} tokens, which need {needed}"
        hidden, _ = setting.expected(prompt, completion.tokens)
        try:
            (chunks,) = toploc.score([bits(torch.from_numpy(hidden))], [completion.proofs])
        except Malformed as error:
            raise AssertionError(f"{where} has proofs that cannot be read: {error}") from error
        for number, chunk in enumerate(chunks):
            assert max(chunk.exponents, chunk.signs) <= _DIFFERING, (
                f"{where}: proof {number} is not of the model's hidden states: {chunk.exponents} exponents and {chunk.signs} signs differ"
            )


class EngineContract:
    @pytest.fixture(scope="class")
    @classmethod
    def setting(cls) -> Setting:
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, setting: Setting) -> Engine:
        """One that no test loads anything else into."""
        return setting.loaded()

    @pytest.fixture(scope="class")
    @classmethod
    def made(cls, setting: Setting, engine: Engine) -> list[Completion]:
        return generate(engine, setting.prompts)

    # ---- drawing -------------------------------------------------------------------------------------------------------

    def test_every_token_is_the_protocols_draw_from_the_models_logits(
        self, setting: Setting, made: list[Completion]
    ) -> None:
        require_drawn(setting, setting.prompts, made)

    def test_every_request_is_drawn_as_it_asks(self, setting: Setting, engine: Engine) -> None:
        for distribution in DISTRIBUTIONS:
            found = generate(engine, setting.one_each(), distribution=distribution)
            require_drawn(setting, setting.one_each(), found, distribution=distribution)

    def test_every_bit_of_a_key_counts(self, setting: Setting, engine: Engine) -> None:
        asked = [replace(setting.prompts[0], keys=KEYS)]
        require_drawn(setting, asked, generate(engine, asked))

    def test_the_same_keys_give_the_same_tokens(self, setting: Setting, engine: Engine, made: list[Completion]) -> None:
        again = generate(engine, setting.prompts)
        assert tokens(again) == tokens(made), "the same request has other tokens the second time"

    def test_what_is_asked_beside_it_changes_nothing(
        self, setting: Setting, engine: Engine, made: list[Completion]
    ) -> None:
        alone = [c for p in setting.prompts for key in p.keys for c in generate(engine, [replace(p, keys=(key,))])]
        require_same(alone, made, "each alone", setting.rounding)
        turned = [replace(prompt, keys=prompt.keys[::-1]) for prompt in setting.prompts[::-1]]
        require_same(generate(engine, turned), made[::-1], "all in another order", setting.rounding)
        first, *rest = setting.prompts
        unequal = generate(engine, [replace(first, keys=first.keys[:1]), *rest])
        require_same(unequal, [made[0], *made[setting.samples :]], "unequal numbers of keys", setting.rounding)

    def test_a_completion_ends_with_its_first_end_token(
        self, setting: Setting, engine: Engine, made: list[Completion]
    ) -> None:
        ends = frozenset(completion.tokens[len(completion.tokens) // 2] for completion in made[:3])
        found = generate(engine, setting.prompts, ends=ends)
        require_drawn(setting, setting.prompts, found, ends=ends)
        require_proved(setting, setting.prompts, found)
        assert len({len(completion.tokens) for completion in found}) > 1, "nothing ended earlier than the rest"

    def test_a_completion_is_as_long_as_asked(self, setting: Setting, engine: Engine) -> None:
        for most in (1, TOPLOC_CHUNK, TOPLOC_CHUNK + 1):
            found = generate(engine, setting.one_each(), most=most)
            require_drawn(setting, setting.one_each(), found, most=most)
            require_proved(setting, setting.one_each(), found)

    def test_a_later_turn_goes_on_where_its_sample_stands(self, setting: Setting, engine: Engine) -> None:
        """Positions and the limit count what its sample has generated before; proofs begin anew."""
        asked = [replace(prompt, first=7) for prompt in setting.one_each()]
        made = generate(engine, asked)
        for prompt, completion in zip(asked, made, strict=True):
            where = f"a later turn after {len(prompt.tokens)} tokens"
            assert len(completion.tokens) == NEW_TOKENS - 7, (
                f"{where} has {len(completion.tokens)} tokens, and its sample may have {NEW_TOKENS - 7} more"
            )
            _, logits = setting.expected(prompt.tokens, completion.tokens)
            margins = sampling.score(logits, completion.tokens, key=prompt.keys[0], first=7, temperature=1.0).margins
            assert margins.max() < setting.rounding, f"{where} is not the draw of the protocol"
        require_proved(setting, asked, made)

    def test_a_conversation_goes_on_after_all_that_was_said(
        self, setting: Setting, engine: Engine, made: list[Completion]
    ) -> None:
        """Turns end early here, and a few tokens are told between them; every token is drawn and proved after all of that."""
        ends = frozenset(completion.tokens[len(completion.tokens) // 3] for completion in made[:3])
        found = conversed(engine, setting.prompts, ends=ends)
        assert max(len(one.turns) for one in found) == 2, "no sample has three turns"
        for (prompt, key), one in zip(asked_for(setting.prompts), found, strict=True):
            where = f"a conversation of {len(one.turns) + 1} turns after {len(prompt)} tokens"
            drawn = Turns((*one.turns, len(one.tokens) - sum(one.turns)), tuple(map(len, one.given)))
            hidden, logits = (rows[drawn.mask] for rows in setting.expected(prompt, context_of(one)))
            scores = sampling.score(logits, np.array(one.tokens), key=key, temperature=1.0)
            assert scores.margins.max() < setting.rounding, f"{where} is not the draw of the protocol"
            assert np.abs(scores.logprobs - one.logprobs).max() < setting.rounding, f"{where} has other logprobs"
            try:
                own = toploc.score(drawn.split(bits(torch.from_numpy(hidden))), drawn.proofs_of(one.proofs))
            except Malformed as error:
                raise AssertionError(f"{where} has proofs that cannot be read: {error}") from error
            worst = max(max(chunk.exponents, chunk.signs) for turn in own for chunk in turn)
            assert worst <= _DIFFERING, f"{where} is proved by other hidden states than the model's"

    # ---- proving and checking ------------------------------------------------------------------------------------------

    def test_proofs_are_of_the_models_hidden_states(self, setting: Setting, made: list[Completion]) -> None:
        require_proved(setting, setting.prompts, made)

    def test_no_proofs_are_made_where_none_are_wanted(
        self, setting: Setting, engine: Engine, made: list[Completion]
    ) -> None:
        found = generate(engine, setting.prompts, prove=False)
        assert not any(completion.proofs for completion in found), "there are proofs that nobody wanted"
        require_same(found, made, "without proofs", setting.rounding)

    def test_a_prefill_gives_the_models_hidden_states(
        self, setting: Setting, engine: Engine, made: list[Completion]
    ) -> None:
        asked = list(asked_for(setting.prompts))
        sequences = [
            (prompt, np.array(c.tokens[: 7 + i])) for i, ((prompt, _), c) in enumerate(zip(asked, made, strict=True))
        ]
        seen: set[int] = set()
        for batch in engine.prefill_in_batches(sequences):
            assert not set(batch) & seen, "an index comes twice"
            seen |= set(batch)
            for i, hidden in batch.items():
                shape = (len(sequences[i][1]), engine.hidden_size)
                assert tuple(hidden.shape) == shape, (
                    f"sequence {i} has hidden states {tuple(hidden.shape)}, not {shape}"
                )
                expected, _ = setting.expected(*sequences[i])
                error = np.abs(hidden.float().cpu().numpy() - expected) / np.maximum(1, np.abs(expected))
                assert (error < setting.rounding).all(), (
                    f"sequence {i}: hidden states are {error.max():.3g} from those of the model"
                )
        assert seen == set(range(len(sequences))), f"indices {sorted(seen)} came of {len(sequences)}"

    def test_a_score_is_the_protocols(self, setting: Setting, engine: Engine, made: list[Completion]) -> None:
        """Of right and of wrong tokens, by the right key and another, of more rows than any engine takes at once."""
        prompt = setting.prompts[0]
        (batch,) = engine.prefill_in_batches([(prompt.tokens, made[0].tokens)])
        _, logits = setting.expected(prompt.tokens, made[0].tokens)
        times = -(-300 // NEW_TOKENS)
        ids = np.tile(made[0].tokens, times)
        ids[::7] = np.random.default_rng(2).integers(0, setting.vocabulary, len(ids[::7]))
        for key in (prompt.keys[0], (1 << 64) - 1):
            for distribution in DISTRIBUTIONS:
                where = f"key {key} and {dict(distribution)}"
                found = engine.score(batch[0].repeat(times, 1), ids, key=key, **distribution)
                expected = sampling.score(np.tile(logits, (times, 1)), ids, key=key, **distribution)
                for name in ("margins", "logprobs", "ranges"):
                    error = np.abs(getattr(found, name) - getattr(expected, name))
                    assert (error < 2 * setting.rounding).all(), (
                        f"{name} with {where} are up to {error.max():.3g} from the protocol's, at token {int(error.argmax())}"
                    )
                gaps = (np.minimum(scores.gaps, sampling.RIVALS_WITHIN) for scores in (found, expected))
                error = np.abs(np.subtract(*gaps)).max(1)
                assert (error < 4 * setting.rounding).all(), f"gaps with {where} are up to {error.max():.3g} from them"
                clear = expected.gaps[:, 0] > 4 * setting.rounding
                if distribution == PLAIN:  # else a draw may be at the edge of the cut
                    assert (found.drawn == expected.drawn)[clear].all(), f"other tokens are drawn with {where}"
                same = found.drawn == expected.drawn
                error = np.abs(found.leads - expected.leads)[same]
                assert (error < 2 * setting.rounding).all(), f"leads with {where} are up to {error.max():.3g} off"

    def test_logits_that_are_no_numbers_are_this_machines_trouble(
        self, setting: Setting, engine: Engine, made: list[Completion]
    ) -> None:
        (batch,) = engine.prefill_in_batches([(setting.prompts[0].tokens, made[0].tokens)])
        for wrong in (float("nan"), float("inf")):
            hidden = batch[0].clone()
            hidden[3] = wrong
            with pytest.raises(IntegrityError):
                engine.score(hidden, made[0].tokens, key=0, **PLAIN)

    # ---- versions ------------------------------------------------------------------------------------------------------

    def test_a_reload_is_a_reload_of_everything(self, setting: Setting) -> None:
        engine = setting.loaded()
        for version in (setting.another, setting.version):
            engine.load(version)
            require_drawn(setting, setting.one_each(), generate(engine, setting.one_each()), version=version)

    def test_nothing_is_computed_after_a_load_that_was_refused(self, setting: Setting) -> None:
        """Weights may be half of one version and half of another; nor is the one before a version that anybody asked for."""
        engine = setting.loaded()
        prompt = setting.prompts[0]
        (batch,) = engine.prefill_in_batches([(prompt.tokens, [1, 2])])
        for broken in setting.broken:
            with pytest.raises(IntegrityError):
                engine.load(broken)
            with pytest.raises(Unavailable):
                generate(engine, [prompt])
            with pytest.raises(Unavailable):
                list(engine.prefill_in_batches([(prompt.tokens, [1, 2])]))
            with pytest.raises(Unavailable):
                engine.score(batch[0], [1, 2], key=0, **PLAIN)
        engine.load(setting.version)
        require_drawn(setting, setting.one_each(), generate(engine, setting.one_each()))

    def test_an_engine_that_refused_its_first_version_takes_the_next(self, setting: Setting) -> None:
        engine = setting.make("1GiB")
        for broken in setting.broken:
            with pytest.raises(IntegrityError):
                engine.load(broken)
            with pytest.raises(Unavailable):
                generate(engine, setting.one_each())
        engine.load(setting.version)
        require_drawn(setting, setting.one_each(), generate(engine, setting.one_each()))

    # ---- memory --------------------------------------------------------------------------------------------------------

    def test_little_memory_changes_nothing_of_the_work(self, setting: Setting, made: list[Completion]) -> None:
        engine = setting.loaded(setting.little)
        require_same(generate(engine, setting.prompts), made, "with little memory", setting.rounding)
        sequences = [(p.tokens, c.tokens) for p, c in zip(setting.prompts, made[:: setting.samples], strict=True)]
        indices = [i for batch in engine.prefill_in_batches(sequences) for i in batch]
        engine.require_room(setting.longest)
        engine.require_room(setting.longest, prompt=setting.longest - NEW_TOKENS)
        assert sorted(indices) == list(range(len(sequences))), f"indices {sorted(indices)} came of {len(sequences)}"

    def test_too_little_memory_is_said_before_anything_is_computed(self, setting: Setting) -> None:
        engine = setting.loaded(setting.too_little)
        with pytest.raises(PreflightError, match="memory"):
            generate(engine, setting.prompts)
        with pytest.raises(PreflightError, match="memory"):
            list(engine.prefill_in_batches([(prompt.tokens, [1] * NEW_TOKENS) for prompt in setting.prompts]))
        with pytest.raises(PreflightError, match="memory"):
            engine.require_room(setting.longest)
        with pytest.raises(PreflightError, match="memory"):
            engine.require_room(setting.longest, prompt=setting.longest - NEW_TOKENS)
