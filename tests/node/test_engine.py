"""The engine: the same submission whatever the batch, proofs that its own prefill confirms, weights that are exactly the right ones."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from swarm.tiny_run import TinyRun

from node.engine import Completion, Prompt
from node.engine.proofs import bits
from node.engine.torch_engine import TorchEngine
from node.engine.weights import load_weights
from protocol import sampling, toploc
from protocol.errors import HashMismatch, IntegrityError, Unavailable
from protocol.model_files import CONFIG, TOKENIZER, WEIGHTS, require_model_files

NEVER: frozenset[int] = frozenset()


def prompts(run: TinyRun, count: int, samples: int = 3) -> list[Prompt]:
    """Prompts of different lengths."""
    problem = run.context.tasks.problem(0).prompt
    texts = [problem + " 7" * (i * i) for i in range(count)]
    made = [Prompt(run.tokenizer.encode(t), tuple(1000 * i + s for s in range(samples))) for i, t in enumerate(texts)]
    assert len({len(prompt.tokens) for prompt in made}) == count
    return made


def generate(
    run: TinyRun, asked: Sequence[Prompt], length: int = 40, ends: frozenset[int] | None = None
) -> list[list[Completion]]:
    ends = run.tokenizer.end_tokens if ends is None else ends
    return run.engine.generate(asked, temperature=1.0, max_new_tokens=length, end_tokens=ends)


def pairs(asked: Sequence[Prompt], made: Sequence[Sequence[Completion]]) -> list[tuple[list[int], list[int]]]:
    return [(p.tokens, c.tokens) for p, group in zip(asked, made, strict=True) for c in group]


def require_confirmed(run: TinyRun, asked: Sequence[Prompt], made: Sequence[Sequence[Completion]]) -> None:
    """A prefill of each completion alone finds the same states, logprobs and tokens."""
    for prompt, group in zip(asked, made, strict=True):
        for key, completion in zip(prompt.keys, group, strict=True):
            hidden = run.engine.prefill([(prompt.tokens, completion.tokens)])[0]
            for score in toploc.score([bits(hidden)], [completion.proofs])[0]:
                assert (score.exponents, score.signs) == (0, 0)
                assert score.mantissa_mean < 0.1
            found = sampling.score(run.engine.logits(hidden), np.array(completion.tokens), key=key, temperature=1.0)
            assert np.abs(found.logprobs - completion.logprobs).max() < 1e-4
            assert found.margins.max() < 1e-4


def test_a_batch_decodes_to_what_its_prompts_decode_to_alone(tiny_run: TinyRun) -> None:
    asked = prompts(tiny_run, 4)
    together = generate(tiny_run, asked)
    alone = [generate(tiny_run, [replace(p, keys=(k,))])[0][0] for p in asked for k in p.keys]
    assert [c.tokens for group in together for c in group] == [c.tokens for c in alone]
    assert [len(c.proofs) for group in together for c in group] == [len(c.proofs) for c in alone]
    require_confirmed(tiny_run, asked, together)


def test_rows_that_end_leave_the_others_as_they_are(tiny_run: TinyRun) -> None:
    """The same batch with and without end tokens: until its end, each row is the same."""
    asked = prompts(tiny_run, 3, samples=6)
    whole = [c for group in generate(tiny_run, asked, ends=NEVER) for c in group]
    count = Counter(token for c in whole for token in c.tokens)
    usual = sorted(
        {c.tokens[len(c.tokens) // 2] for c in whole}, key=lambda token: (count[token], token)
    )  # rare ones first
    ending = generate(tiny_run, asked, ends=frozenset(usual[:4]))
    lengths = set()
    for full, short in zip(whole, (c for group in ending for c in group), strict=True):
        assert short.tokens == full.tokens[: len(short.tokens)]
        assert not set(short.tokens[:-1]) & set(usual[:4])
        assert short.tokens[-1] in usual[:4] or len(short.tokens) == 40
        lengths.add(len(short.tokens))
    assert len(lengths) > 3, "rows have to end at different times for this test to mean something"
    require_confirmed(tiny_run, asked, ending)


@pytest.mark.parametrize("length", [1, 31, 32, 33, 64])
def test_every_length_has_as_many_proofs_as_chunks(tiny_run: TinyRun, length: int) -> None:
    asked = prompts(tiny_run, 2, samples=2)
    made = generate(tiny_run, asked, length, NEVER)
    for group in made:
        for completion in group:
            assert len(completion.tokens) == len(completion.logprobs) == length
            assert len(completion.proofs) == -(-length // 32)
    require_confirmed(tiny_run, asked, made)


def test_a_completion_may_end_with_its_first_token(tiny_run: TinyRun) -> None:
    asked = prompts(tiny_run, 2)
    made = generate(tiny_run, asked, 40, frozenset(range(tiny_run.engine.vocabulary)))
    assert {len(c.tokens) for group in made for c in group} == {1}
    require_confirmed(tiny_run, asked, made)


def test_a_prefill_does_not_depend_on_what_else_is_in_the_batch(tiny_run: TinyRun) -> None:
    asked = prompts(tiny_run, 4, samples=2)
    sequences = pairs(asked, generate(tiny_run, asked))
    together = tiny_run.engine.prefill(sequences)
    turned = tiny_run.engine.prefill(sequences[::-1])[::-1]
    for sequence, one, other in zip(sequences, together, turned, strict=True):
        alone = tiny_run.engine.prefill([sequence])[0]
        assert one.shape == alone.shape == (len(sequence[1]), alone.shape[1])
        assert torch.allclose(one, alone, atol=1e-5)
        assert torch.allclose(other, alone, atol=1e-5)


def test_another_key_gives_another_sample(tiny_run: TinyRun) -> None:
    prompt = prompts(tiny_run, 1, samples=8)
    made = generate(tiny_run, prompt, 40, NEVER)[0]
    assert len({tuple(c.tokens) for c in made}) == 8


# ---- weights -----------------------------------------------------------------------------------------------------------


def folder_with(run: TinyRun, folder: Path, change: dict[str, torch.Tensor | None]) -> Path:
    """A version whose tensors were changed; None takes one away."""
    shutil.copytree(run.model, folder)
    tensors = load_file(folder / WEIGHTS) | {k: v for k, v in change.items() if v is not None}
    save_file({k: v for k, v in tensors.items() if change.get(k, v) is not None}, folder / WEIGHTS)
    return folder


def with_one(tensor: torch.Tensor, value: float) -> torch.Tensor:
    changed = tensor.clone()
    changed[-1] = value
    return changed


NAME = "model.norm.weight"

BROKEN = {
    "a tensor is missing": (lambda t: {NAME: None}, "missing"),
    "there is one too many": (lambda t: {"model.backdoor": torch.ones(2)}, "unknown"),
    "one has another shape": (lambda t: {NAME: torch.ones(len(t[NAME]) + 1)}, "not"),
    "one holds integers": (lambda t: {NAME: torch.ones(len(t[NAME]), dtype=torch.int32)}, NAME),
    "one holds a NaN": (lambda t: {NAME: with_one(t[NAME], float("nan"))}, "NaN or infinity"),
    "one holds an infinity": (lambda t: {NAME: with_one(t[NAME], -float("inf"))}, "NaN or infinity"),
    "one holds more than fits": (lambda t: {NAME: with_one(t[NAME].double(), 1e300)}, "NaN or infinity"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_weights_that_were_refused_are_not_computed_with(tiny_run: TinyRun, tmp_path: Path, case: str) -> None:
    make, message = BROKEN[case]
    change = make(load_file(tiny_run.model / WEIGHTS))
    first = sorted(load_file(tiny_run.model / WEIGHTS))[0]
    folder = folder_with(tiny_run, tmp_path / "odd", {first: None, **change})
    tensors = load_file(folder / WEIGHTS) | {first: torch.zeros_like(load_file(tiny_run.model / WEIGHTS)[first])}
    save_file(tensors, folder / WEIGHTS)  # the first tensor is loaded as zeros, if anything is
    engine = TorchEngine("float32")
    engine.load(tiny_run.model)
    with pytest.raises(IntegrityError, match=message):
        engine.load(folder)
    asked = prompts(tiny_run, 1)
    with pytest.raises(Unavailable, match="holds no version"):
        generate(replace(tiny_run, engine=engine), asked)
    engine.load(tiny_run.model)
    assert generate(replace(tiny_run, engine=engine), asked) == generate(tiny_run, asked)


@pytest.mark.parametrize("content", [b"", b"no safetensors at all", b"\xff" * 64])
def test_corrupt_weights_are_an_integrity_error_from_the_first_load_on(
    tiny_run: TinyRun, tmp_path: Path, content: bytes
) -> None:
    shutil.copytree(tiny_run.model, tmp_path / "odd")
    (tmp_path / "odd" / WEIGHTS).write_bytes(content)
    fresh = TorchEngine("float32")
    with pytest.raises(IntegrityError):
        fresh.load(tmp_path / "odd")
    with pytest.raises(IntegrityError):
        load_weights(tiny_run.engine._model, tmp_path / "odd")


@pytest.mark.parametrize("change", [{"eos_token_id": "end"}, {"hidden_size": 33}])
def test_a_config_that_no_model_can_be_made_of_is_an_integrity_error(
    tiny_run: TinyRun, tmp_path: Path, change: dict[str, object]
) -> None:
    shutil.copytree(tiny_run.model, tmp_path / "odd")
    config = json.loads((tmp_path / "odd" / CONFIG).read_text()) | change
    (tmp_path / "odd" / CONFIG).write_text(json.dumps(config))
    with pytest.raises(IntegrityError):
        TorchEngine("float32").load(tmp_path / "odd")


def test_an_engine_that_refused_its_first_version_holds_none(tiny_run: TinyRun, tmp_path: Path) -> None:
    engine = TorchEngine("float32")
    with pytest.raises(IntegrityError):
        engine.load(folder_with(tiny_run, tmp_path / "odd", {NAME: None}))
    assert engine._model is None
    engine.load(tiny_run.model)
    assert generate(replace(tiny_run, engine=engine), prompts(tiny_run, 1))


@pytest.mark.parametrize("name", [CONFIG, TOKENIZER])
def test_a_version_of_another_model_is_refused(tiny_run: TinyRun, tmp_path: Path, name: str) -> None:
    shutil.copytree(tiny_run.model, tmp_path / "model")
    require_model_files(tmp_path / "model", tiny_run.spec.model)
    content = json.loads((tmp_path / "model" / name).read_bytes())
    (tmp_path / "model" / name).write_text(json.dumps(content | {"version": "1.1"}))
    with pytest.raises(HashMismatch, match=name):
        require_model_files(tmp_path / "model", tiny_run.spec.model)
    (tmp_path / "model" / name).unlink()
    with pytest.raises(HashMismatch, match=name):
        require_model_files(tmp_path / "model", tiny_run.spec.model)
