"""One key works once on a machine: a copy of a home is refused while the other runs, whatever folder it lies in."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.constants import ANVIL_CHAIN_ID
from protocol.errors import LockHeld
from protocol.identity import Key
from protocol.shell.home import only_here
from tests.cli.conftest import Contributor

HOLD = "from protocol.shell.home import only_here\nimport sys\nwith only_here(sys.argv[1], 31337): print('held', flush=True); input()"


def test_a_copy_of_a_running_home_is_refused(contributor: Contributor, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(contributor.path, copy)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, contributor.node], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        done = contributor.console.node("start", "--home", copy)
        assert done.code == 7
        assert f"the key {contributor.node} is in use by process {holder.pid}" in done.err
    finally:
        holder.kill()
        holder.wait()
    with only_here(contributor.node, ANVIL_CHAIN_ID):
        pass  # a process that was killed holds nothing


def test_other_keys_and_other_chains_are_nobodys_business() -> None:
    one, other = Key.generate().address, Key.generate().address
    with only_here(one, 1), only_here(other, 1), only_here(one, 2), pytest.raises(LockHeld), only_here(one, 1):
        pass
