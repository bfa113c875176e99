"""The whole swarm, once, for real: `scripts/demo`.

Starts every role as a process of its own with the commands a person would type, watches them learn, kills a validator
at its work, catches the cheats, moves the clock, pays, and says whether all promises were kept.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from protocol.errors import LockHeld, MurmurationError
from protocol.shell.home import locked
from swarm import ending, hosts, pages, postmortem, promises, summary
from swarm.accident import Accident, RelayDeath
from swarm.display import Display
from swarm.hosts import SwarmHost
from swarm.interruption import Interruption
from swarm.memory import Watermark
from swarm.pace import Patience
from swarm.processes import ROOT
from swarm.remains import stop_remembered
from swarm.settings import SwarmSettings
from swarm.swarm import CHEATS, MARK, CommandFailed, Swarm, how_to_look_around
from swarm.watch import Watch

_FOLDER = ROOT / ".swarm/demo"
_KEPT = (
    "Training has finished and the nodes are stopped; chain, trainer, hub, the other relay and validators are still up."
)
_LOOK_SECONDS = 1.0
_TRAINING_SECONDS_MAX = 20  # per step of a free machine, before something must be wrong
_START_SECONDS_MAX = 180


class Demo:
    def __init__(self, settings: SwarmSettings, display: Display, folder: Path, *, keep: bool = False) -> None:
        self.swarm = Swarm(folder, settings, detach=keep)
        self.seconds: dict[str, float] = {}
        self._display = display
        self._told_page = False

    def run(self, *, require_gain: bool) -> list[str]:
        """The whole story; returns the promises that were broken."""
        with Watermark() as memory:
            return self._run(memory, require_gain=require_gain)

    def _run(self, memory: Watermark, *, require_gain: bool) -> list[str]:
        with self._phase("set-up"):
            self.swarm.up(self._display.say)
        self._watch = Watch(self.swarm)
        self._accident = Accident(self.swarm, self._watch, self._display.say)
        self._relay_death = RelayDeath(self.swarm, self._watch, self._display.say)
        with self._phase("start and training"):
            self._train()
        with self._phase("verdicts and rewards"):
            steps = (self.swarm, self._watch, self._display.say, self._tick)
            ending.finish_judging(*steps)
            ending.settle(*steps)
            payouts = ending.pay(*steps)
        self._tick()
        memory.look()
        self._result = summary.render(self.swarm, self._watch, payouts, self.seconds, memory.peak)
        ended = (payouts, self._accident.happened, memory.peak)
        return list(promises.broken(self.swarm, self._watch, *ended, require_gain=require_gain))

    def print_result(self) -> None:
        self._display.print(*self._result)

    def _train(self) -> None:
        settings = self.swarm.settings
        patience = Patience(_START_SECONDS_MAX + _TRAINING_SECONDS_MAX * settings.steps)
        while self._watch.trainer.get("state") != "finished":
            self._tick()
            self._relay_death.happen_midway()
            self._require_running()
            if patience.ended():
                raise MurmurationError(f"training had not ended within {patience}", hint=patience.hint)
            self._accident.wait(0.25)

    def _require_running(self) -> None:
        """All processes run; only cheats may have been shown the door."""
        for process in self.swarm.processes:
            if process.name != CHEATS:
                process.require_running()

    def _tick(self) -> None:
        for line in self._watch.poll():
            self._display.say(line)
        if self._watch.page is not None and not self._told_page:
            self._told_page = True
            self._display.say(f"the run's page, in a browser: {self._watch.page}")
        self._display.show(self._watch)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - started


def main(interruption: Interruption) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/demo", description="Run the whole swarm on this machine, once, for real."
    )
    parser.add_argument("--steps", type=int, default=60, help="training steps (default 60)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the policy's weights and warm-up (default 0)")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="leave chain, trainer, hub, one relay, validators and all pages up at the end, until Ctrl-C",
    )
    parser.add_argument(
        "--stop", action="store_true", help="stop a swarm that was kept and whose terminal is gone, and do nothing else"
    )
    parser.add_argument(
        "--folder", type=Path, default=_FOLDER, help="where keys, data and logs lie; emptied at the start"
    )
    parser.add_argument("--no-gain", action="store_true", help="do not require that accuracy rises (for short runs)")
    parser.add_argument(
        "--base", action="store_true", help="the same on an Anvil in Base mode: OP chain 84532, full-strength keystores"
    )
    parser.add_argument(
        "--two-hosts",
        action="store_true",
        help="in two network namespaces with a wire between them, each with half of the roles (Linux, as root)",
    )
    parser.add_argument("--vllm", action="store_true", help="one of the three honest nodes computes with vLLM")
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error("--steps must be at least 1")
    if arguments.two_hosts and arguments.keep:
        parser.error("--two-hosts and --keep: the network would be gone")
    if arguments.two_hosts and (reason := hosts.why_not()):
        parser.error(f"--two-hosts: {reason}")
    folder = arguments.folder.absolute()
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
        parser.error(f"{folder} is not empty and no swarm's: its contents would be lost")
    try:
        with locked(
            folder.with_name(folder.name + ".lock"), folder, hint="end that demo first, or give another --folder"
        ):
            if stop_remembered(folder):
                print("stopped the swarm that an earlier run had kept", file=sys.stderr)
            if arguments.stop:
                return 0
            with hosts.network() if arguments.two_hosts else nullcontext((hosts.HERE,)) as machines:
                return _run(arguments, folder, machines, interruption)
    except LockHeld as error:
        _report(error, error.hint)
        return error.exit_code


def _run(
    arguments: argparse.Namespace, folder: Path, machines: tuple[SwarmHost, ...], interruption: Interruption
) -> int:
    display = Display("Murmuration: reinforcement learning by a swarm of machines nobody controls")
    settings = SwarmSettings(
        steps=arguments.steps, seed=arguments.seed, base=arguments.base, hosts=machines,
        vllm=_vllm() if arguments.vllm else None,
    )  # fmt: skip
    demo = Demo(settings, display, folder, keep=arguments.keep)
    code: int | None = 130
    try:
        code = _play(demo, display, arguments, machines)
        if arguments.keep and code is not None:
            _stay(demo.swarm)
    except KeyboardInterrupt:
        pass
    interruption.calm(hasten=demo.swarm.kill_all)
    display.close()
    if code == 130:
        print("interrupted; stopping everything (once more: at once)", file=sys.stderr)
    demo.swarm.down()
    return 1 if code is None else code


def _stay(swarm: Swarm) -> None:
    """Until Ctrl-C, or until a process has ended."""
    try:
        found = pages.addresses(swarm) | pages.of_stopped_nodes(swarm)
        print(how_to_look_around(swarm, found, "Ctrl-C", _KEPT), flush=True)
        while True:
            swarm.require_running()
            time.sleep(_LOOK_SECONDS)
    except MurmurationError as error:
        _report(error, getattr(error, "hint", ""))
    except KeyboardInterrupt:
        print("stopping everything (once more: at once)", file=sys.stderr)


def _play(demo: Demo, display: Display, arguments: argparse.Namespace, machines: tuple[SwarmHost, ...]) -> int | None:
    """The exit code of a demo that came to its end; None, and told, where it did not."""
    try:
        with display:
            failures = demo.run(require_gain=not arguments.no_gain)
        demo.print_result()
        if arguments.two_hosts:
            display.print("", *map(_traffic, machines))
        return _verdict(display, failures)
    except (MurmurationError, CommandFailed) as error:
        _report(error, getattr(error, "hint", "") or f"see the logs in {demo.swarm.folder / 'logs'}")
        for line in postmortem.tell(demo.swarm):
            print(line, file=sys.stderr)
        return None


def _traffic(host: SwarmHost) -> str:
    return f"host {host.address}: {host.received / 1e6:.1f} MB received, {host.sent / 1e6:.1f} MB sent over the wire"


def _vllm() -> Path:
    """The Python of the environment that scripts/setup-vllm has made."""
    return Path(os.environ.get("MURMUR_VLLM_PYTHON", sys.executable))


def _report(error: Exception, hint: str) -> None:
    print(f"error: {error}\n  try: {hint}", file=sys.stderr)


def _verdict(display: Display, failures: list[str]) -> int:
    if failures:
        display.print("", "[bold red]Promises broken:[/]", *(f"  - {failure}" for failure in failures))
        return 1
    display.print("", "[bold green]All promises kept.[/]")
    return 0
