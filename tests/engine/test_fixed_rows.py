"""Where bits must not depend on the batch they do not: hidden states are equal, bit by bit, however they came about."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from node.engine import Completion, EngineSettings, Prompt, make_engine, sampler
from node.engine.fixed_cache import KEYS
from node.engine.fixed_rows import ROWS, FixedRows
from node.engine.interface import build_of
from node.engine.proofs import bits
from node.engine.torch_engine import TorchEngine
from protocol import toploc
from protocol.errors import ConfigError, PreflightError
from tests.engine import models
from tests.engine.models import RIGHT, VOCABULARY
from trainer.models.pretrained import make_policy

INVARIANT = EngineSettings(device="cpu", batch_invariant=True)
CASES = [
    ("qwen3", "float32"), ("qwen3", "bfloat16"), ("llama", "float32"), ("llama", "bfloat16"), ("gemma2", "float32"), ("qwen3_moe", "float32"),
    ("deepseek_v3", "float32"),
]  # fmt: skip
"""Of these `gemma2` has windows and capped scores, `qwen3_moe` experts, and `deepseek_v3` latents and values of another size than keys."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name in {name for name, _ in CASES}:
        folder = tmp_path_factory.mktemp(name)
        config = RIGHT[name]
        if "moe" not in name and "deepseek" not in name:  # wide enough for torch to cut its work for threads
            config = config | {"hidden_size": 128, "intermediate_size": 1100, "vocab_size": VOCABULARY}
        make_policy(models.make(config, folder / "theirs"), folder / "policy")
        made[name] = folder / "policy"
    return made


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def loaded(folder: Path, dtype: str, settings: EngineSettings = INVARIANT) -> TorchEngine:
    engine = TorchEngine(dtype, settings)
    engine.load(folder)
    return engine


def asked(draw: random.Random) -> list[Prompt]:
    """Prompts of several lengths, past a piece of keys and a block of rows with what they get, of one sample to five."""
    lengths = [draw.choice((1, 7, ROWS, ROWS + 1, KEYS - 3)) for _ in range(draw.randint(2, 4))]
    return [
        Prompt([draw.randrange(3, VOCABULARY) for _ in range(n)], tuple(draw.getrandbits(64) for _ in range(draw.randint(1, 5))))
        for n in lengths
    ]  # fmt: skip


class Watched(TorchEngine):
    """Notes the states that tokens were drawn from."""

    def load(self, folder: Path) -> None:
        super().load(folder)
        self.seen: dict[int, list[Tensor]] = {}

    def _sample(self, hidden: Tensor, keys: Tensor, positions: Tensor, *how: object) -> tuple[Tensor, Tensor]:
        for row, key in enumerate(keys.tolist()):
            self.seen.setdefault(key % (1 << 64), []).append(hidden[row].clone())
        return super()._sample(hidden, keys, positions, *how)  # type: ignore[arg-type]


def differing(engine: Watched, prompts: Sequence[Prompt], draw: random.Random) -> int:
    """Rows of generation in random batches that have other bits in a prefill in random batches."""
    engine.seen.clear()
    torch.set_num_threads(draw.choice((1, 2, 3)))
    engine._rows_most = draw.randint(1, 7)
    made = engine.generate(prompts, temperature=1.0, max_new_tokens=draw.randint(10, 40), end_tokens=frozenset({5, 9}))
    flat = [
        (p.tokens, one, key) for p, of in zip(prompts, made, strict=True) for one, key in zip(of, p.keys, strict=True)
    ]
    draw.shuffle(flat)
    torch.set_num_threads(draw.choice((1, 2, 3)))
    engine._prefill_most = draw.choice((1, 100, 1 << 14))
    states = engine.prefill([(tokens, one.tokens) for tokens, one, _ in flat])
    found = 0
    for own, (_, one, key) in zip(states, flat, strict=True):
        generated = torch.stack(engine.seen[key])
        found += int((own.view(torch.uint8) != generated.view(torch.uint8)).any(-1).sum())
        if engine._fixed is not None:
            require_the_same(engine, own, one, key)
    return found


def require_the_same(engine: TorchEngine, hidden: Tensor, one: Completion, key: int) -> None:
    """Draws, logprobs and proofs of a completion, made anew."""
    scores = engine.score(hidden, one.tokens, key=key, temperature=1.0)
    assert scores.drawn.tolist() == one.tokens
    assert np.array_equal(scores.logprobs.astype(np.float32), np.array(one.logprobs, np.float32))
    assert toploc.prove([bits(hidden)])[0] == one.proofs


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)
def test_generation_and_prefill_have_the_same_bits_in_any_batch(
    name: str, dtype: str, folders: dict[str, Path]
) -> None:
    engine = Watched(dtype, INVARIANT)
    engine.load(folders[name])
    draw = random.Random(f"{name} {dtype}")
    assert engine.build
    assert [differing(engine, asked(draw), draw) for _ in range(2)] == [0, 0]


@pytest.mark.parametrize(("name", "dtype"), [("qwen3", "float32"), ("llama", "bfloat16")], ids=str)
def test_without_it_they_have_not(name: str, dtype: str, folders: dict[str, Path]) -> None:
    """So the test above could fail."""
    engine = Watched(dtype, EngineSettings(device="cpu"))
    engine.load(folders[name])
    draw = random.Random(f"{name} {dtype}")
    assert engine.build == ""
    assert sum(differing(engine, asked(draw), draw) for _ in range(2)) > 10


def test_whatever_is_computed_has_one_shape_and_one_thread(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel may be cut otherwise for more threads, or for more rows, and round otherwise there: rarely, so that bits alone do not tell."""
    engine = loaded(folders["qwen3"], "float32")
    seen: set[tuple[str, int, int]] = set()

    def note(what: str, rows: int) -> None:
        seen.add((what, rows, torch.get_num_threads()))

    for module in engine._model.modules():
        module.register_forward_pre_hook(lambda _, given: note("model", len(given[0])) if given else None)
    draw, score = sampler.draw, sampler.score
    monkeypatch.setattr(
        sampler, "draw", lambda logits, *of, **how: (note("draw", len(logits)), draw(logits, *of, **how))[1]
    )
    monkeypatch.setattr(
        sampler, "score", lambda logits, *of, **how: (note("score", len(logits)), score(logits, *of, **how))[1]
    )
    torch.set_num_threads(3)
    prompts = [Prompt([3, 4, 5], (1, 2, 3)), Prompt(list(range(3, 50)), (4,))]
    made = engine.generate(prompts, temperature=1.0, max_new_tokens=5, end_tokens=frozenset())
    pairs = [(p.tokens, one.tokens) for p, of in zip(prompts, made, strict=True) for one in of]
    for hidden, (_, tokens) in zip(engine.prefill(pairs), pairs, strict=True):
        engine.score(hidden, tokens, key=1, temperature=1.0)
    assert seen == {("model", ROWS, 1), ("draw", 1, 1), ("score", 1, 1)}
    assert torch.get_num_threads() == 3


def test_a_model_whose_bits_depend_on_the_block_is_computed_a_token_at_a_time(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = loaded(folders["qwen3"], "float32")
    assert engine._fixed is not None
    assert engine._fixed.rows == ROWS
    forward = engine._model.base_model.layers[1].mlp.forward
    monkeypatch.setattr(engine._model.base_model.layers[1].mlp, "forward", lambda x: forward(x + x.mean(0) * 1e-6))
    fixed = FixedRows(engine._model)
    fixed.settle()
    assert fixed.rows == 1
    whole = engine.build
    engine._fixed = fixed
    assert build_of(engine) != whole  # nobody compares the one with the other
    assert loaded(folders["qwen3_moe"], "float32")._fixed.rows == 1  # type: ignore[union-attr]


def test_it_computes_the_model(folders: dict[str, Path]) -> None:
    """The same as without it, but for rounding; and a second version in place of the first."""
    engine, plain = (
        loaded(folders["gemma2"], "float32"),
        loaded(folders["gemma2"], "float32", EngineSettings(device="cpu")),
    )
    pairs = [(list(range(3, 40)), list(range(10, 50))), ([4], [5, 6, 7])]
    for own, other in zip(engine.prefill(pairs), plain.prefill(pairs), strict=True):
        assert own.shape == other.shape
        assert torch.allclose(own, other, atol=1e-4, rtol=1e-4)
    before = engine.prefill(pairs)
    engine.load(folders["gemma2"])
    assert all(torch.equal(a, b) for a, b in zip(before, engine.prefill(pairs), strict=True))


def test_a_build_tells_type_and_environment_apart(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from node.engine import build

    one = build.of_fixed_rows(ROWS, torch.float32)
    assert one == build.of_fixed_rows(ROWS, torch.float32)
    assert one != build.of_fixed_rows(ROWS, torch.bfloat16)
    build._digest.cache_clear()
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert build.of_fixed_rows(ROWS, torch.float32) != one
    build._digest.cache_clear()


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(ConfigError, match="batch-invariant attention is computed in one way"):
        make_engine(EngineSettings(device="cpu", batch_invariant=True, attention="eager"), "float32")


def test_attention_cannot_be_changed_under_it(folders: dict[str, Path]) -> None:
    engine = loaded(folders["llama"], "float32")
    with pytest.raises(ConfigError, match="in one way"):
        engine.adjust(attention="eager", threads=1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")
def test_a_gpu_is_refused() -> None:
    with pytest.raises(PreflightError, match="on a CPU alone"):
        make_engine(EngineSettings(device="cuda", batch_invariant=True), "float32")
