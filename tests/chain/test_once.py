"""A mined deed is never done twice, and in the end each is done once: whatever earlier state of the chain an endpoint answers from, at
every call another, through reorgs as deep as the network has them, foreign use of the key, reverts, lost answers, refusals of what is
published later, and kills."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator
from contextlib import suppress

import pytest
from eth_utils import keccak

from protocol.chain import Chain, Sender
from protocol.chain.calls import Call
from protocol.chain.contract import Function
from protocol.chain.sender import SendLimits
from protocol.chain.signer import Signer
from protocol.chain.transaction_log import Attempt, Transaction, TransactionLog
from protocol.errors import MurmurationError
from protocol.identity import Key
from tests.chain.ledger import Faults, Killed, Ledger, serve

KEY = Key.from_secret(keccak(text="once"))
TARGET = Key.from_secret(keccak(text="target")).address
QUIET = Faults(old=0, lost=0, deadly=0)


def unsigned(signer: Signer, transaction: Transaction, fee: int, tip: int = 1_000_000) -> Attempt:
    """Signatures take longer than all the rest of a schedule."""
    raw = json.dumps({"name": transaction.data.decode(), "nonce": transaction.nonce, "fee": fee}).encode()
    return Attempt(keccak(raw), raw, fee, tip, signer._clock.wall())


def run_schedule(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    depth = chance.choice([0, 1, 3])
    ledger = Ledger(
        KEY.address, chance, depth, failing=chance.choice([0, 0.4]), foreign=chance.choice([0, 0.1]),
        poor=chance.choice([0.1, 0.5]), shaking=0.5 if depth else 0.0,
    )  # fmt: skip
    for _ in range(depth + 3):
        ledger.mine()
    ledger.clock.meanwhile = ledger.mine
    faults = Faults(old=chance.choice([0.1, 0.5, 0.9]), lost=chance.choice([0, 0.2]), deadly=chance.choice([0, 0.03]))
    serve(monkeypatch, ledger, faults)
    monkeypatch.setattr(Signer, "sign", unsigned)
    life = Life(ledger, chance.choice([1, 1, 3]))
    deeds = [f"deed {number}" for number in range(3)]
    for name in deeds:
        for _ in range(chance.randint(1, 4)):
            life.attempt(name)
    faults.__dict__.update(QUIET.__dict__)
    ledger.foreign = ledger.failing = ledger.shaking = 0
    for _ in range(40):
        is_settled = life.is_settled()
        if all([life.attempt(name) for name in deeds]) and is_settled:
            break
    assert life.journal.pending() == []
    ledger.publish()
    for _ in range(depth + 1):
        ledger.mine()
    assert ledger.done() == dict.fromkeys(deeds, 1)


class Life:
    """A key, its journal, and its sender, which is begun anew where it was killed."""

    def __init__(self, ledger: Ledger, endpoints: int) -> None:
        self.ledger = ledger
        self.journal = TransactionLog()
        self._chain = Chain([f"http://{number}" for number in range(endpoints)], None, clock=ledger.clock)
        self._begin()

    def _begin(self) -> None:
        limits = SendLimits(deadline=12, stuck=4, depth=self.ledger.depth)
        self._sender = Sender(self._chain, KEY, self.journal, limits, clock=self.ledger.clock)

    def attempt(self, name: str) -> bool:
        """Asks for a deed once. Returns whether it is said to be done."""
        is_done = False
        try:
            function = Function(self._chain.ethereum, TARGET, name.encode())
            self._sender.send(Call(f"doing {name}", function), name=name)
            is_done = True
        except MurmurationError:
            pass
        except Killed:
            self._begin()
        assert max(self.ledger.done().values(), default=0) <= 1
        return is_done

    def is_settled(self) -> bool:
        for _ in range(self.ledger.depth):
            self.ledger.mine()
        with suppress(MurmurationError):
            self._sender.recover()
        return not self.ledger.depth or not self.journal.mined(1)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Fewer looks at a chain that mines a block at each."""
    monkeypatch.setattr("protocol.chain.sender._POLL_SECONDS", 0.5)
    monkeypatch.setattr("protocol.chain.sender._POLL_SECONDS_PUBLIC", 0.5)
    logging.disable(logging.CRITICAL)
    yield monkeypatch
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("part", range(4))
def test_a_deed_is_done_once_whatever_an_endpoint_remembers(part: int, quick: pytest.MonkeyPatch) -> None:
    for seed in range(part * 400, (part + 1) * 400):
        run_schedule(seed, quick)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(20))
def test_the_same_a_hundred_thousand_times(part: int, quick: pytest.MonkeyPatch) -> None:
    for seed in range(1_600 + part * 4_900, 1_600 + (part + 1) * 4_900):
        run_schedule(seed, quick)
