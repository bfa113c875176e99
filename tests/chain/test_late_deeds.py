"""Deeds whose nonce is used, and of which nobody can tell by what: later ones do not wait for them one after the other, and none is forgotten."""

from __future__ import annotations

import time

import pytest
from swarm.faulty_endpoint import FaultyEndpoint
from swarm.world import TOKEN, World

from protocol.chain import Chain, Sender
from protocol.chain.finality import Finality
from protocol.chain.sender import SendLimits
from protocol.chain.transaction_log import Transaction, TransactionLog
from protocol.identity import Key
from tests.chain.paying import begun, deposits
from tests.chain.test_told import Killed, die


def displaced(world: World, chain: Chain, key: Key, deeds: int, limits: SendLimits) -> tuple[Sender, TransactionLog]:
    """So many deeds that were signed and not sent, and whose nonces a wallet with the same key has used."""
    journal = begun(world, key)
    one = Sender(chain, key, journal, limits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sender, "_recover", lambda *_: [])
        patch.setattr(Sender, "_finish", die)
        for number in range(deeds):
            one._used = one._count()
            with pytest.raises(Killed):
                one.send(chain.deposit(key.address, TOKEN), name=f"deed/{number}")
    for _ in range(deeds):
        Sender(world.chain, key).send(world.chain.transfer_tokens(world.owner.key.address, 1))
    return one, journal


def test_a_later_deed_waits_for_one_of_several_at_most(world: World, key: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {
        "late._REST_SECONDS": 0.0,
        "sender._ALONE_SECONDS": 0.5,
        "sender._RESEND_SECONDS": 0.2,
    }.items():
        monkeypatch.setattr(f"protocol.chain.{name}", seconds)
    one, journal = displaced(world, world.chain, key, 3, SendLimits(deadline=60))
    monkeypatch.setattr(Finality, "user", lambda *_: None)
    sleeps: list[tuple[str, float]] = []
    doing: list[str] = []
    finish, sleep = Sender._finish, one._clock.sleep

    def noted(self: Sender, transaction: Transaction, **options: object) -> object:
        doing.append(str(transaction.name))
        return finish(self, transaction, **options)  # type: ignore[arg-type]

    def slept(seconds: float) -> None:
        sleeps.append((doing[-1], seconds))
        sleep(seconds)

    monkeypatch.setattr(Sender, "_finish", noted)
    monkeypatch.setattr(one._clock, "sleep", slept)
    for number in range(2):
        one.send(world.chain.deposit(key.address, TOKEN), name=f"later/{number}")
    waited = {name: sum(seconds for of, seconds in sleeps if of == name) for name in set(doing)}
    assert [name for name, seconds in waited.items() if name.startswith("deed") and seconds > 0.1] == ["deed/0"]
    assert waited["deed/0"] < 10, "and not for the deadline"
    assert len(journal.pending()) == 3


def test_none_is_forgotten_behind_those_before_it(world: World, key: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_REST_SECONDS": 0.0, "_AT_ONCE": 2}.items():
        monkeypatch.setattr(f"protocol.chain.late.{name}", value)
    one, journal = displaced(world, world.chain, key, 5, SendLimits(deadline=0.2))
    last, user = journal.pending()[-1].nonce, Finality.user
    monkeypatch.setattr(Finality, "user", lambda *_: None)
    one.recover()
    monkeypatch.setattr(Finality, "user", lambda self, nonce, ours: user(self, nonce, ours) if nonce == last else None)
    for _ in range(3):  # two of the five at each
        one.recover()
    assert deposits(world, key.address) == 1


def test_two_honest_ones_that_take_their_time_can_tell_in_the_end(
    world: World, honest: list[FaultyEndpoint], key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search takes more answers than one look has time for: the next goes on from there."""
    monkeypatch.setattr("protocol.chain.finality._ANSWERS", 0.8)
    world.anvil.request("anvil_mine", hex(600))
    chain = Chain([each.url for each in honest], world.chain.runs.address, timeout=1)
    _, journal = displaced(world, chain, key, 1, SendLimits(deadline=3, depth=12))
    world.anvil.request("anvil_mine", hex(100))
    (deed,) = journal.pending()

    def slow(method: str, _: object) -> None:
        if method == "eth_getTransactionCount":
            time.sleep(0.15)

    for each in honest:
        each.fault = slow
    finality = Finality(chain, key.address, 12)
    looks = [finality.user(deed.nonce, journal.hashes(deed)) for _ in range(6)]
    assert looks[0] is None
    assert looks[-1] is not None
    assert looks[-1] not in journal.hashes(deed)
