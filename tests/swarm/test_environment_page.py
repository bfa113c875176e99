"""docs/environments.md, typed from nothing to a swarm that trains on the page's environment, and to the end of that swarm."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from swarm.memory import family
from swarm.processes import command_line, wait_until
from swarm.remains import PROCESSES, remembered

from protocol.environments import content
from protocol.shell.home import read_json
from tests.machine import ROOT, Machine, blocks, file_block

pytestmark = [pytest.mark.swarm, pytest.mark.chain, pytest.mark.long, pytest.mark.timeout(1800)]
PAGE = (ROOT / "docs/environments.md").read_text()
STEPS = 6
"""Until the second evaluation."""
SECONDS = 300
"""Of a free machine, for these steps."""
_HUNG = 900
"""Seconds of any machine, for a command of the page. Each knows better when to give up."""


def test_a_swarm_trains_on_the_environment_that_a_reader_of_the_page_has_made(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    devnet = machine.checkout / ".swarm/devnet"
    said = dict[str, str]()
    processes = dict[int, str]()

    def has_learned() -> bool:
        """As a reader who looks again after a while."""
        assert len(remembered(devnet)) == len(read_json(devnet / PROCESSES)), machine.type(f"tail {devnet}/logs/*")
        return (read_json(devnet / "output/status.json") or {}).get("step", 0) >= STEPS

    try:
        for commands in blocks(PAGE):
            if any("devnet up" in command for command in commands):
                (machine.here / "run.toml").write_text(file_block(PAGE, "run.toml"))
            elif any("devnet status" in command for command in commands):
                wait_until(has_learned, deadline=SECONDS, what=f"{STEPS} steps", poll=1)
            elif any("devnet down" in command for command in commands):
                pids = (pid for entry in remembered(devnet) for pid in family(entry["pid"]))
                processes = {pid: command_line(pid) for pid in pids}
            said |= {command: machine.type(command, seconds=_HUNG) for command in commands}
    finally:
        machine.type(f"{machine.checkout}/scripts/devnet down")

    typed = "\n".join(said)
    assert [word for word in ("up", "status", "down") if f"scripts/devnet {word}" in typed] == ["up", "status", "down"]
    (seen,) = (text for command, text in said.items() if "devnet status" in command)
    assert "ENDED" not in seen
    assert re.search(r"^  reward \d\.\d{3} at step \d+$", seen, re.MULTILINE)
    assert re.search(r"^  held-out score \d\.\d{3} at step 5 \(100 problems\)$", seen, re.MULTILINE)
    (samples,) = (text for command, text in said.items() if "trainer samples" in command)
    assert re.search(r"What is \d+ \+ \d+\?", samples)

    lines = [json.loads(line) for line in (devnet / "output/metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert len(steps) >= STEPS
    assert {name for step in steps for name in step["reward_by_environment"]} == {"two-digits"}
    assert any((step["reward_by_environment"]["two-digits"] or 0) > 0 for step in steps)
    assert all(step["gradient_norm"] > 0 and step["blamed"] == [] for step in steps)
    (wheel,) = (machine.here / "dist").glob("*.whl")
    (pinned,) = read_json(devnet / "spec.json")["environments"]
    assert (pinned["package"], pinned["content"]) == ("sums", content.of_wheel(wheel))

    assert len(processes) > len({"anvil", "bootnode", "trainer", "relay"})
    assert [line for pid, line in processes.items() if line and command_line(pid) == line] == []
