"""Presets: a run.toml to start from. `murmur trainer preset NAME` prints one.

[spec] and [trainer] are complete but for what is measured of the model, its calibration. What only the researcher can say, addresses above
all, stands in a comment marked FILL IN.

`demo` is what scripts/demo learns within minutes on two cores. The other two are INTELLECT-2's recipe (arXiv 2505.07291,
sections 3 and 4) with short and with long length budgets; model, environments and calibration are yours to name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.errors import UsageError
from protocol.settings import toml

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
            "verification": {
                "validators_needed": 1, "prefill_share": "0.5", "calibration": "tiny-qwen3-float32-cpu",
                "history": {"seats": 100},  # what a seat does in thirty days is judged by its sums as well
            },
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
            "pack_tokens": 128, "rows_per_forward": 64, "seed": 0, "evaluate_every": 5, "rollout_wait_seconds": 3600,
            "rollout_quiet_seconds": 30,
            "optimizer": {"lr": 1.5e-4, "warmup_steps": 20},
            # At this learning rate a version is far from the one before: uncorrected, runs on rollouts two versions old may collapse.
            "loss": {"entropy": 0.001, "correction": "truncate"},
            "kl": {"weight": 0},  # sixty small steps do not stray far; a reference would cost a quarter of the time
        },
    }  # fmt: skip


def intellect2(budgets: list[int]) -> dict[str, Any]:
    """256 prompts × 16 samples per step, 8 optimizer steps on them, two-step asynchrony, context 32,768; layers in bfloat16, recomputed
    in the backward pass. What differs from the paper and its code, and why: docs/training.md."""
    tables = demo()
    spec = tables["spec"] | {
        "name": "my-run",
        "upload_grace_seconds": 1800,
        "file_bytes_max": 256 << 20,
        "sampling": {"group_size": 16, "groups_per_submission": 4, "temperature": "1", "max_new_tokens": 32_768},
        "reward": {"alpha": "0.0003", "budgets": {"0": budgets}},
        "verification": {
            "validators_needed": 1,
            "prefill_share": "0.1",
            "calibration": "calibration.json",
            "recalibration": {"most": "4"},
        },
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
        "compute_dtype": "bfloat16", "activation_checkpointing": True,
    }  # fmt: skip
    return {"spec": spec, "trainer": trainer}


def solo(
    *, name: str, rows: int, held_out: int, table: Mapping[str, Any] | None, template: str | None, positions: int, dtype: str,
) -> dict[str, Any]:  # fmt: skip
    """A run.toml for one machine: the recipe's loss at a size that begins at once, without KL, whose reference would be a second model.

    Either the `rows` of the task file tasks.parquet are asked, or what `table`, of [solo], names. `positions`: the model's. `dtype`:
    what is generated and trained in; masters, logprobs and the optimizer stay float32.
    """
    environment = {
        "package": "parquet", "dataset": name, "files": ["tasks.parquet"], "size": rows - held_out, "held_out_size": held_out,
    }  # fmt: skip
    own = {**table, "held_out": held_out} if table else {}
    return {
        "spec": {
            "sampling": {
                "group_size": 8, "groups_per_submission": 8, "temperature": "1", "max_new_tokens": min(256, positions // 2),
                **({"prompt_template": template} if template else {}),
            },
            "model": {"compute_dtype": dtype},
            **({} if table else {"environments": [environment]}),
        },
        "trainer": {
            "model": "policy", "output": "run", "steps": 100, "groups_per_step": 8, "optimizer_steps": 1, "pack_tokens": min(4096, positions),
            "evaluate_every": 10, "checkpoint_every": 10, "optimizer": {"lr": 1e-6, "warmup_steps": 5}, "kl": {"weight": 0},
            "compute_dtype": dtype,
            # A reward of somebody's own has any scale and no length penalty beside it.
            **({"online_filter": "reward"} if table else {}),
        },
        "solo": {"output": "output", **own},
    }  # fmt: skip


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


_PLACES = """\

[chain]
rpc = "http://127.0.0.1:8545"    # FILL IN unless Anvil listens there: your endpoints, ["https://…", "https://…", "https://…"]
chain_id = 31337                 # FILL IN unless it is Anvil: Base Sepolia 84532, Base 8453
# contract = "0x…"               # FILL IN: Runs, as `murmur chain deploy` printed it
# first_block = 1                # block of the deployment, likewise: nothing before it is read
# vouchers = "0x…"               # Vouchers, likewise, where validators are to be paid
# run = 1                        # FILL IN, after `murmur run create`: the number that it printed

[peers]
listen = "/ip4/0.0.0.0/tcp/4002"
# bootnodes = ["/ip4/…/tcp/4001/p2p/…"]  # FILL IN: as `murmur bootnode start` printed it

[hub]
keystore = "trainer.json"        # of `murmur chain new-key trainer.json`
port = 8450                      # for rollouts and receipts, and
origin_port = 8451               # for weights: open both to nodes, validators and relays
# public_host = "…"              # FILL IN where others run elsewhere: name or address of this machine; without it they are told 127.0.0.1

[policy]                         # goes on chain with `murmur run create`, and never changes. Seconds; tokens in quotes
# trainer = "0x…"                # FILL IN: address of the key in trainer.json
# gate = "0x…"                   # only whom this key invites may join
"""
_ALONE = """\
window = 600                     # a submission may be challenged; after 1.0 to 1.2 windows its reward can be claimed
appeal = 0                       # no appeals: one validator is enough. Else challenger, co-signer and a juror must be seated
vote = 0
co_signers = 0
"""
_IN_PUBLIC = """\
window = 86400                   # a submission may be challenged; after 1.0 to 1.2 windows its reward can be claimed
appeal = 43200                   # a node may appeal; nothing is published before three validators are seated; five bear one that lies
vote = 43200                     # validators vote on it
co_signers = 1                   # a second validator signs hard verdicts
"""
_MONEY = """\
grace = {grace:<25}# old weights still take work: longer than the longest rollout
notice = {notice:<24}# from pause, ban or defund to its effect
max_units = {max_units:<21}# completion tokens of one submission
max_per_step = 16                # submissions of a seat for one step
node_stake = "100"               # at least penalty + bond + strikes × fee
validator_stake = "500"
penalty = "60"                   # slashed on a hard verdict
bond = "10"                      # least at risk in a case
bond_bps = 1000                  # or 10 % of what the case withholds
jury_fee = "1"                   # pay of a jury, for each submission of an appealed case
voucher_cap = "100000"           # most that the trainer's vouchers pay in a window
fee = "1"                        # for a strike; finder_bps of it are the challenger's
strikes = 10                     # that suspend a seat
finder_bps = 2000                # 20 % of a slash are the finder's
reward = {reward:<24}# per completion token
leverage = 10                    # a proven seat's reward at risk of a verdict may be this many times its stake
"""
_CALIBRATION = 'calibration = "calibration.json"'
_TO_MAKE = (
    "# FILL IN: make it of your model, murmur validator calibrate @run.toml --model policy --out calibration.json"
)


def run_file(name: str) -> str:
    """The text of a whole run.toml. Raises UsageError."""
    tables = preset(name)
    sampling = tables["spec"]["sampling"]
    money = {
        "max_units": sampling["group_size"] * sampling["groups_per_submission"] * sampling["max_new_tokens"],
        **({"grace": 60, "notice": 60, "reward": '"0.001"'} if name == "demo" else {"grace": 1800, "notice": 3600, "reward": '"0.000001"'}),
    }  # fmt: skip
    heading = f"Preset {name}. Lines that say FILL IN are yours to fill in. Every key: docs/reference-config.md."
    policy = (_ALONE if name == "demo" else _IN_PUBLIC) + _MONEY.format(**money)
    return f"# {heading}\n{_PLACES}{policy}{toml(tables, '').replace(_CALIBRATION, f'{_CALIBRATION}  {_TO_MAKE}')}"
