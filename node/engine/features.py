"""What can be left out of a transformers model, one thing at a time: to find out what an engine leaves out (self_check.py).

Each feature is one that a model has, by its own modules and configuration, whatever its type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_ENDLESS = 1 << 30  # tokens of a window that hides nothing


@dataclass(frozen=True)
class Feature:
    name: str
    off: Callable[[], object]
    """Leaves it out of the model."""
    on: Callable[[], object]
    """Puts it back."""


def window_of(config: Any) -> int | None:
    """Tokens of the sliding window that layers of such a model have; None where none has."""
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    return None if window is None or (kinds and "sliding_attention" not in kinds) else int(window)


def features(model: Any) -> list[Feature]:
    """What can be left out of this model."""
    config = model.config
    found = []
    if (window := window_of(config)) is not None:
        found.append(_attribute(f"the sliding window of {window} tokens", [config], "sliding_window", _ENDLESS))
    if cap := getattr(config, "attn_logit_softcapping", None):
        owners = [module for module in model.modules() if hasattr(module, "attn_logit_softcapping")]
        found.append(_attribute(f"the soft cap of {cap:g} on attention scores", owners, "attn_logit_softcapping", None))
    if cap := getattr(config, "final_logit_softcapping", None):
        found.append(_attribute(f"the soft cap of {cap:g} on logits", [config], "final_logit_softcapping", None))
    if (scale := getattr(model, "logit_scale", None)) not in (None, 1.0):
        found.append(_attribute(f"the scale of {scale:g} on logits", [model], "logit_scale", 1.0))
    if (scale := getattr(config, "logits_scaling", None)) not in (None, 1.0):
        found.append(_attribute(f"the division of logits by {scale:g}", [config], "logits_scaling", 1.0))
    return [*found, *_ropes(model), *_factors(model)]


def _attribute(name: str, owners: list[Any], key: str, off: Any) -> Feature:
    values = [getattr(owner, key) for owner in owners]

    def put(chosen: list[Any]) -> None:
        for owner, value in zip(owners, chosen, strict=True):
            setattr(owner, key, value)

    return Feature(name, lambda: put([off] * len(owners)), lambda: put(values))


def _ropes(model: Any) -> list[Feature]:
    """Rotary positions: without the scaling of their kind, and not at all."""
    found = []
    owners = [
        m for m in model.modules() if "RotaryEmbedding" in type(m).__name__ and getattr(m, "inv_freq", None) is not None
    ]
    scaled = [m for m in owners if getattr(m, "rope_type", "default") != "default"]
    if scaled:
        kinds = ", ".join(sorted({m.rope_type for m in scaled}))
        plain = [_unscaled(m) for m in scaled]
        found.append(
            _tensors(f"the {kinds} scaling of rotary positions", scaled, [f for f, _ in plain], [1.0] * len(plain))
        )
    if owners:
        still = [m.inv_freq * 0.0 for m in owners]
        found.append(_tensors("rotary positions", owners, still, [1.0] * len(owners)))
    return found


def _unscaled(module: Any) -> tuple[Any, float]:
    made: tuple[Any, float] = module.compute_default_rope_parameters(module.config, device=module.inv_freq.device)
    return made


def _tensors(name: str, owners: list[Any], off: list[Any], factors: list[float]) -> Feature:
    values = [(m.inv_freq, getattr(m, "attention_scaling", 1.0)) for m in owners]

    def put(chosen: list[tuple[Any, float]]) -> None:
        for module, (frequencies, factor) in zip(owners, chosen, strict=True):
            module.inv_freq, module.attention_scaling = frequencies, factor

    return Feature(name, lambda: put(list(zip(off, factors, strict=True))), lambda: put(values))


def _factors(model: Any) -> list[Feature]:
    """The factor on attention scores where it is not the root of the head's size."""
    owners = [m for m in model.modules() if hasattr(m, "scaling") and hasattr(m, "head_dim") and hasattr(m, "q_proj")]
    odd = [m for m in owners if abs(m.scaling - m.head_dim**-0.5) > 1e-9]
    if not odd:
        return []
    return [_attribute("the factor on attention scores", odd, "scaling", odd[0].head_dim ** -0.5)]
