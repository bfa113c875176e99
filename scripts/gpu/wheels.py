"""Wheels for a machine that has a GPU, a Python with torch of its own, and no network: `scripts/gpu-report --pack FOLDER`.

What is packed is what the report imports and such a machine seldom has, in the versions of constraints.txt, without what they depend on in
turn: torch, transformers, NumPy, tokenizers and pytest are that machine's own, whatever their versions. vLLM is not packed: it
wants a torch of its own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gpu.supervision import ROOT
from protocol.errors import PreflightError

_NAMES = (
    "annotated-types", "base58", "cytoolz", "eth-abi", "eth-hash", "eth-keys", "eth-typing", "eth-utils", "liger-kernel", "outcome",
    "parsimonious", "platformdirs", "pycryptodome", "pydantic", "pydantic_core", "rfc8785", "sniffio", "toolz", "trio", "typing-inspection",
)  # fmt: skip
_UNLISTED = {"liger-kernel": ">=0.8,<0.9"}  # optional, so not among the constraints
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_24_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64",
              "manylinux2010_x86_64", "manylinux1_x86_64")  # fmt: skip
_SECONDS = 600


def pack(folder: Path, python: str) -> list[Path]:
    """The wheels for this version of Python ("3.12") on x86-64 Linux, in `folder`. Raises PreflightError with what pip said."""
    versions = _versions()
    wanted = [f"{name}{_UNLISTED.get(name) or '==' + versions[_plain(name)]}" for name in _NAMES]
    platforms = [word for platform in _PLATFORMS for word in ("--platform", platform)]
    command = [
        sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--implementation", "cp",
        "--python-version", python, *platforms, "-d", str(folder), *wanted,
    ]  # fmt: skip
    for old in folder.glob("*.whl"):
        old.unlink()
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        raise PreflightError(
            f"pip found no wheels: {done.stderr.strip().splitlines()[-1]}", hint="is an index reachable?"
        )
    return sorted(folder.glob("*.whl"))


def _versions() -> dict[str, str]:
    """Of every package of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {_plain(name): version for name, _, version in (line.partition("==") for line in lines) if version}


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")
