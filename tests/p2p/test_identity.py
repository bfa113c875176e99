"""Who is at the other end: only Noise is spoken, and a PeerID is held by its key alone. Against stock py-libp2p hosts."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext

import pytest
import trio
from libp2p import new_host
from libp2p.crypto.ed25519 import create_new_key_pair as ed25519_pair
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.rsa import create_new_key_pair as rsa_pair
from libp2p.crypto.secp256k1 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as x25519_pair
from libp2p.network.exceptions import SwarmException
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from libp2p.security.insecure.transport import PLAINTEXT_PROTOCOL_ID, InsecureTransport
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_ID
from libp2p.security.noise.transport import Transport as NoiseTransport
from multiaddr import Multiaddr

from protocol.errors import Unavailable
from protocol.identity import Key
from protocol.p2p import Host, negotiation
from protocol.p2p.discovery import ENDPOINT_PROTOCOL
from protocol.p2p.service import Endpoint
from tests.clock import eventually
from tests.p2p.network import RELAY, Network, endpoint, find, listening_on, port_of

LOOPBACK = [Multiaddr("/ip4/127.0.0.1/tcp/0")]


def stock_peer(host: Host) -> PeerInfo:
    return PeerInfo(ID.from_base58(host.peer_id), [Multiaddr(listening_on(host))])


@asynccontextmanager
async def impostor(victim: Key) -> AsyncIterator[object]:
    """A stock host that offers plaintext and claims to be `victim`, of whom it knows the public key (it is in the PeerID)."""
    own, stolen = create_new_key_pair(os.urandom(32)), create_new_key_pair(victim.secret).public_key

    class Claim(type(own.private_key)):  # type: ignore[misc]
        def get_public_key(self) -> object:
            return stolen

    transport = InsecureTransport(KeyPair(Claim(own.private_key.impl), stolen))
    host = new_host(key_pair=own, sec_opt={PLAINTEXT_PROTOCOL_ID: transport})
    async with host.run(LOOPBACK):
        yield host


def test_nobody_gets_in_by_claiming_a_key_in_plaintext(network: Network) -> None:
    """A stock `new_host()` takes this peer for the victim."""
    bootnode = network.host()

    async def try_it() -> None:
        async with impostor(Key.generate()) as attacker:
            with trio.fail_after(20), pytest.raises(SwarmException):
                await attacker.connect(stock_peer(bootnode))  # type: ignore[attr-defined]

    trio.run(try_it)
    assert bootnode.status().connections == 0


def test_a_host_does_not_take_a_plaintext_server_for_the_peer_it_claims_to_be(network: Network) -> None:
    victim = Key.generate()

    async def try_it() -> None:
        async with impostor(victim) as attacker:
            place = str(attacker.get_addrs()[0]).partition("/p2p/")[0]  # type: ignore[attr-defined]
            seeker = await trio.to_thread.run_sync(lambda: network.host(f"{place}/p2p/{victim.peer_id}"))
            with pytest.raises(Unavailable, match="no bootnode is reachable"):
                await trio.to_thread.run_sync(lambda: find(seeker, within=1.0))

    trio.run(try_it)


@pytest.mark.parametrize("security", ["/plaintext/2.0.0", "/secio/1.0.0", "/tls/1.0.0", "ls"])
def test_no_security_but_noise_is_offered(network: Network, security: str) -> None:
    def line(text: str) -> bytes:
        return negotiation.message(f"{text}\n".encode())

    with socket.create_connection(("127.0.0.1", port_of(network.host())), timeout=5) as stranger:
        stranger.sendall(line("/multistream/1.0.0") + line(security))
        answer = b""
        while len(answer) < len(line("/multistream/1.0.0") + line("na")):
            answer += stranger.recv(100)
    assert answer == line("/multistream/1.0.0") + line("na")


@pytest.mark.parametrize(("make", "admitted"), [(ed25519_pair, True), (rsa_pair, False)], ids=["ed25519", "rsa"])
def test_a_stranger_may_connect_with_libp2ps_usual_key_and_with_no_other(
    network: Network, make: Callable[[], KeyPair], admitted: bool
) -> None:
    """A key of no chain is enough to take part in discovery; what a run needs is asked of nobody who has one."""
    host = network.host()

    async def try_it() -> None:
        pair = make()
        stranger = new_host(
            key_pair=pair, sec_opt={NOISE_ID: NoiseTransport(pair, noise_privkey=x25519_pair().private_key)}
        )
        async with stranger.run(LOOPBACK):
            with trio.fail_after(20), nullcontext() if admitted else pytest.raises(SwarmException):
                await stranger.connect(stock_peer(host))
            await trio.to_thread.run_sync(
                lambda: eventually(lambda: host.status().connections == int(admitted), what="its connection")
            )

    trio.run(try_it)


def test_a_stock_libp2p_host_can_ask_for_an_endpoint(network: Network) -> None:
    """Noise, Yamux, multistream-select and PeerIDs are libp2p's: any implementation can join in."""
    provider = network.provider(network.host(), port=8105)
    answers: list[bytes] = []

    async def ask() -> None:
        pair = create_new_key_pair(os.urandom(32))
        stock = new_host(
            key_pair=pair, sec_opt={NOISE_ID: NoiseTransport(pair, noise_privkey=x25519_pair().private_key)}
        )
        async with stock.run(LOOPBACK):
            with trio.fail_after(20):
                await stock.connect(stock_peer(provider))
                stream = await stock.new_stream(ID.from_base58(provider.peer_id), [ENDPOINT_PROTOCOL])
                await stream.write(negotiation.message(RELAY.key))
                await stream.close_write()
                answers.append(await stream.read(4096))

    trio.run(ask)
    encoded = endpoint(8105).encode()
    assert answers == [negotiation.message(encoded)]
    assert Endpoint.decode(encoded) == endpoint(8105)


def test_the_secret_key_shows_in_no_log_and_no_repr(network: Network, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    key = Key.generate()
    secret = key.secret.hex()
    bootnode = network.host()
    provider = network.provider(bootnode, key=key)
    find(network.host(bootnode))
    network.close()

    assert secret not in caplog.text
    assert secret not in repr(vars(provider)) + repr(provider._setup)
