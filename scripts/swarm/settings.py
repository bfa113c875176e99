"""What the demo's swarm looks like: run.toml, and how often its processes look around.

Sizes and tasks are those that learn within minutes on two cores; the policy on chain is a real one but for its short times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protocol.runspec import SamplingSpec
from swarm.hosts import HERE, SwarmHost
from trainer.presets import demo

DAY = 86_400
VLLM_SECONDS = 300
"""Until a node that computes with vLLM has made its first work, on a free machine: by far."""


@dataclass(frozen=True)
class SwarmSettings:
    steps: int = 60
    seed: int = 0
    honest: int = 3
    cheats: tuple[str, ...] = ("smaller-model", "forced-token", "forged-reward")
    """What each seat of the one cheating process does (scripts/cheats/play.py)."""
    validators: int = 3
    """Where verdicts can be appealed, no weights are published without a jury: challenger, co-signer and a juror."""
    relays: int = 2
    """Of several, the last dies midway."""
    evaluate_every: int = 5
    rollout_wait_seconds: int = 120
    """Without a new group for that long the trainer ends."""
    groups_least: int | None = None
    """As [trainer] has it."""
    reward: str = "0.001"
    """Tokens for a unit. What a seat may have waiting ends its work: its stake's worth within a window, which is a day."""
    base: bool = False
    """The chain is an Anvil that speaks Base's dialect and has the id of Base Sepolia; keystores are as strong as there."""
    environments: tuple[dict[str, Any], ...] = ()
    """What the model learns instead of the demo's mixture, as [[spec.environments]] has it."""
    sampling: dict[str, Any] = field(default_factory=dict)
    """What [spec.sampling] says otherwise than the demo's."""
    hosts: tuple[SwarmHost, ...] = (HERE,)
    """Of two, the second has the processes with odd numbers and the cheats, the first all others."""
    vllm: Path | None = None
    """The Python of an environment with vLLM: the last of the honest nodes runs in it and computes with it."""
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

    def host_of(self, name: str) -> SwarmHost:
        """Of a process, by its name."""
        return self.hosts[-1] if name.startswith("cheat") or name[-1] in "13579" else self.hosts[0]


def run_file(settings: SwarmSettings, environments: Sequence[dict[str, Any]], *, rpc: str, contract: str, chain_id: int, run: int | None,
             trainer: str, bootnode: str, first_block: int) -> dict[str, Any]:  # fmt: skip
    """The tables of run.toml."""
    tables = demo()
    # The node on vLLM begins alone: a step waits for the others, who are on their way, rather than go on with what it has made.
    longer = 0 if settings.vllm is None else VLLM_SECONDS
    host = settings.host_of("trainer")
    sampling = tables["spec"]["sampling"] | settings.sampling
    units = sampling["group_size"] * sampling["groups_per_submission"] * sampling["max_new_tokens"]
    return {
        "chain": {
            "rpc": rpc, "contract": contract, "chain_id": chain_id, "first_block": first_block, "poll_seconds": 0.2, "run": run,
        },
        "peers": {"listen": host.listen, "bootnodes": [bootnode]},
        "policy": {
            "trainer": trainer, "window": DAY, "appeal": 3600, "vote": 3600, "notice": 60, "grace": 60, "max_units": max(1000, units),
            "max_per_step": 3, "co_signers": 1, "bond_bps": 1000, "jury_fee": "1", "voucher_cap": "100000", "leverage": 10, "strikes": 10, "node_stake": "100",
            "validator_stake": "500", "penalty": "60", "bond": "10", "fee": "1", "reward": settings.reward,
        },
        "spec": tables["spec"]
        | {
            "environments": list(environments),
            "sampling": sampling,
            "verification": _verification(tables["spec"]["verification"], sampling),
        },
        "trainer": tables["trainer"]
        | {
            "steps": settings.steps, "seed": settings.seed, "evaluate_every": settings.evaluate_every,
            "rollout_wait_seconds": settings.rollout_wait_seconds + longer,
            "rollout_quiet_seconds": tables["trainer"]["rollout_quiet_seconds"] + longer,
        }
        | ({} if settings.groups_least is None else {"groups_least": settings.groups_least}),
        "hub": {"keystore": "trainer.json", "host": host.address, "port": 0, "origin_port": 0},
    }  # fmt: skip


def _verification(verification: dict[str, Any], sampling: dict[str, Any]) -> dict[str, Any]:
    """That of the demo; by sums only where tokens are drawn from the whole distribution."""
    spec = SamplingSpec.model_validate(sampling)
    is_whole = float(spec.temperature) > 0 and not spec.is_cut
    return {key: value for key, value in verification.items() if is_whole or key != "history"}
