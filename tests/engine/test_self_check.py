"""The self-check at start passes what is right, and names what is computed otherwise than by the plain model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from swarm.tiny_run import TinyRun

from node.engine import Completion, EngineSettings, Prompt, device, footprint, self_check
from node.engine.plain import PlainModel
from node.engine.self_check import SelfCheck, prompts, window_of
from node.engine.torch_engine import TorchEngine
from node.judging.equipment import Equipment, Unfit
from protocol.errors import PreflightError, Unavailable
from tests.engine.models import RIGHT, make
from trainer.models.pretrained import make_policy

ROOT = Path(__file__).parents[2]
SETTINGS = EngineSettings(device="cpu")


@pytest.fixture(autouse=True)
def nothing_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SelfCheck, "_passed", set())


def policy(name: str, folder: Path) -> Path:
    make_policy(make(RIGHT[name], folder / "theirs"), folder / "policy")
    return folder / "policy"


def loaded(folder: Path, dtype: str = "float32", kind: type[TorchEngine] = TorchEngine) -> TorchEngine:
    engine = kind(dtype, SETTINGS)
    engine.load(folder)
    return engine


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "name", ["mistral with a window", "gemma2", "granite", "gpt2", "qwen3_moe", "llama with llama3 rope"]
)
def test_an_engine_that_is_right_passes(name: str, dtype: str, tmp_path: Path) -> None:
    folder = policy(name, tmp_path)
    SelfCheck(SETTINGS, dtype)(loaded(folder, dtype), folder)


def _config(key: str, value: Any) -> Callable[[Any], None]:
    return lambda model: setattr(model.config, key, value)


def _uncapped(model: Any) -> None:
    for module in model.modules():
        if hasattr(module, "attn_logit_softcapping"):
            module.attn_logit_softcapping = None


def _unscaled(model: Any) -> None:
    rotary = model.base_model.rotary_emb
    rotary.inv_freq, rotary.attention_scaling = rotary.compute_default_rope_parameters(
        rotary.config, device=rotary.inv_freq.device
    )


def _half_rotated(model: Any) -> None:
    model.base_model.rotary_emb.inv_freq *= 0.5


def _first_layer(model: Any) -> None:
    model.base_model.layers = model.base_model.layers[:1]


BROKEN: dict[str, tuple[str, Callable[[Any], None], str]] = {
    "window": ("mistral with a window", _config("sliding_window", 1 << 30), "as if the sliding window of 8 tokens were ignored"),
    "cap on scores": ("gemma2", _uncapped, "as if the soft cap of 2 on attention scores were ignored"),
    "cap on logits": ("gemma2", _config("final_logit_softcapping", None), "as if the soft cap of 3 on logits were ignored"),
    "scale": ("cohere", _config("logit_scale", 1.0), "as if the scale of 0.25 on logits were ignored"),
    "division": ("granite", _config("logits_scaling", 1.0), "as if the division of logits by 8 were ignored"),
    "scaling of rope": ("llama with llama3 rope", _unscaled, "as if the llama3 scaling of rotary positions were ignored"),
    "rope": ("llama", _half_rotated, "in 3 of 3 sequences, from token"),
    "layers": ("llama", _first_layer, "in 3 of 3 sequences, from token"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_what_an_engine_computes_otherwise_is_named(what: str, tmp_path: Path) -> None:
    name, breaks, told = BROKEN[what]
    folder = policy(name, tmp_path)
    engine = loaded(folder)
    breaks(engine._model)
    with pytest.raises(PreflightError, match="not computed here as it is alone") as error:
        SelfCheck(SETTINGS, "float32")(engine, folder)
    said = str(error.value)
    assert told in said and "the engine's decoding lies" in said and "the engine's prefill lies" in said, said


def test_two_features_that_are_ignored_together_are_both_named(tmp_path: Path) -> None:
    folder = policy("gemma2", tmp_path)
    engine = loaded(folder, "bfloat16")
    _uncapped(engine._model)
    engine._model.config.final_logit_softcapping = None
    with pytest.raises(PreflightError, match="the soft cap of 2 on attention scores and the soft cap of 3 on logits"):
        SelfCheck(SETTINGS, "bfloat16")(engine, folder)


class Forgetful(TorchEngine):
    """Claims logprobs of its decoding that are another temperature's."""

    def generate(self, prompts: Sequence[Prompt], **how: Any) -> list[list[Completion]]:
        made = super().generate(prompts, **how)
        for group in made:
            for one in group:
                one.logprobs = [1.1 * logprob for logprob in one.logprobs]
        return made


def test_the_way_that_differs_is_named_and_the_one_that_agrees(tmp_path: Path) -> None:
    folder = policy("llama", tmp_path)
    with pytest.raises(PreflightError, match=r"the engine's decoding lies .*; the engine's prefill agrees with it$"):
        SelfCheck(SETTINGS, "float32")(loaded(folder, kind=Forgetful), folder)


def test_a_check_that_cannot_run_is_no_pass(tmp_path: Path) -> None:
    folder = policy("llama", tmp_path)
    engine, check = loaded(folder), SelfCheck(SETTINGS, "float32")
    kept = engine._model.base_model.norm.weight.clone()
    with torch.no_grad():
        engine._model.base_model.norm.weight.fill_(float("nan"))
    for _ in range(2):
        with pytest.raises(Unavailable, match="computes no numbers here"):
            check(engine, folder)
    with torch.no_grad():
        engine._model.base_model.norm.weight.copy_(kept)
    check(engine, folder)


def test_a_plain_model_that_makes_no_numbers_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of infinity would let everything pass."""
    folder = policy("llama", tmp_path)
    engine = loaded(folder)
    monkeypatch.setattr(
        PlainModel, "logprobs", lambda _, sequences, **how: [torch.full((24,), np.nan) for _ in sequences]
    )
    with pytest.raises(Unavailable, match=r"plain model .* computes no numbers"):
        SelfCheck(SETTINGS, "float32")(engine, folder)
    with pytest.raises(Unavailable):
        SelfCheck(SETTINGS, "float32")(engine, folder)


def test_a_plain_model_that_has_no_room_on_the_device_is_computed_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = policy("llama", tmp_path)
    engine, places = loaded(folder), []
    make = PlainModel.__init__

    def full(plain: PlainModel, of: Path, where: torch.device) -> None:
        places.append(where.type)
        if where.type == "cuda":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        make(plain, of, where)

    monkeypatch.setattr(PlainModel, "__init__", full)
    named = device.named
    monkeypatch.setattr(device, "named", lambda asked: torch.device("cuda") if asked == "auto" else named(asked))
    SelfCheck(EngineSettings(), "float32")(engine, folder)
    assert places == ["cuda", "cpu"]
    monkeypatch.setattr(PlainModel, "__init__", lambda *_: (_ for _ in ()).throw(RuntimeError("another fault")))
    with pytest.raises(RuntimeError, match="another fault"):
        SelfCheck(EngineSettings(memory="50%"), "float32")(engine, folder)


def test_a_judge_s_engine_is_compared_with_the_first_version_that_it_holds(
    tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node's, a validator's, and that of a verdict made again."""
    context = tiny_run.context
    with Equipment(tiny_run.spec, context.domain, 1, SETTINGS, lambda: tiny_run.model) as equipment:
        equipment.load(tiny_run.model, b"right")
        assert equipment.loaded == b"right"
    monkeypatch.setattr(SelfCheck, "_passed", set())
    monkeypatch.setattr(TorchEngine, "load", _loads_half)
    with Equipment(tiny_run.spec, context.domain, 1, SETTINGS, lambda: tiny_run.model) as equipment:
        with pytest.raises(PreflightError, match="not computed here as it is alone"):
            equipment.load(tiny_run.model, b"wrong")
        assert equipment.loaded is None


def test_a_judge_that_has_no_room_for_the_runs_longest_sequence_judges_nothing(tiny_run: TinyRun) -> None:
    """What it could not prefill would go unjudged, and be paid."""
    context, spec = tiny_run.context, tiny_run.spec
    longest = tiny_run.tokenizer.longest(spec, context.tasks.first(256))
    honest = max(len(sample.context) for sample in tiny_run.read(tiny_run.honest()).samples)
    assert honest < longest
    engine = TorchEngine("float32", EngineSettings(device="cpu"))
    engine.load(tiny_run.model)
    of = engine._fits.of

    def with_room_for(tokens: int) -> Callable[[str], TorchEngine]:
        most = of.weights + of.prefilling(tokens, tokens, cached=False) + 16
        return lambda dtype: TorchEngine(dtype, EngineSettings(device="cpu", memory=f"{most / (1 << 20):.6f}MiB"))

    with Equipment(spec, context.domain, 1, with_room_for(longest), lambda: tiny_run.model) as equipment:
        equipment.load(tiny_run.model, b"version")
    with (
        Equipment(spec, context.domain, 1, with_room_for(longest - 1), lambda: tiny_run.model) as equipment,
        pytest.raises(Unfit, match=f"one sequence of {longest} tokens"),
    ):
        equipment.load(tiny_run.model, b"version")


def test_a_node_that_can_check_the_runs_longest_sequence_and_not_generate_it_makes_nothing(
    tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a vocabulary whose logits take more than a prefill does."""
    real = footprint.of
    monkeypatch.setattr(footprint, "of", lambda *of: replace(real(*of), row=1 << 20))
    context, spec = tiny_run.context, tiny_run.spec
    longest = tiny_run.tokenizer.longest(spec, context.tasks.first(256))
    prompt = longest - spec.sampling.longest
    engine = TorchEngine("float32", EngineSettings(device="cpu"))
    engine.load(tiny_run.model)
    of = engine._fits.of
    most = of.weights + of.prefilling(prompt, prompt, cached=True) + of.decoding(longest)
    assert of.weights + of.prefilling(longest, longest, cached=False) < most - 16

    def with_memory(most: int) -> Callable[[str], TorchEngine]:
        return lambda dtype: TorchEngine(dtype, EngineSettings(device="cpu", memory=f"{most / (1 << 20):.6f}MiB"))

    with Equipment(
        spec, context.domain, 1, with_memory(most + 16), lambda: tiny_run.model, generates=True
    ) as equipment:
        equipment.load(tiny_run.model, b"version")
    with Equipment(spec, context.domain, 1, with_memory(most - 16), lambda: tiny_run.model) as equipment:
        equipment.load(tiny_run.model, b"version")  # a judge makes nothing
    with (
        Equipment(spec, context.domain, 1, with_memory(most - 16), lambda: tiny_run.model, generates=True) as equipment,
        pytest.raises(Unfit, match=f"one sequence of {longest} tokens"),
    ):
        equipment.load(tiny_run.model, b"version")


UNCHECKED = {
    "node/engine/factory.py": "the factory itself",
    "node/judging/alternatives.py": "compares two versions of one engine: work is on the side of the right one, whatever it computes",
    "node/judging/calibration/measure.py": "measures engines that differ, on purpose too",
    "trainer/models/tiny.py": "makes a model, whose weights change all the time",
}


def test_who_makes_an_engine_compares_it_with_the_plain_model() -> None:
    makers = {
        str(path.relative_to(ROOT)): path.read_text()
        for package in ("node", "trainer", "protocol")
        for path in (ROOT / package).rglob("*.py")
        if "make_engine(" in path.read_text() or "(make_engine" in path.read_text()
    }
    assert UNCHECKED.keys() <= makers.keys() and len(makers) > len(UNCHECKED)
    checks = ("SelfCheck(", "compare(")
    assert [p for p, text in makers.items() if p not in UNCHECKED and not any(check in text for check in checks)] == []


_load = TorchEngine.load


def _loads_half(engine: TorchEngine, folder: Path) -> None:
    _load(engine, folder)
    _half_rotated(engine._model)


def test_it_is_asked_once_for_a_model_and_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = policy("llama", tmp_path)
    engine, asked = loaded(folder), []
    compare = SelfCheck._compare
    monkeypatch.setattr(SelfCheck, "_compare", lambda *given: (asked.append(given), compare(*given)))
    first = SelfCheck(SETTINGS, "float32")
    for check in (first, first, SelfCheck(SETTINGS, "float32")):
        check(engine, folder)
    assert len(asked) == 1
    SelfCheck(SETTINGS.model_copy(update={"memory": "50%"}), "float32")(engine, folder)
    assert len(asked) == 2


def test_sequences_are_longer_than_the_window_where_that_takes_no_minutes() -> None:
    from transformers import LlamaConfig, MistralConfig

    assert [len(prompt) for prompt in prompts(LlamaConfig(), 10**9, "cpu")] == [7, 29, 45]
    windowed = MistralConfig(sliding_window=512)
    assert [len(prompt) for prompt in prompts(windowed, 10**8, "cpu")] == [7, 29, 45, 504, 521]
    assert [len(prompt) for prompt in prompts(windowed, 10**10, "cpu")] == [7, 29, 45]
    assert len(prompts(windowed, 10**10, "cuda")) == 5
    few = LlamaConfig(max_position_embeddings=32)
    assert max(len(prompt) for prompt in prompts(few, 1, "cpu")) + self_check.NEW_TOKENS == 32
    out_of_reach = MistralConfig(sliding_window=512, max_position_embeddings=500)
    assert len(prompts(out_of_reach, 1, "cpu")) == 3
    assert len(prompts(MistralConfig(sliding_window=1 << 40), 1, "cpu")) == 3
    assert len(prompts(MistralConfig(sliding_window=9000), 1, "cuda")) == 3  # masks of its square
    assert window_of(MistralConfig(sliding_window=None)) is None


def test_the_plain_model_holds_one_block_at_a_time(tmp_path: Path) -> None:
    folder = policy("llama", tmp_path)
    plain = PlainModel(folder, torch.device("cpu"))
    held: list[int] = []

    def count(*_: object) -> None:
        held.append(sum(any(not p.is_meta for p in layer.parameters()) for layer in plain.model.base_model.layers))

    for layer in plain.model.base_model.layers:
        layer.mlp.register_forward_hook(count)
    plain.logprobs([([5, 6, 7], [8, 9])])
    assert held == [1] * len(plain.model.base_model.layers)
    count()
    assert held[-1] == 0


def test_noise_moves_logprobs_as_far_as_rounding_does(tmp_path: Path) -> None:
    """The measure of what honest work in bfloat16 may stray by, against honest work in bfloat16."""
    folder = policy("llama", tmp_path)
    plain = PlainModel(folder, torch.device("cpu"))
    sequences, ways = self_check._asked(loaded(folder, "bfloat16"), prompts(plain.config, plain.parameters, "cpu"))
    exact = [one.numpy() for one in plain.logprobs(sequences)]
    noisy = [one.numpy() for one in plain.logprobs(sequences, noise=torch.finfo(torch.bfloat16).eps / 4)]
    explained = self_check._mean_error(exact, noisy)
    assert 0.2 < self_check._mean_error(exact, ways["the engine's prefill"]) / explained < 3
    assert np.isfinite(explained)
