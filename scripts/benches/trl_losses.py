"""TRL's own losses and gradients on random inputs, as JSON: the oracle for trainer/learning/loss.py. Runs where TRL is installed.

    python scripts/benches/trl_losses.py [SEED] > tests/vectors/losses.json        (`scripts/make-vectors --losses` does this)

GRPOTrainer._compute_loss is called with logprobs in place of a model's; nothing of ours is imported here.
"""

from __future__ import annotations

import collections
import json
import sys
from types import SimpleNamespace
from typing import Any

import torch
import trl
from trl import GRPOTrainer

_SAMPLES, _TOKENS, _CONSTANT = 5, 7, 12
CASES: dict[str, dict[str, Any]] = {
    "intellect2": {"loss_type": "dapo", "delta": 4.0},
    "grpo": {"loss_type": "grpo"},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
}


def trl_loss(inputs: dict[str, torch.Tensor], *, beta: float, loss_type: str, delta: float | None = None, epsilon_low: float = 0.2,
             epsilon_high: float = 0.2, importance_sampling_level: str = "token") -> torch.Tensor:  # fmt: skip
    """TRL's loss of logprobs, old, reference [B, T], advantages [B] and mask [B, T], in one accumulation step."""
    accelerator = SimpleNamespace(
        num_processes=1, gather=lambda x: x, reduce=lambda x, reduction="sum": x, sync_gradients=True
    )
    entropies = torch.zeros_like(inputs["logprobs"]).detach()
    trainer = SimpleNamespace(
        top_entropy_quantile=1.0, off_policy_mask_threshold=None, importance_sampling_level=importance_sampling_level,
        beta=beta, loss_type=loss_type, epsilon_low=epsilon_low, epsilon_high=epsilon_high, use_vllm=False,
        vllm_importance_sampling_correction=False, aux_loss_enabled=False, _entropy_bonus_enabled=False,
        max_completion_length=_CONSTANT, current_gradient_accumulation_steps=1, model=SimpleNamespace(training=True),
        accelerator=accelerator, args=SimpleNamespace(delta=delta, steps_per_generation=1, use_bias_correction_kl=False),
        _metrics={"train": collections.defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *a, **k: (inputs["logprobs"], entropies, None),
    )  # fmt: skip
    ids, prompt = torch.zeros(_SAMPLES, _TOKENS, dtype=torch.long), torch.zeros(_SAMPLES, 1, dtype=torch.long)
    return GRPOTrainer._compute_loss(
        trainer,
        None,
        {
            "prompt_ids": prompt, "prompt_mask": prompt + 1, "completion_ids": ids, "completion_mask": inputs["mask"],
            "advantages": inputs["advantages"], "old_per_token_logps": inputs["old"],
            "ref_per_token_logps": inputs["reference"], "num_items_in_batch": inputs["mask"].sum(),
        },
    )  # fmt: skip


def made(seed: int) -> dict[str, torch.Tensor]:
    """Ratios on both sides of every clip."""
    torch.manual_seed(seed)
    lengths = torch.randint(1, _TOKENS + 1, (_SAMPLES, 1))
    shape, kind = (_SAMPLES, _TOKENS), torch.float64
    old = -3 * torch.rand(shape, dtype=kind)
    return {
        "mask": (torch.arange(_TOKENS) < lengths).to(kind), "old": old, "logprobs": old + torch.randn(shape, dtype=kind),
        "advantages": torch.randn(_SAMPLES, dtype=kind), "reference": old + 0.5 * torch.randn(shape, dtype=kind),
    }  # fmt: skip


def vectors(seed: int) -> dict[str, Any]:
    cases = []
    for number, (name, options) in enumerate(CASES.items()):
        for beta in (0.0, 0.05):
            inputs = made(seed + number)
            inputs["logprobs"].requires_grad_()
            loss = trl_loss(inputs, beta=beta, **options)
            loss.backward()
            gradient = inputs["logprobs"].grad
            cases.append(
                {
                    "name": name, "kl": beta, "constant": _CONSTANT,
                    "lengths": inputs["mask"].sum(1).long().tolist(), "advantages": inputs["advantages"].tolist(),
                    **{key: _tokens(inputs[key], inputs["mask"]) for key in ("logprobs", "old", "reference")},
                    "loss": loss.item(), "gradient": _tokens(gradient, inputs["mask"]),
                }
            )  # fmt: skip
    made_by = f"trl {trl.__version__} GRPOTrainer._compute_loss, torch {torch.__version__}, float64"
    return {"made_by": made_by, "regenerate": "scripts/make-vectors --losses", "seed": seed, "cases": cases}


def _tokens(values: torch.Tensor, mask: torch.Tensor) -> list[float]:
    """Those of completions only, sample after sample."""
    return values.detach()[mask.bool()].tolist()


if __name__ == "__main__":
    print(json.dumps(vectors(int(sys.argv[1]) if len(sys.argv) > 1 else 0), indent=1))
