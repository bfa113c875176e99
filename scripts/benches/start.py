"""Start-up: CPU seconds of each command's --help, and of the commands that only read, as processes of their own.

User and system time of the whole process, the best of some rounds, so that a busy machine does not count. The reads ask a
run on a real Anvil. What a program does that prints its help with typer, and one that imports web3, are the peers.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import typer
from swarm.anvil import Anvil

from benches import Bench, Cost
from protocol.chain import Chain, Sender
from protocol.chain.deploy import deploy
from protocol.chain.events import RunCreated
from protocol.identity import Key
from protocol.shell.runfile import PolicyTable

HELP, READ = 0.3, 1.0
"""Goals in CPU seconds."""
_BIN = Path(sys.executable).parent
_TYPER = "import typer\napp = typer.Typer()\n@app.command()\ndef hello(name: str) -> None: 'Say it.'\napp()"
_POLICY = PolicyTable(
    trainer="0x" + "7e" * 20, max_units=1000, max_per_step=4, appeal=0, co_signers=0,
    node_stake="100", validator_stake="100", penalty="50", bond="10", reward="0.01",
)  # fmt: skip


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3, help="how often each command is run; the best counts")


def run(rounds: int = 3) -> Bench:
    bench = Bench("start")
    typer_help = _seconds([sys.executable, "-c", _TYPER, "--help"], rounds)
    for name, commands in _helps().items():
        slowest = max(_seconds([*command, "--help"], rounds) for command in commands)
        bench.rows.append(Cost(name, "CPU s", slowest, typer_help, typer_help / slowest, HELP))
    web3 = _seconds([sys.executable, "-c", "import web3"], rounds)
    with tempfile.TemporaryDirectory() as folder:
        anvil = Anvil(Path(folder))
        try:
            for command in _reads(anvil, Path(folder)):
                spent = _seconds([_BIN / command[0], *command[1:]], rounds)
                name = " ".join(str(word) for word in command[:3] if not str(word).startswith("-"))
                bench.rows.append(Cost(name, "CPU s", spent, web3, web3 / spent, READ))
        finally:
            anvil.stop()
    return bench


def _helps() -> dict[str, list[list[str | Path]]]:
    """Commands by the row that tells of them: of a group's commands the slowest counts."""
    from protocol.shell.cli import app

    murmur: list[str | Path] = [_BIN / "murmur"]
    rows: dict[str, list[list[str | Path]]] = {"murmur --help": [murmur], "node --help": [[_BIN / "node"]]}
    root = typer.main.get_command(app)
    context = typer.Context(root)
    for group in root.list_commands(context):  # type: ignore[attr-defined]
        rows[f"murmur {group} --help"] = [[*murmur, group]]
        leaves = [[*murmur, group, *path] for path in _leaves(root.get_command(context, group))]  # type: ignore[attr-defined]
        rows[f"murmur {group} COMMAND --help, the slowest"] = leaves
    return rows


def _leaves(command: typer.main.Command) -> Iterator[list[str]]:  # type: ignore[name-defined]
    for name, below in getattr(command, "commands", {}).items():
        deeper = list(_leaves(below))
        yield from [[name, *path] for path in deeper] or [[name]]


def _reads(anvil: Anvil, folder: Path) -> list[list[str | Path]]:
    """Commands that read a run and a node's home which are there."""
    bank = Sender(Chain(anvil.rpc, None), anvil.bank)
    deployment = deploy(bank, withdrawal_delay=7 * 86_400, sink="0x" + "51" * 20)
    chain = Chain(anvil.rpc, deployment.runs)
    owner = Sender(chain, anvil.bank)
    run = owner.send(chain.create(_POLICY.policy(owner.key.address), b"\x07" * 32)).event(RunCreated).run
    file, addresses, home = folder / "run.toml", folder / "deployment.json", folder / "node"
    deployment.save(addresses)
    file.write_text(f'[chain]\nrpc = "{anvil.rpc}"\ncontract = "{deployment.runs}"\nrun = {run}\n')
    os.environ["MURMUR_PASSWORD"] = "of no worth"
    peer = f"/ip4/127.0.0.1/tcp/1/p2p/{Key.generate().peer_id}"
    init = ["init", "--rpc", anvil.rpc, "--contract", deployment.runs, "--run", str(run), "--bootnode", peer]
    _run([_BIN / "node", *init, "--home", home])
    at: list[str | Path] = ["--home", home]
    asked: list[str | Path] = ["--deployment", addresses, "--rpc", anvil.rpc]
    return [
        ["node", "status", *at], ["node", "submissions", *at], ["node", "config", "show", *at],
        ["murmur", "chain", "info", *asked], ["murmur", "chain", "doctor", *asked, "--run", str(run)],
        ["murmur", "run", "show", f"@{file}"],
    ]  # fmt: skip


def _seconds(command: Sequence[str | Path], rounds: int) -> float:
    return min((_run(command) for _ in range(rounds)), default=math.nan)


def _run(command: Sequence[str | Path]) -> float:
    """CPU seconds of a command, which must end well."""
    with tempfile.TemporaryFile() as said, subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            raise RuntimeError(
                f"{' '.join(map(str, command))} ended with {process.returncode}: {said.read()[-2000:]!r}"
            )
        return used.ru_utime + used.ru_stime
