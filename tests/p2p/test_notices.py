"""Signed notices: who may say where a provider is, and who keeps it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import canonical
from protocol.errors import BadSignature, Malformed, ProtocolViolation
from protocol.identity import Key
from protocol.p2p import Directory, HostLimits, peers
from protocol.p2p.address import Address
from protocol.p2p.notices import Notice, Notices, decode_for, value_key
from tests.clock import eventually
from tests.p2p.network import HUB, Network

KEY = Key.generate()
HERE = Address.parse("/ip4/192.0.2.7/tcp/4001")
NOW = 1_700_000_000


def notice(issued: int = NOW, key: Key = KEY) -> Notice:
    return Notice.sign(key, HUB.key, [HERE], issued)


def test_a_notice_survives_the_wire_under_its_signers_key_only() -> None:
    made = notice()
    assert Notice.decode(made.encode()) == made
    assert decode_for(value_key(HUB.key, KEY.address), made.encode()) == made
    assert decode_for(value_key(HUB.key, Key.generate().address), made.encode()) is None


def test_a_notice_that_was_changed_or_signed_by_another_is_refused() -> None:
    made = notice()
    for changed in (
        replace(made, issued=NOW + 1),
        replace(made, addresses=(Address.parse("/ip4/192.0.2.8/tcp/4001"),)),
        replace(made, service=b"\x12\x20" + bytes(32)),
        replace(made, signature=notice(key=Key.generate()).signature),
        replace(made, signature=bytes(65)),
    ):
        with pytest.raises(BadSignature):
            Notice.decode(changed.encode())


def test_the_same_notice_from_many_peers_is_verified_once_and_another_again(monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[Notice] = []
    verify = Notice._verify
    monkeypatch.setattr(Notice, "_verify", lambda self: (verified.append(self), verify(self))[1])
    made = notice(key=Key.generate())  # one that no other test has shown to this process
    for _ in range(5):
        assert decode_for(made.key, made.encode()) == made
    assert len(verified) == 1
    forged = replace(made, issued=NOW + 1).encode()
    assert decode_for(made.key, forged) is None
    assert decode_for(made.key, forged) is None
    assert len(verified) == 3


@given(st.binary(max_size=300))
def test_any_bytes_are_a_notice_or_a_protocol_violation(data: bytes) -> None:
    with suppress(ProtocolViolation):
        Notice.decode(data)


@pytest.mark.parametrize("field", ["addresses", "issued", "peer", "service", "signature"])
@pytest.mark.parametrize("value", [None, "", [], ["x"], "0", "z" * 130, " " * 130, "AB" * 65])
def test_a_notice_with_a_wrong_field_is_malformed(field: str, value: object) -> None:
    fields = canonical.decode(notice().encode(), cap=4096, what="notice")
    with pytest.raises(Malformed):
        Notice.parse(fields | {field: value})


def test_the_newest_notice_counts_and_none_from_the_future() -> None:
    held = Notices(HostLimits())
    assert held.put(notice(NOW), source="a", now=NOW)
    assert not held.put(notice(NOW - 1), source="b", now=NOW)
    assert not held.put(notice(NOW + 3600), source="b", now=NOW)
    assert held.put(notice(NOW + 1), source="b", now=NOW)
    assert held.of(HUB.key, [KEY.address]) == [notice(NOW + 1)]
    assert held.follow(notice(NOW + 2), NOW) and not held.follow(notice(NOW + 1), NOW)
    assert held.of(HUB.key, [KEY.address]) == [notice(NOW + 2)]


def test_one_network_fills_no_store_and_what_is_followed_stays() -> None:
    held = Notices(HostLimits(notices=4, notices_per_address=3), [notice()])
    crowd = [held.put(notice(key=Key.generate()), source="crowd", now=NOW) for _ in range(5)]
    assert crowd == [True, True, True, False, False]
    assert held.put(notice(key=Key.generate()), source="b", now=NOW)
    assert held.put(notice(key=Key.generate()), source="c", now=NOW)  # at the crowd's expense
    assert len(held) == 5 and held.followed == [notice()]


def test_a_host_that_returns_finds_a_provider_of_its_memory_with_nobody_else_there(
    network: Network, tmp_path: Path
) -> None:
    file, key = tmp_path / "peers.json", Key.generate()
    bootnode = network.host()
    provider = network.provider(bootnode, service=HUB, key=key)
    first = network.host(bootnode, peers_file=file)
    Directory(first).find(HUB, 20, among=[key.address])
    eventually(lambda: peers.load(file, most=64).notices, what="what it followed being written down")
    first.close()
    bootnode.close()
    memory = peers.load(file, most=64)
    assert [each.peer for each in memory.notices] == [key.peer]
    peers.save(file, peers.Memory(notices=memory.notices))  # not one peer is remembered

    again = network.host(*bootnode.addresses, peers_file=file)
    found = Directory(again).find(HUB, 20, among=[key.address])

    assert [each.peer_id for each in found] == [provider.peer_id]
