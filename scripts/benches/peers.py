"""Environments of peers: what ours is compared with is installed in a place of its own, never into the project's .venv.

They lie in .peers/ (or $MURMUR_PEERS), are made when a benchmark or a long test first needs them, and can be deleted at any time. A peer runs in a process of its own and is spoken to in lines of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from filelock import FileLock

from protocol.errors import PreflightError

ROOT = Path(__file__).resolve().parents[2]
_INSTALL_SECONDS_MAX = 1800
_ANSWER_SECONDS_MAX = 300


@dataclass(frozen=True)
class Built:
    """A source distribution that is built against the very packages of the project, torch above all, and sees them."""

    requirement: str
    sha256: str
    build: tuple[str, ...]

    @property
    def recipe(self) -> str:
        """What an environment has to be made anew for."""
        versions = f"Python {sys.version.split()[0]}, torch {torch.__version__}"
        return f"{self.requirement} {self.sha256}\n{' '.join(self.build)}\n{versions}\n"

    def install(self, folder: Path) -> None:
        own = _run(
            [str(folder / "bin/python"), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]
        ).strip()
        (Path(own) / "project.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        _run([*_pip(folder), *self.build])
        (folder / "requirements.txt").write_text(f"{self.requirement} --hash=sha256:{self.sha256}\n")
        # No cache: it may hold a build against another torch.
        _run([*_pip(folder), "--no-cache-dir", "--no-deps", "--no-build-isolation", "--no-binary", ":all:",
              "-r", str(folder / "requirements.txt")])  # fmt: skip


@dataclass(frozen=True)
class Wheels:
    """Packages as they are published, in an environment that shares nothing with the project."""

    requirements: tuple[str, ...]
    """The peer first; torch is the build for CPUs."""

    @property
    def requirement(self) -> str:
        return self.requirements[0]

    @property
    def recipe(self) -> str:
        return "\n".join(self.requirements) + "\n"

    def install(self, folder: Path) -> None:
        for torch_ in (r for r in self.requirements if r.startswith("torch==")):
            try:  # the plain wheel of Linux is the CUDA build
                _run([*_pip(folder), f"{torch_}+cpu"])
            except PreflightError:
                _run([*_pip(folder), torch_, "--index-url", "https://download.pytorch.org/whl/cpu"])
        _run([*_pip(folder), *self.requirements])


PEERS: dict[str, Built | Wheels] = {
    # torch and transformers as the project's own, so that nothing but the trainer differs
    "trl": Wheels(("trl==1.16.0", "torch==2.13.0", "transformers==5.19.0")),
    "shardcast": Wheels(("shardcast==0.3.2", "blake3==1.0.5")),
    "toploc": Built(
        "toploc==0.1.6",
        "7a566c2db29d94865baa2c53b5563b426fd118b56a163b515551419b65ea7072",
        ("setuptools==80.9.0", "wheel==0.45.1"),
    ),
}


def installed(name: str) -> Path | None:
    """The peer's Python, where its environment is there already."""
    stamp = _folder(name) / "recipe"
    return _folder(name) / "bin/python" if stamp.is_file() and stamp.read_text() == PEERS[name].recipe else None


def python(name: str) -> Path:
    """The peer's Python, installed now where it is not. Raises PreflightError with what pip said."""
    peer, folder = PEERS[name], _folder(name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock", timeout=_INSTALL_SECONDS_MAX):
        if found := installed(name):
            return found
        print(f"installing {peer.requirement} (a few minutes)", file=sys.stderr)
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])
        peer.install(folder)
        (folder / "recipe").write_text(peer.recipe)
    return folder / "bin/python"


class Conversation:
    """A script that runs under a peer's Python and answers each line of JSON with one."""

    def __init__(self, interpreter: Path, script: Path, *arguments: Path) -> None:
        # -P: the script's folder is not searched, where our modules have the names of what they measure.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(
            [str(interpreter), "-P", str(script), *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=environment | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def ask(self, **question: Any) -> Any:
        """The answer. Raises RuntimeError when the peer died or was silent for too long; its own error is on stderr."""
        assert self._process.stdin and self._process.stdout
        deadline = threading.Timer(_ANSWER_SECONDS_MAX, self._process.kill)
        deadline.start()
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            deadline.cancel()
        if not answer:
            raise RuntimeError(f"the peer gave no answer to {json.dumps(question)[:200]}")
        return json.loads(answer)

    def __enter__(self) -> Conversation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait(60)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()


def _folder(name: str) -> Path:
    return Path(os.environ.get("MURMUR_PEERS", ROOT / ".peers")) / name


def _pip(folder: Path) -> list[str]:
    return [str(folder / "bin/python"), "-m", "pip", "--disable-pip-version-check", "-q", "install"]


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_INSTALL_SECONDS_MAX)
    except (subprocess.SubprocessError, OSError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise PreflightError(
            f"{' '.join(command[:6])} … failed: {said[-1] if said else error}",
            hint="a peer needs a C++ compiler, Python's headers and access to a package index",
        ) from error
    return done.stdout
