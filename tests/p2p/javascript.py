"""Peers of js-libp2p in a process of Node.js: libp2p as its other users have it, with its own Kademlia.

The packages are a need of these tests alone, so the first test that asks for them installs them (tests/p2p/js, 56 MB).
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

HOME = Path(__file__).parent / "js"
_INSTALL_SECONDS = 300
_ANSWER_SECONDS = 30


def install() -> None:
    """`npm ci`, unless what is installed is what the lock file asks for. Skips the test where npm cannot, but never in CI."""
    modules, lock = HOME / "node_modules", HOME / "package-lock.json"
    stamp = modules / ".installed"
    with FileLock(HOME / ".lock", timeout=_INSTALL_SECONDS):
        if stamp.exists() and stamp.read_bytes() == lock.read_bytes():
            return
        npm = shutil.which("npm")
        command = [npm or "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        try:
            done = subprocess.run(command, cwd=HOME, capture_output=True, text=True, timeout=_INSTALL_SECONDS)
            problem = done.stderr.strip() if done.returncode else ""
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
        if problem:
            (pytest.fail if os.environ.get("CI") else pytest.skip)(
                f"npm cannot install js-libp2p here: {problem[-400:]}"
            )
        stamp.write_bytes(lock.read_bytes())


class JsPeers:
    """The process. Its peers live until it ends."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["node", "peer.mjs"], cwd=HOME, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._numbers = itertools.count()
        self._answers: dict[int, Any] = {}
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(self, mode: str, *bootnodes: str, listen: tuple[str, ...] = ("/ip4/127.0.0.1/tcp/0",)) -> JsPeer:
        """A peer in `mode` client or server, connected to `bootnodes`."""
        made = JsPeer(self, **self.do("start", mode=mode, listen=listen))
        for address in bootnodes:
            made.do("dial", address=address)
        return made

    def do(self, command: str, **given: Any) -> Any:
        """Raises RuntimeError with what JavaScript threw."""
        number = next(self._numbers)
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"id": number, "do": command, **given}) + "\n")
        self._process.stdin.flush()
        with self._news:
            assert self._news.wait_for(lambda: number in self._answers or self._ended, _ANSWER_SECONDS), command
            answer = self._answers.pop(number, {"error": "Node.js has ended"})
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["result"]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=20)

    @property
    def _ended(self) -> bool:
        return not self._reader.is_alive()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            answer = json.loads(line)
            with self._news:
                self._answers[answer["id"]] = answer
                self._news.notify_all()


@dataclass(frozen=True)
class JsPeer:
    process: JsPeers
    peer: int
    id: str
    addresses: list[str]

    def do(self, command: str, **given: Any) -> Any:
        return self.process.do(command, peer=self.peer, **given)
