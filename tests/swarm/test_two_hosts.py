"""A swarm on two hosts: network namespaces of one machine, each with an address and a loopback of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from swarm import hosts
from swarm.processes import ROOT, free_port

pytestmark = pytest.mark.swarm
REASON = hosts.why_not()
possible = pytest.mark.skipif(bool(REASON), reason=REASON)


@possible
def test_what_one_host_offers_on_its_loopback_the_other_does_not_see() -> None:
    asks = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)"
    offers = (
        "import socket, sys; s = socket.create_server((sys.argv[1], int(sys.argv[2]))); print(flush=True); s.accept()"
    )
    with hosts.network() as (one, two):
        before = two.received
        for address, is_seen in ((one.address, True), ("127.0.0.1", False)):
            port = str(free_port())
            with subprocess.Popen(
                [*one.prefix, sys.executable, "-c", offers, address, port], stdout=subprocess.PIPE
            ) as server:
                assert server.stdout is not None and server.stdout.readline()
                asked = subprocess.run(
                    [*two.prefix, sys.executable, "-c", asks, address, port], capture_output=True, timeout=30
                )
                server.kill()
            assert (asked.returncode == 0) is is_seen
        assert two.received > before
    assert not Path(f"/sys/class/net/{one.interface}").exists()


@possible
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_swarm_on_two_hosts_makes_ten_steps(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'scripts'}"}
    command = [
        sys.executable,
        "-m",
        "swarm",
        "--folder",
        str(tmp_path / "swarm"),
        "--two-hosts",
        "--steps",
        "10",
        "--no-gain",
    ]
    done = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=1700)
    assert "All promises kept." in done.stdout, done.stdout[-4000:] + done.stderr[-4000:]
    traffic = re.findall(r"host 10\.\S+: ([\d.]+) MB received, ([\d.]+) MB sent", done.stdout)
    assert len(traffic) == 2 and all(float(each) > 1 for host in traffic for each in host)
