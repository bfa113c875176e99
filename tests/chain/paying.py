"""A key with money on a real chain, and what it has done with it."""

from __future__ import annotations

from swarm.world import TOKEN, World

from protocol.chain import Chain, Sender
from protocol.chain.events import Deposited
from protocol.chain.sender import SendLimits
from protocol.chain.transaction_log import PENDING, Attempt, Transaction, TransactionLog
from protocol.identity import Key

QUICK = SendLimits(deadline=20, stuck=0.2)


def deposits(world: World, account: str) -> int:
    return sum(1 for e in world.logs() if isinstance(e.data, Deposited) and e.data.account == account)


def sender(world: World, key: Key, rpc: str | None = None, **options: object) -> Sender:
    """A sender with play money and an allowance for deposits."""
    world.anvil.give(key.address, TOKEN)
    world.owner.send(world.chain.transfer_tokens(key.address, 1000 * TOKEN))
    Sender(world.chain, key).send(world.chain.approve_tokens(world.chain.bonds.address, 1000 * TOKEN))
    return Sender(Chain(rpc or world.anvil.rpc, world.chain.runs.address, timeout=3), key, **options)  # type: ignore[arg-type]


def begun(world: World, key: Key, journal: TransactionLog | None = None) -> TransactionLog:
    """A journal that knows of something the key has sent: another one needs more than half of the endpoints before it sends anything."""
    journal = journal or TransactionLog()
    Sender(world.chain, key, journal).send(world.chain.transfer_tokens(world.owner.key.address, 0), name="first")
    return journal


def noted(journal: TransactionLog, name: str | None, nonce: int, attempt: Attempt) -> Transaction:
    """A deployment of nothing, in the journal alone."""
    return journal.begin(Transaction(0, name, "publishing", nonce, None, b"", 1, PENDING, None, None), attempt)
