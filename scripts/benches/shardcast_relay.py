"""Origin → relay → client as fast as this machine goes, ours and the published shardcast in turns, and what the machine allows.

Time counts from the moment the origin is given the file until the client has all of it, checked. CPU time is that of all three
parties together. The limits are each measured alone: hashing on one core, moving bytes through a socket, writing to the disk.
"""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

from blake3 import blake3

from benches import Bench, Cost, Row
from benches.peers import Conversation, python
from benches.shardcast_stage import stage, weights

_MIB = 1 << 20
_ROUNDS = 3
_DEADLINE = 300.0


def relay(bench: Bench, size: int) -> None:
    peer = python("shardcast")
    if shutil.which("wget") is None:
        raise SystemExit("the published shardcast needs wget")
    for memory, goal, share_goal in ((False, 2.5, 0.6), (True, 4.5, None)):
        where = "memory" if memory else "disk"
        turns = [(_ours(size, memory=memory), _peer(peer, size, memory=memory)) for _ in range(_ROUNDS)]
        wall, cpu = ([[turn[who][what] for turn in turns] for who in (0, 1)] for what in (0, 1))
        best = [min(times) for times in wall]
        rates = [size / _MIB / seconds for seconds in best]
        bench.rows.append(Row(f"origin → relay → client, {where}", "MiB/s", *rates, rates[0] / rates[1], goal))
        costs = [statistics.median(times) / (size / (1 << 30)) for times in cpu]
        bench.rows.append(Cost(f"CPU of all three, {where}", "s/GiB", *costs, costs[1] / costs[0], costs[1] / 2.5))
        slowest = min(limits(size, memory=memory).values())
        bench.rows.append(Row(f"slowest limit, {where}", "MiB/s", slowest, None, None, None))
        bench.rows.append(Row(f"share of it, {where}", "", rates[0] / slowest, None, rates[0] / slowest, share_goal))


def _ours(size: int, *, memory: bool) -> tuple[float, float]:
    with stage(memory=memory) as cast:
        folder = weights(cast, size)
        relaying, client = cast.party("relay"), cast.party("client", serve=False)
        began = time.monotonic()
        origin = cast.party("origin", folder=str(folder), start=began)
        orders = [cast.order(origin, [origin]), cast.order(origin, [relaying])]
        cast.fetch([relaying, client], orders)
        took = time.monotonic() - began - origin.told["start_seconds"]
        return took, sum(party.end()["cpu"] for party in cast.parties)


def _peer(interpreter: Path, size: int, *, memory: bool) -> tuple[float, float]:
    script = Path(__file__).with_name("shardcast_peer.py")
    with stage(memory=memory) as cast:
        file = weights(cast, size) / "model.safetensors"
        ports = [_free_port(), _free_port()]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        with (
            Conversation(interpreter, script) as origin,
            Conversation(interpreter, script) as middle,
            Conversation(interpreter, script) as client,
        ):
            origin.ask(role="origin", root=str(cast.root / "o"), port=ports[0], file=str(file))
            middle.ask(role="relay", root=str(cast.root / "m"), port=ports[1], upstream=urls[0])
            client.ask(role="client", root=str(cast.root / "c"), upstream=urls[1])
            middle.ask()
            began = time.monotonic()
            publishing = threading.Thread(target=origin.ask)
            publishing.start()
            got = client.ask()["bytes"]
            took = time.monotonic() - began
            publishing.join()
            if got != size:
                raise RuntimeError(f"the peer brought {got} bytes of {size}")
            return took, sum(party.ask()["cpu"] for party in (origin, middle, client))


def limits(size: int, *, memory: bool) -> dict[str, float]:
    """MiB a second of each thing that must be done with every byte, alone."""
    block = os.urandom(4 * _MIB)
    rounds = size // len(block)
    return {"hash": _rate(size, lambda: [blake3(block).digest() for _ in range(rounds)]),
            "socket": _rate(size, lambda: _through_a_socket(block, rounds)),
            "write": _rate(size, lambda: _write(block, rounds, memory=memory))}  # fmt: skip


def _rate(size: int, work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return size / _MIB / (time.monotonic() - began)


def _through_a_socket(block: bytes, rounds: int) -> None:
    ends = socket.create_server(("127.0.0.1", 0))
    sender = socket.create_connection(ends.getsockname())
    receiver = ends.accept()[0]

    def send() -> None:
        for _ in range(rounds):
            sender.sendall(block)

    thread = threading.Thread(target=send)
    thread.start()
    room, left = memoryview(bytearray(len(block))), rounds * len(block)
    while left:
        left -= receiver.recv_into(room)
    thread.join()
    for one in (ends, sender, receiver):
        one.close()


def _write(block: bytes, rounds: int, *, memory: bool) -> None:
    with stage(memory=memory) as cast, (cast.root / "written").open("wb") as file:
        for _ in range(rounds):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])
