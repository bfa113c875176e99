"""What the validator's commands share: its home and settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protocol.shell.home import Home, default_home
from protocol.shell.money import duration

if TYPE_CHECKING:
    from node.validator.settings import ValidatorSettings
    from protocol.chain import Chain, Sender
    from protocol.chain.types import Validator

HomeOption = Annotated[
    Path, typer.Option("--home", help="Folder of key, settings and data.", envvar="MURMUR_HOME", readable=False)
]
DEFAULT_HOME = default_home("validator")


def validator_sender(home: Home, settings: ValidatorSettings, chain: Chain, password_file: Path | None) -> Sender:
    """Sends for a command. What an earlier command began is ended before it is returned: read the chain afterwards."""
    from protocol.shell.sending import command_sender

    key = home.open_key("validator", password_file)
    return command_sender(chain, key, home.keystore("validator"), settings.chain.limits, scope=home.path)


def role_of(seat: Validator, now: int) -> str:
    if seat.serves(now):
        return "active" if not seat.until else f"active for {duration(seat.until - now)} more"
    return "left" if seat.since else "approved" if seat.approved else "none"


def open_home(path: Path) -> tuple[Home, ValidatorSettings]:
    from node.validator.settings import ValidatorSettings
    from protocol.settings import load

    home = Home(path, "validator")
    return home, load(ValidatorSettings, home.require_config()).value
