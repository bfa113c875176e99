"""Processes that are killed in the middle, with SIGKILL: nobody loses more than the chunks under way."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.shardcast.store import VersionStore

from . import faults
from .conftest import CHUNK, DEADLINE, Cast, contents, origin_at, relay_at
from .faults import Request

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")

ROOT = Path(__file__).parents[2]

MORTAL_RELAY = """
import os, signal, sys
from pathlib import Path
from protocol.shardcast.server import ShardServer
from protocol.shardcast.store import VersionStore

served = 0
def progress(step, name, count):
    global served
    served += count
    if served >= int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)

with ShardServer(VersionStore(Path(sys.argv[1]), 5, reserve=0), progress=progress) as server:
    print(server.url, flush=True)
    sys.stdin.read()
"""

MORTAL_CLIENT = """
import os, signal, sys
from pathlib import Path
from protocol.shardcast.client import Client
from protocol.shardcast.source import Source
from protocol.shardcast.store import VersionStore
from protocol.signing import Domain

def progress(step, present, total):
    if present >= int(sys.argv[5]):
        os.kill(os.getpid(), signal.SIGKILL)

store = VersionStore(Path(sys.argv[1]), 5, reserve=0)
domain = Domain(31337, "0x" + "22" * 20)
client = Client(store, domain, 3, sys.argv[2], chunk_bytes=int(sys.argv[6]), progress=progress, streams=1)
client.fetch(1, bytes.fromhex(sys.argv[3]), [Source(sys.argv[4], "origin", False)], 20)
"""

# One process that has imported everything and forks a client for every line: how many calls of the system it lives to make.
MORTAL_CLIENTS = """
import os, random, signal, sys
from pathlib import Path
from protocol.shardcast.client import Client
from protocol.shardcast.source import Source
from protocol.shardcast.store import VersionStore
from protocol.signing import Domain

def live(calls):
    def counted(function):
        def call(*arguments, **options):
            nonlocal calls
            calls -= 1
            if calls < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)
        return call

    for name in ("pwrite", "preadv", "ftruncate", "fdatasync", "fsync", "open", "rename", "replace"):
        setattr(os, name, counted(getattr(os, name)))
    store = VersionStore(Path(sys.argv[1]), 5, reserve=0)
    domain = Domain(31337, "0x" + "22" * 20)
    client = Client(store, domain, 3, sys.argv[2], chunk_bytes=int(sys.argv[5]), streams=3, rng=random.Random(0))
    client.fetch(1, bytes.fromhex(sys.argv[3]), [Source(sys.argv[4], "origin", False)], 20)

for line in sys.stdin:
    child = os.fork()
    if not child:
        try:
            live(int(line))
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_when_a_relay_is_killed_mid_transfer_the_origin_takes_over(cast: Cast) -> None:
    files = {"model": cast.bytes(60 * CHUNK), "other": cast.bytes(CHUNK)}
    manifest, origin = cast.origin(files)
    with VersionStore(cast.root / "mortal", 5, reserve=0) as store:
        cast.client(store).fetch(1, manifest.digest, [origin_at(origin.url)], DEADLINE)
    with start(MORTAL_RELAY, cast.root / "mortal", 20 * CHUNK) as relay:

        def serve_when_the_relay_is_dead(request: Request) -> None:
            faults.be_busy(request) if relay.poll() is None else request.serve()

        assert relay.stdout is not None
        source = relay_at(relay.stdout.readline().strip())
        busy = cast.scripted(origin.store.manifest(1), files, serve_when_the_relay_is_dead)
        client = cast.client()
        folder = client.fetch(1, manifest.digest, [source, origin_at(busy.url)], DEADLINE)
        assert relay.wait(DEADLINE) == -signal.SIGKILL
    assert contents(folder) == files
    assert client.statistics.bytes_from["relay"] > 0
    assert client.statistics.bytes_from["origin"] > 0
    assert sum(client.statistics.bytes_from.values()) == manifest.total_bytes
    assert client.statistics.failovers > 0
    assert not client.statistics.violations


def test_a_killed_client_goes_on_where_it_was(cast: Cast) -> None:
    files = {"config": cast.bytes(10), "model": cast.bytes(30 * CHUNK)}
    manifest, origin = cast.origin(files)
    digest = manifest.digest.hex()
    with start(MORTAL_CLIENT, cast.root / "client", cast.key.address, digest, origin.url, 12 * CHUNK, CHUNK) as victim:
        assert victim.wait(DEADLINE) == -signal.SIGKILL
    store = cast.store("client")
    assert store.steps() == (), "what is not whole is not visible"
    client = cast.client(store)
    assert contents(client.fetch(1, manifest.digest, [origin_at(origin.url)], DEADLINE)) == files
    assert client.statistics.resumed_chunks >= 12
    assert sum(client.statistics.bytes_from.values()) <= manifest.total_bytes - 11 * CHUNK


def test_a_client_killed_at_twenty_random_points_never_fetches_what_has_verified_again(cast: Cast) -> None:
    """At any of the calls by which it writes, syncs and renames, twenty times in one fetch; each attempt goes on from the last."""
    dice = random.Random(20)
    files = {"config": cast.bytes(10), "model": cast.bytes(60 * CHUNK - 7), "other": cast.bytes(2 * CHUNK)}
    manifest, honest = cast.origin(files)
    asked: list[tuple[str, int]] = []

    def serve(request: Request) -> None:
        asked.append((request.target.rpartition("/")[2], request.range[0]))
        request.serve()

    def on_disk() -> set[tuple[str, int]]:
        """Chunks of the draft that verify, by name and offset."""
        found = set()
        for chunk in manifest.chunks():
            for path in (cast.root / "victim").rglob(chunk.file.name):
                with path.open("rb") as file:
                    file.seek(chunk.offset)
                    if chunk.matches(memoryview(file.read(chunk.size))):
                        found.add((chunk.file.name, chunk.offset))
        return found

    origin = cast.scripted(honest.store.manifest(1), files, serve)
    kills = 0
    arguments = (cast.root / "victim", cast.key.address, manifest.digest.hex(), origin.url, CHUNK)
    with start(MORTAL_CLIENTS, *arguments) as clients:
        assert clients.stdin is not None
        assert clients.stdout is not None

        def live(calls: int) -> int:
            assert clients.stdin is not None
            assert clients.stdout is not None
            clients.stdin.write(f"{calls}\n")
            clients.stdin.flush()
            return int(clients.stdout.readline())

        while kills < 20:
            held = on_disk()
            asked.clear()
            # It verifies what is there, a call for each chunk, and then gets a few further.
            status = live(len(held) + dice.randrange(16))
            assert not held & set(asked), "asked again for what had verified"
            assert held <= on_disk(), "lost what had verified"
            assert status == -signal.SIGKILL, "so few calls are not enough for all of it"
            kills += 1
        assert live(1 << 30) == 0
        clients.stdin.close()
    assert contents(cast.store("victim").folder(1)) == files
