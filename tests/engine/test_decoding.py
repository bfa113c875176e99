"""Samples go through a bounded number of rows: the same completions whatever that number is, rows that are always busy, each prompt
prefilled once, and memory that runs out costs rows and no work."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from node.engine import Completion, EngineSettings, Prompt
from node.engine.decoding import Request
from node.engine.torch_engine import TorchEngine
from protocol.errors import ConfigError
from tests.engine import models
from tests.engine.contract import require_same
from trainer.models.pretrained import make_policy

NEW = 48
ROUNDING = 1e-3


class Forced(TorchEngine):
    """Ends each sample at a length of its own, and notes what goes through the model."""

    def __init__(self, rows: int | None = None) -> None:
        super().__init__("float32", EngineSettings(device="cpu", memory="1GiB"))
        self._rows_most = rows or self._rows_most
        self.prefilled: list[list[int]] = []
        self.asked: list[int] = []
        """Samples that there were to do, at the start and after memory ran out."""
        self.busy: list[int] = []
        """Rows of which a token was drawn, each time."""
        self.failures: list[Exception] = []

    def _is_over(self, request: Request, token: int, most: int, end_tokens: frozenset[int]) -> bool:
        return len(request.completion.tokens) == length(request.key)

    def _prefill_wave(self, batch: Any, wave: Any) -> None:
        self.prefilled += wave.prompts
        super()._prefill_wave(batch, wave)

    def _decode(self, requests: list[Request], *rest: Any, **how: Any) -> None:
        self.asked.append(len(requests))
        super()._decode(requests, *rest, **how)

    def _sample(self, hidden: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        self.busy.append(len(hidden))
        return super()._sample(hidden, *rest)

    def _step(self, batch: Any, tokens: torch.Tensor) -> None:
        if self.failures and len(self.busy) % 20 == 0:
            raise self.failures.pop()
        super()._step(batch, tokens)


def length(key: int) -> int:
    """Between 1 and NEW, most of them short."""
    return int(np.clip(np.random.default_rng(key).lognormal(2.0, 1.0), 1, NEW))


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    make_policy(models.make(models.RIGHT["qwen3"], folder / "theirs"), folder / "policy")
    return folder / "policy"


def asked(prompts: int = 7, samples: int = 6) -> list[Prompt]:
    rng = np.random.default_rng(0)
    drawn = [rng.integers(2, models.VOCABULARY, rng.integers(3, 30)).tolist() for _ in range(prompts)]
    return [Prompt(ids, tuple(100 * i + k for k in range(samples))) for i, ids in enumerate(drawn)]


def generate(engine: TorchEngine, prompts: Sequence[Prompt], policy: Path, *, prove: bool = True) -> list[Completion]:
    engine.load(policy)
    made = engine.generate(prompts, temperature=1.0, max_new_tokens=NEW, end_tokens=frozenset(), prove=prove)
    return [completion for group in made for completion in group]


@pytest.fixture(scope="module")
def expected(policy: Path) -> list[Completion]:
    return generate(Forced(), asked(), policy)


@pytest.mark.parametrize("rows", [1, 4, 9, 17])
def test_a_submission_of_any_size_goes_through_few_rows(rows: int, policy: Path, expected: list[Completion]) -> None:
    engine = Forced(rows)
    made = generate(engine, asked(), policy)
    require_same(made, expected, f"through {rows} rows", ROUNDING)
    for one, other, key in zip(made, expected, (k for p in asked() for k in p.keys), strict=True):
        assert len(one.tokens) == length(key)
        assert len(one.proofs) == len(other.proofs) == -(-length(key) // 32)
    assert max(engine.busy) <= rows
    assert engine.prefilled == [prompt.tokens for prompt in asked()], "each prompt once, in order"


def test_rows_are_busy_as_long_as_samples_wait(policy: Path) -> None:
    prompts = asked(prompts=20)
    engine = Forced(16)
    generate(engine, prompts, policy, prove=False)
    tokens = sum(length(key) for prompt in prompts for key in prompt.keys)
    while_some_wait = engine.busy[: len(engine.busy) - NEW]
    assert while_some_wait
    assert set(while_some_wait) == {16}
    assert sum(engine.busy) == tokens


def test_prompts_that_wait_for_one_another_are_prefilled_together(
    policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waves: list[int] = []

    class Counting(Forced):
        def _prefill_wave(self, batch: Any, wave: Any) -> None:
            waves.append(len(wave.prompts))
            super()._prefill_wave(batch, wave)

    generate(Counting(42), asked(), policy, prove=False)
    assert waves == [7]
    waves.clear()
    monkeypatch.setattr("node.engine.torch_engine._PREFILL_TOKENS", 60)
    generate(Counting(42), asked(), policy, prove=False)
    assert 1 < len(waves) <= 7
    assert sum(waves) == 7


OUT_OF_MEMORY = [torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), MemoryError()]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=["on a GPU", "on the CPU"])
def test_memory_that_runs_out_costs_rows_and_no_work(
    error: Exception, policy: Path, expected: list[Completion], caplog: pytest.LogCaptureFixture
) -> None:
    engine = Forced(16)
    engine.failures = [error]
    with caplog.at_level(logging.WARNING):
        made = generate(engine, asked(), policy)
    require_same(made, expected, "after memory ran out", ROUNDING)
    assert [len(c.proofs) for c in made] == [len(c.proofs) for c in expected]
    assert max(engine.busy[:20]) == 16
    assert max(engine.busy[20:]) == 8
    assert [record.getMessage() for record in caplog.records if "out of memory" in record.getMessage()] == [
        f"the engine ran out of memory: {str(error) or 'MemoryError'}; from now on 8 sequences are computed at once, not 16"
    ]
    first, second = engine.asked
    assert first == len(made)
    assert 0 < second <= first - 5, "what was done stays done"


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=["on a GPU", "on the CPU"])
def test_a_prefill_that_runs_out_of_memory_goes_on_with_less(
    error: Exception, policy: Path, expected: list[Completion], caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(TorchEngine):
        def _prefill(self, sequences: dict[int, Any]) -> dict[int, torch.Tensor]:
            sizes.append(len(sequences))
            if len(sizes) == 2:
                raise error
            return super()._prefill(sequences)

    sizes: list[int] = []
    engine = Failing("float32", EngineSettings(device="cpu", memory="1GiB"))
    engine.load(policy)
    prompts = [prompt.tokens for prompt in asked() for _ in prompt.keys]
    sequences = [(prompt, made.tokens) for prompt, made in zip(prompts, expected, strict=True)]
    engine._prefill_most = 16 * 40
    with caplog.at_level(logging.WARNING):
        found = engine.prefill(sequences)
    failed = sizes[1]
    assert "out of memory" in caplog.text
    assert f"from now on {failed // 2} sequences are computed at once, not {failed}" in caplog.text
    assert sizes[2] < failed
    assert sum(sizes) - failed == len(sequences), "nothing is computed twice"
    for hidden, (_, tokens), made in zip(found, sequences, expected, strict=True):
        logprobs = engine.score(hidden, tokens, key=0, temperature=1.0).logprobs
        assert np.abs(logprobs - made.logprobs).max() < ROUNDING


def test_memory_that_runs_out_again_is_an_error(policy: Path) -> None:
    engine = Forced(16)
    engine.failures = [torch.OutOfMemoryError("CUDA out of memory"), torch.OutOfMemoryError("CUDA out of memory")]
    with pytest.raises(torch.OutOfMemoryError):
        generate(engine, asked(), policy)


def test_any_other_error_is_no_matter_of_memory(policy: Path) -> None:
    engine = Forced(16)
    engine.failures = [RuntimeError("a kernel failed")]
    with pytest.raises(RuntimeError, match="a kernel failed"):
        generate(engine, asked(), policy)
    assert engine._rows_most == 16


def test_eager_attention_computes_the_same(policy: Path, expected: list[Completion]) -> None:
    engine = Forced(9)
    engine.load(policy)
    engine.adjust(attention="eager", threads=1)
    made = engine.generate(asked(), temperature=1.0, max_new_tokens=NEW, end_tokens=frozenset())
    require_same([c for group in made for c in group], expected, "eager", ROUNDING)
    with pytest.raises(ConfigError, match="attention 'flash_attention_2' is not computed here"):
        engine.adjust(attention="flash_attention_2", threads=1)


def test_a_prompt_of_no_keys_is_asked_for_nothing(policy: Path, expected: list[Completion]) -> None:
    first, second, *_ = asked()
    engine = Forced()
    engine.load(policy)
    made = engine.generate(
        [replace(first, keys=()), second, replace(first, keys=())], temperature=1.0, max_new_tokens=NEW, end_tokens=frozenset()
    )  # fmt: skip
    assert [len(group) for group in made] == [0, 6, 0]
    require_same(made[1], expected[6:12], "beside prompts without keys", ROUNDING)


def test_a_prompt_may_be_asked_again_after_another(policy: Path, expected: list[Completion]) -> None:
    first, second, *_ = asked()
    early, late = replace(first, keys=first.keys[:2]), replace(first, keys=first.keys[2:])
    made = generate(Forced(), [early, second, late], policy)
    require_same(made, [*expected[:2], *expected[6:12], *expected[2:6]], "one list of tokens twice", ROUNDING)
