"""A look back at what has landed costs no more than it must."""

from __future__ import annotations

from swarm.faulty_endpoint import FaultyEndpoint, result
from swarm.world import TOKEN, World

from protocol.chain import Chain, Sender
from protocol.chain.sender import SendLimits
from protocol.chain.transaction_log import SETTLED, TransactionLog
from protocol.identity import Key


def test_old_transactions_without_receipts_keep_no_later_one_from_settling(
    world: World, faulty: FaultyEndpoint, key: Key
) -> None:
    """As of a node that prunes receipts."""
    chain, journal = Chain(faulty.url, world.chain.runs.address, timeout=3), TransactionLog()
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
    before = faulty.asked.total()
    one.recover()
    assert faulty.asked.total() - before < 5, "they are looked for once"
