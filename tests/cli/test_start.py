"""Commands start at once: help imports nothing that it does not print, and reading the chain only what reads it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Contributor

ROOT = Path(__file__).parents[2]
NEVER = {"web3", "eth_account", "py_ecc"}
"""Each costs a second, and the tests alone need them."""
HEAVY = NEVER | {"torch", "transformers", "libp2p", "trio", "pyarrow", "reasoning_gym", "httpx", "fastapi", "rich"}
NO_HELP = HEAVY | {"eth_abi", "eth_keys", "eth_utils", "requests", "numpy", "Crypto", "rlp"}

EVERY_HELP = """
import contextlib, io, typer
from node.contributor.commands import app as node
from protocol.shell.cli import app as murmur

def show(command, context):
    shown.append(command.get_help(context))
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        below = command.get_command(context, name)
        show(below, typer.Context(below, info_name=name, parent=context))

shown = []
for app in (murmur, node):
    show(typer.main.get_command(app), typer.Context(typer.main.get_command(app)))
assert len(shown) > 50
"""
TELL = "import sys; print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)\n"


def imported(code: str, *arguments: object) -> set[str]:
    """Top-level packages that a program had imported at its end."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    return set(ended.stderr.split())


def test_no_help_imports_what_it_does_not_print() -> None:
    assert not imported(EVERY_HELP + TELL) & NO_HELP


@pytest.mark.parametrize("command", [("status",), ("submissions",), ("config", "show")], ids=" ".join)
def test_reading_imports_only_what_reads(contributor: Contributor, command: tuple[str, ...]) -> None:
    code = f"import atexit\natexit.register(lambda: exec({TELL!r}))\nfrom protocol.shell.cli import main\nmain()"
    assert not imported(code, "node", *command, "--home", contributor.path, "--json") & HEAVY


def test_what_the_run_file_tells_is_read_as_lightly(contributor: Contributor, tmp_path: Path) -> None:
    world, file = contributor.world, tmp_path / "run.toml"
    table = {"rpc": world.anvil.rpc, "contract": world.chain.runs.address, "run": world.run}
    file.write_text("[chain]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in table.items()))
    code = f"import atexit\natexit.register(lambda: exec({TELL!r}))\nfrom protocol.shell.cli import main\nmain()"
    assert not imported(code, "run", "show", f"@{file}", "--json") & HEAVY - {"pyarrow"}


def test_no_program_of_ours_imports_what_only_the_tests_need() -> None:
    """They would come back unnoticed with one import statement."""
    roles = "node.contributor.worker, node.validator.service, node.relay.service, protocol.shell.connection, protocol.shell.runfile"
    assert not imported(f"import {roles}, trainer.hub.service\n{TELL}") & NEVER


def test_a_terminal_that_has_no_such_letters_ends_no_command() -> None:
    code = """
from protocol.shell import cli
app = cli.group("x")
app.command()(lambda: cli.typer.echo("✓ nothing is wrong"))
cli.run(app, "x")
"""
    for encoding in ("latin-1", "cp1252"):
        ended = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, env={"PYTHONIOENCODING": encoding}, timeout=60
        )
        assert (ended.returncode, ended.stdout) == (0, b"? nothing is wrong\n"), ended.stderr


def test_a_devnet_is_looked_at_through_a_pipe_that_nobody_reads_to_its_end() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "wb") as closed:
        ended = subprocess.run(
            [sys.executable, "-P", "-m", "swarm.devnet", "status"], stdout=closed, stderr=subprocess.PIPE, timeout=60,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'scripts'}"}, cwd=ROOT, text=True,
        )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
