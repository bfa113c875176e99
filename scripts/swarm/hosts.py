"""Hosts of a swarm: this machine, or two network namespaces of it between which everything goes over a wire of the kernel's.

Each namespace has an address and a loopback of its own; what one of its processes offers on 127.0.0.1, the other does not see. Disk, clock
and processors are shared.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_NAMES = "murm"  # then the number of the process that made them; an interface's name has at most fifteen characters


@dataclass(frozen=True)
class SwarmHost:
    """Where processes run, and under which address others find them."""

    address: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()
    """What a command begins with there."""
    interface: str = ""
    """This machine's end of its wire."""

    @property
    def listen(self) -> str:
        return f"/ip4/{self.address}/tcp/0"

    @property
    def received(self) -> int:
        """Bytes that came over its wire."""
        return int(Path(f"/sys/class/net/{self.interface}/statistics/tx_bytes").read_text())

    @property
    def sent(self) -> int:
        """Bytes that left over its wire."""
        return int(Path(f"/sys/class/net/{self.interface}/statistics/rx_bytes").read_text())


HERE = SwarmHost()


def why_not() -> str:
    """Why this machine makes no network namespaces; empty where it does."""
    if os.geteuid() != 0:
        return "network namespaces are made by root"
    try:
        with network(1):
            return ""
    except FileNotFoundError:
        return "the program `ip` is not installed (iproute2)"
    except subprocess.CalledProcessError as error:
        return f"no network namespace: {error.stderr.strip()}"


@contextmanager
def network(count: int = 2) -> Iterator[tuple[SwarmHost, ...]]:
    """So many hosts on one switch, to which this process is connected as well; they are gone afterwards. Raises CalledProcessError.

    One at a time in a process, beside those of others.
    """
    _sweep()
    switch, net = f"{_NAMES}{os.getpid()}", f"10.199.{os.getpid() % 256}"
    try:
        _ip("link", "add", switch, "type", "bridge")
        _ip("addr", "add", f"{net}.254/24", "dev", switch)
        _ip("link", "set", switch, "up")
        yield tuple(_host(switch, number, f"{net}.{number}") for number in range(1, count + 1))
    finally:
        _remove(switch)


def _host(switch: str, number: int, address: str) -> SwarmHost:
    name = f"{switch}-{number}"
    _ip("netns", "add", name)
    _ip("link", "add", name, "type", "veth", "peer", "name", "wire", "netns", name)
    _ip("link", "set", name, "master", switch, "up")
    _ip("-n", name, "addr", "add", f"{address}/24", "dev", "wire")
    for device in ("wire", "lo"):
        _ip("-n", name, "link", "set", device, "up")
    return SwarmHost(address, ("ip", "netns", "exec", name), name)


def _sweep() -> None:
    """Removes what a process that was killed has left."""
    for path in Path("/sys/class/net").glob(f"{_NAMES}*"):
        maker = path.name.removeprefix(_NAMES)
        if maker.isdecimal() and not Path(f"/proc/{maker}").exists():
            _remove(path.name)


def _remove(switch: str) -> None:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    for name in (line.split()[0] for line in listed.splitlines()):
        if name.startswith(f"{switch}-"):
            _ip("netns", "del", name)
            subprocess.run(
                ["ip", "link", "del", name], capture_output=True, check=False
            )  # while something still runs in it
    subprocess.run(["ip", "link", "del", switch], capture_output=True, check=False)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True, timeout=30)
