"""Adapters: only they are trained, what is published is merged, and merged it computes the same."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from node.engine.weights import build_model, load_weights
from protocol.errors import ConfigError, IntegrityError, UsageError
from protocol.model_files import WEIGHTS
from tests.engine import models
from tests.trainer import small
from trainer.config import KlSettings, TrainSettings
from trainer.hub.outbox import Outbox
from trainer.learning import base, lora, tensors
from trainer.learning.checkpoint import TENSORS, Checkpoints
from trainer.learning.learner import ADAPTERS, Learner
from trainer.learning.packing import PackedRows, pack
from trainer.learning.snapshot import snapshot
from trainer.loop.followers import Lead
from trainer.models.adapters import _targets, export_adapters
from trainer.models.export import export
from trainer.models.pretrained import make_policy

RANK, ALPHA = 4, 6.0


def settings(**changes: Any) -> TrainSettings:
    return small.settings(**{"lora_rank": RANK, "lora_alpha": ALPHA, **changes})


def away_from_zero(learner: Learner, seed: int = 0) -> Learner:
    """With adapters that say something: fresh ones add nothing."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in lora.tensors(learner.model).values():
            tensor.copy_(0.15 * torch.randn(tensor.shape, generator=draw))
    return learner


@pytest.fixture
def learner(model: Path) -> Learner:
    return Learner(model, settings())


def packed() -> list[PackedRows]:
    return pack([one for group in small.groups(2) for one in group], 256, 1)


@torch.no_grad()
def logprobs(learner: Learner) -> torch.Tensor:
    (rows,) = packed()
    return learner.policy(rows)[0]


def merged_folder(learner: Learner, base: Path, folder: Path) -> Path:
    """The merged weights as a model of its own, in float32."""
    shutil.copytree(base, folder)
    save_file({name: tensor.contiguous() for name, tensor in lora.merged(learner.model)}, folder / WEIGHTS)
    return folder


# ---- what is computed ----------------------------------------------------------------------------------------------------


def test_fresh_adapters_change_nothing(learner: Learner, new_learner: Callable[..., Learner]) -> None:
    assert torch.equal(logprobs(learner), logprobs(new_learner()))


@pytest.mark.parametrize("name", [name for name in models.RIGHT if name != "gpt2"])
def test_merged_weights_compute_what_adapters_do(name: str, tmp_path: Path) -> None:
    """Of every family that is allowed: each layer that has an adapter is called as a layer, and has a gradient."""
    folder = tmp_path / "policy"
    make_policy(models.make(models.RIGHT[name], tmp_path / "theirs"), folder)
    learner = away_from_zero(Learner(folder, settings()))
    (rows,) = packed()
    made, entropy = learner.policy(rows)
    (made.sum() + entropy.sum()).backward()
    silent = [
        name for name, tensor in lora.tensors(learner.model).items() if tensor.grad is None or not tensor.grad.any()
    ]
    assert not silent
    merged = Learner(merged_folder(learner, folder, tmp_path / "merged"), small.settings())
    assert (made - logprobs(merged)).abs().max() < 1e-5
    assert (made - logprobs(Learner(folder, small.settings()))).abs().max() > 1e-2, "the adapters say nothing"


def test_gradients_are_those_of_merged_weights(learner: Learner, model: Path) -> None:
    """dA and dB of one step against autograd through W + B A · alpha / rank in a plain model."""
    away_from_zero(learner)
    batch = small.groups(3)
    samples = [one for group in batch for one in group]
    tokens = sum(len(one.completion) for one in samples)
    adapters = {name: tensor.detach().clone().requires_grad_() for name, tensor in lora.tensors(learner.model).items()}
    plain = build_model(model, torch.float32)
    base = {name: tensor.detach() for name, tensor in lora.base_tensors(learner.model).items()}
    whole = dict(base)
    for name in adapters:
        if name.endswith(".lora_A.weight"):
            layer = name.removesuffix(".lora_A.weight")
            added = adapters[f"{layer}.lora_B.weight"] @ adapters[name] * (ALPHA / RANK)
            whole[f"{layer}.weight"] = base[f"{layer}.weight"] + added
    total = torch.zeros(())
    for one in samples:
        ids = torch.tensor([[*one.prompt.tolist(), *one.completion.tolist()]])
        logits = torch.func.functional_call(plain, whole, (), {"input_ids": ids, "use_cache": False}).logits[0]
        rows = logits.log_softmax(-1)[len(one.prompt) - 1 : -1]
        chosen = rows.gather(1, torch.tensor(one.completion.tolist())[:, None])
        total = total - one.advantage * chosen.sum() / tokens
    total.backward()
    learner._settings = settings(gradient_clip=1e9)
    with small.gradients(learner) as found:
        learner.learn(batch, 0)
    for name, gradient in zip(lora.tensors(learner.model), found, strict=True):
        assert torch.allclose(gradient, adapters[name].grad, atol=1e-6), name  # type: ignore[arg-type]


@pytest.mark.parametrize("changes", [{"activation_checkpointing": True}, {"compute_dtype": "bfloat16"}])
def test_a_step_is_the_same_however_it_is_computed(model: Path, changes: dict[str, Any]) -> None:
    """Exactly where layers are computed twice; to rounding in bfloat16."""
    learners = [away_from_zero(Learner(model, settings(**how))) for how in ({}, changes)]
    one, other = [learner.learn(small.groups(4), 0).gradient_norm for learner in learners]
    assert other == pytest.approx(one, rel=0.02 if "compute_dtype" in changes else 1e-6)


# ---- what is trained -----------------------------------------------------------------------------------------------------


def test_only_adapters_are_trained_and_have_moments(learner: Learner, model: Path) -> None:
    learner.learn(small.groups(3), 0)
    learner.learn(small.groups(3), 1)
    own = lora.tensors(learner.model)
    assert {id(parameter) for parameter in learner.optimizer.state} == {id(tensor) for tensor in own.values()}
    assert all(parameter.grad is None for name, parameter in learner.model.named_parameters() if name not in own)
    assert all(bool(tensor.any()) for tensor in own.values())
    assert small.equal(
        {name: tensor.detach() for name, tensor in lora.base_tensors(learner.model).items()}, small.stored(model)
    )
    layers = 2 * 7  # queries, keys, values, output; gate, up, down
    assert len(own) == 2 * layers


def test_likelier_becomes_what_was_better(model: Path) -> None:
    learner = Learner(model, settings(lr=2e-2))
    good = [one for group in small.groups(2) for one in group if one.advantage > 0]
    before = small.likelihood(learner, good)
    for step in range(4):
        learner.learn(small.groups(2), step)
    assert small.likelihood(learner, good) > before + 0.1


def test_the_reference_is_the_base_and_no_copy_of_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the divergence is measured from, with adapters and with a second model."""
    learner = away_from_zero(Learner(model, settings(kl=KlSettings(weight=0.5))))
    made: list[Any] = []
    monkeypatch.setattr(learner, "_before_training", lambda **_: made.append(1))
    (rows,) = packed()
    reference = learner._frozen(rows, learner._load_reference())
    assert not made
    assert torch.equal(reference, logprobs(Learner(model, small.settings())))
    assert not torch.equal(reference, logprobs(learner)), "the adapters are back"
    assert learner.learn(small.groups(2), 0).kl > 0.01


def test_first_values_come_from_the_seed_and_nothing_else(model: Path) -> None:
    def first(seed: int) -> dict[str, torch.Tensor]:
        torch.rand(1)
        return lora.tensors(Learner(model, settings(seed=seed)).model)

    one, again, other = first(1), first(1), first(2)
    assert small.equal(one, again)
    drawn = [name for name in one if name.endswith("lora_A.weight")]
    assert not any(torch.equal(one[name], other[name]) for name in drawn)
    assert len({one[name][0, 0].item() for name in drawn}) == len(drawn), "each layer draws its own"
    for name in drawn:
        bound = one[name].shape[1] ** -0.5
        assert 0.9 * bound < one[name].abs().max().item() <= bound
    assert not any(one[name].any() for name in one if name not in drawn)


# ---- what is kept and published ------------------------------------------------------------------------------------------


def save(learner: Learner, folder: Path, model: Path, step: int = 1) -> Path:
    state = {"lora": lora.identity(learner._settings), "base": base.digest_of(model)}
    return Checkpoints(folder, keep=9).save(step, state, Lead(learner).save)


def test_a_version_holds_the_merged_weights_under_the_models_own_names(
    learner: Learner, model: Path, tmp_path: Path
) -> None:
    away_from_zero(learner)
    version = Outbox(tmp_path / "outgoing", model).write(snapshot(learner.model), 1)
    published, base = small.stored(version), small.stored(model)
    assert {name: tensor.shape for name, tensor in published.items()} == {
        name: tensor.shape for name, tensor in base.items()
    }
    assert {tensor.dtype for tensor in published.values()} == {torch.bfloat16}
    changed = {name for name in base if not torch.equal(published[name], base[name].to(torch.bfloat16))}
    assert changed == {name for name in base if name.endswith("_proj.weight")}
    load_weights(build_model(model, torch.bfloat16), version)  # as engines read it


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_is_exported_is_what_is_merged(learner: Learner, model: Path, tmp_path: Path, dtype: str) -> None:
    away_from_zero(learner)
    checkpoint = save(learner, tmp_path / "checkpoints", model)
    found = small.stored(export(checkpoint, model, tmp_path / "exported", dtype=dtype))
    kind = getattr(torch, dtype)
    assert small.equal(found, {name: tensor.to(kind) for name, tensor in lora.merged(learner.model)})
    assert not [name for name in found if "lora" in name]


def test_a_checkpoint_holds_adapters_alone(learner: Learner, model: Path, tmp_path: Path) -> None:
    learner.learn(small.groups(2), 0)
    held = tensors.shapes(save(learner, tmp_path, model) / TENSORS)
    own = lora.tensors(learner.model)
    assert set(held) == {f"{ADAPTERS}{name}" for name in own} | {
        f"optimizer/{name}/{key}" for name in own for key in ("step", "exp_avg", "exp_avg_sq")
    }


def test_a_training_goes_on_bit_for_bit(model: Path, tmp_path: Path) -> None:
    how = settings(optimizer_steps=2, kl=KlSettings(weight=0.1))
    first = Learner(model, how)
    first.learn(small.groups(4), 0)
    checkpoint = save(first, tmp_path, model)
    expected = [first.learn(small.groups(4), step) for step in (1, 2)]
    second = Learner(model, how)
    Lead(second).restore(checkpoint)
    assert [second.learn(small.groups(4), step) for step in (1, 2)] == expected
    assert small.equal(small.weights(first), small.weights(second))


def test_nothing_is_exported_of_adapters_of_another_base(learner: Learner, model: Path, tmp_path: Path) -> None:
    checkpoint = save(learner, tmp_path / "checkpoints", model)
    other = small.write_model(tmp_path / "other", seed=1)
    with pytest.raises(IntegrityError, match="adapters of other weights than those in"):
        export(checkpoint, other, tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


# ---- as PEFT keeps them --------------------------------------------------------------------------------------------------


def test_adapters_alone_are_a_folder_as_peft_has_it(learner: Learner, model: Path, tmp_path: Path) -> None:
    """Names and numbers as PEFT's documentation has them."""
    away_from_zero(learner)
    checkpoint = save(learner, tmp_path / "checkpoints", model)
    made = export_adapters(checkpoint, model, tmp_path / "adapters")
    assert {path.name for path in made.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    own = {name: tensor.detach() for name, tensor in lora.tensors(learner.model).items()}
    found = load_file(made / "adapter_model.safetensors")
    assert small.equal(found, {f"base_model.model.{name}": tensor for name, tensor in own.items()})
    config = json.loads((made / "adapter_config.json").read_text())
    assert (config["peft_type"], config["task_type"], config["r"], config["lora_alpha"]) == (
        "LORA",
        "CAUSAL_LM",
        RANK,
        ALPHA,
    )
    assert config["target_modules"] == ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    assert config["base_model_name_or_path"] == str(model)
    half = load_file(
        export_adapters(checkpoint, model, tmp_path / "half", dtype="bfloat16") / "adapter_model.safetensors"
    )
    assert {tensor.dtype for tensor in half.values()} == {torch.bfloat16}


def test_layers_are_called_by_their_whole_names_where_others_end_alike(model: Path) -> None:
    layers = {f"model.layers.{i}.self_attn.q_proj" for i in range(2)}
    assert _targets(model, layers) == ["q_proj"]
    assert _targets(model, {"model.layers.0.self_attn.q_proj"}) == ["model.layers.0.self_attn.q_proj"]


def test_layers_that_peft_takes_for_experts_are_refused(tmp_path: Path) -> None:
    """Seen with PEFT 0.21: it computes another model. Experts without dense layers beside them have no adapters, and are written."""
    made = models.make(models.RIGHT["qwen3_moe"], tmp_path / "model")
    with pytest.raises(
        ConfigError, match="PEFT would take the adapters of down_proj for those of this model's experts"
    ):
        _targets(made, {"model.layers.1.mlp.down_proj"})
    attention = {f"model.layers.{i}.self_attn.{part}_proj" for i in range(3) for part in "qkvo"}
    assert _targets(made, attention) == ["k_proj", "o_proj", "q_proj", "v_proj"]


def test_adapters_are_not_written_where_there_are_none_or_for_another_policy(
    learner: Learner, model: Path, tmp_path: Path
) -> None:
    state = {"lora": None, "base": base.digest_of(model)}
    whole = Checkpoints(tmp_path / "whole", keep=1).save(1, state, Lead(Learner(model, small.settings())).save)
    with pytest.raises(UsageError, match="holds no adapters: all weights were trained"):
        export_adapters(whole, model, tmp_path / "adapters")
    other = small.write_model(tmp_path / "other", seed=1)
    with pytest.raises(IntegrityError, match="adapters of other weights than those in"):
        export_adapters(save(learner, tmp_path / "checkpoints", model), other, tmp_path / "adapters")
    assert not (tmp_path / "adapters").exists()


# ---- what cannot be meant ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lora_rank": 8}, r"trained with lora_rank = 4, and trainer\.lora_rank is 8"),
        ({"lora_rank": 0, "lora_alpha": None}, r"trained with lora_rank = 4, and trainer\.lora_rank is 0"),
        ({"lora_alpha": None}, r"trained with lora_alpha = 6, and trainer\.lora_alpha is 8"),
    ],
)
def test_other_adapters_are_another_training(model: Path, changes: dict[str, Any], said: str) -> None:
    saved, asked = lora.identity(settings()), lora.identity(settings(**changes))
    with pytest.raises(ConfigError, match=said) as caught:
        lora.require_same(saved, asked, Path("step_1"))
    assert "or begin another training" in caught.value.hint


def test_a_training_of_all_weights_does_not_go_on_with_adapters(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trained with lora_rank = 0, and trainer\.lora_rank is 4"):
        lora.require_same(None, lora.identity(settings()), Path("step_1"))
    other = small.write_model(tmp_path / "other", seed=1)
    with pytest.raises(IntegrityError, match="step_1 holds adapters of other weights than those in"):
        base.require_same(base.digest_of(other), model, settings(), Path("step_1"))


def test_tensors_of_another_rank_are_refused_by_name(learner: Learner, model: Path, tmp_path: Path) -> None:
    checkpoint = save(learner, tmp_path, model)
    with pytest.raises(IntegrityError, match=r"adapters/.*lora_A\.weight as .*4, 32.*, not \(8, 32\)"):
        Lead(Learner(model, settings(lora_rank=8))).restore(checkpoint)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lora_rank": -1}, "greater than or equal to 0"),
        ({"lora_alpha": 0.0}, "greater than 0"),
        ({"lora_alpha": float("inf")}, "finite"),
        ({"lora_rank": 0}, "there are none: set lora_rank"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        settings(**changes)


def test_a_rank_that_saves_nothing_is_refused(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.lora_rank is 32, and no layer has more than 32 features"):
        Learner(model, settings(lora_rank=32))


def test_a_model_without_linear_layers_is_refused(tmp_path: Path) -> None:
    """GPT-2's are of another kind."""
    make_policy(models.make(models.RIGHT["gpt2"], tmp_path / "theirs"), tmp_path / "policy")
    with pytest.raises(ConfigError, match="models of the type gpt2 have no linear layers to adapt"):
        Learner(tmp_path / "policy", settings())


def test_alpha_is_twice_the_rank_unless_told() -> None:
    assert lora.Adapters.of(settings(lora_rank=16, lora_alpha=None)) == lora.Adapters(16, 32.0)
    assert lora.Adapters.of(small.settings()) is None
