"""A role in the foreground: what every `… start` brings up before its service runs, in the order in which one needs the other.

Settings are there already. Logging; the key; signals that end the role; the locks of home and key; metrics; chain and peers, and their gossip.
Whatever ends it, the status says that it stopped, whether the run was over, and which step is its last.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from protocol.chain.settings import ChainSettings
from protocol.errors import PreflightError
from protocol.exporter import Exporter, Health
from protocol.logs import LoggingSettings, set_up_logging
from protocol.metrics import MetricsSettings
from protocol.shell import gas, spec_file
from protocol.shell.connection import Connection, connect
from protocol.shell.home import LAST_STEP, OVER, PEERS, REPORT, Home, only_here
from protocol.shell.peers import PeerSettings
from protocol.shell.signals import Ending, until_signalled

log = logging.getLogger(__name__)


class RoleSettings(Protocol):
    chain: ChainSettings
    peers: PeerSettings
    logging: LoggingSettings
    metrics: MetricsSettings


@dataclass(frozen=True)
class RunningRole:
    """A role that is up."""

    connection: Connection
    ending: Ending
    progress: Callable[[], None]
    """To be called when the role has got on: its health counts from there."""


@contextmanager
def role(
    place: Home, settings: RoleSettings, password_file: Path | None, *, what: str, pays_gas: bool = True
) -> Iterator[RunningRole]:
    """The role of a home, until the block ends or a signal comes. `what` names its progress: "a turn of the validator". `pays_gas`: its key
    sends transactions, and what it has left for them is among the metrics.

    Raises SystemExit where a signal comes before it is up; else what `Home.open_key` and `connect` raise, LockHeld where home or key are in use on this machine.
    """
    set_up_logging(settings.logging)
    key = place.open_key(place.role, password_file)
    is_up = False
    with (
        until_signalled() as ending,
        place.lock(),
        only_here(key.address, settings.chain.chain_id),
        Exporter(settings.metrics, Health(what, settings.metrics.progress_seconds), folder=place.path) as exporter,
        connect(
            settings.chain,
            settings.peers,
            key,
            peers_file=place.data / PEERS,
            report_file=place.data / REPORT,
            kept_spec=spec_file.path_in(place),
        ) as connection,
        gas.watched(connection.chain, key.address) if pays_gas and exporter.url is not None else nullcontext(),
    ):
        place.metrics_url = exporter.url
        if settings.peers.gossip:
            connection.join_gossip()
        is_up = True
        try:
            yield RunningRole(connection, ending, exporter.progress)
        finally:
            try:
                said = place.read_status() or {}
                place.write_status(state="stopped", **{name: said[name] for name in (OVER, LAST_STEP) if name in said})
            except PreflightError as error:  # a full disk; why the role ended is said by another error, or by none
                log.warning("%s", error)
    if not is_up:
        raise SystemExit(0)  # a signal came before there was anything to run
