"""A reader's machine: a checkout and a Python of its own, and a shell that types what a page says.

Its packages are the project's own, and so is what `scripts/setup` installs, which is therefore left out here (tests/scripts has it):
nothing is fetched. What is installed on it stays on it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parent.parent
_CHECKOUT = ("node", "protocol", "scripts", "trainer")


def blocks(page: str) -> list[list[str]]:
    """The commands of each console block."""
    typed = re.findall(r"^```console\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    return [re.findall(r"^\$ (.*)", block, re.MULTILINE) for block in typed]


def file_block(page: str, name: str) -> str:
    """The text of the file that a block shows under its name, as `# run.toml`."""
    (text,) = re.findall(rf"^```\w+\n(# {re.escape(name)}\n.*?)^```", page, re.DOTALL | re.MULTILINE)
    return str(text)


class Machine:
    """Begins in the folder of the repository. `folder`: an empty one."""

    def __init__(self, folder: Path) -> None:
        self.checkout = folder / "murmuration"
        self._state = folder / "state.sh"
        self._state.write_text(f"cd '{self.checkout}'\n")
        for room in _CHECKOUT:
            shutil.copytree(
                ROOT / room, self.checkout / room
            )  # with what is compiled, which keeps to the times of the files
        (self.checkout / "contracts").symlink_to(ROOT / "contracts")
        (self.checkout / "scripts/setup").write_text("#!/bin/sh\n")
        self._make_python()
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
        # What builds a wheel is installed with the tests, and so is what the project needs, which pip would look through for seconds.
        self._variables = kept | {"PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1"}

    def _make_python(self) -> None:
        venv = self.checkout / ".venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=60)
        (site,) = (venv / "lib").glob("python*/site-packages")
        (site / "project.pth").write_text(f"{sysconfig.get_path('purelib')}\n{self.checkout}\n")
        for command, module in (("pip", "pip"), ("pytest", "pytest"), ("murmur", "protocol")):
            program = venv / "bin" / command
            program.write_text(f'#!/bin/sh\nexec {venv}/bin/python -P -m {module} "$@"\n')
            program.chmod(0o755)

    @property
    def here(self) -> Path:
        """The folder that the shell is in."""
        return Path(self.type("pwd").strip())

    def type(self, command: str, *, seconds: float = 100) -> str:
        """What it prints on stdout. Folder and variables last until the next one. AssertionError where it fails."""
        script = f"set -e\n. {self._state}\n{command}\n{{ export -p; printf 'cd %q\\n' \"$PWD\"; }} >{self._state}.next"
        done = subprocess.run(
            ["bash", "-c", script], env=self._variables, capture_output=True, text=True, timeout=seconds, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        Path(f"{self._state}.next").replace(self._state)
        return done.stdout
