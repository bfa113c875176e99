"""The boards: one for whoever runs a node, a validator, a relay or a run, with what that person would look at, at most 12 panels.

`$of` in an expression stands for the job and the instances that the reader has chosen; `$__rate_interval` is Grafana's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Query:
    """`legend` names labels as {{label}}."""

    expression: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """`unit` is Grafana's name of one. `kind`: the number as of now, or a curve; `parts` are stacked, for they make up a whole."""

    title: str
    text: str
    unit: str
    queries: tuple[Query, ...]
    kind: Literal["number", "curve", "parts"] = "curve"


@dataclass(frozen=True)
class Board:
    """`jobs` of prometheus.yml that it shows, as Prometheus' regular expression."""

    name: str
    title: str
    text: str
    jobs: str
    panels: tuple[Panel, ...]

    @property
    def of(self) -> str:
        return f'job=~"{self.jobs}",instance=~"$instance"'

    def expression(self, query: Query) -> str:
        return query.expression.replace("$of", self.of)


def number(title: str, text: str, unit: str, expression: str, legend: str = "{{instance}}") -> Panel:
    return Panel(title, text, unit, (Query(expression, legend),), "number")


def curve(title: str, text: str, unit: str, *queries: tuple[str, str]) -> Panel:
    return Panel(title, text, unit, tuple(Query(*query) for query in queries))


def parts(title: str, text: str, unit: str, *queries: tuple[str, str]) -> Panel:
    return Panel(title, text, unit, tuple(Query(*query) for query in queries), "parts")


_GAS = number(
    "ETH for gas",
    "What the role's key has left for gas, looked up every five minutes.",
    "suffix: ETH",
    "murmur_gas_eth{$of}",
)
_DISK = number(
    "Free disk",
    "Free space on the disk where the role keeps its data.",
    "bytes",
    "min by (instance) (murmur_disk_free_bytes{$of})",
)
_CALLS = curve(
    "Calls of the chain", "JSON-RPC calls per second by endpoint, and those that failed or were contradicted.", "reqps",
    ("sum by (endpoint) (rate(murmur_rpc_calls_total{$of}[$__rate_interval]))", "{{endpoint}}"),
    ("sum by (endpoint) (rate(murmur_rpc_errors_total{$of}[$__rate_interval]))", "{{endpoint}}, failed"),
)  # fmt: skip
_PEERS = curve(
    "Peers", "Peers in the routing table, open connections, and peers with whom the role gossips.", "short",
    ("murmur_p2p_peers{$of}", "{{instance}} known"),
    ("murmur_p2p_connections{$of}", "{{instance}} connected"),
    ("murmur_p2p_gossip_peers{$of}", "{{instance}} gossip"),
)  # fmt: skip
_MEMORY = curve(
    "Memory", "Memory that the process holds.", "bytes", ("process_resident_memory_bytes{$of}", "{{instance}}")
)

NODE = Board(
    "node", "Murmuration: my node", "Whether a contributor's node earns, and what it lacks where it does not.", "murmur-node",
    (
        number(
            "Since the last accepted work", "Time since a validator last accepted a submission, or since the node started.", "s",
            "time() - murmur_node_accepted_timestamp_seconds{$of}",
        ),
        number(
            "Suspended for", "Time for which the seat may not submit, for rejected work or an open hard case; 0 where it may.", "s",
            "murmur_node_suspended_seconds{$of}",
        ),
        number("Open cases", "Cases against the seat that are not closed.", "short", "murmur_node_open_cases{$of}"),
        _GAS,
        _DISK,
        curve(
            "Submissions an hour", "Submissions that reached each state, per hour.", "short",
            ("sum by (state) (rate(murmur_node_submissions_total{$of}[$__rate_interval])) * 3600", "{{state}}"),
        ),
        curve(
            "Tokens a second", "Completion tokens generated per second, pauses included.", "short",
            ("rate(murmur_node_generated_tokens_total{$of}[$__rate_interval])", "{{instance}}"),
        ),
        parts(
            "Where the time goes", "Share of the time that the node spent in each phase.", "percentunit",
            ("sum by (phase) (rate(murmur_node_seconds_total{$of}[$__rate_interval]))", "{{phase}}"),
        ),
        parts(
            "Pay", "Units that can be claimed now, and those that still wait for the window or for a case.", "short",
            ("murmur_node_claimable_units{$of}", "{{instance}} to claim"),
            ("murmur_node_unvested_units{$of}", "{{instance}} waiting"),
        ),
        curve(
            "Version of the weights", "Step of the weights that are loaded, and of the newest that the chain knows.", "none",
            ("murmur_node_step{$of}", "{{instance}} loaded"),
            ("murmur_node_head_step{$of}", "{{instance}} newest"),
        ),
        _CALLS,
        _PEERS,
    ),
)  # fmt: skip

VALIDATOR = Board(
    "validator", "Murmuration: validator", "Whether a validator speaks in time, and what waits for its word.", "murmur-validator",
    (
        number(
            "Since the last verdict", "Time since the validator last gave a verdict, or since it started.", "s",
            "time() - murmur_validator_judged_timestamp_seconds{$of}",
        ),
        number("To be judged", "Submissions that wait for this validator's verdict.", "short", "murmur_validator_pending{$of}"),
        number("Votes that are due", "Appealed cases that wait for this juror's vote.", "short", "murmur_validator_jury_cases{$of}"),
        _GAS,
        _DISK,
        curve(
            "Verdicts an hour", "Verdicts per hour, by outcome.", "short",
            ("sum by (outcome) (rate(murmur_validator_judgements_total{$of}[$__rate_interval])) * 3600", "{{outcome}}"),
        ),
        curve(
            "Time for a verdict", "Seconds for an attempt at a judgement: the mean, and what nine of ten stay below.", "s",
            (
                "sum by (instance) (rate(murmur_validator_judging_seconds_sum{$of}[$__rate_interval]))"
                " / sum by (instance) (rate(murmur_validator_judging_seconds_count{$of}[$__rate_interval]))",
                "{{instance}} mean",
            ),
            (
                "histogram_quantile(0.9, sum by (instance, le) (rate(murmur_validator_judging_seconds_bucket{$of}[$__rate_interval])))",
                "{{instance}} nine of ten",
            ),
        ),
        curve(
            "Attempts without a verdict", "Attempts per hour that gave no verdict; the log says why.", "short",
            ("rate(murmur_validator_failed_judgements_total{$of}[$__rate_interval]) * 3600", "{{instance}}"),
        ),
        curve(
            "Cases", "Cases of the run that are open, and those that this validator has brought and closed since it started.", "short",
            ("max(murmur_validator_open_cases{$of})", "open"),
            ("sum by (event) (murmur_validator_cases_total{$of})", "{{event}}"),
        ),
        curve(
            "Behind the chain", "Blocks between the chain's newest and the last that the validator has read.", "short",
            ("murmur_book_lag_blocks{$of}", "{{instance}}"),
        ),
        _CALLS,
        _MEMORY,
    ),
)  # fmt: skip

RELAY = Board(
    "relay", "Murmuration: relay", "Whether a relay has the newest weights, and what it sends to whom.", "murmur-relay",
    (
        number(
            "Versions behind", "Versions that the chain knows and this relay does not serve yet.", "short",
            "murmur_relay_head_step{$of} - murmur_relay_newest_step{$of}",
        ),
        number("Newest version", "Step of the newest version that is served here.", "none", "murmur_relay_newest_step{$of}"),
        number("Since it got on", "Time since the last look at the head, or the last chunk.", "s", "murmur_role_idle_seconds{$of}"),
        _DISK,
        curve(
            "Bytes sent", "Bytes of weights that leave this relay per second.", "Bps",
            ("rate(murmur_shardcast_served_bytes_total{$of}[$__rate_interval])", "{{instance}}"),
        ),
        curve(
            "Bytes fetched", "Verified bytes of weights that arrive per second, by source.", "Bps",
            ("sum by (source) (rate(murmur_weights_fetched_bytes_total{$of}[$__rate_interval]))", "{{source}}"),
        ),
        curve(
            "Requests", "Requests for weights per second, and connections that were turned away.", "reqps",
            ("rate(murmur_shardcast_requests_total{$of}[$__rate_interval])", "{{instance}}"),
            ("rate(murmur_shardcast_refused_total{$of}[$__rate_interval])", "{{instance}} turned away"),
        ),
        curve(
            "Broken requests", "Requests to the relay's own sources that broke off, since it started: failed, or answered with a lie.",
            "short",
            ("sum by (reason) (murmur_weights_broken_requests_total{$of})", "{{reason}}"),
        ),
        _PEERS,
        _CALLS,
        curve(
            "Processor", "Cores that the process keeps busy.", "short",
            ("rate(process_cpu_seconds_total{$of}[$__rate_interval])", "{{instance}}"),
        ),
        _MEMORY,
    ),
)  # fmt: skip

RUN = Board(
    "run", "Murmuration: the run", "Whether a run learns and gets on, and what its trainer and hub wait for.", "murmur-(hub|trainer)",
    (
        Panel(
            "Steps", "The step that was learnt last, and those that are left.", "none",
            (Query("max(murmur_trainer_step{$of})", "learnt"), Query("max(murmur_trainer_steps_left{$of})", "left")), "number",
        ),
        _GAS,
        _DISK,
        curve(
            "Reward", "Mean reward of what came in for each step by environment, and the score on the held-out problems.", "none",
            ("murmur_trainer_reward_by_environment{$of}", "{{of}}"),
            ("murmur_trainer_held_out_score{$of}", "held out"),
        ),
        parts(
            "Where the time goes", "Share of the time that the trainer spent in each phase, all threads together.", "percentunit",
            ("sum by (phase) (rate(murmur_trainer_phase_seconds_total{$of}[$__rate_interval]))", "{{phase}}"),
        ),
        curve(
            "What goes on", "For how long each phase of now has lasted: a curve that only rises is what the trainer waits for.", "s",
            ("murmur_trainer_running_phase_seconds{$of}", "{{phase}}"),
        ),
        curve(
            "Age of the batch", "Mean age of the work learnt from in versions, and how many nodes it is of.", "short",
            ("murmur_trainer_staleness{$of}", "versions"),
            ("murmur_trainer_nodes{$of}", "nodes"),
        ),
        curve(
            "Signals of a collapse", "Log-ratio, share of clipped tokens, and share of groups that teach nothing.", "none",
            ("murmur_trainer_log_ratio{$of}", "log-ratio"),
            ("murmur_trainer_clipped{$of}", "clipped"),
            ("murmur_trainer_zero_advantage_share{$of}", "teach nothing"),
        ),
        curve(
            "Requests to the hub", "Requests per second, by the HTTP status of the answer.", "reqps",
            ("sum by (status) (rate(murmur_hub_requests_total{$of}[$__rate_interval]))", "{{status}}"),
        ),
        curve(
            "Load of the hub", "From 0.3 on the run's page is refused, from 0.5 polls, at 1 everything; and refusals per second.", "none",
            ("murmur_hub_load{$of}", "load"),
            ("sum by (kind) (rate(murmur_hub_shed_total{$of}[$__rate_interval]))", "{{kind}} refused"),
        ),
        curve(
            "Verdicts an hour", "Verdict receipts that the hub took, per hour.", "short",
            ("sum by (outcome) (rate(murmur_hub_receipts_total{$of}[$__rate_interval])) * 3600", "{{outcome}}"),
        ),
        curve(
            "Bytes of the origin", "Bytes of weights that the origin itself sends per second; relays should send most of them.", "Bps",
            ("rate(murmur_shardcast_served_bytes_total{$of}[$__rate_interval])", "{{instance}}"),
        ),
    ),
)  # fmt: skip

BOARDS = (NODE, VALIDATOR, RELAY, RUN)
