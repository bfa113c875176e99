"""Every metric of every role, as the code declares it: what docs/metrics.md lists, and all that a board or an alert may ask for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trainer.telemetry.record import NUMBERS

ROOT = Path(__file__).resolve().parents[2]
ROLES = ("node", "validator", "relay", "bootnode", "hub", "trainer")
JOB = "murmur-"
"""What a role's name follows in the job of prometheus.yml: `node` alone is taken, by nearly everybody's node_exporter."""
BY_PROMETHEUS = ("job", "instance", "le", "quantile")
"""Labels that are no metric's own."""

_KINDS = ("counter", "gauge", "histogram")
_PACKAGES = ("protocol", "node", "trainer")
_SHOWN_BY = {
    "murmur_role": ROLES,
    "murmur_disk": ROLES,
    "murmur_rpc": ("node", "validator", "relay", "hub", "trainer"),
    "murmur_chain": ("node", "validator", "relay", "hub", "trainer"),
    "murmur_book": ("validator", "hub", "trainer"),
    "murmur_transactions": ("node", "validator", "hub"),
    "murmur_gas": ("node", "validator", "hub"),
    "murmur_p2p": ("node", "validator", "relay", "bootnode", "hub"),
    "murmur_weights": ("node", "validator", "relay"),
    "murmur_shardcast": ("node", "relay", "hub"),
} | {f"murmur_{role}": (role,) for role in ROLES if role != "bootnode"}
"""Which roles have something to say of it, by the first two words of its name."""
_UNITS = {
    "seconds": "s", "bytes": "bytes", "blocks": "blocks", "block": "block number", "eth": "ETH", "step": "step", "units": "units",
    "load": "1", "pending": "submissions", "rate": "operations/s", "cases": "cases", "left": "steps", "strikes": "submissions",
    "submissions": "submissions", "peers": "peers", "records": "records", "connections": "connections",
}  # fmt: skip
"""Of what is no count, by the last word of its name."""
_COUNTED = {"gossip": "events", "shed": "refusals", "refused": "connections", "missed": "evaluations"}


@dataclass(frozen=True)
class Described:
    name: str
    kind: str
    labels: tuple[str, ...]
    unit: str
    roles: tuple[str, ...]
    text: str

    def series(self) -> tuple[str, ...]:
        """The names that Prometheus knows it by."""
        return (
            tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
            if self.kind == "histogram"
            else (self.name,)
        )

    @property
    def allowed(self) -> frozenset[str]:
        """Labels that its series may be asked by."""
        return frozenset((*self.labels, *BY_PROMETHEUS))


@cache
def catalogue() -> tuple[Described, ...]:
    """By name. Raises KeyError for a metric whose unit or roles nothing says."""
    declared = (
        metric for package in _PACKAGES for path in sorted((ROOT / package).rglob("*.py")) for metric in _of(path)
    )
    return tuple(sorted((*declared, *_numbers(), *_of_the_process()), key=lambda metric: metric.name))


def _of(path: Path) -> Iterator[Described]:
    """What a module declares: assignments of `metrics.counter(…)` and the like."""
    text = path.read_text()
    if "metrics" not in text:
        return
    for node in ast.parse(text).body:
        call = node.value if isinstance(node, ast.Assign) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr not in _KINDS:
            continue
        name, meaning, *labels = [ast.literal_eval(argument) for argument in call.args]
        yield Described(name, call.func.attr, tuple(labels), _unit(name), _roles(name), meaning)


def _numbers() -> Iterator[Described]:
    for number in NUMBERS:
        text = number.text if not number.of else f"{number.text} `of`: the {number.of}."
        labels = ("of",) if number.of else ()
        yield Described(f"murmur_trainer_{number.name}", "gauge", labels, number.unit, ("trainer",), text)


def _of_the_process() -> Iterator[Described]:
    for name, kind, unit, text in (
        ("process_cpu_seconds_total", "counter", "s", "CPU time that the process has used."),
        ("process_resident_memory_bytes", "gauge", "bytes", "Memory that the process holds."),
        ("process_virtual_memory_bytes", "gauge", "bytes", "Address space that the process holds."),
        ("process_start_time_seconds", "gauge", "s", "Unix time at which the process started."),
        ("process_open_fds", "gauge", "files", "Files and sockets that the process has open."),
        ("process_max_fds", "gauge", "files", "Files and sockets that the process may have open."),
    ):
        yield Described(name, kind, (), unit, ROLES, f"{text} Linux only.")


def _unit(name: str) -> str:
    *_, last = name.removesuffix("_total").split("_")
    if last in _UNITS:
        return _UNITS[last]
    if not name.endswith("_total"):
        raise KeyError(f"no unit is known for {name}; add its last word to _UNITS in scripts/grafana/catalogue.py")
    return _COUNTED.get(last, last)


def _roles(name: str) -> tuple[str, ...]:
    return _SHOWN_BY["_".join(name.split("_")[:2])]
