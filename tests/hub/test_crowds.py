"""Hundreds who follow the hub and hundreds who hold connections to it: uploads, downloads and receipts go on."""

from __future__ import annotations

import json
import logging
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from swarm.anvil import Anvil
from swarm.processes import wait_until

from protocol.identity import Key
from protocol.p2p import Endpoint
from protocol.shardcast.server import ShardServer
from protocol.shardcast.store import VersionStore
from tests.hub.desk import Desk, open_desk, some_file
from trainer.hub import server as server_module
from trainer.hub.load import RequestKind
from trainer.hub.server import HubServer, connections_within_limits
from trainer.hub.service import url_of

_PATIENT = 60.0
"""Seconds that who works among thousands waits for an answer and comes back when it is told to. Three times what roles wait: hub, crowd and
chain share this machine's cores with whatever else is tested on them."""
CROWD = Path(__file__).with_name("crowd.py")


class Crowd:
    """`counts` is there after the context."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.counts: dict[str, int] = {}

    def end(self) -> None:
        out, _ = self._process.communicate(timeout=60)
        self.counts = json.loads(out)


@contextmanager
def crowded(desk: Desk, *, followers: int, idle: int, addresses: int) -> Iterator[Crowd]:
    path = f"/v1/runs/{desk.world.run}/receipts?wait=20"
    command = [sys.executable, str(CROWD), str(httpx.URL(desk.url).port), path, *map(str, (followers, idle, addresses))]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "there\n"
            made = Crowd(process)
            yield made
            made.end()
        finally:
            process.kill()


def works(desk: Desk, nodes: list[Key], folder: Path, *, at_once: int = 8) -> None:
    """Each node uploads a file, a validator judges it, and somebody downloads it: all of them succeed."""
    validator, hub = desk.validator(), desk.key.address
    judge = desk.client(validator, _PATIENT)

    def work(node: Key) -> None:
        data = some_file(20_000)
        path = folder / node.address
        path.write_bytes(data)
        ref = desk.commit(node, data)
        client = desk.client(node, _PATIENT)
        assert client.upload(desk.submission(ref), ref.root, path, hub).receipt.root == ref.root
        judge.post_receipt(desk.receipt(validator, ref))
        assert client.download(ref.root, folder / f"{node.address}.back", cap=1 << 20)
        assert (folder / f"{node.address}.back").read_bytes() == data

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(work, nodes))


def test_hundreds_of_followers_and_idle_connections_leave_room_for_everybody_who_works(
    anvil: Anvil, tmp_path: Path
) -> None:
    """Together they are far more than the hub has places. Silent ones lose theirs, followers are told when to come back."""
    with open_desk(anvil, tmp_path, connections=300, per_address=40) as desk:
        nodes = desk.nodes(8)
        with crowded(desk, followers=300, idle=300, addresses=12) as there:
            works(desk, nodes, tmp_path)
        said = there.counts
        assert said["polls 503"] > 0
        assert said["told when"] == said["polls 503"]
        assert said["idle cut"] > 0
        assert set(said) <= {
            "idle", "idle cut", "connected", "polls 200", "polls 503", "polls broken", "told when", "heard",
        }  # fmt: skip


def test_followers_within_the_limits_all_hear_everything_and_none_is_refused(anvil: Anvil, tmp_path: Path) -> None:
    with open_desk(anvil, tmp_path) as desk:
        nodes = desk.nodes(2)
        with crowded(desk, followers=200, idle=200, addresses=8) as there:
            wait_until(lambda: len(desk.hub.bells) == 200, deadline=30, what="all wait for news")
            works(desk, nodes, tmp_path)
            wait_until(
                lambda: desk.hub.bells.is_quiet and len(desk.hub.bells) == 200, deadline=30, what="all have heard"
            )
        said = there.counts
        assert said["heard"] == 200 * 2
        assert {"polls 503", "polls broken", "idle cut"}.isdisjoint(said)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_two_thousand_followers_and_two_thousand_idle_connections(anvil: Anvil, tmp_path: Path) -> None:
    assert connections_within_limits(8192) >= 4200, "the system lets a process open too few files for this test"
    with open_desk(anvil, tmp_path) as desk:
        nodes = desk.nodes(40)
        with crowded(desk, followers=2000, idle=2000, addresses=40) as there:
            wait_until(lambda: len(desk.hub.bells) == 2000, deadline=120, what="all wait for news")
            works(desk, nodes, tmp_path)
            wait_until(
                lambda: desk.hub.bells.is_quiet and len(desk.hub.bells) == 2000, deadline=120, what="all have heard"
            )
        said = there.counts
        assert said["heard"] == 2000 * len(nodes)
        assert {"polls 503", "polls broken"}.isdisjoint(said)


@pytest.fixture
def unbounded() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_hub_raises_its_limit_of_open_files_and_holds_no_more_than_that(unbounded: None) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (600, hard))
    assert connections_within_limits(300) == 300
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 812
    assert connections_within_limits(hard) == hard - 512


def test_a_follower_that_hangs_up_leaves_nothing_behind(desk: Desk) -> None:
    with socket.create_connection(("127.0.0.1", httpx.URL(desk.url).port), timeout=10) as follower:
        follower.sendall(f"GET /v1/runs/{desk.world.run}/receipts?wait=60 HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        wait_until(lambda: len(desk.hub.bells) == 1, deadline=10, what="it waits")
    wait_until(lambda: not len(desk.hub.bells), deadline=10, what="nobody waits")


def test_a_refused_upload_is_told_when_to_come_back_however_much_it_sends(anvil: Anvil, tmp_path: Path) -> None:
    """And comes back: the answer is not lost with the bytes that nobody read."""
    with open_desk(anvil, tmp_path, requests=8) as desk:
        node, data = desk.node(), some_file(60_000)
        ref = desk.commit(node, data)
        path = tmp_path / "file"
        path.write_bytes(data)
        desk.load.admit = refusing(desk.load.admit, times=1)  # type: ignore[method-assign]
        refused = desk.upload(node, ref, data)
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "2")
        desk.load.admit = refusing(desk.load.admit, times=1)  # type: ignore[method-assign]
        client = desk.client(node)
        assert client.upload(desk.submission(ref), ref.root, path, desk.key.address).receipt.root == ref.root


def refusing(admit: Callable[[RequestKind, str], bool], *, times: int) -> Callable[[RequestKind, str], bool]:
    left = times

    def first_refuses(kind: RequestKind, address: str) -> bool:
        nonlocal left
        left -= 1
        return left < 0 and admit(kind, address)

    return first_refuses


def test_a_peer_that_does_not_get_on_is_cut_and_one_that_waits_for_news_is_not(anvil: Anvil, tmp_path: Path) -> None:
    """A body that drips in, a file that is read drop by drop."""
    with open_desk(anvil, tmp_path, slow_seconds=0.4) as desk, ExitStack() as stack:

        def opened(request: str) -> socket.socket:
            made = stack.enter_context(socket.create_connection(("127.0.0.1", httpx.URL(desk.url).port), timeout=10))
            made.sendall(f"{request} HTTP/1.1\r\nhost: x\r\n".encode())
            return made

        base = f"/v1/runs/{desk.world.run}"
        dripping = opened(f"POST {base}/receipts")
        dripping.sendall(b"content-length: 10000\r\n\r\n{")
        waiting = opened(f"GET {base}/receipts?wait=2")
        waiting.sendall(b"\r\n")
        assert dripping.recv(100) == b"", "cut long before a body's deadline, and not answered"
        assert waiting.recv(100).startswith(b"HTTP/1.1 200"), "after more than one look at who gets on"


def test_requests_whose_bodies_never_come_keep_no_upload_out(anvil: Anvil, tmp_path: Path) -> None:
    """Heads cost whoever sends them nothing: until a body has begun to come its request counts for nothing but a place."""
    with open_desk(anvil, tmp_path, requests=8) as desk, ExitStack() as stack:
        node, data = desk.node(), some_file(60_000)
        ref = desk.commit(node, data)
        port = httpx.URL(desk.url).port
        for number in range(40):
            made = stack.enter_context(socket.socket())
            made.bind((f"127.0.0.{20 + number % 10}", 0))
            made.connect(("127.0.0.1", port))
            made.sendall(
                f"POST /v1/runs/{desk.world.run}/receipts HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n{{".encode()
            )
        assert desk.upload(node, ref, data).status_code == 200


def test_a_body_that_never_comes_ends_its_connection_and_nothing_is_logged(
    anvil: Anvil, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What strangers do fills no log."""
    monkeypatch.setattr(server_module, "_BEGUN_SECONDS", 0.1)
    said: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = said.append  # type: ignore[method-assign]
    with open_desk(anvil, tmp_path) as desk:
        logging.getLogger("uvicorn.error").addHandler(handler)
        try:
            with socket.create_connection(("127.0.0.1", httpx.URL(desk.url).port), timeout=10) as silent:
                silent.sendall(b"POST /v1/runs/1/receipts HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n")
                assert silent.recv(100).startswith(b"HTTP/1.1 503")
            with socket.create_connection(("127.0.0.1", httpx.URL(desk.url).port), timeout=10) as gone:
                gone.sendall(b"POST /v1/runs/1/receipts HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n")
            assert httpx.get(f"{desk.url}/v1/runs/{desk.world.run}/spec", timeout=60).status_code == 200
        finally:
            logging.getLogger("uvicorn.error").removeHandler(handler)
    assert said == []


needs_ipv6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")


@needs_ipv6
@pytest.mark.parametrize(("host", "reached"), [("::1", ["::1"]), ("::", ["::1", "127.0.0.1"])])
def test_a_hub_serves_over_ipv6_and_on_all_addresses_over_both(host: str, reached: list[str]) -> None:
    with HubServer(FastAPI(), host, 0) as server:
        for address in reached:
            assert httpx.get(f"{url_of(address, server.port)}/nothing", timeout=60).status_code == 404


@needs_ipv6
def test_an_origin_on_all_addresses_serves_over_both(tmp_path: Path) -> None:
    with VersionStore(tmp_path, 2) as store, ShardServer(store, host="::") as server:
        for address in ("::1", "127.0.0.1"):
            assert httpx.get(f"{url_of(address, server.port)}/v/0/manifest", timeout=60).status_code == 404


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:5"), ("::", "http://[::1]:5"), ("2001:DB8::7", "http://[2001:db8::7]:5"),
        ("[2001:db8::7]", "http://[2001:db8::7]:5"), ("hub.example.org", "http://hub.example.org:5"),
    ],
)  # fmt: skip
def test_an_address_becomes_a_url_that_peers_take(host: str, url: str) -> None:
    assert url_of(host, 5) == url
    assert Endpoint(role="hub", run=1, http=url).http == url
