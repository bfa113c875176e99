"""A stage for broadcasts: parties in processes of their own, each on a line of limited rate where namespaces are allowed.

With a rate, every party lives in a network namespace behind a bridge, and `tc` limits what it sends and what it receives.
Where this machine allows no namespaces, a server's own limit stands in for the sending side, and nothing for the other.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swarm.hosts import HERE, SwarmHost, network, why_not

ROOT = Path(__file__).resolve().parents[2]
_DEADLINE = 900.0
_MIB = 1 << 20


def namespaces_work() -> bool:
    """Whether this machine lets us make network namespaces, bridges and rate limits."""
    return not why_not() and shutil.which("tc") is not None


@dataclass
class Party:
    name: str
    process: subprocess.Popen[str]
    host: str
    told: dict[str, Any] = field(default_factory=dict)

    def ask(self, order: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with {self.process.wait(10)}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> dict[str, Any]:
        """Ends its input; what it says at last."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.hear()

    @property
    def url(self) -> str:
        return str(self.told["url"])


class Stage:
    """Starts parties, each on the next of `hosts`, on a line of its own that takes so many bytes a second in both directions (None: no limit)."""

    def __init__(self, root: Path, hosts: Sequence[SwarmHost]) -> None:
        self.root, self._hosts = root, hosts
        self.parties: list[Party] = []

    def party(self, role: str, *, rate: float | None = None, serve: bool = True, **options: Any) -> Party:
        name = f"{role}-{len(self.parties) + 1}"
        host = self._hosts[len(self.parties)] if self._hosts else HERE
        if host.prefix and rate is not None:
            _limit(host, rate)
        command = [*host.prefix, sys.executable, "-m", "benches.shardcast_party"]
        environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'scripts'}", "OMP_NUM_THREADS": "1"}  # as the peer's
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
        )
        party = Party(name, process, host.address)
        self.parties.append(party)
        cap = None if host.prefix else rate
        party.ask(
            {"role": role, "root": str(self.root / name), "host": host.address, "serve": serve, "rate": cap} | options
        )
        party.told = party.hear()
        return party

    def fetch(self, parties: Sequence[Party], orders: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """All at once; what each says of it."""
        for party, order in zip(parties, orders, strict=True):
            party.ask(order)
        answers: dict[str, dict[str, Any]] = {}
        threads = [threading.Thread(target=lambda p=party: answers.update({p.name: p.hear()})) for party in parties]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [answers[party.name] for party in parties]

    def order(self, origin: Party, sources: Sequence[Party]) -> dict[str, Any]:
        """What a party is told to fetch, and where."""
        return {
            "digest": origin.told["digest"],
            "sources": [[party.url, party.name, party is not origin] for party in sources],
            "deadline": _DEADLINE,
        }

    def close(self) -> None:
        for party in self.parties:
            party.process.kill()
            party.process.wait(10)


@contextmanager
def stage(limited: int = 0, *, memory: bool = False) -> Iterator[Stage]:
    """A stage in a temporary folder, on disk or in memory, with lines for so many parties whose rate can be limited."""
    with ExitStack() as stack:
        folder = tempfile.TemporaryDirectory(prefix="murmur-cast-", dir="/dev/shm" if memory else None)
        root = Path(stack.enter_context(folder))
        made = Stage(root, stack.enter_context(network(limited)) if limited and namespaces_work() else ())
        stack.callback(made.close)
        yield made


def weights(cast: Stage, size: int) -> Path:
    """A folder with one file of so many random bytes."""
    folder = cast.root / "weights"
    folder.mkdir(parents=True)
    with (folder / "model.safetensors").open("wb") as file:
        for _ in range(size // _MIB):
            file.write(os.urandom(_MIB))
    return folder


def _limit(host: SwarmHost, rate: float) -> None:
    """Caps what a host's line takes, on either end of it."""
    for prefix, device in ((host.prefix, "wire"), ((), host.interface)):
        shaped = ("root", "tbf", "rate", f"{int(rate * 8)}bit", "burst", "256kb", "latency", "200ms")
        command = [*prefix, "tc", "qdisc", "add", "dev", device, *shaped]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
