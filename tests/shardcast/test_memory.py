"""Whoever fetches holds a few chunks in memory, however large the version, and imports nothing that only others need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.shardcast.origin import Origin

from .conftest import DEADLINE, RUN, Cast

ROOT = Path(__file__).parents[2]
CHUNKS = 60  # of 4 MiB: more than twice what may be held
MOST = 100 << 20

CLIENT = """
import json, re, sys, threading
from pathlib import Path
from protocol.shardcast.client import Client
from protocol.shardcast.source import Source
from protocol.shardcast.store import VersionStore
from protocol.signing import Domain

folder, trainer, url = sys.argv[1:]
peak = 0

def progress(step, present, total):
    global peak
    anonymous = re.search(r"RssAnon:\\s+([0-9]+) kB", Path("/proc/self/status").read_text())
    peak = max(peak, int(anonymous[1]) << 10)
    if present == total:
        print("whole", flush=True)

client = Client(VersionStore(Path(folder), 5, reserve=0), Domain(31337, "0x" + "22" * 20), 3, trainer, progress=progress)
sources = [Source(url, "origin", False)]
threading.Thread(target=client.fetch_ahead, args=(1, sources), daemon=True).start()
digest = bytes.fromhex(sys.stdin.readline())
client.fetch(1, digest, sources, 60)
heavy = [name for name in ("torch", "transformers", "httpx", "web3", "pandas") if name in sys.modules]
print(json.dumps({"peak": peak, "heavy": heavy, "resumed": client.statistics.resumed_chunks}), flush=True)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux to tell anonymous memory")
def test_a_client_that_fetches_ahead_and_then_fetches_takes_less_than_a_hundred_megabytes(cast: Cast) -> None:
    folder = cast.root / "writing"
    folder.mkdir()
    block = cast.bytes(1 << 20)
    size = CHUNKS << 22
    with (folder / "model").open("wb") as file:
        for number in range(size >> 20):
            file.write(number.to_bytes(4, "big") + block[4:])
    store = cast.store("origin")
    origin = Origin(store, cast.key, cast.domain, RUN, anchor_every=1000)
    cast.stack.callback(origin.forget)
    url = cast.serve(store).url
    command = [sys.executable, "-c", CLIENT, str(cast.root / "client"), cast.key.address, url]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        while origin.follow(folder, 1, [("model", size)], "0" * 32):
            pass
        assert client.stdout.readline() == "whole\n"
        client.stdin.write(origin.publish(folder, 1, link=True).digest.hex() + "\n")
        client.stdin.flush()
        told = json.loads(client.stdout.readline())
        assert client.wait(DEADLINE) == 0
    assert told["resumed"] == CHUNKS
    assert told["heavy"] == []
    assert 10 << 20 < told["peak"] < MOST
