"""A look back at what has landed costs no more than it must."""

from __future__ import annotations

import time

import pytest
from swarm.faulty_endpoint import FaultyEndpoint, error, result
from swarm.world import TOKEN, World

from protocol.chain import Chain, Sender
from protocol.chain.sender import SendLimits
from protocol.chain.transaction_log import MINED, SETTLED, TransactionLog
from protocol.identity import Key


def test_old_transactions_without_receipts_keep_no_later_one_from_settling(
    world: World, faulty: FaultyEndpoint, key: Key
) -> None:
    """As of a node that prunes receipts."""
    chain, journal = Chain(faulty.url, world.chain.runs.address, timeout=20), TransactionLog()
    one = Sender(chain, key, journal, SendLimits(depth=3))
    gone = {"0x" + one.send(chain.deposit(key.address, TOKEN), name=f"{n}").hash.hex() for n in range(4)}
    world.anvil.request("anvil_mine", hex(70))
    faulty.fault = lambda method, params: result(None) if "Receipt" in method and params[0] in gone else None
    one.send(chain.deposit(key.address, TOKEN), name="fifth")
    world.anvil.request("anvil_mine", hex(4))
    one.recover()
    settled = journal.named("fifth")
    assert settled is not None
    assert settled.state == SETTLED


def test_what_nobody_can_tell_of_after_a_day_is_left_at_that(
    world: World, faulty: FaultyEndpoint, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An endpoint that keeps the states of 128 blocks and no old receipts; each look would cost dozens of calls for good."""
    chain, journal = Chain(faulty.url, world.chain.runs.address, timeout=20), TransactionLog()
    one = Sender(chain, key, journal, SendLimits(depth=3))
    with monkeypatch.context() as patch:
        yesterday = time.time() - 90_000
        patch.setattr("protocol.chain.transaction_log.time.time", lambda: yesterday)
        one.send(chain.deposit(key.address, TOKEN), name="old")
    one.send(chain.deposit(key.address, TOKEN), name="young")
    world.anvil.request("anvil_mine", hex(200))

    def fault(method: str, params: list[str]) -> bytes | None:
        if method == "eth_getTransactionReceipt":
            return result(None)
        if method == "eth_getTransactionCount" and params[1] != "latest":
            newest = int(world.anvil.request("eth_blockNumber"), 16)
            return error(-32000, "missing trie node") if int(params[1], 16) < newest - 128 else None
        return None

    faulty.fault = fault
    one.recover()
    states = {name: found.state for name in ("old", "young") if (found := journal.named(name)) is not None}
    assert states == {"old": SETTLED, "young": MINED}
