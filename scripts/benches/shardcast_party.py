"""One party of a broadcast in a process of its own: origin, relay or client. Speaks lines of JSON on its standard streams.

The first line it reads says what it is; it answers with where it serves. A client or relay fetches on the next line, and
says how that went. Every party serves until its input ends, and then says how much it sent.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from protocol.identity import Key
from protocol.shardcast.client import Client
from protocol.shardcast.origin import Origin
from protocol.shardcast.precedence import RelaysFirst
from protocol.shardcast.server import ServerLimits, ShardServer
from protocol.shardcast.source import Source
from protocol.shardcast.store import VersionStore
from protocol.shardcast.uplink import Uplink
from protocol.signing import Domain

KEY = Key.from_secret("0x" + "11" * 32)
DOMAIN = Domain(31337, "0x" + "22" * 20)  # type: ignore[arg-type]
RUN, STEP = 1, 1
_LIMITS = ServerLimits(connections=512, per_address=512)


def main() -> None:
    asked = _read()
    assert asked is not None
    with ExitStack() as stack:
        store = stack.enter_context(VersionStore(Path(asked["root"]), 5, reserve=0))
        options: dict[str, Any] = {"host": asked["host"], "limits": _LIMITS, "uplink": Uplink(asked.get("rate"))}
        answer: dict[str, Any] = {}
        before = time.process_time()
        if asked["role"] == "origin":
            began = time.monotonic()
            answer["start_seconds"] = began - asked.get("start", began)  # of this process, before it is given the file
            manifest = Origin(store, KEY, DOMAIN, RUN, anchor_every=1).publish(Path(asked["folder"]), STEP, link=True)
            answer |= {"digest": manifest.digest.hex(), "publish_seconds": time.monotonic() - began}
        first = RelaysFirst()
        if asked["role"] == "origin":
            options |= {"is_first": first.is_first, "elsewhere": first.elsewhere}
        server = stack.enter_context(ShardServer(store, **options)) if asked["serve"] else None
        _write(answer | {"url": None if server is None else server.url})
        while (order := _read()) is not None:
            if asked["role"] == "origin":
                first.learn(order["relays"])
                _write({})
            else:
                _write(_fetch(store, asked, order, None if server is None else server.url))
        sent = 0 if server is None else server.counts.bytes_served
        _write({"sent": sent, "cpu": time.process_time() - before})


def _fetch(store: VersionStore, asked: dict[str, Any], order: dict[str, Any], url: str | None) -> dict[str, Any]:
    sources = [Source(*source) for source in order["sources"]]
    client = Client(
        store, DOMAIN, RUN, KEY.address, serves=url, relays=asked["role"] == "relay", streams=asked.get("streams", 4)
    )
    before, began = time.process_time(), time.monotonic()
    client.fetch(STEP, bytes.fromhex(order["digest"]), sources, order["deadline"])
    return {
        "seconds": time.monotonic() - began,
        "cpu": time.process_time() - before,
        "bytes_from": dict(client.statistics.bytes_from),
        "failovers": client.statistics.failovers,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
    }


def _read() -> dict[str, Any] | None:
    line = sys.stdin.readline()
    return json.loads(line) if line else None


def _write(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main()
