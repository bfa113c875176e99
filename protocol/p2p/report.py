"""What a running host says of itself, for commands in other processes: one JSON file, replaced every few seconds and at the end.

Who reads it checks `pid` and `at`: after a SIGKILL the last word still says "running". Times are seconds of this machine's clock.
What a peer chose to say (addresses) is in its checked form; `problem` may quote a peer.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio

from protocol.p2p.address import peer_text
from protocol.p2p.mesh import summary
from protocol.p2p.peers import replace

if TYPE_CHECKING:
    from protocol.p2p.discovery import Discovery

RUNNING, STOPPED = "running", "stopped"
FILE_BYTES_MAX: Final = 1 << 20
_PEERS_MAX = 256


def report(discovery: Discovery, state: str) -> dict[str, Any]:
    """Called in the host's thread."""
    node, dht, membership = discovery.node, discovery.dht, discovery.membership
    now, wall = trio.current_time(), time.time()
    entries = sorted(dht.table.entries(), key=lambda entry: -entry[1])[:_PEERS_MAX]
    connections = node.connections()
    outbound = sum(connection.outbound for connection in connections)
    bootnodes = [
        {"address": str(known), "problem": problem, "connected": node.connection(known.peer) is not None}
        for known, problem in membership.problems.items()
    ]
    provided = [
        {"role": service.role, "run": service.run, "http": endpoint.http, "holders": discovery.holders(service)}
        for service, endpoint in discovery.announcements().items()
    ]
    peers = [
        {
            "peer": peer_text(contact.peer),
            "addresses": [str(place) for place in contact.addresses],
            "seen": wall - (now - seen),
        }
        for contact, seen in entries
    ]
    return {
        "pid": os.getpid(), "at": wall, "state": state, "peer": peer_text(node.identity.peer),
        "listen": str(discovery.bound) if discovery.bound else None, "announced": [str(place) for place in discovery.own],
        "joined": membership.is_joined, "joining": membership.is_joining,
        "reason": "" if membership.is_joined else membership.reason(),
        "bootnodes": bootnodes, "known": len(dht.table), "peers": peers, "records": len(dht.records),
        "inbound": len(connections) - outbound, "outbound": outbound, "welcomed": node.welcomed, "provides": provided,
        "provided": discovery.provided,
        "counts": dict(node.counts + discovery.dropped),
        "gossip": summary(discovery.gossip.mesh) if discovery.gossip else None,
    }  # fmt: skip


def write(path: Path, discovery: Discovery, state: str) -> None:
    replace(path, json.dumps(report(discovery, state)).encode(), "what the p2p host knows")


def read(path: Path) -> dict[str, Any] | None:
    """What was said last; None where there is nothing that can be read."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(FILE_BYTES_MAX + 1))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
