"""A swarm that stays up for development: `scripts/devnet up | down | status`."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from protocol.chain import Chain
from protocol.chain.deploy import Deployment
from protocol.errors import ConfigError, MurmurationError
from protocol.settings import read_toml
from protocol.shell.home import read_json
from swarm import pages
from swarm.processes import ROOT
from swarm.remains import PROCESSES, remembered, stop_remembered
from swarm.settings import SwarmSettings
from swarm.swarm import MARK, CommandFailed, Swarm, here, how_to_look_around
from trainer.config import Layout, load_run
from trainer.telemetry.status import read_status, status_lines

FOLDER = ROOT / ".swarm/devnet"
_FOR_EVER = 1_000_000  # steps
_REWARD = "0.000001"  # or the seats would have earned all that their stake backs within minutes
_GROUPS_LEAST = (
    2  # what has been learned teaches little, and a devnet goes on all the same: one for each optimizer step
)
_PATIENCE = 86_400  # seconds without rollouts: nodes are stopped and started, and the machine has other things to do


def up(cheats: int, environments: Path | None, *, foreground: bool = False) -> int:
    """`cheats`: how many of the demo's. `environments`: a file that says what to learn instead of the demo's.

    `foreground`: it stays until Ctrl-C or SIGTERM, and takes the swarm down.
    """
    if remembered(FOLDER):
        print("the devnet is up already; scripts/devnet status", file=sys.stderr)
        return 7
    try:
        settings = replace(
            SwarmSettings(), steps=_FOR_EVER, rollout_wait_seconds=_PATIENCE, groups_least=_GROUPS_LEAST, reward=_REWARD, cheats=SwarmSettings().cheats[:cheats],
            **(_asked(environments) if environments else {}),
        )  # fmt: skip
    except MurmurationError as error:
        print(_told(error), file=sys.stderr)
        return error.exit_code
    if foreground:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    if (FOLDER / MARK).exists():
        print(
            f"a new chain and a new run: those of the last devnet in {FOLDER} are deleted, with its cards",
            file=sys.stderr,
        )
    swarm = Swarm(FOLDER, settings, detach=not foreground)
    try:
        swarm.up(lambda line: print(line, file=sys.stderr))
        card = _open_to_others(swarm)
        found = pages.awaited(swarm)
    except (MurmurationError, CommandFailed, KeyboardInterrupt) as error:
        swarm.down()
        print(_told(error), file=sys.stderr)
        return 1
    stop = "Ctrl-C" if foreground else f"{here()}scripts/devnet down"
    said = f"{how_to_look_around(swarm, found, stop)}\n{_how_to_join(swarm, card)}"
    if foreground:
        _stay(swarm, said)
    else:
        print(said)
    return 0


def _stay(swarm: Swarm, said: str) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        print(said, flush=True)
        threading.Event().wait()
    swarm.down()


def _open_to_others(swarm: Swarm) -> Path:
    """A faucet, and the card with which a contributor joins."""
    deployment, card = swarm.folder / "deployment.json", swarm.folder / "card.json"
    where = ("--deployment", deployment)
    swarm.murmur("chain", "deploy-faucet", *where, "--keystore", swarm.bank, "--rpc", swarm.anvil.rpc, "--yes")
    card.write_text(swarm.murmur("run", "card", f"@{swarm.run_toml}", *where))
    return card


def _how_to_join(swarm: Swarm, card: Path) -> str:
    bank, deployment = swarm.bank, swarm.folder / "deployment.json"
    return f"""
Another node joins with its card, from a release on this machine, say:

  node join {card}
  node start

and gets the ETH that it asks for, at the address that it names, with

  {here()}.venv/bin/murmur wallet send 0x… 1 --eth --keystore {bank} --deployment {deployment} --rpc {swarm.anvil.rpc}"""


def _told(error: BaseException) -> str:
    hint = error.hint if isinstance(error, MurmurationError) else ""  # a command that failed has told its own
    return f"error: {str(error) or 'interrupted'}" + (f"\n  try: {hint}" if hint else "")


def _asked(file: Path) -> dict[str, Any]:
    """[[spec.environments]] of a file, whose paths are as seen from there, and its [spec.sampling]. Raises ConfigError."""
    spec = read_toml(file).get("spec")
    listed, sampling = (spec.get("environments"), spec.get("sampling", {})) if isinstance(spec, dict) else (None, {})
    if not isinstance(sampling, dict):
        raise ConfigError(f"spec.sampling of {file} is no table", hint="write it as [spec.sampling]")
    if not isinstance(listed, list) or not listed or not all(isinstance(table, dict) for table in listed):
        raise ConfigError(f"{file} has no environments", hint="write each as [[spec.environments]]")
    beside = file.resolve().parent
    for table in listed:
        for name in ("files", "corpus"):
            if isinstance(table.get(name), list):
                table[name] = [str(beside / one) if isinstance(one, str) else one for one in table[name]]
        if isinstance(table.get("kept"), str):
            table["kept"] = str(beside / table["kept"])
    return {"environments": tuple(listed), "sampling": sampling}


def down() -> int:
    print(f"stopped {stop_remembered(FOLDER)} processes")
    return 0


def status() -> int:
    entries = read_json(FOLDER / PROCESSES)
    if not entries:
        print("the devnet is not up; start it with scripts/devnet up")
        return 1
    dead, alive = 0, remembered(FOLDER)
    for entry in entries:
        running = entry in alive
        dead += not running
        print(
            f"{entry['name']:<12} {'running' if running else 'ENDED':<8} pid {entry['pid']}  {FOLDER}/logs/{entry['name']}.log"
        )
    try:
        run = FOLDER / "run.toml"
        said = read_status(Layout(run, load_run(run).value))
        print("\ntrainer: " + ("\n".join(status_lines(said)) if said else "starting"))
    except MurmurationError as error:
        print(f"\ntrainer: {error}")
    try:
        deployment = Deployment.load(FOLDER / "deployment.json")
        chain = Chain(str(read_json(FOLDER / MARK)["rpc"]), deployment.runs)
        print(f"chain:   {chain.rpc}, block {chain.block_number()}, Runs {deployment.runs}")
    except (MurmurationError, TypeError) as error:
        print(f"chain:   {error}")
        dead += 1
    return 1 if dead else 0


def main() -> int:
    arguments = parser().parse_args()
    try:
        code = (
            up(arguments.cheats, arguments.environments, foreground=arguments.foreground)
            if arguments.command == "up"
            else {"down": down, "status": status}[arguments.command]()
        )
        sys.stdout.flush()
    except BrokenPipeError:  # who reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    return code


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/devnet", description="Keep a whole swarm running for development.")
    parser.add_argument("command", choices=["up", "down", "status"])
    parser.add_argument("--foreground", action="store_true", help="up: stay until Ctrl-C or SIGTERM, then take it down")
    parser.add_argument("--cheats", type=int, default=0, choices=[0, 1, 2, 3], help="nodes that cheat (default 0)")
    parser.add_argument(
        "--environments",
        type=Path,
        metavar="FILE",
        help="what to learn: a file with [[spec.environments]], and [spec.sampling] where it is another (default: the demo's)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
