"""What every engine must pass. Derive a class from `EngineContract`, say how an engine is made, and pytest runs all of it:

    class TestMine(EngineContract):
        @pytest.fixture(scope="class")
        @classmethod
        def setting(cls, tmp_path_factory): return Setting(make=…, version=…, another=…, broken=…, …)

It asks for nothing but the interface (node/engine/interface.py). tests/engine/test_contract.py runs it for the engine on torch and for a
small engine of NumPy alone, which shows what the least is that one has to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from node.engine.interface import Completion, Engine, Prompt
from node.engine.proofs import bits
from protocol import toploc
from protocol.constants import TOPLOC_CHUNK
from protocol.errors import IntegrityError, PreflightError

NEW_TOKENS = 40
"""More than a chunk of a proof, so that there is a short last one."""
ROUNDING = 1e-3
"""What logits of the same tokens may differ by, in nats, as batches differ. Measured in float32: below 1e-5."""
NEVER: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Setting:
    """One engine, and what it is tried with."""

    make: Callable[[str], Engine]
    """An engine in float32 whose setting `memory` is this text; it holds no weights."""
    version: Path
    another: Path
    """Two versions of one model."""
    broken: Path
    """A version that is not to be loaded."""
    vocabulary: int
    little: str
    """Memory for one of `prompts`' rows, and not for all of them together."""
    too_little: str
    """Memory for none."""
    prompt_lengths: Sequence[int] = (5, 19, 11)
    samples: int = 3

    def loaded(self, memory: str = "1GiB") -> Engine:
        engine = self.make(memory)
        engine.load(self.version)
        return engine

    @property
    def prompts(self) -> list[Prompt]:
        rng = np.random.default_rng(0)
        drawn = [rng.integers(0, self.vocabulary, length).tolist() for length in self.prompt_lengths]
        return [Prompt(ids, tuple(100 * i + k for k in range(self.samples))) for i, ids in enumerate(drawn)]


def generate(
    engine: Engine, prompts: Sequence[Prompt], *, ends: frozenset[int] = NEVER, temperature: float = 1.0, prove: bool = True
) -> list[Completion]:  # fmt: skip
    """The completions of all prompts, flat."""
    made = engine.generate(prompts, temperature=temperature, max_new_tokens=NEW_TOKENS, end_tokens=ends, prove=prove)
    assert [len(group) for group in made] == [len(prompt.keys) for prompt in prompts]
    return [completion for group in made for completion in group]


def tokens(completions: Sequence[Completion]) -> list[list[int]]:
    return [completion.tokens for completion in completions]


def require_same(found: Sequence[Completion], expected: Sequence[Completion]) -> None:
    """The same tokens; where one differs the draws were as good as equal, and from there on everything may."""
    for one, other in zip(found, expected, strict=True):
        same = [a == b for a, b in zip(one.tokens, other.tokens, strict=False)]
        until = same.index(False) if False in same else len(same)
        assert until >= len(same) // 2, "two ways to compute the same may part at a tie, and ties are rare"
        assert np.abs(np.array(one.logprobs[:until]) - other.logprobs[:until]).max() < ROUNDING


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

    def test_the_same_keys_give_the_same_tokens(self, setting: Setting, engine: Engine, made: list[Completion]) -> None:
        again = generate(engine, setting.prompts)
        assert tokens(again) == tokens(made)
        alone = [c for p in setting.prompts for key in p.keys for c in generate(engine, [replace(p, keys=(key,))])]
        require_same(alone, made)

    def test_other_keys_give_other_tokens(self, setting: Setting, engine: Engine, made: list[Completion]) -> None:
        assert len({tuple(of) for of in tokens(made)}) == len(made)
        others = [replace(prompt, keys=tuple(key + 2**40 for key in prompt.keys)) for prompt in setting.prompts]
        assert all(a != b for a, b in zip(tokens(generate(engine, others)), tokens(made), strict=True))

    def test_prompts_may_have_unequal_numbers_of_keys(
        self, setting: Setting, engine: Engine, made: list[Completion]
    ) -> None:
        first, *rest = setting.prompts
        asked = [replace(first, keys=first.keys[:1]), *rest]
        require_same(generate(engine, asked), [made[0], *made[setting.samples :]])

    def test_a_completion_ends_with_its_first_end_token(
        self, setting: Setting, engine: Engine, made: list[Completion]
    ) -> None:
        ends = frozenset(completion.tokens[len(completion.tokens) // 2] for completion in made[:3])
        expected = []
        for completion in made:
            at = next((i for i, token in enumerate(completion.tokens) if token in ends), NEW_TOKENS - 1)
            expected.append(Completion(completion.tokens[: at + 1], completion.logprobs[: at + 1]))
        found = generate(engine, setting.prompts, ends=ends)
        assert {len(completion.tokens) for completion in found} != {NEW_TOKENS}
        require_same(found, expected)
        assert all(c.tokens[-1] in ends or len(c.tokens) == NEW_TOKENS for c in found)

    def test_a_greedy_draw_needs_no_key(self, setting: Setting, engine: Engine) -> None:
        found = generate(engine, setting.prompts, temperature=0)
        for start in range(0, len(found), setting.samples):
            require_same(found[start : start + setting.samples], [found[start]] * setting.samples)

    # ---- proving and checking ------------------------------------------------------------------------------------------

    def test_a_prefill_confirms_what_was_generated(
        self, setting: Setting, engine: Engine, made: list[Completion]
    ) -> None:
        pairs = [(prompt.tokens, key) for prompt in setting.prompts for key in prompt.keys]
        sequences = [(prompt, c.tokens) for (prompt, _), c in zip(pairs, made, strict=True)]
        found: dict[int, Tensor] = {}
        for batch in engine.prefill_in_batches(sequences):
            assert not set(batch) & set(found), "an index comes once"
            found.update(batch)
        assert sorted(found) == list(range(len(made)))
        for i, completion in enumerate(made):
            hidden = found[i]
            assert tuple(hidden.shape) == (len(completion.tokens), engine.hidden_size)
            assert len(completion.proofs) == -(-len(completion.tokens) // TOPLOC_CHUNK)
            for chunk in toploc.score([bits(hidden)], [completion.proofs])[0]:
                assert (chunk.exponents, chunk.signs) == (0, 0)
            scores = engine.score(hidden, completion.tokens, key=pairs[i][1], temperature=1.0)
            assert scores.margins.max() < ROUNDING
            assert np.abs(scores.logprobs - completion.logprobs).max() < ROUNDING

    def test_a_score_finds_what_another_key_would_have_drawn(
        self, setting: Setting, engine: Engine, made: list[Completion]
    ) -> None:
        (states,) = engine.prefill_in_batches([(setting.prompts[0].tokens, made[0].tokens)])
        scores = engine.score(states[0], made[0].tokens, key=setting.prompts[0].keys[0] + 1, temperature=1.0)
        assert scores.margins.max() > 100 * ROUNDING

    def test_no_proofs_are_made_where_none_are_wanted(
        self, setting: Setting, engine: Engine, made: list[Completion]
    ) -> None:
        found = generate(engine, setting.prompts, prove=False)
        assert tokens(found) == tokens(made)
        assert not any(completion.proofs for completion in found)

    # ---- versions ------------------------------------------------------------------------------------------------------

    def test_a_reload_is_visible(self, setting: Setting, made: list[Completion]) -> None:
        engine = setting.loaded()
        engine.load(setting.another)
        assert tokens(generate(engine, setting.prompts)) != tokens(made)
        engine.load(setting.version)
        assert tokens(generate(engine, setting.prompts)) == tokens(made)

    def test_a_load_that_is_refused_leaves_the_weights_as_they_were(
        self, setting: Setting, made: list[Completion]
    ) -> None:
        engine = setting.loaded()
        with pytest.raises(IntegrityError):
            engine.load(setting.broken)
        assert tokens(generate(engine, setting.prompts)) == tokens(made)

    def test_an_engine_that_refused_its_first_version_takes_the_next(
        self, setting: Setting, made: list[Completion]
    ) -> None:
        engine = setting.make("1GiB")
        with pytest.raises(IntegrityError):
            engine.load(setting.broken)
        engine.load(setting.version)
        assert tokens(generate(engine, setting.prompts)) == tokens(made)

    # ---- memory --------------------------------------------------------------------------------------------------------

    def test_little_memory_changes_nothing_of_the_work(self, setting: Setting, made: list[Completion]) -> None:
        engine = setting.loaded(setting.little)
        require_same(generate(engine, setting.prompts), made)
        sequences = [(p.tokens, c.tokens) for p, c in zip(setting.prompts, made[:: setting.samples], strict=True)]
        indices = [i for batch in engine.prefill_in_batches(sequences) for i in batch]
        assert sorted(indices) == list(range(len(sequences)))

    def test_too_little_memory_is_said_before_anything_is_computed(self, setting: Setting) -> None:
        engine = setting.loaded(setting.too_little)
        with pytest.raises(PreflightError, match="memory"):
            generate(engine, setting.prompts)
        with pytest.raises(PreflightError, match="memory"):
            list(engine.prefill_in_batches([(prompt.tokens, [1] * NEW_TOKENS) for prompt in setting.prompts]))
