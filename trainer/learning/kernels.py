"""What may make a model's layers quicker without changing what they compute: Liger's kernels, torch.compile."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn

from protocol import extras
from protocol.errors import PreflightError
from trainer.learning.ranks import blocks


def use_liger(model: Any) -> None:
    """Replaces norms, rotary embedding and MLPs. Raises PreflightError where there is no GPU, no liger-kernel or none for this model."""
    if not torch.cuda.is_available():
        raise PreflightError('kernels = "liger" needs an NVIDIA GPU', hint='set trainer.kernels = "torch"')
    try:
        liger = importlib.import_module("liger_kernel.transformers.monkey_patch")
    except ImportError as error:
        raise PreflightError(
            f"liger-kernel cannot be imported: {error}", hint=extras.how_to_install("liger")
        ) from error
    patch = liger.MODEL_TYPE_TO_APPLY_LIGER_FN.get(model.config.model_type)
    if patch is None:
        raise PreflightError(
            f"liger-kernel has nothing for models of the type {model.config.model_type}",
            hint='set trainer.kernels = "torch"',
        )
    # The loss is our own: logprobs and entropy are chunked already (logprobs.py).
    patch(model=model, rope=True, rms_norm=True, swiglu=True, cross_entropy=False, fused_linear_cross_entropy=False)


def compile_layers(model: nn.Module) -> None:
    """Each block of the model by itself, so that equal ones are compiled once and FSDP can gather between them."""
    for block in blocks(model):
        block.compile()
