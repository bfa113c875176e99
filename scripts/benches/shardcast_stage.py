"""A stage for broadcasts: parties in processes of their own, each on a line of limited rate where namespaces are allowed.

With a rate, every party lives in a network namespace behind a bridge, and `tc` limits what it sends and what it receives.
Where this machine allows no namespaces, a server's own limit stands in for the sending side, and nothing for the other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_BRIDGE = "murmur-b"
_NET = "10.199.7"
_DEADLINE = 900.0
_MIB = 1 << 20


def namespaces_work() -> bool:
    """Whether this machine lets us make network namespaces, bridges and rate limits."""
    if os.geteuid() != 0:
        return False
    tries = (["ip", "netns", "add", "murmur-try"], ["ip", "netns", "del", "murmur-try"], ["tc", "-V"])
    with suppress(FileNotFoundError):
        return all(subprocess.run(command, capture_output=True, check=False).returncode == 0 for command in tries)
    return False


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
    """Starts parties, the n-th with `rates[n]` bytes a second in both directions (None: no limit)."""

    def __init__(self, root: Path, *, limited: bool) -> None:
        self.root, self.limited = root, limited and namespaces_work()
        self.parties: list[Party] = []

    def party(self, role: str, *, rate: float | None = None, serve: bool = True, **options: Any) -> Party:
        number = len(self.parties) + 1
        name = f"{role}-{number}"
        host, prefix = "127.0.0.1", []
        if self.limited:
            host, prefix = _namespace(number, rate), ["ip", "netns", "exec", f"murmur-{number}"]
        command = [*prefix, sys.executable, "-m", "benches.shardcast_party"]
        environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'scripts'}"}
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
        )
        party = Party(name, process, host)
        self.parties.append(party)
        cap = rate if rate is not None and not self.limited else None
        party.ask({"role": role, "root": str(self.root / name), "host": host, "serve": serve, "rate": cap} | options)
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
        if self.limited:
            for number in range(1, len(self.parties) + 1):
                subprocess.run(["ip", "netns", "del", f"murmur-{number}"], check=False)
            subprocess.run(["ip", "link", "del", _BRIDGE], check=False)


@contextmanager
def stage(*, limited: bool, memory: bool = False) -> Iterator[Stage]:
    """A stage in a temporary folder, on disk or in memory."""
    with tempfile.TemporaryDirectory(prefix="murmur-cast-", dir="/dev/shm" if memory else None) as folder:
        made = Stage(Path(folder), limited=limited)
        if made.limited:
            _bridge()
        try:
            yield made
        finally:
            made.close()


def weights(cast: Stage, size: int) -> Path:
    """A folder with one file of so many random bytes."""
    folder = cast.root / "weights"
    folder.mkdir(parents=True)
    with (folder / "model.safetensors").open("wb") as file:
        for _ in range(size // _MIB):
            file.write(os.urandom(_MIB))
    return folder


def _bridge() -> None:
    subprocess.run(["ip", "link", "del", _BRIDGE], check=False, capture_output=True)
    _do("ip", "link", "add", _BRIDGE, "type", "bridge")
    _do("ip", "addr", "add", f"{_NET}.254/24", "dev", _BRIDGE)
    _do("ip", "link", "set", _BRIDGE, "up")


def _namespace(number: int, rate: float | None) -> str:
    name, inner, outer, address = f"murmur-{number}", f"mi{number}", f"mo{number}", f"{_NET}.{number}"
    subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
    _do("ip", "netns", "add", name)
    _do("ip", "link", "add", outer, "type", "veth", "peer", "name", inner)
    _do("ip", "link", "set", inner, "netns", name)
    _do("ip", "link", "set", outer, "master", _BRIDGE)
    _do("ip", "link", "set", outer, "up")
    for command in (
        ("ip", "addr", "add", f"{address}/24", "dev", inner),
        ("ip", "link", "set", inner, "up"),
        ("ip", "link", "set", "lo", "up"),
    ):
        _do("ip", "netns", "exec", name, *command)
    if rate is not None:
        shaped = ("root", "tbf", "rate", f"{int(rate * 8)}bit", "burst", "256kb", "latency", "200ms")
        _do("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", inner, *shaped)
        _do("tc", "qdisc", "add", "dev", outer, *shaped)
    return address


def _do(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
