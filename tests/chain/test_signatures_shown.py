"""Who signed a transaction that an endpoint shows, whatever the endpoint puts in its place."""

from __future__ import annotations

import random
from typing import Any

import pytest
from eth_account import Account
from swarm.faulty_endpoint import FaultyEndpoint, result
from swarm.processes import free_port
from swarm.world import World

from protocol.chain import Chain
from protocol.chain.ethereum import signed_by
from protocol.chain.finality import Finality
from protocol.constants import ANVIL_CHAIN_ID
from protocol.identity import Key

JUNK = (
    None,
    "",
    "0x",
    "0xzz",
    "0x" + "ff" * 33,
    [],
    {},
    [1],
    [{"address": "0x1", "storageKeys": []}],
    [[]],
    1.5,
    b"x",
    10**80,
)
FIELDS = {"type": 2, "chainId": 1, "nonce": 4, "maxPriorityFeePerGas": 1, "maxFeePerGas": 5, "gas": 21_000, "value": 3}


def shown(key: Key, **changed: int) -> dict[str, Any]:
    """A transaction to itself, as a node would show it."""
    fields = {**FIELDS, **changed}
    signed = Account.sign_transaction({**fields, "to": key.address, "data": b"ab"}, key.secret)
    numbers = {name: hex(value) for name, value in {**fields, "r": signed.r, "s": signed.s, "v": signed.v}.items()}
    address = key.address.lower()
    return {
        **numbers,
        "from": address,
        "to": address,
        "input": "0x6162",
        "accessList": [],
        "hash": "0x" + signed.hash.hex(),
    }


def test_who_signed_is_told_and_what_is_changed_was_signed_by_nobody_or_another() -> None:
    key, rng = Key.generate(), random.Random(7)
    right = {name: value for name, value in shown(key).items() if name not in ("from", "hash")}
    assert signed_by(right) == key.address
    told = 0
    for _ in range(500):
        changed = {**right, **{rng.choice([*right]): rng.choice(JUNK) for _ in range(rng.choice((1, 1, 3)))}}
        try:
            assert signed_by(changed) != key.address or {**changed, "accessList": [], "v": right["v"]} == right
            told += 1
        except (ValueError, TypeError, LookupError, AttributeError):
            continue
    assert told


@pytest.mark.parametrize(("chain", "is_believed"), [(ANVIL_CHAIN_ID, True), (1, False)])
def test_what_the_key_signed_for_another_chain_proves_no_count(
    world: World, faulty: FaultyEndpoint, key: Key, chain: int, is_believed: bool
) -> None:
    """Of two endpoints, one of which is down."""
    one = shown(key, chainId=chain, nonce=999)

    def fault(method: str, params: Any) -> bytes | None:
        if method == "eth_getTransactionCount":
            return result(hex(1000))
        is_whole = method == "eth_getBlockByNumber" and params[1] is True
        return result({**world.anvil.request(method, *params), "transactions": [one]}) if is_whole else None

    faulty.fault = fault
    down = f"http://127.0.0.1:{free_port()}"
    finality = Finality(Chain([faulty.url, down], world.chain.runs.address, timeout=3), key.address, 12)
    assert finality.count() == (1000 if is_believed else None)
