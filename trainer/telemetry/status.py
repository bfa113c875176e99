"""What a trainer said last, for whoever asks from another process: read from its files, and as lines for a person.

Needs no torch: to ask is quick. What writes those files is report.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from protocol.shell.home import is_alive, read_json
from trainer.config import Outputs


def read_status(layout: Outputs) -> dict[str, Any]:
    """What the trainer last said, and its hub of matrix challenges and of its page; empty before the trainer's first word."""
    found = read_json(layout.status) or {}
    if not is_alive(found.get("pid")):
        found.pop("page_url", None)
    hub = read_json(layout.hub_status) or {} if found and layout.hub_status is not None else {}
    return found | {name: hub[name] for name in ("matrix_challenges", "page") if hub.get(name)}


def status_lines(status: dict[str, Any]) -> Iterator[str]:
    """What `read_status` gave, for a person."""
    waiting = status.get("waiting") or {}
    more = " " + ", ".join(f"{k} {v}" for k, v in waiting.items()) if waiting else ""
    yield f"step {status['step']} of {status['steps']}: {status['state']}{more}"
    for phase in status.get("phases", []):
        since = time.time() - phase["since"]
        yield f"  {phase['name']} for {since:.0f} s of at most {phase['deadline']:g} s"
    for alarm in status.get("alarms", []):
        yield f"  ALARM at step {alarm['step']}: {alarm['signal']} {alarm['value']:.3f}, limit {alarm['limit']:.3f}"
    if lost := dropped_groups(status.get("metrics", {}).get("dropped_groups", {})):
        yield f"  before the last step{lost.removeprefix(',')}"
    metrics = status.get("metrics") or {}
    if metrics.get("reward") is not None:
        yield f"  reward {metrics['reward']:.3f} at step {metrics['step']}{_apart(metrics['reward_by_environment'])}"
    for evaluation in status["evaluations"][-3:]:
        where = f"at step {evaluation['step']} ({evaluation['problems']} problems)"
        yield f"  held-out score {evaluation['score']:.3f} {where}{_apart(evaluation['by_environment'])}"
    spent = sorted(status.get("seconds", {}).items(), key=lambda item: -item[1])
    if spent:
        yield "  time: " + ", ".join(f"{name} {seconds:.0f} s" for name, seconds in spent)
    if status.get("page"):
        yield f"  to look at: {status['page']}"
    if status.get("page_url"):
        yield f"  this trainer's page: {status['page_url']}"
    for node, last in status.get("matrix_challenges", {}).items():
        rate = f", {last['operations_per_second'] / 1e12:.3g} int8 TOPS" if last["operations_per_second"] else ""
        yield f"  matrix challenge of {node}: {last['outcome']}{rate}, says {last['validator']}"


def _apart(by_environment: Mapping[str, float | None]) -> str:
    """What each environment has of a number, where there are several; – where nothing of it came in."""
    each = (f"{name} {'–' if value is None else f'{value:.3f}'}" for name, value in by_environment.items())
    return f": {', '.join(each)}" if len(by_environment) > 1 else ""


def dropped_groups(groups: Mapping[str, int]) -> str:
    """How many groups no batch will have, and why; "" where there are none."""
    why = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in groups.items() if count)
    return f", {sum(groups.values())} groups dropped ({why})" if why else ""
