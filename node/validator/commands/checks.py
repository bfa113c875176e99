"""What `murmur validator doctor` looks at: what all roles do (protocol/shell/role_checks.py), the seat, and the device it judges with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from node.validator.commands.context import role_of
from protocol.errors import PreflightError
from protocol.shell.checkup import Answer, Check
from protocol.shell.money import tokens
from protocol.shell.role_checks import CHAIN, GAS, LOCAL, NETWORK, SANDBOX, look_at_programs
from protocol.shell.role_subject import RoleSubject

if TYPE_CHECKING:
    from node.validator.settings import ValidatorSettings


class ValidatorSubject(RoleSubject):
    settings: ValidatorSettings

    def _read(self) -> ValidatorSettings:
        from node.validator.settings import ValidatorSettings
        from protocol.settings import load

        return load(ValidatorSettings, self.place.require_config()).value


def look_at_seat(s: ValidatorSubject) -> Answer:
    run, address = s.settings.chain.run, s.address
    seat, now = s.chain.validator(run, address), s.chain.block().time
    if seat.serves(now):
        return f"{role_of(seat, now)}, {tokens(seat.locked)} back it"
    if not seat.approved:
        raise PreflightError(
            f"{address} is not approved for run {run}",
            hint=f"its owner runs: murmur run approve @run.toml {address} --keystore OWNER.json",
        )
    raise PreflightError(f"{address} holds no validator seat in run {run}", hint=s.command("enlist"))


def look_at_device(s: ValidatorSubject) -> Answer:
    """Raises PreflightError where it is not there."""
    from node.engine.hardware import measure_of

    return measure_of(s.settings.engine).told()


CHECKS: tuple[Check[ValidatorSubject], ...] = (
    *LOCAL,
    *SANDBOX,
    *CHAIN,
    *GAS,
    Check("seat", look_at_seat, ("run", "keys"), seconds=30),
    *NETWORK,
    Check("device", look_at_device, ("settings",), seconds=60),
    Check("programs", look_at_programs, ("settings",), seconds=40),
)
