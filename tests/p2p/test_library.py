"""What py-libp2p's own Kademlia does where ours does otherwise: the reasons for docs/decisions/0004, against the installed version.

A failure here is good news: the library has been mended, and one reason fewer speaks for our own.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from libp2p import new_host
from libp2p.crypto.secp256k1 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as x25519_pair
from libp2p.host.autonat.autonat import AutoNATService
from libp2p.kad_dht import common, provider_store
from libp2p.kad_dht.kad_dht import DHTMode, KadDHT
from libp2p.kad_dht.pb.kademlia_pb2 import Message
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_ID
from libp2p.security.noise.transport import Transport as NoiseTransport
from multiaddr import Multiaddr

from protocol.identity import Key
from protocol.p2p import HostLimits, negotiation
from protocol.p2p.address import Address
from protocol.p2p.records import ProviderRecords
from protocol.p2p.routing import Contact
from protocol.p2p.wire import PROTOCOL as OURS

THEIRS = "/ipfs/kad/1.0.0"
KEY = b"\x12\x20" + os.urandom(32)
BUSY = 80.0
"""Seconds that may pass on a machine with much else to do."""


@asynccontextmanager
async def stock() -> AsyncIterator[Any]:
    pair = create_new_key_pair(os.urandom(32))
    host = new_host(key_pair=pair, sec_opt={NOISE_ID: NoiseTransport(pair, noise_privkey=x25519_pair().private_key)})
    async with host.run([Multiaddr("/ip4/127.0.0.1/tcp/0")]):
        yield host


async def connected(host: Any, to: Any) -> None:
    with trio.fail_after(BUSY):
        await host.connect(PeerInfo(to.get_id(), [Multiaddr(str(to.get_addrs()[0]).partition("/p2p/")[0])]))


async def asked(host: Any, to: Any, message: Any) -> Any:
    """The answer to one question. Raises what the library raises when there is none."""
    with trio.fail_after(BUSY):
        stream = await host.new_stream(to.get_id(), [THEIRS])
        await stream.write(negotiation.message(message.SerializeToString()))
        data = await negotiation.read_message(stream, 4 << 20, "answer")
    answer = Message()
    answer.ParseFromString(data)
    return answer


def test_the_library_speaks_the_public_networks_protocol_whatever_prefix_it_is_given() -> None:
    async def look() -> None:
        async with stock() as host:
            KadDHT(host, DHTMode.SERVER, protocol_prefix="/murmuration")
            spoken = {str(name) for name in host.get_mux().handlers if "kad" in str(name)}
            assert spoken == {THEIRS} != {OURS}

    trio.run(look)


def test_the_library_takes_whoever_asks_for_a_server() -> None:
    async def look() -> None:
        async with stock() as server, stock() as client:
            dht = KadDHT(server, DHTMode.SERVER)
            await connected(client, server)
            await asked(client, server, Message(type=Message.FIND_NODE, key=client.get_id().to_bytes()))
            with trio.fail_after(BUSY):  # it answers first
                while not dht.routing_table.peer_in_table(client.get_id()):
                    await trio.sleep(0.01)

    trio.run(look)


def test_twelve_silent_streams_shut_the_librarys_dht_for_everybody() -> None:
    async def look() -> None:
        async with stock() as server, stock() as silent, stock() as honest:
            dht = KadDHT(server, DHTMode.SERVER)
            await connected(silent, server)
            await connected(honest, server)
            for _ in range(12):
                await silent.new_stream(server.get_id(), [THEIRS])
            with trio.fail_after(BUSY):
                while dht._inbound_limiter.available_tokens:
                    await trio.sleep(0.01)
            with pytest.raises(Exception):  # noqa: B017  a reset shows itself in several ways
                await asked(honest, server, Message(type=Message.FIND_NODE, key=KEY))

    trio.run(look)


def test_the_library_keeps_a_megabyte_for_anybody() -> None:
    async def look() -> None:
        async with stock() as server, stock() as stranger:
            dht = KadDHT(server, DHTMode.SERVER)
            await connected(stranger, server)
            value = os.urandom(1_000_000)
            record = {"key": b"anything", "value": value}
            await asked(stranger, server, Message(type=Message.PUT_VALUE, key=b"anything", record=record))
            assert dht.value_store.get(b"anything").value == value
            assert common.MAX_VALUE_STORE_SIZE == 50_000

    trio.run(look)


def test_the_library_gives_a_key_to_the_first_twenty_who_claim_it_and_holds_keys_without_end() -> None:
    peers = [Key.generate().peer for _ in range(21)]

    async def look() -> None:
        async with stock() as host:
            dht = KadDHT(host, DHTMode.SERVER)
            store = dht.provider_store
            for peer in peers:
                store.add_provider(KEY, PeerInfo(ID(peer), [Multiaddr("/ip4/192.0.2.7/tcp/1")]))
            assert [info.peer_id.to_bytes() for info in store.get_providers(KEY)] == peers[:20]
            for number in range(2_000):
                store.add_provider(b"%d" % number, PeerInfo(ID(peers[0]), [Multiaddr("/ip4/192.0.2.7/tcp/1")]))
            assert len(store.providers) == 2_001
            assert provider_store.PROVIDER_RECORD_EXPIRATION_INTERVAL == 48 * 3600
            assert (dht._provider_rate_max, dht._provider_rate_window) == (10, 10)

    trio.run(look)

    ours, place = ProviderRecords(HostLimits(), 100.0), (Address.parse("/ip4/192.0.2.7/tcp/1"),)
    for peer in peers:
        ours.put(KEY, Contact(peer, place), source="a", now=0)
    assert peers[20] in {each.peer for each in ours.get(KEY, 1)}
    for number in range(2_000):
        ours.put(b"%d" % number, Contact(peers[0], place), source="a", now=0)
    assert len(ours) == HostLimits().records_per_address


def test_what_the_library_has_found_once_it_finds_again_without_asking() -> None:
    """For 48 hours: a provider that moves is lost so long."""

    async def look() -> None:
        async with stock() as server, stock() as seeker:
            KadDHT(server, DHTMode.SERVER).provider_store.add_provider(
                KEY, PeerInfo(server.get_id(), [Multiaddr("/ip4/192.0.2.7/tcp/1")])
            )
            dht = KadDHT(seeker, DHTMode.CLIENT)
            await connected(seeker, server)
            await dht.routing_table.add_peer(server.get_id(), skip_server_mode_check=True)
            (before,) = await dht.provider_store.find_providers(KEY)
            await server.close()
            (after,) = await dht.provider_store.find_providers(KEY)
            assert after.addrs == before.addrs

    trio.run(look)


def test_one_name_that_is_no_text_ends_the_librarys_whole_host() -> None:
    async def look() -> None:
        async with stock() as server, stock() as stranger:
            KadDHT(server, DHTMode.SERVER)
            await connected(stranger, server)
            muxed = await stranger.get_network().connections[server.get_id()][0].muxed_conn.open_stream()
            await muxed.write(negotiation.message(b"/multistream/1.0.0\n") + negotiation.message(b"\xff\xfe\n"))
            await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as caught:
        trio.run(bounded(look))
    assert caught.group_contains(UnicodeDecodeError, depth=None)


def bounded(task: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        with trio.fail_after(BUSY):
            await task()

    return run


def test_the_librarys_autonat_calls_an_address_reached_that_it_never_dialled() -> None:
    """It takes the connection that the asker made for a dial back: everybody is reachable everywhere."""

    async def look() -> None:
        async with stock() as server, stock() as client:
            await connected(client, server)
            nobody = Multiaddr("/ip4/127.0.0.1/tcp/1").to_bytes()
            assert await AutoNATService(server)._try_dial(client.get_id(), [nobody]) == nobody

    trio.run(look)
