"""Numbers of a config.json that no model has are refused before transformers makes anything of them."""

from __future__ import annotations

from typing import Any

import pytest

from protocol import architectures
from protocol.errors import ConfigError
from tests.engine.models import RIGHT

LLAMA = RIGHT["llama"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_hidden_layers": 20_000}, "num_hidden_layers is 20000"),
        ({"num_labels": 10**8}, "num_labels is 100000000"),
        ({"id2label": {str(i): "a" for i in range(2000)}}, "id2label has 2000 entries"),
        ({"layer_types": ["full_attention"] * 2000}, "layer_types has 2000 entries"),
        ({"vocab_size": 96.0}, "vocab_size is 96.0"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"head_dim": 0}, "head_dim is 0"),
        ({"hidden_size": 1 << 40}, "hidden_size is"),
        ({"hidden_size": None}, "hidden_size is None"),
        ({"rope_theta": 0}, "rope_theta is 0"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0}}, "factor is 0"),
        ({"rope_scaling": {"rope_type": "linear", "factor": float("nan")}}, "factor is nan"),
        ({"dtype": "bogus"}, "dtype is 'bogus'"),
        ({"max_position_embeddings": None}, "max_position_embeddings"),
        ({"return_dict": False}, "return_dict is False"),
    ],
    ids=str,
)
@pytest.mark.parametrize("unlisted", [False, True])
def test_a_number_that_no_model_has_is_refused(changes: dict[str, Any], says: str, unlisted: bool) -> None:
    config = LLAMA | changes | ({architectures.UNLISTED: True} if unlisted else {})
    if unlisted and "return_dict" in changes:
        return
    with pytest.raises(ConfigError) as refused:
        architectures.require_right(config)
    assert says in str(refused.value)


def test_null_says_that_there_are_no_experts() -> None:
    """As configurations of dense models have it that share their code with a mixture."""
    dense = LLAMA | {"num_local_experts": None, "num_experts_per_tok": None, "head_dim": None}
    architectures.require_right(dense)
    architectures.require_soft(dense, [0])


@pytest.mark.parametrize("chosen", [0, -1, 9])
def test_a_token_goes_to_as_many_experts_as_there_are(chosen: int) -> None:
    mixture = next(config for config in RIGHT.values() if config["model_type"] == "qwen3_moe")
    with pytest.raises(ConfigError, match=f"num_experts_per_tok is {chosen}"):
        architectures.require_right(mixture | {"num_experts_per_tok": chosen})


def test_a_config_says_how_long_a_sequence_may_be() -> None:
    with pytest.raises(ConfigError, match="max_position_embeddings is missing"):
        architectures.require_right({key: value for key, value in LLAMA.items() if key != "max_position_embeddings"})
