"""As test_once.py, of commands that a person gives one after the other, each of which ends what the one before began: nothing is done twice, nor
after what was asked for later."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Iterator
from contextlib import suppress

import pytest

from protocol.chain import Chain
from protocol.chain.calls import Call
from protocol.chain.command import CommandSender
from protocol.chain.contract import Function
from protocol.chain.sender import SendLimits
from protocol.chain.signer import Signer
from protocol.chain.transaction_log import TransactionLog
from protocol.errors import MurmurationError
from tests.chain.ledger import Faults, Killed, Ledger, serve
from tests.chain.test_once import KEY, QUIET, TARGET, unsigned


def run_schedule(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    depth = chance.choice([0, 3])
    ledger = Ledger(
        KEY.address, chance, depth, failing=chance.choice([0, 0.4]), foreign=chance.choice([0.1, 0.3]),
        poor=chance.choice([0, 0.3]), shaking=0.0,
    )  # fmt: skip
    for _ in range(depth + 3):
        ledger.mine()
    ledger.clock.meanwhile = ledger.mine
    faults = Faults(old=chance.choice([0.1, 0.5, 0.9]), lost=chance.choice([0, 0.2]), deadly=chance.choice([0, 0.05]))
    serve(monkeypatch, ledger, faults)
    monkeypatch.setattr(Signer, "sign", unsigned)
    commands = Commands(ledger, chance.choice([1, 1, 3]))
    names = [f"deed {number}" for number in range(3)]
    for name in names:
        for _ in range(chance.randint(1, 3)):
            faults.indexing = chance.random() < 0.3
            commands.give(name)
            if chance.random() < 0.2:
                commands.give_nothing()
    faults.__dict__.update(QUIET.__dict__)
    ledger.foreign = ledger.failing = 0
    for name in names:
        assert any(commands.give(name) for _ in range(40))
    ledger.publish()
    for _ in range(depth + 3):
        ledger.mine()
    assert ledger.done() == dict.fromkeys(names, 1)


class Commands:
    """Of one key, with one journal."""

    def __init__(self, ledger: Ledger, endpoints: int) -> None:
        self._ledger = ledger
        self._journal = TransactionLog()
        self._chain = Chain([f"http://{number}" for number in range(endpoints)], None, clock=ledger.clock)
        self._asks = itertools.count()
        self._asked: dict[str, int] = {}  # when each was last asked for before it landed
        self._landed: set[str] = set()
        self._revoked: set[str] = set()  # by a command that ended well and found nothing to do, or was answered "no"
        self._told: set[str] = set()

    def give(self, name: str) -> bool:
        """Asks for a deed, unless that is said to be done already. Returns whether it is."""
        if name not in self._told:
            if name not in self._landed:
                self._asked[name] = next(self._asks)
            self._revoked.discard(name)
            try:
                self._run(name)
                self._told.add(name)
            except MurmurationError as error:
                if "it may have been done" in str(error) and self._ledger.done()[name]:
                    self._told.add(name)  # whoever gives it looks
            except Killed:
                pass
            self._check()
        return name in self._told

    def give_nothing(self) -> None:
        """A command that ends well and has sent nothing."""
        with suppress(MurmurationError, Killed):
            self._run(None)
            self._check()
            if not self._ledger.poor:  # what was refused for want of gas money may land whenever somebody shows it
                self._revoked |= self._asked.keys() - self._landed
        self._check()

    def _run(self, name: str | None) -> None:
        limits = SendLimits(deadline=12, stuck=4, depth=self._ledger.depth)
        sender = CommandSender(self._chain, KEY, self._journal, limits, "home")
        sender._clock = sender._signer._clock = self._ledger.clock
        sender.resume()
        if name is not None:
            sender.send(Call(f"doing {name}", Function(self._chain.ethereum, TARGET, name.encode())))
        sender.tell()

    def _check(self) -> None:
        assert max(self._ledger.done().values(), default=0) <= 1
        done = [deed.name for block in self._ledger.now for deed, good in block.transactions if good and deed.name]
        for place, name in enumerate(done):
            if name not in self._landed:
                assert name not in self._revoked
                assert all(self._asked[earlier] < self._asked[name] for earlier in done[:place])
        self._landed |= set(done)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Fewer looks at a chain that mines a block at each, and nothing signed that gives leave."""
    monkeypatch.setattr("protocol.chain.sender._POLL_SECONDS", 0.5)
    monkeypatch.setattr("protocol.chain.sender._POLL_SECONDS_PUBLIC", 0.5)
    monkeypatch.setattr(CommandSender, "_signed", lambda _: [])
    logging.disable(logging.CRITICAL)
    yield monkeypatch
    logging.disable(logging.NOTSET)


def test_what_commands_ask_for_is_done_once_and_in_order(quick: pytest.MonkeyPatch) -> None:
    for seed in range(120):
        run_schedule(seed, quick)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(4))
def test_the_same_two_thousand_times(part: int, quick: pytest.MonkeyPatch) -> None:
    for seed in range(120 + part * 470, 120 + (part + 1) * 470):
        run_schedule(seed, quick)
