"""A swarm: Anvil, the contracts, a run, and every role as a process of its own, set up by the commands a person would type.

Nothing here calls a contract or touches a database on a role's behalf, but for handing out play money.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from protocol.chain import Chain, Sender, networks
from protocol.chain.deploy import Deployment
from protocol.folders import TASKS_VARIABLE
from protocol.identity import Key, save_keystore
from protocol.settings import write_toml
from protocol.shell.home import read_json, write_json
from swarm import mixture
from swarm.anvil import Anvil
from swarm.pace import Patience, slowness
from swarm.processes import ROOT, Process, spawn, stop_all, wait_until
from swarm.remains import PROCESSES
from swarm.settings import VLLM_SECONDS, SwarmSettings, run_file

PASSWORD = "play money only"  # protects accounts of a chain that lives for minutes
COMMAND_SECONDS = 120  # of a free machine
CHEATS = "cheats"  # the process that plays all cheats
MARK = "swarm.json"  # what tells a swarm's folder from any other
ETH = 10**18
_NOTHING: Mapping[str, str] = {}
_OTHERWISE = "validator-1"  # which computes attention in another way than the nodes, as other devices would
_VLLM = {"MURMUR_ENGINE__NAME": "vllm", "MURMUR_ENGINE__DEVICE": "cpu", "MURMUR_ENGINE__MEMORY": "512MiB"}
"""Of a node that computes with vLLM. What vLLM takes for itself is beside its memory."""
TOKENS = 10**18


class CommandFailed(Exception):
    """A command of the set-up ended badly or not at all; the message holds what it printed."""

    def __init__(self, message: str, hint: str = "") -> None:  # commands write no logs of their own
        super().__init__(message)
        self.hint = hint or "see below what the programs were doing"


@dataclass(frozen=True)
class Member:
    """One node or validator: its home and addresses. `operator` is empty for validators."""

    name: str
    home: Path
    address: str
    operator: str = ""
    cheat: str = ""
    """What it does (scripts/cheats/play.py); empty for the honest."""

    @property
    def is_cheat(self) -> bool:
        return bool(self.cheat)


def environment_of_modules(more: Mapping[str, str]) -> dict[str, str]:
    """`more`, and where Python finds our packages and the scripts' (the cheats are one)."""
    return {**more, "PYTHONPATH": f"{ROOT}:{ROOT / 'scripts'}"}


class Swarm:
    def __init__(self, folder: Path, settings: SwarmSettings, *, detach: bool = False) -> None:
        self.folder = folder
        self.settings = settings
        self.processes: list[Process] = []
        self.nodes: list[Member] = []
        self.validators: list[Member] = []
        self.relays = tuple(f"relay-{number}" for number in range(settings.relays))
        self.run = 0
        self.left_out = ""
        """What of the demo's mixture this machine cannot do, and how to get it."""
        self._environments = settings.environments
        self._detach = detach
        self._network = networks.Name.BASE_SEPOLIA if settings.base else networks.Name.ANVIL
        self.deployment: Deployment | None = None
        self._addresses: dict[str, str] = {}
        self._commands: set[subprocess.Popen[str]] = set()
        self._interrupted = False
        self._owner_busy = Lock()  # one sender per key: commands of the owner run one after the other
        self._environment = {**settings.environment, "MURMUR_PASSWORD": PASSWORD}
        self._tasks = settings.environment.get(TASKS_VARIABLE)

    # ---- life ----------------------------------------------------------------------------------------------------------

    def up(self, say: Callable[[str], None]) -> None:
        """Sets everything up and starts all roles; `say` tells what is being done."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        write_json(self.folder / MARK, {})
        say("starting Anvil")
        self.anvil = Anvil(
            self.folder / "logs", chain_id=self._network.network.chain_id, block_time=1,
            optimism=self._network.network.is_public, detach=self._detach, host=self.settings.host_of("anvil"),
        )  # fmt: skip
        self._keep(self.anvil.process)
        self.bank = self._keystore("bank", self.anvil.bank)
        self.owner = self._keystore("owner", Key.generate())
        self._write_run_file(trainer="0x" + "0" * 40, contract="0x" + "0" * 40, bootnode="")
        if self.left_out:
            say(self.left_out)
        with ThreadPoolExecutor(2) as pool:
            try:
                say("deploying the contracts; building and warming up the policy")
                policy = pool.submit(self._make_policy)
                self._create_run(say, policy)
                say("nodes and validators stake")
                list(pool.map(self._add_validator, range(self.settings.validators)))
                nodes = [""] * self.settings.honest + list(self.settings.cheats)
                list(pool.map(self._add_node, range(len(nodes)), nodes))
                policy.result()
            except BaseException:  # the pool waits for its threads, and they for commands that nobody needs any more
                self._interrupt_commands()
                raise
        self.nodes.sort(key=lambda member: member.name)
        self.validators.sort(key=lambda member: member.name)
        say("starting trainer, hub, relays, validators and nodes")
        self._start_roles(say)
        self._remember()

    def down(self) -> None:
        """Stops every process of the swarm, and whatever they started."""
        stop_all(list(reversed(self.processes)))
        self.processes.clear()
        (self.folder / PROCESSES).unlink(missing_ok=True)

    def kill_all(self) -> None:
        """Has `down` wait for nobody any more; may be called within a signal handler."""
        for process in self.processes:
            process.signal(signal.SIGKILL)

    def require_running(self) -> None:
        """Raises PreflightError naming the process that has ended and the end of its log."""
        for process in self.processes:
            process.require_running()

    def start(
        self, name: str, *arguments: str | Path, module: str = "protocol", python: Path | None = None,
        environment: Mapping[str, str] = _NOTHING,
    ) -> Process:  # fmt: skip
        """Starts `murmur …` (or another module's command line), in another Python's environment if need be, and keeps track of it."""
        command = [*self.settings.host_of(name).prefix, python or sys.executable, "-m", module, *arguments]
        environment = environment_of_modules({**self._environment, **self._tasks_of(name), **environment})
        process = Process(name, command, self.folder / "logs" / f"{name}.log", env=environment, detach=self._detach)
        self._keep(process)
        return process

    def stop(self, names: Sequence[str], grace: float = 5.0) -> None:
        """Stops these; who does not end within `grace` seconds is killed."""
        chosen = [process for process in self.processes if process.name in names]
        stop_all(chosen, grace)
        self.processes = [process for process in self.processes if process not in chosen]

    def kill(self, name: str) -> None:
        """Ends a process as a power cut would, and forgets it."""
        (process,) = (process for process in self.processes if process.name == name)
        process.signal(signal.SIGKILL)
        process.wait(5)
        self.processes.remove(process)
        self._remember()

    def stop_nodes(self, grace: float) -> None:
        """Stops all nodes, honest and not."""
        self.stop([CHEATS, *(node.name for node in self.nodes)], grace)

    def murmur(self, *arguments: str | Path) -> str:
        """Runs one command to its end and returns what it printed. Raises CommandFailed."""
        shown = " ".join(["murmur", *map(str, arguments)])
        command = spawn(
            [sys.executable, "-m", "protocol", *arguments],
            env={**os.environ, **self._environment, **self._tasks_of("trainer")},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._commands.add(command)
        if self._interrupted:
            command.kill()
        try:
            out, err = _output(command, Patience(COMMAND_SECONDS), shown)
        finally:
            command.kill()
            command.wait()
            self._commands.discard(command)
        if command.returncode:
            raise CommandFailed(f"`{shown}` ended with {command.returncode}:\n{err.strip() or out.strip()}")
        return out

    def _interrupt_commands(self) -> None:
        self._interrupted = True
        for command in list(self._commands):
            command.kill()

    def _tasks_of(self, name: str) -> dict[str, str]:
        """Where a process keeps task files: each as on a machine of its own, so that they come from the hub."""
        return {TASKS_VARIABLE: self._tasks or str(self.folder / "tasks" / name)}

    def json(self, *arguments: str | Path) -> dict[str, Any]:
        return dict(json.loads(self.murmur(*arguments, "--json")))

    def _keep(self, process: Process) -> None:
        self.processes.append(process)
        self._remember()

    def _remember(self) -> None:
        """Notes the processes, so that another command can find and stop them."""
        write_json(self.folder / PROCESSES, [{"name": p.name, "pid": p.pid} for p in self.processes])
        write_json(self.folder / MARK, {"rpc": self.anvil.rpc, "run": self.run})

    # ---- set-up --------------------------------------------------------------------------------------------------------

    def _keystore(self, name: str, key: Key) -> Path:
        path = self.folder / f"{name}.json"
        save_keystore(key, path, PASSWORD, chain_id=self._network.network.chain_id)
        self._addresses[name] = key.address
        return path

    def _make_policy(self) -> None:
        self.murmur("trainer", "tiny", f"@{self.run_toml}", "--seed", str(self.settings.seed))

    def _await_weights(self, policy: Future[None]) -> None:
        """Until the first weights of the policy in the making. Raises what ended its making."""

        def begun() -> bool:
            if policy.done():
                policy.result()  # why there are none is worth telling, not how long they were waited for
            return (self.folder / "policy/model.safetensors").exists()

        wait_until(begun, deadline=COMMAND_SECONDS, what="the policy")

    def _create_run(self, say: Callable[[str], None], policy: Future[None]) -> None:
        addresses = self.folder / "deployment.json"
        self.murmur(
            "chain",
            "deploy",
            "--network",
            self._network,
            "--rpc",
            self.anvil.rpc,
            "--keystore",
            self.bank,
            "--sink",
            "0x" + "51" * 20,
            "--out",
            addresses,
            "--yes",
        )
        self.deployment = Deployment.load(addresses)
        self.chain = Chain(self.anvil.rpc, self.deployment.runs)
        self._bank = Sender(self.chain, self.anvil.bank)
        where = ("--network", self._network, "--rpc", self.anvil.rpc)
        trainer = self.murmur("chain", "new-key", self.folder / "trainer.json", *where).strip()
        self._give(trainer, 0)
        self._give(self._addresses["owner"], 1_000_000)
        self.bootnode = self._start_bootnode()
        self._write_run_file(trainer=trainer, contract=self.chain.runs.address, bootnode=self.bootnode)
        # The warm-up writes weights again and again; config and tokenizer, which the spec names, stand from the first time.
        self._await_weights(policy)
        say("creating and funding the run")
        self.run = int(self.json("run", "create", f"@{self.run_toml}", "--keystore", self.owner, "--yes")["run"])
        self._write_run_file(trainer=trainer, contract=self.chain.runs.address, bootnode=self.bootnode)
        self.murmur("run", "fund", f"@{self.run_toml}", "10000", "--keystore", self.owner, "--yes")

    def _start_bootnode(self) -> str:
        home = self.folder / "bootnode"
        listen = self.settings.host_of("bootnode").listen
        self.murmur("bootnode", "init", "--home", home, "--listen", listen, "--rpc", self.anvil.rpc)
        process = self.start("bootnode", "bootnode", "start", "--home", home)
        status: dict[str, Any] = {}

        def listening() -> bool:
            process.require_running()
            status.update(read_json(home / "status.json") or {})
            return bool(status.get("addresses"))

        wait_until(listening, deadline=60, what="the bootnode listens")
        return str(status["addresses"][0])

    @property
    def run_toml(self) -> Path:
        return self.folder / "run.toml"

    def _write_run_file(self, *, trainer: str, contract: str, bootnode: str) -> None:
        if not self._environments:
            mixed = mixture.write(self.folder)
            self._environments, self.left_out = mixed.environments, mixed.left_out
        tables = run_file(
            self.settings, self._environments, rpc=self.anvil.rpc, contract=contract, chain_id=self._network.network.chain_id,
            run=self.run or None, trainer=trainer, bootnode=bootnode, first_block=self.deployment.block if self.deployment else 0,
        )  # fmt: skip
        write_toml(self.run_toml, tables, "A swarm's run. See docs/train-a-run.md for what each table means.")

    def _join_options(self, home: Path) -> list[str | Path]:
        return [
            "--home", home, "--rpc", self.anvil.rpc, "--contract", self.chain.runs.address, "--run", str(self.run),
            "--bootnode", self.bootnode, "--listen", self.settings.host_of(home.name).listen,
        ]  # fmt: skip

    def _give(self, address: str, tokens: int) -> None:
        self.anvil.give(address, 10 * ETH)
        if tokens:
            self._bank.send(self.chain.transfer_tokens(address, tokens * TOKENS))

    def _add_validator(self, number: int) -> None:
        home = self.folder / f"validator-{number}"
        made = self.json("validator", "init", *self._join_options(home))
        self._give(made["validator"], 1000)
        with self._owner_busy:
            self.murmur("run", "approve", f"@{self.run_toml}", made["validator"], "--keystore", self.owner, "--yes")
        self.murmur("validator", "stake", "700", "--home", home, "--yes")
        self.murmur("validator", "enlist", "--home", home, "--yes")
        self.validators.append(Member(f"validator-{number}", home, made["validator"]))

    def _add_node(self, number: int, cheat: str) -> None:
        name = f"cheat-{cheat}" if cheat else f"node-{number}"
        home = self.folder / name
        made = self.json("node", "init", *self._join_options(home))
        self._give(made["node"], 0)
        self._give(made["operator"], 200)
        self.murmur("node", "stake", "--home", home, "--spec", self.folder / "spec.json", "--yes")
        self.nodes.append(Member(name, home, made["node"], made["operator"], cheat))

    def _start_roles(self, say: Callable[[str], None]) -> None:
        looking = float(self._environment["MURMUR_PEERS__FIND_SECONDS"]) * slowness()
        self._environment["MURMUR_PEERS__FIND_SECONDS"] = f"{looking:.0f}"
        self.start("trainer", "trainer", "run", f"@{self.run_toml}")
        for relay in self.relays:
            home = self.folder / relay
            host = self.settings.host_of(relay).address
            self.murmur("relay", "init", *self._join_options(home), "--host", host, "--port", "0")
            self.start(relay, "relay", "start", "--home", home)
        for validator in self.validators:
            self.start_validator(validator)
        self._start_honest(say)
        if cheats := [f"{node.cheat}={node.home}" for node in self.nodes if node.is_cheat]:
            self.start(CHEATS, *cheats, module="cheats.play")

    def _start_honest(self, say: Callable[[str], None]) -> None:
        """The one on vLLM first, which takes its time: a few steps could be over before it has made anything."""
        *others, last = self.honest
        if self.settings.vllm is None:
            others.append(last)
        else:
            python, files = self.settings.vllm, last.home / "data/rollouts"
            started = self.start(last.name, "node", "start", "--home", last.home, python=python, environment=_VLLM)

            say(f"waiting for the first work of {last.name}, which computes with vLLM")

            def has_worked() -> bool:
                started.require_running()
                return any(files.glob("*.parquet"))

            wait_until(
                has_worked, deadline=VLLM_SECONDS, what=f"the first work of {last.name}, which computes with vLLM"
            )
        for node in others:
            self.start(node.name, "node", "start", "--home", node.home)

    @property
    def honest(self) -> list[Member]:
        return [node for node in self.nodes if not node.is_cheat]

    def start_validator(self, validator: Member) -> None:
        environment = {"MURMUR_ENGINE__ATTENTION": "eager"} if validator.name == _OTHERWISE else _NOTHING
        self.start(validator.name, "validator", "start", "--home", validator.home, environment=environment)


def _output(command: subprocess.Popen[str], patience: Patience, shown: str) -> tuple[str, str]:
    """What a command prints on stdout and stderr until it ends. Raises CommandFailed, with what it has printed, when it does not."""
    while True:
        try:
            return command.communicate(timeout=1)
        except subprocess.TimeoutExpired:
            if patience.ended():
                break
    command.kill()
    out, err = command.communicate()
    printed = "\n".join(filter(None, (err.strip(), out.strip()))) or "(nothing)"
    raise CommandFailed(f"`{shown}` had not ended within {patience}. It had printed:\n{printed}", patience.hint)


def here() -> str:
    """What stands before a path of the repository where this was started."""
    return "" if Path.cwd() == ROOT else f"{ROOT}/"


def how_to_look_around(swarm: Swarm, pages: Mapping[str, str], stop: str, state: str = "The swarm is up.") -> str:
    """What a person may open and type while the swarm is up; `pages`: addresses by whose page it is."""
    node = next(member for member in swarm.nodes if not member.is_cheat)
    root = here()
    listed = "\n".join(f"  {name:<12}{url}" for name, url in pages.items())
    browser = f"In a browser:\n\n{listed}\n\nIn a terminal:" if pages else "Look around with"
    return f"""
{state} {browser}

  export MURMUR_PASSWORD='{PASSWORD}'
  {root}.venv/bin/node status --home {node.home}
  {root}.venv/bin/node submissions --home {node.home}
  {root}.venv/bin/murmur validator status --home {swarm.validators[0].home}
  {root}.venv/bin/murmur trainer status @{swarm.run_toml}
  {root}.venv/bin/murmur trainer samples @{swarm.run_toml}
  {root}.venv/bin/murmur run show @{swarm.run_toml}
  ls {swarm.folder / "logs"}

and stop it with  {stop}"""
