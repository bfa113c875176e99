"""What `murmur trainer doctor` looks at, for trainer and hub: what all roles do (protocol/shell/role_checks.py), the run's spec and key, its
jury, and whether the training fits this machine."""

from __future__ import annotations

import shlex
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from protocol.errors import ConfigError, MurmurationError
from protocol.http_url import secrets_of
from protocol.shell.checkup import Answer, Check
from protocol.shell.home import Home, address_in, holder
from protocol.shell.role_checks import CHAIN, GAS, LOCAL, NETWORK, SANDBOX
from protocol.shell.role_subject import OwnPort, RoleSubject
from trainer.config import Layout, RunSettings, load_run

if TYPE_CHECKING:
    from protocol.runspec import RunSpec


class TrainerSubject(RoleSubject):
    """Of a run's file. `hub_alone`: the hub is about to start without a trainer."""

    settings: RunSettings

    def __init__(
        self, file: Path, *, password_file: Path | None = None, starting: bool = False, hub_alone: bool = False
    ) -> None:
        self.file = file
        self.hub_alone = hub_alone
        super().__init__(Home(file.resolve().parent, "trainer"), password_file=password_file, starting=starting)

    def _read(self) -> RunSettings:
        return load_run(self.file).value

    @cached_property
    def layout(self) -> Layout:
        return Layout(self.file, self.settings)

    def require_own_home(self) -> None:
        """Of the output folder, which has the status and the lock."""
        try:
            output = self.layout.output
        except (MurmurationError, OSError):  # its settings, which another check looks at
            return
        Home(output, self.role).require_own()

    @property
    def config(self) -> Path:
        return self.file

    @property
    def private(self) -> list[Path]:
        """run.toml itself only where it holds the key of an RPC provider."""
        has_secrets = any(secrets_of(url) for url in self.urls)
        with suppress(MurmurationError, OSError):  # its settings, which another check looks at
            return [self.keystore, *([self.file] if has_secrets else [])]
        return []

    @property
    def weights(self) -> Path | None:
        return None

    @property
    def keystore(self) -> Path:
        return self.layout.keystore

    @property
    def init(self) -> str:
        return (
            f"murmur chain new-key {shlex.quote(str(self.keystore))}"
            if self.file.exists()
            else "murmur trainer preset --help"
        )

    @property
    def standpoint(self) -> str:
        return f"@{self.file}"

    @property
    def needs_hub(self) -> bool:
        return False

    @property
    def locks(self) -> dict[Path, str]:
        hub = {Home(self.layout.hub, "hub").lock_file: str(self.layout.hub)}
        own = {Home(self.layout.output, "trainer").lock_file: str(self.layout.output)}
        if self.hub_alone:
            return hub
        return own if self.starting else own | hub  # the hub of a trainer that was killed may take a moment to end

    @property
    def address(self) -> str:
        return address_in(self.keystore, "the trainer key", self.init)

    @property
    def is_running(self) -> bool:
        return any(holder(file) is not None for file in self.locks)

    @property
    def spec(self) -> RunSpec | None:
        from protocol.shell import runfile

        return runfile.read_spec(self.file)

    @property
    def then(self) -> str:
        return self.command("status" if self.is_running else "run")

    @property
    def listeners(self) -> list[OwnPort]:
        if self.starting and not self.hub_alone:
            return []
        hub = self.settings.hub
        own = [OwnPort("hub.port", hub.host, hub.port), OwnPort("hub.origin_port", hub.host, hub.origin_port)]
        own += [OwnPort("hub.metrics.port", hub.metrics.host, hub.metrics.port)] if hub.metrics.port else []
        return [*super().listeners, *(each for each in own if each.port)]

    def command(self, verb: str) -> str:
        return f"murmur trainer {verb} {shlex.quote(f'@{self.file}')}"


def look_at_spec(s: TrainerSubject) -> Answer:
    """Raises ConfigError."""
    from protocol.shell import runfile

    return f"digest 0x{runfile.read_spec(s.file).digest.hex()[:12]}…"


def look_at_key_of_run(s: TrainerSubject) -> Answer:
    """Raises PreflightError or IntegrityError."""
    from protocol.shell import runfile
    from trainer.hub.service import require_own_run

    require_own_run(s.chain, s.settings.chain.run, s.address, runfile.read_spec(s.file))
    return "the run is trained by this key, and has this spec"


def look_at_jury(s: TrainerSubject) -> Answer:
    from protocol.shell import doctor
    from protocol.shell.role_checks import chain_subject

    return doctor.look_at_jury(s.chain, chain_subject(s))


def look_at_plan(s: TrainerSubject) -> Answer:
    """As `murmur trainer plan` has it. Raises PreflightError that names what to change."""
    from protocol.model_files import CONFIG
    from trainer.config import load_planned
    from trainer.planning.budget import Machines
    from trainer.planning.plan import plan

    model = s.layout.model
    if not (model / CONFIG).exists():
        raise ConfigError(f"there is no model in {model}", hint="murmur trainer import --help; or set trainer.model")
    settings, engines = load_planned(s.file)
    plan(s.file, model, settings, engines, Machines.here(), prompt_tokens=1024).require_fit()
    return f"the training fits this machine; {s.command('plan')} says what it takes"


CHECKS: tuple[Check[TrainerSubject], ...] = (
    *LOCAL,
    *SANDBOX,
    Check("spec", look_at_spec, ("settings",), starts=True),
    *CHAIN,
    Check("trainer", look_at_key_of_run, ("run", "keys", "spec"), seconds=30),
    Check("jury", look_at_jury, ("run",), seconds=30),
    *GAS,
    *NETWORK,
    Check("plan", look_at_plan, ("settings",), seconds=180),
)
