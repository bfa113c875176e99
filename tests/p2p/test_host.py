"""The thread and its supervisor: nothing hangs, nothing leaks, nothing is printed."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading

import pytest
from swarm.pace import Patience

from protocol.errors import ConfigError, DeadlineExceeded, PreflightError, Unavailable, UsageError
from protocol.identity import Key
from protocol.p2p import Host, run_bootnode
from protocol.p2p.discovery import Discovery
from protocol.p2p.node import PeerConnection
from tests.clock import eventually
from tests.p2p.network import QUICK, Network, find, listening_on, port_of, quick, with_our_modules


def p2p_threads() -> int:
    return sum(thread.name == "p2p" for thread in threading.enumerate())


def crash(host: Host) -> None:
    """A fault at the top of the thread: nothing below may catch it."""

    async def fail() -> None:
        raise RuntimeError("planted fault")

    async def plant(discovery: Discovery) -> None:
        discovery.node._nursery.start_soon(fail)

    host.run_inside(plant, deadline=5, what="planting a fault")


def test_importing_the_package_imports_neither_libp2p_nor_trio() -> None:
    code = "import sys, protocol.p2p; sys.exit(any(name in sys.modules for name in ('libp2p', 'trio', 'multiaddr')))"
    assert subprocess.run([sys.executable, "-c", code], timeout=30).returncode == 0


def test_a_busy_port_is_a_preflight_error_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PreflightError, match=f"port {port} of 127.0.0.1: address already in use"):
            Host(Key.generate(), f"/ip4/127.0.0.1/tcp/{port}").start()
    assert p2p_threads() == 0


def test_two_hosts_never_share_a_port(network: Network) -> None:
    first = network.host()
    with pytest.raises(PreflightError, match=f"port {port_of(first)} "):
        network.host(listen=listening_on(first))


@pytest.mark.parametrize(
    "options",
    [
        {"listen": "/ip4/127.0.0.1/udp/1"},
        {"listen": "127.0.0.1:4001"},
        {"listen": "/dns4/localhost/tcp/4001"},
        {"bootnodes": ["/ip4/127.0.0.1/tcp/4001"]},
        {"bootnodes": ["/ip4/127.0.0.1/tcp/4001/p2p/nobody"]},
        {"announce": ["/ip4/1.2.3/tcp/4001"]},
        {"announce": [f"/ip4/192.0.2.7/tcp/{port}" for port in range(1, 6)]},
    ],
)
def test_a_wrong_address_is_a_config_error_before_anything_starts(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Host(Key.generate(), **options)  # type: ignore[arg-type]


def test_close_ends_the_thread_and_frees_the_port_at_once(network: Network) -> None:
    bootnode = network.host()
    hosts = [network.host(bootnode) for _ in range(4)]
    for host in hosts:
        host.join(20)
    place = listening_on(bootnode)

    patience = Patience(3)
    network.close()

    assert not patience.ended()
    assert p2p_threads() == 0
    network.host(listen=place)


def test_close_ends_calls_that_are_under_way(network: Network) -> None:
    host = network.host()
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            find(host, within=60)
        except Unavailable as error:
            ended.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    eventually(lambda: host._life and host._life._waiting)
    host.close()
    waiting.join(5)

    assert len(ended) == 1


def test_a_closed_host_answers_every_call_with_unavailable(network: Network) -> None:
    host = network.host()
    host.close()
    host.close()

    with pytest.raises(Unavailable, match="not running"):
        find(host, within=1)
    with pytest.raises(Unavailable, match="not running"):
        host.status()
    with pytest.raises(UsageError, match="started once"):
        host.start()


def test_a_host_that_was_never_started_answers_unavailable_and_can_be_closed() -> None:
    host = Host(Key.generate())
    with pytest.raises(Unavailable, match="not running"):
        host.status()
    host.close()


def test_a_crash_is_logged_in_one_line_and_the_host_comes_back_as_it_was(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    bootnode = network.host()
    provider = network.provider(bootnode)
    addresses = provider.addresses

    with caplog.at_level(logging.WARNING):
        crash(provider)
        eventually(lambda: "planted fault" in caplog.text)

    (line,) = [record for record in caplog.records if "planted fault" in record.getMessage()]
    assert line.levelno == logging.ERROR
    assert line.exc_info is None
    assert "starts anew" in line.getMessage()
    assert set(find(network.host(bootnode))) == {provider.peer_id}
    assert provider.addresses == addresses
    assert provider.status(10).joined


def test_calls_under_way_when_the_host_crashes_end_with_unavailable(network: Network) -> None:
    host = network.host()

    async def sleep(discovery: Discovery) -> None:
        import trio

        await trio.sleep_forever()

    ended: list[BaseException] = []

    def wait() -> None:
        try:
            host.run_inside(sleep, deadline=60, what="sleeping")
        except Unavailable as error:
            ended.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    eventually(lambda: host._life and host._life._waiting)
    crash(host)
    waiting.join(5)

    assert "stopped" in str(ended[0])


def test_a_call_keeps_its_deadline_even_when_the_thread_is_blocked(network: Network) -> None:
    host = network.host()
    release = threading.Event()

    async def block(discovery: Discovery) -> None:
        release.wait(20)

    patience = Patience(3)
    with pytest.raises(DeadlineExceeded, match=r"blocking took longer than 0\.2 s"):
        host.run_inside(block, deadline=0.2, what="blocking")
    assert not patience.ended()
    release.set()


def test_a_wait_that_nobody_answers_ends_with_deadline_exceeded(network: Network) -> None:
    async def sleep(discovery: Discovery) -> None:
        import trio

        await trio.sleep_forever()

    with pytest.raises(DeadlineExceeded, match=r"sleeping took longer than 0\.1 s"):
        network.host().run_inside(sleep, deadline=0.1, what="sleeping")


def test_joining_says_why_it_failed(network: Network) -> None:
    with pytest.raises(Unavailable, match="no bootnode was given"):
        network.host().join(0.2)


def test_the_bootnode_serves_until_it_is_told_to_stop(network: Network, capfd: pytest.CaptureFixture[str]) -> None:
    key, stop, ready = Key.generate(), threading.Event(), threading.Event()
    addresses: list[str] = []

    def note(host: Host) -> None:
        addresses.extend(host.addresses)
        ready.set()

    serving = threading.Thread(
        target=run_bootnode,
        args=(key, "/ip4/127.0.0.1/tcp/0"),
        kwargs={"timing": QUICK, "ready": note, "stop": stop},
    )
    serving.start()
    try:
        assert ready.wait(20)
        assert addresses[0].endswith(key.peer_id)
        provider = network.provider(*addresses)
        assert set(find(network.host(*addresses))) == {provider.peer_id}
    finally:
        stop.set()
        serving.join(10)
    assert not serving.is_alive()
    network.close()
    assert capfd.readouterr() == ("", "")


def test_idle_connections_are_closed_and_those_to_bootnodes_are_not(network: Network) -> None:
    timing = quick(idle=3.0, settle=1.0)  # on a busy machine one call may fail: they look for each other again
    bootnode = network.host(timing=timing)
    first = network.host(bootnode, timing=timing)
    second = network.host(bootnode, timing=timing)
    eventually(lambda: first.status().peers + second.status().peers >= 3)

    def kept(host: Host) -> list[PeerConnection]:
        async def look(discovery: Discovery) -> list[PeerConnection]:
            return [each for each in discovery.node.connections() if each.kept]

        return host.run_inside(look, deadline=5, what="looking")

    eventually(lambda: len(kept(first)) == len(kept(second)) == 1)
    before = kept(first), kept(second)
    eventually(lambda: (first.status().connections, second.status().connections) == (1, 1))
    assert (kept(first), kept(second)) == before


def test_nothing_of_libp2p_or_trio_reaches_stderr() -> None:
    """Peers that hang up in the middle of everything are everyday; they are not the user's business."""
    code = """
import socket, trio
from tests.p2p.attacker import hostile
from tests.clock import eventually
from tests.p2p.network import Network, find, port_of
network = Network()
bootnode = network.host()
provider = network.provider(bootnode)
find(network.host(bootnode))
for junk in (b"", b"GET / HTTP/1.1\\r\\n\\r\\n", b"\\x13/multistream/1.0.0\\n\\x07/noise\\n" + bytes(4000)):
    with socket.create_connection(("127.0.0.1", port_of(bootnode))) as stranger:
        stranger.sendall(junk)
async def hang_up():
    async with hostile(bootnode) as peer:
        await peer.open(1)
        await peer.frame(0, 0, 1, 1000, b"half a body")
    async with hostile(bootnode) as peer:
        await peer.frame(0, 0, 1, 1 << 30)
        await peer.cut_off()
trio.run(hang_up)
eventually(lambda: bootnode.status().connections == 2)
bootnode.close()
network.close()
"""
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, env=with_our_modules(), capture_output=True, timeout=60, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "the bootnode" not in line and "no bootnode" not in line]
    assert (done.stdout, lines) == ("", [])
