"""How fast weights travel: one relay as fast as the machine goes, and trees and chains of parties on lines of 10 MB/s each.

`shardcast` 0.3.2, the published program, is the peer where it can do the same work. The floors of the fan-outs are printed
beside them: what the lines allow at best, whatever the program.
"""

from __future__ import annotations

import argparse

from benches import Bench, Cost
from benches.shardcast_relay import relay
from benches.shardcast_stage import stage, weights

RATE = 10e6  # bytes a second of every limited line, in each direction
_MIB = 1 << 20


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mebibytes", type=int, default=256, help="size of the version on limited lines")
    parser.add_argument("--only", choices=["relay", "fan-out", "serving", "chain", "uneven"], help="one part of it")


def run(mebibytes: int = 256, only: str | None = None) -> Bench:
    bench = Bench("shardcast")
    size = mebibytes * _MIB
    if only in (None, "relay"):
        relay(bench, 2 * size)
    if only in (None, "uneven"):
        uneven(bench, size)
    if only in (None, "fan-out"):
        fan_out(bench, size, serving=False)
    if only in (None, "serving"):
        fan_out(bench, size, serving=True)
    if only in (None, "chain"):
        chains(bench, size)
    return bench


def fan_out(bench: Bench, size: int, *, serving: bool, relays: int = 3, clients: int = 12) -> None:
    """1 → relays → clients, everybody at once; what the origin sent and when the last client had it, in copies and direct downloads."""
    with stage(1 + relays + clients) as cast:
        origin = cast.party("origin", rate=RATE, folder=str(weights(cast, size)))
        tier = [cast.party("relay", rate=RATE) for _ in range(relays)]
        crowd = [cast.party("client", rate=RATE, serve=serving) for _ in range(clients)]
        origin.ask({"relays": [relay.url for relay in tier]})
        origin.hear()
        orders = [cast.order(origin, [origin, *(other for other in tier if other is not relay)]) for relay in tier]
        for client in crowd:
            neighbours = [other for other in crowd if other is not client] if serving else []
            orders.append(cast.order(origin, [origin, *tier, *neighbours]))
        told = cast.fetch([*tier, *crowd], orders)
        sent = {party.name: party.end()["sent"] / size for party in cast.parties}
    direct = size / RATE
    last = max(one["seconds"] for one in told[relays:]) / direct
    name = f"1 → {relays} → {clients}, nodes {'serving' if serving else 'not serving'}"
    copies = relays + 0.3
    floor = 1.0 if serving else max(1.0, (clients + relays - copies) / relays)
    bench.rows.append(Cost(f"{name}: sent by the origin", "files", sent["origin-1"], None, None, 3.3))
    bench.rows.append(Cost(f"{name}: last client", "direct", last, None, None, 2.0 if serving else 4.5))
    bench.rows.append(Cost(f"{name}: floor", "direct", floor, None, None, None))
    cpu = sum(one["cpu"] for one in told[relays:]) / clients / (size / (1 << 30))
    bench.rows.append(Cost(f"{name}: CPU of a client", "s/GiB", cpu, None, None, None))


def chains(bench: Bench, size: int, longest: int = 3) -> None:
    """origin → relay → … → client, each asking only the one before: how much longer than one hop."""
    hop = 0.0
    for length in range(longest + 1):
        with stage(2 + length) as cast:
            origin = cast.party("origin", rate=RATE, folder=str(weights(cast, size)))
            line = [origin, *(cast.party("relay", rate=RATE) for _ in range(length)), cast.party("client", rate=RATE)]
            orders = [cast.order(origin, [before]) for before in line[:-1]]
            took = cast.fetch(line[1:], orders)[-1]["seconds"]
        if not length:
            hop = took
            bench.rows.append(Cost("one hop", "direct", hop / (size / RATE), None, None, None))
        else:
            bench.rows.append(Cost(f"chain of {length}", "hops", took / hop, None, None, 1.3))


def uneven(bench: Bench, size: int) -> None:
    """A client of two relays, of 5 and of 50 MB/s, that hold all of it: how much longer than both together would take."""
    with stage(4) as cast:
        origin = cast.party("origin", folder=str(weights(cast, size)))
        tier = [cast.party("relay", rate=rate) for rate in (5e6, 50e6)]
        client = cast.party("client")
        cast.fetch(tier, [cast.order(origin, [origin])] * 2)
        took = cast.fetch([client], [cast.order(origin, tier)])[0]["seconds"]
    bench.rows.append(Cost("relays of 5 and 50 MB/s", "ideal", took / (size / 55e6), None, None, 1.2))
