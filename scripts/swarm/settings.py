"""What the demo's swarm looks like: run.toml, and how often its processes look around.

Sizes and tasks are those that learn within minutes on two cores; the policy on chain is a real one but for its short times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

DAY = 86_400
TASKS = {
    "rotate_matrix": {"min_n": 2, "max_n": 2, "min_rotations": 1, "max_rotations": 1},
    "spiral_matrix": {"min_n": 2, "max_n": 2},
}
# Entry i of a reasoning-gym dataset is drawn from the seed + i: the two ranges must lie far apart.
TRAIN_SEED, HELD_OUT_SEED = 1_000_000_000, 77_000_000


@dataclass(frozen=True)
class SwarmSettings:
    steps: int = 60
    seed: int = 0
    honest: int = 3
    cheats: tuple[str, ...] = ("smaller-model", "forced-token", "forged-reward")
    """What each seat of the one cheating process does (tests/cheats/play.py)."""
    validators: int = 3
    """Where verdicts can be appealed, no weights are published without a jury: challenger, co-signer and a juror."""
    evaluate_every: int = 5
    base: bool = False
    """The chain is an Anvil that speaks Base's dialect and has the id of Base Sepolia; keystores are as strong as there."""
    environment: dict[str, str] = field(
        default_factory=lambda: {
            # One torch thread per process: two processes with two each on two cores would be slower, not faster.
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            "MURMUR_CHAIN__POLL_SECONDS": "0.2",
            "MURMUR_WORK__RETRY_SECONDS": "1",
            "MURMUR_JUDGE__RETRY_SECONDS": "1",
            "MURMUR_JUDGE__FALLBACK_SECONDS": "20",
            "MURMUR_JUDGE__BATCH_SECONDS": "5",
            "MURMUR_PEERS__FIND_SECONDS": "90",
        }
    )


def run_file(settings: SwarmSettings, *, rpc: str, contract: str, chain_id: int, run: int | None, trainer: str, bootnode: str,
             first_block: int) -> dict[str, Any]:  # fmt: skip
    """The tables of run.toml."""
    return {
        "chain": {
            "rpc": rpc, "contract": contract, "chain_id": chain_id, "first_block": first_block, "poll_seconds": 0.2, "run": run,
        },
        "peers": {"listen": "/ip4/127.0.0.1/tcp/0", "bootnodes": [bootnode]},
        "policy": {
            "trainer": trainer, "window": DAY, "appeal": 3600, "vote": 3600, "notice": 60, "grace": 60, "max_units": 1000,
            "max_per_step": 2, "quorum": 1, "co_signers": 1, "leverage": 10, "strikes": 10, "node_stake": "100",
            "validator_stake": "500", "penalty": "60", "bond": "10", "fee": "1", "reward": "0.001",
        },
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
                    "dataset": dataset, "config": config, "seed": TRAIN_SEED, "size": 500_000_000, "exact": True,
                    "held_out_seed": HELD_OUT_SEED, "held_out_size": 160,
                }
                for dataset, config in TASKS.items()
            ],
        },
        "trainer": {
            "model": "policy", "output": "output", "steps": settings.steps, "groups_per_step": 16, "optimizer_steps": 2,
            "pack_tokens": 128, "rows_per_forward": 64, "seed": settings.seed, "evaluate_every": settings.evaluate_every,
            "rollout_wait_seconds": 120,
            "optimizer": {"lr": 1.5e-4, "warmup_steps": 10},
            "loss": {"entropy": 0.001},
            "kl": {"weight": 0},  # sixty small steps do not stray far; a reference would cost a quarter of the time
        },
        "hub": {"keystore": "trainer.json", "host": "127.0.0.1", "port": 0, "origin_port": 0},
    }  # fmt: skip
