"""The alerts: what a person would act on, each with a sentence and the command to type next. `{{ $labels.… }}` is filled in by Prometheus.

Jobs have the names of the units in scripts/systemd. How long is too long depends on the run: a day of the demo is an hour of another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Alert:
    """`lasts`: for how long the expression holds before somebody is told. `urgent`: money or the run is at stake while one waits."""

    name: str
    expression: str
    lasts: str
    urgency: Literal["urgent", "soon"]
    summary: str
    next: str


_SAME = "on (job, instance)"
_LOG = "journalctl -u {{ $labels.job }} -n 100"

EVERY_ROLE = (
    Alert(
        "RoleDown", 'up{job=~"murmur-.+"} == 0', "2m", "urgent",
        "{{ $labels.job }} at {{ $labels.instance }} does not answer: it has ended, or its machine or the way to it has.",
        "systemctl status {{ $labels.job }}",
    ),
    Alert(
        "RoleStandsStill", "murmur_role_idle_seconds > murmur_role_idle_limit_seconds", "1m", "urgent",
        "{{ $labels.job }} at {{ $labels.instance }} runs, and nothing has moved for {{ $value | humanizeDuration }}.", _LOG,
    ),
    Alert(
        "DiskLow", "murmur_disk_free_bytes < 5e9", "10m", "soon",
        "The disk of {{ $labels.job }} at {{ $labels.instance }} has {{ $value | humanize1024 }}B left.",
        "df -h, then du -xhd2 on the role's home",
    ),
    Alert(
        "GasLow", "murmur_gas_eth < 0.0005 or predict_linear(murmur_gas_eth[6h], 86400) < 0", "15m", "soon",
        "The key of {{ $labels.job }} at {{ $labels.instance }} has little ETH left, or none in a day at the pace of the last six hours.",
        "murmur wallet balance ADDRESS, then send it some ETH",
    ),
    Alert(
        "ChainEndpointDisagrees", 'increase(murmur_rpc_errors_total{reason="contradicted"}[15m]) > 0', "0m", "soon",
        "{{ $labels.endpoint }} told {{ $labels.job }} at {{ $labels.instance }} something else of the chain than the others.",
        "murmur chain doctor; leave the endpoint out of chain.rpc where it lies or lags",
    ),
    Alert(
        "BookBehindChain", "murmur_book_lag_blocks > 300", "15m", "soon",
        "{{ $labels.job }} at {{ $labels.instance }} has not read the last {{ $value }} blocks of the chain.",
        "murmur chain doctor, then look at the log for what the endpoint refuses",
    ),
    Alert(
        "NobodyConnected", 'murmur_p2p_connections{job!="murmur-bootnode"} == 0', "15m", "soon",
        "{{ $labels.job }} at {{ $labels.instance }} is connected with no peer.", "murmur net status",
    ),
)  # fmt: skip

NODE = (
    Alert(
        "NodeHasNoAcceptedWork",
        "time() - murmur_node_accepted_timestamp_seconds > 7200"
        f" unless {_SAME} murmur_node_suspended_seconds > 0 unless {_SAME} murmur_node_wanted_submissions <= 0",
        "5m", "soon",
        "No work of the node at {{ $labels.instance }} was accepted for {{ $value | humanizeDuration }}, and its seat may submit.",
        "node status, then node submissions",
    ),
    Alert(
        "NodeSuspended", "murmur_node_suspended_seconds > 0", "0m", "soon",
        "The seat of the node at {{ $labels.instance }} may not submit for {{ $value | humanizeDuration }} more.", "node submissions",
    ),
    Alert(
        "NodeCaseOpen", "murmur_node_open_cases > 0", "0m", "urgent",
        "{{ $value }} cases are open against the node at {{ $labels.instance }}; the time to appeal runs.",
        "node status; node appeal where it says so",
    ),
    Alert(
        "NodeWorkRejected", 'increase(murmur_node_submissions_total{state=~"soft|hard"}[1h]) > 0', "0m", "soon",
        "Validators found work of the node at {{ $labels.instance }} {{ $labels.state }} in the last hour.", "node submissions",
    ),
    Alert(
        "NodeWeightsDoNotArrive", "murmur_node_head_step - murmur_node_step >= 2", "15m", "soon",
        "The node at {{ $labels.instance }} works on weights that are {{ $value }} versions old.", "murmur net trace relay",
    ),
)  # fmt: skip

VALIDATOR = (
    Alert(
        "ValidatorSilent",
        f"time() - murmur_validator_judged_timestamp_seconds > 3600 and {_SAME} murmur_validator_pending > 0", "5m", "urgent",
        "The validator at {{ $labels.instance }} has given no verdict for {{ $value | humanizeDuration }}, and work waits for it.",
        "murmur validator status",
    ),
    Alert(
        "JuryWaits", "murmur_validator_jury_cases > 0", "30m", "urgent",
        "{{ $value }} cases wait for the vote of the validator at {{ $labels.instance }}; silence costs a fee.",
        "murmur validator status",
    ),
)  # fmt: skip

RELAY = (
    Alert(
        "RelayBehind", "murmur_relay_head_step - murmur_relay_newest_step > 0", "15m", "soon",
        "The relay at {{ $labels.instance }} lacks {{ $value }} versions that the chain knows.", "murmur net status",
    ),
)  # fmt: skip

RUN = (
    Alert(
        "TrainerStalls", f"murmur_trainer_steps_left > 0 and {_SAME} changes(murmur_trainer_steps_left[15m]) == 0", "1h", "urgent",
        "The trainer at {{ $labels.instance }} has ended no step for an hour, and {{ $value }} are left.",
        "murmur trainer status @run.toml",
    ),
    Alert(
        "TrainerStarves", 'murmur_trainer_running_phase_seconds{phase="waiting for rollouts"} > 900', "1m", "urgent",
        "The trainer at {{ $labels.instance }} has waited for rollouts for {{ $value | humanizeDuration }}.",
        "murmur trainer status @run.toml; murmur run show @run.toml",
    ),
    Alert(
        "TrainerAlarm", "murmur_trainer_alarms > 0", "0m", "soon",
        "The last step showed {{ $value }} of the signals that came before every collapse that was seen.",
        "murmur trainer status @run.toml",
    ),
    Alert(
        "HubRefuses", "sum by (job, instance) (increase(murmur_hub_shed_total[10m])) > 0", "10m", "urgent",
        "The hub at {{ $labels.instance }} has more to do than it can, and has turned away {{ $value | humanize }} in ten minutes.",
        "murmur trainer status @run.toml; hub.requests and hub.connections bound it",
    ),
)  # fmt: skip

ALERTS = {"every role": EVERY_ROLE, "node": NODE, "validator": VALIDATOR, "relay": RELAY, "run": RUN}
"""By the name of their group."""
