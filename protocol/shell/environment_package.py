"""A package with an environment, from its first file to the wheel that contributors install."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from string import Template

from protocol.environments import content
from protocol.errors import ConfigError, UsageError
from protocol.settings import read_toml

_TEMPLATE = Path(__file__).parent / "environment_template"
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_GROUP = "murmuration.environments"
_BUILDING_S = 600.0


@dataclass(frozen=True)
class Wheel:
    path: Path
    environments: list[str]
    content: str
    """Digest of its files, which a run spec names."""


def begin(name: str, into: Path) -> Path:
    """Writes a package with one environment, its tests and a README into a new folder of this name. Raises UsageError."""
    if not _NAME.fullmatch(name) or len(name) > 60:
        raise UsageError(
            f"{name!r} cannot be an environment's name",
            hint="lower-case letters, digits and hyphens, as two-digit-sums",
        )
    module = name.replace("-", "_")
    if module in sys.stdlib_module_names:
        raise UsageError(f"{name!r} is a module of Python itself", hint=f"call it {name}-tasks, for one")
    if importlib.util.find_spec(module) is not None:
        raise UsageError(
            f"{name!r} is the name of a module that is installed here", hint=f"call it {name}-tasks, for one"
        )
    folder = into / name
    if folder.exists():
        raise UsageError(f"{folder} is there already", hint="choose another name, or another folder: --into")
    words = {"name": name, "module": module, "class_name": "".join(part.capitalize() for part in name.split("-"))}
    written = {
        "pyproject.toml": "pyproject.toml", "README.md": "README.md", f"{module}/__init__.py": "",
        f"{module}/environment.py": "environment.py", f"tests/test_{module}.py": "test.py",
    }  # fmt: skip
    for place, template in written.items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_filled(template, words) if template else _exported(words))
    return folder


def publish(folder: Path, out: Path) -> Wheel:
    """Builds the wheel of a package with environments into `out`. Raises ConfigError where it is none or cannot be built."""
    project = read_toml(folder / "pyproject.toml").get("project", {})
    points = project.get("entry-points", {}).get(_GROUP, {}) if isinstance(project, dict) else {}
    if not points:
        raise ConfigError(
            f"{folder}/pyproject.toml registers no environment",
            hint=f'add [project.entry-points."{_GROUP}"], as docs/environments.md shows',
        )
    with tempfile.TemporaryDirectory(prefix="murmur-wheel-") as built:
        command = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--no-deps",
            "--quiet",
            "--wheel-dir",
            built,
            str(folder.resolve()),
        ]
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_BUILDING_S)
        except subprocess.TimeoutExpired as error:
            raise ConfigError(f"{folder} was not built within {_BUILDING_S:g} s") from error
        wheels = list(Path(built).glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise ConfigError(
                f"{folder} cannot be built: {said[-1] if said else 'pip made no wheel'}", hint=f"pip wheel {folder}"
            )
        digest = content.of_wheel(wheels[0])
        out.mkdir(parents=True, exist_ok=True)
        path = out / wheels[0].name
        if path.exists() and content.of_wheel(path) != digest:
            raise ConfigError(
                f"{path} has another content by the same version",
                hint="raise project.version in pyproject.toml: a version is never changed",
            )
        path.write_bytes(wheels[0].read_bytes())
    return Wheel(path, sorted(points), digest)


def _filled(template: str, words: dict[str, str]) -> str:
    return Template((_TEMPLATE / f"{template}.tmpl").read_text()).substitute(words)


def _exported(words: dict[str, str]) -> str:
    return Template('from $module.environment import $class_name\n\n__all__ = ["$class_name"]\n').substitute(words)
