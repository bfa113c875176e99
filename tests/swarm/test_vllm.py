"""A swarm of four steps in which one of the honest nodes computes with vLLM, where that is installed (scripts/test-vllm)."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from swarm.demo import Demo
from swarm.display import Display
from swarm.settings import SwarmSettings

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.swarm,
    pytest.mark.chain,
    pytest.mark.timeout(5400),  # the swarm has deadlines of its own
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: see scripts/test-vllm"),
]


def test_a_node_on_vllm_is_paid_in_a_swarm_on_torch(tmp_path: Path) -> None:
    """Its work is judged by validators on torch, and trained on; whatever the demo promises is kept beside it."""
    story = Demo(SwarmSettings(steps=4, vllm=Path(sys.executable)), Display("with vLLM"), tmp_path / "swarm")
    try:
        assert story.run(require_gain=False) == []
        node = story.swarm.honest[-1]
        log = (tmp_path / "swarm/logs" / f"{node.name}.log").read_text()
        assert "vLLM 0.32.0 computes on" in log, log
        assert story._watch.seen.counts(node.address)["accept"] > 0, log
    finally:
        story.swarm.down()
