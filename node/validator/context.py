"""What the validator's commands share: its home and settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from node.validator.settings import ValidatorSettings
from protocol.home import Home, default_home
from protocol.settings import load

HomeOption = Annotated[Path, typer.Option("--home", help="Folder of key, settings and data.", envvar="MURMUR_HOME")]
DEFAULT_HOME = default_home("validator")


def open_home(path: Path) -> tuple[Home, ValidatorSettings]:
    home = Home(path, "validator")
    return home, load(ValidatorSettings, home.require_config()).value
