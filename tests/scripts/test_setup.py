"""`scripts/setup` beside a Python, an npm and a Node.js that behave as told: what it installs, believes, stamps and says.

All of them are stand-ins of a few lines, so that a test takes a fraction of a second and asks no registry for anything.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = [
    "awk",
    "bash",
    "cat",
    "chmod",
    "cksum",
    "cp",
    "cut",
    "dirname",
    "env",
    "flock",
    "grep",
    "id",
    "mkdir",
    "rm",
    "sed",
    "sh",
    "tail",
    "tr",
]  # real ones
PLATFORM = "linux-amd64"
LOCKED = "sha512-as-locked"

# npm as Debian 12 has it: what is optional and wants a newer Node.js is left out; what is named is installed.
NPM = f"""#!{sys.executable} -I
import json, os, sys
from pathlib import Path

def put(file, text="{{}}"):
    path = Path("node_modules") / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)

found = {{}}
put("solc/package.json"), put("@openzeppelin/contracts/package.json")
for name in (argument.rsplit("@", 1)[0] for argument in sys.argv[2:] if argument.startswith("@")):
    tool = name.split("/")[1].split("-")[0]
    put(f"{{name}}/bin/{{tool}}", "#!/bin/sh\\nexec stand-in " + tool + "\\n")
    found[f"node_modules/{{name}}"] = {{"integrity": os.environ.get("INTEGRITY", "{LOCKED}")}}
put(".package-lock.json", json.dumps({{"packages": found}}))
"""
# Python and, once copied into the virtual environment, its pip, which does as the file `pip` says.
PYTHON = f"""#!/bin/bash
case "$*" in
  "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
  "-m pip "*)
    shift 3; echo "$*" >> "$STAND_INS/asked of pip"
    [[ "$*" != *"-e ."* ]] || {{ printf '#!/bin/sh\\nexec stand-in murmur\\n' > .venv/bin/murmur; chmod +x .venv/bin/murmur; }}
    . "$STAND_INS/pip" ;;
  *"torch.version.cuda"*) [ -n "$WITH_CUDA" ] ;;
  "-c import torch"*) [ -z "$NO_TORCH" ] ;;
  -) exec {sys.executable} -I - ;;
  --version) echo "Python 3.12.0" ;;
esac
"""
UNTRUSTED = """echo "WARNING: Retrying (Retry(total=0)) after connection broken by 'SSLError(CERTIFICATE_VERIFY_FAILED)': /simple/torch/" >&2
echo "ERROR: No matching distribution found for torch" >&2; exit 1"""


@dataclass
class Clone:
    """A clone of the repository, as far as set-up looks at it, on a machine of stand-ins."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def stand_ins(self) -> Path:
        return self.folder / "stand-ins"

    @property
    def stamped(self) -> bool:
        return (self.folder / ".venv/.setup-stamp").exists()

    def stand_in(self, name: str, text: str) -> None:
        (self.stand_ins / name).write_text(text)
        (self.stand_ins / name).chmod(0o755)

    def set_up(self) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": str(self.stand_ins),
            "HOME": str(self.folder),
            "STAND_INS": str(self.stand_ins),
            **self.environment,
        }
        command = ["bash", self.folder / "scripts/setup"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    def asked_of_pip(self) -> list[str]:
        file = self.stand_ins / "asked of pip"
        return file.read_text().splitlines() if file.exists() else []

    def installed(self, tool: str, on: str = PLATFORM) -> Path:
        return self.folder / f"contracts/node_modules/@foundry-rs/{tool}-{on}/bin/{tool}"


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    made = Clone(tmp_path)
    for folder in ("scripts", "contracts", "stand-ins"):
        (tmp_path / folder).mkdir()
    shutil.copy(ROOT / "scripts/setup", tmp_path / "scripts")
    shutil.copy(ROOT / "contracts/package.json", tmp_path / "contracts")
    binaries = {f"node_modules/@foundry-rs/{tool}-{PLATFORM}": {"integrity": LOCKED} for tool in ("forge", "anvil")}
    (tmp_path / "contracts/package-lock.json").write_text(json.dumps({"packages": binaries}))
    (tmp_path / "contracts/solc").write_text("#!/bin/sh\nexec stand-in solc\n")
    (tmp_path / "contracts/solc").chmod(0o755)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "constraints.txt").write_text("torch==2.13.0\n")
    for name, text in {"npm": NPM, "python3": PYTHON, "pip": ""}.items():
        made.stand_in(name, text)
    for tool in filter(shutil.which, TOOLS):
        os.symlink(str(shutil.which(tool)), made.stand_ins / tool)
    made.stand_in(
        "uname", '#!/bin/sh\ncase "$1" in -m) echo "${MACHINE-x86_64}" ;; *) echo "${SYSTEM-Linux}" ;; esac\n'
    )
    made.stand_in("cc", "#!/bin/sh\nexec cat > /dev/null\n")
    made.stand_in("node", '#!/bin/sh\n[ -z "$OLD_NODE" ] || [ "$1" = --version ]\n')
    made.stand_in("stand-in", '#!/bin/sh\n[ "$1" != "$BROKEN" ] || { echo "GLIBC_2.39 not found" >&2; exit 1; }\n')
    return made


@pytest.mark.parametrize(
    ("system", "machine", "build"),
    [
        ("Linux", "x86_64", "linux-amd64"),
        ("Linux", "aarch64", "linux-arm64"),
        ("Darwin", "x86_64", "darwin-amd64"),
        ("Darwin", "arm64", "darwin-arm64"),
    ],
)
def test_binaries_that_npm_leaves_out_are_installed_all_the_same(
    clone: Clone, system: str, machine: str, build: str
) -> None:
    clone.environment |= {"SYSTEM": system, "MACHINE": machine}
    done = clone.set_up()
    assert done.returncode == 0, done.stderr
    assert clone.installed("forge", build).exists()
    assert clone.installed("anvil", build).exists()
    assert clone.stamped


def test_a_machine_that_foundry_has_no_build_for_is_told_so(clone: Clone) -> None:
    clone.environment["MACHINE"] = "riscv64"
    done = clone.set_up()
    assert done.returncode == 5
    assert "Foundry has no build for Linux on riscv64" in done.stderr


@pytest.mark.parametrize("tool", ["forge", "anvil", "solc", "murmur"])
def test_what_does_not_run_is_never_stamped(clone: Clone, tool: str) -> None:
    clone.environment["BROKEN"] = tool
    done = clone.set_up()
    assert done.returncode == 5
    assert f"{tool} --" in done.stderr
    assert "GLIBC_2.39 not found" in done.stderr
    assert not clone.stamped


def test_a_second_set_up_asks_nobody_anything(clone: Clone) -> None:
    first = clone.set_up()
    assert first.returncode == 0, first.stderr
    asked = clone.asked_of_pip()
    (clone.stand_ins / "npm").unlink()
    done = clone.set_up()
    assert (done.returncode, done.stderr, clone.asked_of_pip()) == (0, "", asked)


@pytest.mark.parametrize(
    "missing",
    [
        f"contracts/node_modules/@foundry-rs/forge-{PLATFORM}/bin/forge",
        f"contracts/node_modules/@foundry-rs/anvil-{PLATFORM}/bin/anvil",
        "contracts/node_modules/solc/package.json",
        "contracts/node_modules/@openzeppelin/contracts/package.json",
        ".venv/bin/murmur",
        ".venv/bin/python",
    ],
)
def test_a_tool_that_has_vanished_since_is_brought_back(clone: Clone, missing: str) -> None:
    first = clone.set_up()
    assert first.returncode == 0, first.stderr
    (clone.folder / missing).unlink()
    if missing.endswith("python"):  # as a newer Python of the system leaves it
        (clone.folder / missing).symlink_to("python-that-is-gone")
    done = clone.set_up()
    assert done.returncode == 0, done.stderr
    assert (clone.folder / missing).exists()
    assert clone.stamped


def test_a_binary_with_another_hash_than_the_lock_files_is_refused(clone: Clone) -> None:
    clone.environment["INTEGRITY"] = "sha512-of-something-else"
    done = clone.set_up()
    assert done.returncode == 5
    assert f"node_modules/@foundry-rs/anvil-{PLATFORM}: its integrity is sha512-of-something-else" in done.stderr
    assert not clone.stamped


def test_a_node_that_is_too_old_is_named(clone: Clone) -> None:
    clone.environment["OLD_NODE"] = "1"
    done = clone.set_up()
    assert done.returncode == 5
    assert "needs Node.js 18 or newer" in done.stderr


def test_an_index_that_pip_cannot_reach_ends_it_with_pips_own_error(clone: Clone) -> None:
    """Behind a proxy whose certificate pip does not trust, a second attempt would only say that nothing can be resolved."""
    clone.stand_in("pip", f'case "$*" in *--no-deps*) {UNTRUSTED} ;; *) echo ResolutionImpossible >&2; exit 1 ;; esac')
    done = clone.set_up()
    assert done.returncode == 5
    assert "SSLError(CERTIFICATE_VERIFY_FAILED)" in done.stderr
    assert "PIP_CERT" in done.stderr
    assert "ResolutionImpossible" not in done.stderr
    assert len(clone.asked_of_pip()) == 1


def test_torchs_own_index_is_asked_where_the_usual_one_answers_without_it(clone: Clone) -> None:
    clone.environment["NO_TORCH"] = "1"
    none = 'echo "ERROR: No matching distribution found for torch==2.13.0+cpu (from versions: 2.13.0)" >&2; exit 1'
    clone.stand_in("pip", f'case "$*" in *+cpu*) {none} ;; *download.pytorch.org*) {UNTRUSTED} ;; esac')
    done = clone.set_up()
    assert done.returncode == 5
    assert "SSLError(CERTIFICATE_VERIFY_FAILED)" in done.stderr, "the last index's own error"
    clone.stand_in("pip", f'case "$*" in *+cpu*) {none} ;; esac')
    assert clone.set_up().returncode == 0


def test_torchs_own_index_is_not_asked_where_none_can_be_reached(clone: Clone) -> None:
    clone.environment["NO_TORCH"] = "1"
    clone.stand_in("pip", UNTRUSTED)
    done = clone.set_up()
    assert done.returncode == 5
    assert "SSLError(CERTIFICATE_VERIFY_FAILED)" in done.stderr
    assert len(clone.asked_of_pip()) == 1


@pytest.mark.parametrize("has_cuda", [False, True])
def test_a_gpu_that_comes_later_gets_torch_with_cuda(clone: Clone, has_cuda: bool) -> None:
    """A build for the CPU has the version that is asked for, and would stay for ever."""
    assert clone.set_up().returncode == 0
    before = len(clone.asked_of_pip())
    clone.stand_in("nvidia-smi", "#!/bin/sh\n")
    clone.environment |= {"WITH_CUDA": "1"} if has_cuda else {}
    done = clone.set_up()
    assert (done.returncode, clone.stamped) == (0, True)
    asked = clone.asked_of_pip()[before:]
    assert (asked[:2] == ["uninstall -q -y torch", "install torch==2.13.0"]) is not has_cuda
    assert ("does not compute on the GPU" in done.stderr) is not has_cuda


@pytest.mark.parametrize(
    "misfit",
    [
        'case "$*" in *--no-deps*) echo "ERROR: No matching distribution found for uvloop==1 (from versions: none)"; exit 1 ;; esac',
        'case "$*" in check) echo "rich 15 requires colorama, which is not installed."; exit 1 ;; esac',
    ],
)
def test_pins_that_do_not_fit_the_platform_are_resolved_by_pip(clone: Clone, misfit: str) -> None:
    clone.stand_in("pip", misfit)
    done = clone.set_up()
    assert done.returncode == 0, done.stderr
    assert clone.asked_of_pip()[-1] == "install -c constraints.txt -e .[dev]"


def test_where_resolving_fails_too_the_first_error_is_not_forgotten(clone: Clone) -> None:
    first = 'echo "ERROR: No matching distribution found for uvloop==1"; exit 1'
    clone.stand_in("pip", f'case "$*" in *--no-deps*) {first} ;; *) echo "ERROR: ResolutionImpossible"; exit 1 ;; esac')
    done = clone.set_up()
    assert done.returncode == 5
    assert done.stderr.index("ResolutionImpossible") < done.stderr.rindex(
        "No matching distribution found for uvloop==1"
    )
    assert not clone.stamped
