"""Presets: [spec] and [trainer] of a run.toml to start from. `murmur trainer preset NAME` prints one.

`demo` is what scripts/demo learns within minutes on two cores. The other two are INTELLECT-2's recipe (arXiv 2505.07291,
sections 3 and 4) with short and with long length budgets; model, environments and calibration are yours to name.
"""

from __future__ import annotations

from typing import Any

from protocol.errors import UsageError

_DEMO_TASKS = {
    "rotate_matrix": {"min_n": 2, "max_n": 2, "min_rotations": 1, "max_rotations": 1},
    "spiral_matrix": {"min_n": 2, "max_n": 2},
}
# Entry i of a reasoning-gym dataset is drawn from the seed + i: the two ranges must lie far apart.
_TRAIN_SEED, _HELD_OUT_SEED = 1_000_000_000, 77_000_000


def demo() -> dict[str, Any]:
    return {
        "spec": {
            "name": "demo",
            "max_lag": 2,
            "upload_grace_seconds": 120,
            "file_bytes_max": 1 << 20,
            "sampling": {"group_size": 16, "groups_per_submission": 4, "temperature": "1", "max_new_tokens": 10},
            "reward": {"alpha": "0"},
            "verification": {"validators_needed": 1, "prefill_share": "0.5", "calibration": "tiny-qwen3-float32-cpu"},
            "model": {"compute_dtype": "float32"},
            "environments": [
                {
                    "dataset": dataset, "config": config, "seed": _TRAIN_SEED, "size": 500_000_000, "exact": True,
                    "held_out_seed": _HELD_OUT_SEED, "held_out_size": 160,
                }
                for dataset, config in _DEMO_TASKS.items()
            ],
        },
        "trainer": {
            "model": "policy", "output": "output", "steps": 60, "groups_per_step": 16, "optimizer_steps": 2,
            "pack_tokens": 128, "rows_per_forward": 64, "seed": 0, "evaluate_every": 5, "rollout_wait_seconds": 120,
            "rollout_quiet_seconds": 30,
            "optimizer": {"lr": 1.5e-4, "warmup_steps": 10},
            # At this learning rate a version is far from the one before: uncorrected, runs on rollouts two versions old may collapse.
            "loss": {"entropy": 0.001, "correction": "truncate"},
            "kl": {"weight": 0},  # sixty small steps do not stray far; a reference would cost a quarter of the time
        },
    }  # fmt: skip


def intellect2(budgets: list[int]) -> dict[str, Any]:
    """256 prompts × 16 samples per step, 8 optimizer steps on them, two-step asynchrony, context 32,768."""
    tables = demo()
    spec = tables["spec"] | {
        "name": "my-run",
        "upload_grace_seconds": 1800,
        "file_bytes_max": 256 << 20,
        "sampling": {"group_size": 16, "groups_per_submission": 4, "temperature": "1", "max_new_tokens": 32_768},
        "reward": {"alpha": "0.0003", "budgets": {"0": budgets}},
        "verification": {"validators_needed": 1, "prefill_share": "0.1", "calibration": "calibration.json"},
        "model": {"compute_dtype": "bfloat16"},
    }
    trainer = {
        "model": "policy", "output": "output", "steps": 1000, "groups_per_step": 256, "optimizer_steps": 8,
        "pack_tokens": 32_768, "rows_per_forward": 1, "seed": 0, "evaluate_every": 10, "checkpoint_every": 10,
        "checkpoints_kept": 2, "checkpoint_keep_every": 100, "rollout_wait_seconds": 7200,
        "optimizer": {
            "lr": 3e-7, "warmup_steps": 25, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.01, "gradient_clip": 0.1,
        },
        "loss": {"name": "intellect2", "entropy": 1e-4},
        "kl": {"weight": 0.001},
    }  # fmt: skip
    return {"spec": spec, "trainer": trainer}


PRESETS = {
    "demo": demo,
    "intellect2-short": lambda: intellect2([1000, 2000, 3000, 4000]),
    "intellect2-long": lambda: intellect2([2000, 4000, 6000, 8000, 10_000]),
}


def preset(name: str) -> dict[str, Any]:
    """The tables of a preset. Raises UsageError."""
    if name not in PRESETS:
        raise UsageError(f"there is no preset {name!r}", hint="presets: " + ", ".join(PRESETS))
    return PRESETS[name]()
