"""Environments of peers: what ours is compared with is installed in a place of its own, never into the project's .venv.

They lie in .peers/ (or $MURMUR_PEERS), are made when first needed, and can be deleted at any time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from protocol.errors import PreflightError

ROOT = Path(__file__).resolve().parents[2]
_INSTALL_SECONDS_MAX = 1800
REQUIREMENTS = {
    # torch and transformers as the project's own, so that nothing but the trainer differs
    "trl": ["trl==1.16.0", "torch==2.13.0", "transformers==5.19.0"],
}


def installed(name: str) -> Path | None:
    """The peer's Python, where its environment is there already."""
    folder = _folder(name)
    done = folder / "requirements"
    fresh = done.is_file() and done.read_text().split() == REQUIREMENTS[name]
    return folder / "bin/python" if fresh else None


def python(name: str) -> Path:
    """The peer's Python, installed now where it is not. Raises PreflightError with what pip said."""
    if found := installed(name):
        return found
    folder = _folder(name)
    print(f"installing {REQUIREMENTS[name][0]} into {folder}", file=sys.stderr)
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    pip = [str(folder / "bin/python"), "-m", "pip", "--disable-pip-version-check", "-q", "install"]
    torch = next(r for r in REQUIREMENTS[name] if r.startswith("torch=="))
    try:  # the plain wheel of Linux is the CUDA build
        _run([*pip, f"{torch}+cpu"])
    except PreflightError:
        _run([*pip, torch, "--index-url", "https://download.pytorch.org/whl/cpu"])
    _run([*pip, *REQUIREMENTS[name]])
    (folder / "requirements").write_text("\n".join(REQUIREMENTS[name]))
    return folder / "bin/python"


def _folder(name: str) -> Path:
    return Path(os.environ.get("MURMUR_PEERS", ROOT / ".peers")) / name


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_INSTALL_SECONDS_MAX)
    except (subprocess.SubprocessError, OSError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise PreflightError(f"{' '.join(command[:6])} … failed: {said[-1] if said else error}") from error
