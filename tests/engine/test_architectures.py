"""Models that are allowed are computed as they are alone, and those that are not are refused by name, for a reason."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from swarm.tiny_run import TinyRun
from transformers import AutoConfig, GenerationConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from node.engine.torch_engine import TorchEngine
from protocol import architectures, calibration
from protocol.architectures import ARCHITECTURES, require_right
from protocol.config_keys import FEATURES, REFUSED
from protocol.errors import ConfigError
from protocol.model_files import CONFIG
from protocol.settings import read_toml, toml
from protocol.shell import runfile
from tests.engine.comparison import Comparison
from tests.engine.models import RIGHT, WINDOW, WRONG, make
from trainer.config import TrainSettings
from trainer.learning.learner import Learner
from trainer.models.pretrained import make_policy

ROOT = Path(__file__).parents[2]
WINDOWS = {"sliding_window", "use_sliding_window"}
NATS = 1e-4
"""Rounding in float32 alone gives some 5e-6."""


def as_written(config: dict[str, Any], **how: Any) -> dict[str, Any]:
    """config.json as transformers writes it."""
    features = {key: value for key, value in config.items() if key != "model_type"}
    return json.loads(AutoConfig.for_model(config["model_type"], **features).to_json_string(**how))


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_allowed_is_computed_as_the_model_is_alone(name: str, tmp_path: Path) -> None:
    theirs = make(RIGHT[name], tmp_path / "theirs")
    make_policy(theirs, tmp_path / "policy")
    found = Comparison(theirs, tmp_path / "policy").distances()
    assert max(found.values()) < NATS, found


@pytest.mark.parametrize("name", WRONG)
def test_what_is_refused_would_be_computed_otherwise(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = make(WRONG[name], tmp_path / "theirs")
    with pytest.raises(ConfigError):
        architectures.require_file(theirs / CONFIG)
    monkeypatch.setattr(architectures, "require_right", lambda *_: None)
    monkeypatch.setattr(architectures, "require_positions", lambda *_: None)
    found = Comparison(theirs, theirs).distances()
    assert max(found.values()) > 100 * NATS, found


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_every_allowed_architecture_has_been_compared(kind: str) -> None:
    assert kind in {config["model_type"] for config in RIGHT.values()}
    assert ARCHITECTURES[kind].name == MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]


@pytest.mark.parametrize("name", RIGHT)
def test_what_transformers_writes_of_an_allowed_model_is_allowed(name: str) -> None:
    require_right(RIGHT[name])
    require_right(as_written(RIGHT[name]))
    require_right(as_written(RIGHT[name], use_diff=False))


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_what_a_config_leaves_out_is_what_transformers_takes(kind: str) -> None:
    """A feature that is on by default, and that nobody knew of, would be on in silence."""
    known = ARCHITECTURES[kind]
    taken = as_written({"model_type": kind}, use_diff=False)
    features = FEATURES.keys() - known.sizes - (WINDOWS if known.windows != "none" else set())
    on = {key: value for key, value in taken.items() if key in features and value}
    assert on == dict(known.defaults)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_the_documentation_lists_every_allowed_architecture(kind: str) -> None:
    assert f"`{kind}`" in (ROOT / "docs/models.md").read_text().split("## Refused")[0]


def test_settings_of_generation_that_old_files_hold_are_no_features() -> None:
    old = dict.fromkeys(GenerationConfig._get_default_generation_params(), 1)
    require_right(RIGHT["llama"] | old)


def test_what_is_refused_with_a_reason_is_something_that_transformers_knows() -> None:
    assert set(REFUSED) <= set(CONFIG_MAPPING)
    assert not set(REFUSED) & set(ARCHITECTURES)


LLAMA, MISTRAL = RIGHT["llama"], RIGHT["mistral with a window"]
STRAY = LLAMA | {"sliding_window": WINDOW}


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (STRAY, "sliding_window is 8: but for the models whose own"),
        (LLAMA | {"use_sliding_window": True}, "use_sliding_window is True: but for the models whose own"),
        (LLAMA | {"layer_types": ["sliding_attention"] * 3}, "layer_types holds 'sliding_attention': layers of this"),
        (MISTRAL | {"layer_types": ["full_attention"] * 3}, "layer_types holds 'full_attention': layers of this"),
        (
            RIGHT["gemma2"] | {"layer_types": ["chunked_attention"] * 3},
            "'chunked_attention': nobody has compared such layers",
        ),
        (LLAMA | {"layer_types": "full"}, "layer_types holds 'full'"),
        (LLAMA | {"layer_types": [["full_attention"]] * 3}, "layer_types holds .'full_attention'.: nobody"),
        (LLAMA | {"rope_scaling": {"type": ["linear"]}}, "rope_scaling.type is .'linear'.: nobody"),
        ({"model_type": "mistral", "layer_types": ["full_attention"]}, "layer_types holds 'full_attention': layers of"),
        (MISTRAL | {"use_sliding_window": False}, "use_sliding_window stands beside sliding_window: but for"),
        (MISTRAL | {"sliding_window": "8"}, "sliding_window is '8': expected a number of tokens"),
        (MISTRAL | {"sliding_window": 0}, "sliding_window is 0: expected a number of tokens"),
        (MISTRAL | {"sliding_window": True}, "sliding_window is True: expected a number of tokens"),
        (RIGHT["gemma2"] | {"sliding_window": None}, "sliding_window is None: some layers have it by default"),
        (
            RIGHT["gemma2"] | {"sliding_window": None, "layer_types": ["sliding_attention"] * 3},
            "layer_types holds 'sliding_attention': layers of this",
        ),
        (
            RIGHT["qwen2"] | {"sliding_window": WINDOW, "layer_types": ["sliding_attention"] * 3},
            "layer_types holds 'sliding_attention': layers of this",
        ),
        (RIGHT["gemma2"] | {"final_logit_softcapping": 0.0}, "final_logit_softcapping is 0.0: expected a number above"),
        (RIGHT["gemma2"] | {"attn_logit_softcapping": math.nan}, "attn_logit_softcapping is nan: expected a number"),
        (RIGHT["cohere"] | {"logit_scale": 0}, "logit_scale is 0: expected a number above 0"),
        (RIGHT["granite"] | {"logits_scaling": True}, "logits_scaling is True: expected a number above 0"),
        (RIGHT["granite"] | {"logits_scaling": math.inf}, "logits_scaling is inf: expected a number above 0"),
        ({"model_type": "exaone4"}, "models of type 'exaone4' are refused: its windows have not been compared"),
        (WRONG["gpt_oss"], "models of type 'gpt_oss' are refused: the sinks of its attention"),
        (WRONG["qwen3_next"], "models of type 'qwen3_next' are refused: the state of its linear attention"),
        (WRONG["falcon"], "models of type 'falcon' are refused: its positions are biases"),
        ({"model_type": "opt"}, "models of type 'opt' are refused: nobody has shown"),
        ({"model_type": ["llama"]}, r"models of type \['llama'\] are refused: nobody has shown"),
        ({}, "models of type None are refused"),
        (WRONG["llama with dynamic rope"], "rope_parameters.rope_type is 'dynamic': its frequencies change"),
        (LLAMA | {"rope_scaling": {"type": "longrope"}}, "rope_scaling.type is 'longrope': its frequencies change"),
        (LLAMA | {"rope_scaling": {"type": "ntk-by-parts"}}, "rope_scaling.type is 'ntk-by-parts': nobody has shown"),
        (LLAMA | {"rope_scaling": {"type": "default", "mrope_section": [1]}}, "rope_scaling holds 'mrope_section'"),
        (LLAMA | {"rope_scaling": [1]}, r"rope_scaling is \[1\]"),
        (LLAMA | {"attention_dropout": 0.1}, "attention_dropout is 0.1: what it leaves out by chance"),
        ({"model_type": "gpt2"}, "attn_pdrop is 0.1 where config.json leaves it out"),
        (LLAMA | {"auto_map": {"AutoModelForCausalLM": "theirs.Model"}}, "auto_map is set: it names program code"),
        ({"model_type": "nobodys", "auto_map": {"AutoConfig": "theirs.Config"}}, "auto_map is set"),
        (LLAMA | {"quantization_config": {"quant_method": "gptq"}}, "quantization_config is set: quantized weights"),
        ({"model_type": "qwen3_vl", "text_config": {"model_type": "qwen3"}}, "text_config is set: models of more than"),
        (LLAMA | {"architectures": ["LlamaForSequenceClassification"]}, "only LlamaForCausalLM is computed"),
        (LLAMA | {"logit_scale": 0.5}, "logit_scale is 0.5: but for the models whose own"),
        (
            RIGHT["gemma3"] | {"attn_logit_softcapping": 50.0},
            "attn_logit_softcapping is 50.0: but for the models",
        ),
        (RIGHT["phi3"] | {"rope_scaling": {"type": "yarn"}}, "rope_scaling.type is 'yarn': nobody has shown"),
        (
            RIGHT["olmo3"] | {"rope_parameters": {"full_attention": {"rope_type": "dynamic"}}},
            "full_attention.rope_type is 'dynamic'",
        ),
        (
            LLAMA | {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            "rope_parameters holds 'full_attention'",
        ),
        (LLAMA | {"per_layer_config": {"0": {"num_attention_heads": 2}}}, "per_layer_config is .*: layers that differ"),
        (LLAMA | {"attention_temperature": 2.0}, "attention_temperature is 2.0: nobody has compared what it changes"),
        (RIGHT["deepseek_v3"] | {"scoring_func": "softmax"}, "scoring_func is 'softmax': only 'sigmoid' is computed"),
        (LLAMA | {f"key_{i}": i for i in range(300_000)}, "it has 3000.. keys: at most 1024$"),
        (RIGHT["gpt_neox"] | {"rope_theta": 5000}, "rope_theta is 5000"),
        (RIGHT["gpt_neox"] | {"partial_rotary_factor": 0.75}, "partial_rotary_factor is 0.75"),
        (RIGHT["gpt_neox"] | {"head_dim": 24}, "head_dim is 24"),
        (
            LLAMA | {"rope_theta": 5e4, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
            "rope_theta is 50000.0: rope_parameters says 10000.0",
        ),
        (
            RIGHT["gemma3"]
            | {"rope_local_base_freq": 5.0, "rope_parameters": {"sliding_attention": {"rope_theta": 1e4}}},
            "rope_local_base_freq is 5.0: rope_parameters says 10000.0",
        ),
        (
            LLAMA | {"rope_scaling": {"rope_type": "default", "type": "linear", "factor": 2.0}},
            "rope_scaling.type is 'linear': rope_type says",
        ),
        (
            RIGHT["gpt2"] | {"rope_scaling": {"type": "linear", "factor": 2.0}},
            "rope_scaling is set: models of this type have no",
        ),
        (RIGHT["gpt2"] | {"max_position_embeddings": 7}, "max_position_embeddings is 7"),
        (RIGHT["gpt2"] | {"hidden_act": "relu"}, "hidden_act is 'relu'"),
        (
            RIGHT["gemma3"] | {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
            "rope_parameters is .*: transformers reads it by the layer's type alone",
        ),
        (
            RIGHT["olmo3"] | {"rope_scaling": {"full_attention": {"rope_type": "default"}}},
            "rope_scaling is .*: transformers reads it without the layer's type alone",
        ),
    ],
)
def test_a_refusal_names_what_and_why(config: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as told:
        require_right(config, "its config.json")
    assert str(told.value).startswith("its config.json: ")
    assert told.value.hint


@pytest.mark.parametrize(
    "config",
    [
        LLAMA | {"sliding_window": None, "use_sliding_window": False, "alibi": False, "layer_types": ["full_attention"] * 3},
        RIGHT["qwen2"] | {"use_sliding_window": False, "sliding_window": 32_768, "max_window_layers": 28, "use_mrope": False},
        LLAMA | {"attention_temperature": None},
        LLAMA | {"rope_scaling": None, "rope_theta": 500_000.0, "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16"},
    ],
)  # fmt: skip
def test_a_feature_that_is_off_is_none(config: dict[str, Any]) -> None:
    require_right(config)


def test_no_door_lets_in_what_is_refused(tiny_run: TinyRun, tmp_path: Path) -> None:
    """Import, `murmur run create` and load; a policy that was there before the first of them, too."""
    theirs = make(STRAY, tmp_path / "theirs")
    with pytest.raises(ConfigError, match="sliding_window is 8"):
        make_policy(theirs, tmp_path / "policy")
    assert not (tmp_path / "policy").exists()
    with pytest.raises(ConfigError, match="sliding_window is 8"):
        runfile.complete(tiny_run.folder / "run.toml", theirs)
    with pytest.raises(ConfigError, match="sliding_window is 8"):
        TorchEngine("float32").load(theirs)
    with pytest.raises(ConfigError, match="sliding_window is 8"):
        Learner(theirs, TrainSettings(steps=1))


def test_a_run_is_refused_whose_answers_are_longer_than_the_model_has_positions(
    tiny_run: TinyRun, tmp_path: Path
) -> None:
    policy = make(RIGHT["gpt2"] | {"n_positions": 40}, tmp_path / "gpt2")  # max_new_tokens is 40
    with pytest.raises(ConfigError, match="max_new_tokens is 40, and the model has 40 positions"):
        runfile.complete(tiny_run.folder / "run.toml", policy)


def test_a_run_is_refused_whose_prompts_leave_an_answer_too_few_positions(tiny_run: TinyRun, tmp_path: Path) -> None:
    policy = shutil.copytree(tiny_run.model, tmp_path / "policy")
    config = json.loads((policy / "config.json").read_text())
    longest = tiny_run.tokenizer.longest(tiny_run.spec, tiny_run.context.tasks.first(256))
    assert 41 < longest < config["max_position_embeddings"]
    for positions in (longest, longest - 1):
        (policy / "config.json").write_text(json.dumps(config | {"max_position_embeddings": positions}))
        if positions == longest:
            runfile.complete(tiny_run.folder / "run.toml", policy)
        else:
            with pytest.raises(ConfigError, match=f"longer than the model's {positions} positions"):
                runfile.complete(tiny_run.folder / "run.toml", policy)


MIXTURES = [name for name, config in RIGHT.items() if config["model_type"] in ("qwen3_moe", "mixtral", "deepseek_v3")]


@pytest.mark.parametrize("name", MIXTURES)
def test_nobody_is_slashed_for_what_a_mixture_of_experts_computes(name: str) -> None:
    architectures.require_soft(RIGHT[name], [])
    architectures.require_soft(LLAMA, [0])
    with pytest.raises(ConfigError, match="mixture of experts") as refused:
        architectures.require_soft(RIGHT[name], [0, 2])
    assert "uncalibrated = [0, 2]" in refused.value.hint
    with pytest.raises(ConfigError, match="mixture of experts"):
        architectures.require_soft({"model_type": "mixtral"}, [0])  # which has eight where it says nothing


def test_a_run_with_limits_that_nothing_exceeds_is_refused(tiny_run: TinyRun, tmp_path: Path) -> None:
    tables = read_toml(tiny_run.folder / "run.toml")
    limits = calibration.load("tiny-qwen3-float32-cpu", tmp_path).computation
    for soft, refused in (("0.99", False), ("2.3", True)):
        computation = limits | {"exponents": {"soft": soft, "hard": "9"}}
        tables["spec"]["verification"]["computation"] = computation
        (tmp_path / "run.toml").write_text(toml(tables, ""))
        if refused:
            with pytest.raises(ConfigError, match=f"exponents.soft is {soft}, and a share is never above 1"):
                runfile.complete(tmp_path / "run.toml", tiny_run.model)
        else:
            runfile.complete(tmp_path / "run.toml", tiny_run.model)


def test_an_import_takes_out_what_is_left_to_chance(tmp_path: Path) -> None:
    theirs = make(WRONG["gpt2 with dropout"], tmp_path / "theirs")
    make_policy(theirs, tmp_path / "policy")
    found = Comparison(theirs, tmp_path / "policy").distances()
    assert max(found.values()) < NATS, found


def test_an_import_takes_out_the_names_of_a_stranger_s_code_and_runs_none_of_it(tmp_path: Path) -> None:
    theirs = make(RIGHT["phi3"], tmp_path / "theirs")
    config = json.loads((theirs / CONFIG).read_text())
    named = {"AutoConfig": "theirs.Phi3Config", "AutoModelForCausalLM": "theirs.Phi3ForCausalLM"}
    (theirs / CONFIG).write_text(json.dumps(config | {"auto_map": named}))
    (theirs / "theirs.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    make_policy(theirs, tmp_path / "policy")
    assert not (tmp_path / "ran").exists() and not (tmp_path / "policy/theirs.py").exists()
    assert "auto_map" not in json.loads((tmp_path / "policy" / CONFIG).read_text())
    found = Comparison(theirs, tmp_path / "policy").distances()
    assert max(found.values()) < NATS and not (tmp_path / "ran").exists(), found
    with pytest.raises(ConfigError, match="auto_map is set"):
        TorchEngine("float32").load(theirs)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: path.unlink(), "cannot read"),
    "no JSON": (lambda path: path.write_text("["), "not valid JSON"),
    "nested deep": (lambda path: path.write_text('{"x":' + "[" * 90_000 + "]" * 90_000 + "}"), "nested deeper than 64"),
    "huge": (lambda path: path.write_bytes(b" " * ((16 << 20) + 1)), "more than 16777216 bytes"),
    "a number of 5000 digits": (lambda path: path.write_text('{"x":' + "9" * 5000 + "}"), "not valid JSON"),
    "no object": (lambda path: path.write_text("[]"), "no JSON object"),
    "refused": (lambda path: path.write_text('{"model_type": "mpt"}'), "models of type 'mpt' are refused"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_file_is_refused_by_its_name(case: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    architectures.require_file(path)
    damage, complaint = DAMAGE[case]
    damage(path)
    with pytest.raises(ConfigError, match=complaint) as told:
        architectures.require_file(path)
    assert str(path) in str(told.value)


def test_a_model_says_for_how_many_tokens_it_was_made() -> None:
    assert architectures.positions(RIGHT["gpt2"]) == 128
    assert architectures.positions({"model_type": "gpt2"}) == 1024
    assert architectures.positions({"model_type": "gpt2", "max_position_embeddings": 64}) == 64
    assert architectures.positions({"model_type": "llama", "max_position_embeddings": 64}) == 64
    assert architectures.positions({"model_type": "llama", "max_position_embeddings": None}) is None
    assert architectures.positions({"model_type": "nobodys", "n_positions": 32}) == 32


def test_positions_bound_a_sequence_rotary_or_learnt() -> None:
    architectures.require_positions({"model_type": "llama", "max_position_embeddings": 64}, 64)
    with pytest.raises(ConfigError, match="may take 65 tokens, and the model has 64 positions"):
        architectures.require_positions({"model_type": "llama", "max_position_embeddings": 64}, 65)
    architectures.require_positions(RIGHT["gpt2"], 128)
    with pytest.raises(ConfigError, match="may take 129 tokens, and the model has 128 positions"):
        architectures.require_positions(RIGHT["gpt2"], 129)
