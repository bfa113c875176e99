"""A small real network for tests: hosts on loopback with quick timings, and a way to wait for conditions."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from swarm.processes import ROOT

from protocol.errors import MurmurationError
from protocol.identity import Key
from protocol.p2p import Directory, Endpoint, Host, Provider, Service, Timing
from tests.clock import eventually

CONTRACT = "0x" + "ab" * 20
RELAY = Service(31337, CONTRACT, 1, "relay")
HUB = Service(31337, CONTRACT, 1, "hub")

QUICK = Timing(retry=0.05, retry_most=0.4, settle=120, handshake=2.0, stream=3.0, request=2.0, dial=2.0)


def endpoint(port: int, service: Service = RELAY) -> Endpoint:
    return Endpoint(role=service.role, run=service.run, http=f"http://127.0.0.1:{port}")


def with_our_modules() -> dict[str, str]:
    """The environment of a child that imports what tests import."""
    return {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'scripts'}"}


class Network:
    """Starts hosts and closes them all at the end of the test."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def host(self, *bootnodes: Host | str, key: Key | None = None, **options: Any) -> Host:
        addresses = [text for each in bootnodes for text in ([each] if isinstance(each, str) else each.addresses)]
        options.setdefault("timing", QUICK)
        made = Host(key or Key.generate(), bootnodes=addresses, **options)
        return self._stack.enter_context(made)

    def provider(self, *bootnodes: Host | str, service: Service = RELAY, port: int = 8100, **options: Any) -> Host:
        """A host whose provider record somebody else already holds."""
        made = self.host(*bootnodes, **options)
        Directory(made).announce(service, endpoint(port, service), deadline=20)
        return made

    def gone(self) -> str:
        """The address of a host that is not there; nobody else gets its port before the end of the test."""
        held = self._stack.enter_context(socket.socket())
        held.bind(("127.0.0.1", 0))
        return f"/ip4/127.0.0.1/tcp/{held.getsockname()[1]}/p2p/{Key.generate().peer_id}"

    def close(self) -> None:
        self._stack.close()


def find(host: Host, service: Service = RELAY, *, within: float = 20.0, at_least: int = 1) -> dict[str, Provider]:
    """By PeerID."""
    found = Directory(host).find(service, within, at_least)
    return {provider.peer_id: provider for provider in found}


def find_exactly(
    host: Host, wanted: set[str], service: Service = RELAY, *, within: float = 20.0
) -> dict[str, Provider]:
    """Looks until exactly the PeerIDs `wanted` are found: stale records may need a moment to be replaced."""
    last: dict[str, Provider] = {}

    def look() -> bool:
        last.clear()
        try:
            last.update(find(host, service, within=2.0, at_least=len(wanted)))
        except MurmurationError:
            return False
        return set(last) == wanted

    eventually(look, within=within, what=f"finding {sorted(wanted)}")
    return last


def listening_on(host: Host) -> str:
    """The address a host listens on, without the PeerID: to start another one there."""
    return host.addresses[0].partition("/p2p/")[0]


def port_of(host: Host) -> int:
    return int(listening_on(host).rpartition("/")[2])


def quick(**changes: float) -> Timing:
    return replace(QUICK, **changes)
