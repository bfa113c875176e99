"""A swarm in full swing as the demo's view is shown it, and what the view draws of it in a terminal of any size."""

from __future__ import annotations

import io
from collections import Counter
from types import SimpleNamespace
from typing import Any

from rich.console import Console
from swarm.display import Display

SIZES = [(80, 24), (120, 40), (40, 15), (20, 6)]
NODES = tuple(SimpleNamespace(name=f"node-{n}", address=f"0x{n}", is_cheat=False) for n in range(9))
VALIDATORS = tuple(SimpleNamespace(name=f"validator-{n}", address=f"0xv{n}") for n in range(3))
EVALUATIONS = [{"score": 0.25, "problems": 64, "by_environment": {"sums": 0.5, "programs": 0.25}}] * 12


def a_watch(**changes: Any) -> Any:
    """A swarm in full swing."""
    seen = SimpleNamespace(
        head=7,
        counts=lambda _: Counter(submitted=120, accept=110, soft=3, hard=0),
        banned={"0x3"},
        receipts={},
        challenged=[],
    )
    full: dict[str, Any] = {
        "trainer": {"step": 7, "steps": 60, "state": "waiting", "waiting": {"have": 3, "need": 8}, "metrics": {"reward": 0.5},
                    "evaluations": EVALUATIONS},
        "seen": seen, "members": lambda: list(NODES), "validators": lambda: list(VALIDATORS), "doing": lambda _: "generating: " + "x" * 300,
        "runs": lambda name: name != "relay-1", "relays": {"relay-0": {"versions": [6, 7], "bytes_served": 3e6}, "relay-1": {}},
        "served": {"origin": 5e6}, "hub": {"published": 7}, "bootnode": "9 peers, 4 records",
        "kinds": {"sums": "math", "programs": "code"}, "rewards": {"sums": 0.5},
    }  # fmt: skip
    return SimpleNamespace(**(full | changes))


def live(width: int, height: int) -> Display:
    """A display at a terminal of this size; nothing is drawn by itself."""
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, _environ={"TERM": "xterm"})
    return Display("Murmuration: reinforcement learning by a swarm of machines nobody controls", console)


def drawn(shown: Display) -> list[str]:
    lines = shown.console.render_lines(shown.screen, pad=False)
    return ["".join(segment.text for segment in line).rstrip() for line in lines]
