"""Folders that all roles of a machine share. Imports little: the sandbox's child starts often and needs this."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_data_path

TASKS_VARIABLE = "MURMUR_TASKS"


def tasks_folder() -> Path:
    """Where the task files of all roles of this machine lie, by digest: they may be large."""
    return Path(os.environ.get(TASKS_VARIABLE) or user_data_path("murmuration") / "tasks")
