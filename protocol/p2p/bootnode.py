"""A bootnode: a host with a well-known address that only helps others to meet. It holds routing tables and provider
records in memory; after a restart the others come back and announce themselves anew."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from protocol.clock import SYSTEM, Clock
from protocol.errors import MurmurationError
from protocol.p2p.host import Host
from protocol.p2p.settings import HostLimits, Timing

if TYPE_CHECKING:
    from protocol.identity import Key

_LOOK_SECONDS = 10.0  # between questions whether the host still answers


def run_bootnode(
    key: Key,
    listen: str,
    *,
    bootnodes: Iterable[str] = (),
    announce: Iterable[str] = (),
    peers_file: Path | None = None,
    report_file: Path | None = None,
    timing: Timing = Timing(),
    limits: HostLimits = HostLimits(),
    ready: Callable[[Host], None] | None = None,
    stop: threading.Event | None = None,
    progress: Callable[[], None] = lambda: None,
    clock: Clock = SYSTEM,
) -> None:
    """Serves until `stop` is set, or for ever; `ready` is called once with the listening host. Prints nothing.

    `bootnodes` are other bootnodes of the same network, if there are any. Raises ConfigError, or PreflightError when it
    cannot listen. `progress` is called as long as the host's thread answers.
    """
    with Host(
        key, listen, bootnodes, announce=announce, peers_file=peers_file, report_file=report_file, timing=timing, limits=limits
    ) as host:  # fmt: skip
        if ready is not None:
            ready(host)
        stop = stop or threading.Event()
        while not clock.wait(stop, _LOOK_SECONDS):
            with suppress(MurmurationError):  # it is starting anew, and says so itself
                host.status()
                progress()
