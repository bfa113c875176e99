"""Deeds whose nonce is used, and of which nobody can tell by what: later ones do not wait for them one after the other, and none is forgotten."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import pytest
from swarm.faulty_endpoint import FaultyEndpoint, error
from swarm.world import TOKEN, World

from protocol.chain import Chain, Sender
from protocol.chain.finality import Finality
from protocol.chain.sender import SendLimits
from protocol.chain.transaction_log import Transaction, TransactionLog
from protocol.identity import Key
from tests.chain.paying import begun, deposits
from tests.chain.test_told import Killed, die

_SENDING = "eth_sendRawTransaction"


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
    monkeypatch.setattr(
        Finality, "user", lambda self, nonce, *ours: user(self, nonce, *ours) if nonce == last else None
    )
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


def test_a_late_deed_of_another_does_not_take_the_patience_of_one_that_is_asked_for(
    world: World, faulty: FaultyEndpoint, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool is full for a second."""
    for name, seconds in {"_RESEND_SECONDS": 0.5, "_ALONE_SECONDS": 4.0}.items():
        monkeypatch.setattr(f"protocol.chain.sender.{name}", seconds)
    chain = Chain(faulty.url, world.chain.runs.address, timeout=20)
    one, journal = displaced(world, chain, key, 1, SendLimits(deadline=20))
    user = Finality.user
    (late,) = journal.pending()
    monkeypatch.setattr(
        Finality, "user", lambda self, nonce, *ours: None if nonce == late.nonce else user(self, nonce, *ours)
    )  # nobody can tell of that one
    with pytest.MonkeyPatch.context() as patch, suppress(Killed):
        patch.setattr(Sender, "_recover", lambda *_: [])
        patch.setattr(Sender, "_finish", die)
        one._used = one._count()
        one.send(chain.deposit(key.address, TOKEN), name="asked")
    refused = [0]

    def full(method: str, params: Any) -> bytes | None:
        raw = journal.attempts(journal.named("asked"))[-1].raw  # type: ignore[arg-type]
        if method == _SENDING and params[0] == f"0x{raw.hex()}":
            refused[0] += 1
            return error(-32000, "txpool is full") if refused[0] <= 1 else None
        return None

    faulty.fault = full
    one.send(chain.deposit(key.address, TOKEN), name="asked")
    assert deposits(world, key.address) == 1


def test_a_later_deed_waits_for_one_of_several_at_most_though_one_of_two_takes_whatever_it_is_given(
    world: World, faulty: FaultyEndpoint, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that says of each transaction that it will pass it on. As test_a_later_deed_waits_for_one_of_several_at_most else."""
    for name, seconds in {"_ALONE_SECONDS": 0.5, "_RESEND_SECONDS": 0.2}.items():
        monkeypatch.setattr(f"protocol.chain.sender.{name}", seconds)
    chain = Chain([world.anvil.rpc, faulty.url], world.chain.runs.address, timeout=20)
    one, journal = displaced(world, chain, key, 3, SendLimits(deadline=10))
    faulty.fault = lambda method, _: error(-32000, "already known") if method == _SENDING else None
    user, late = Finality.user, {each.nonce for each in journal.pending()}
    monkeypatch.setattr(
        Finality, "user", lambda self, nonce, *ours: None if nonce in late else user(self, nonce, *ours)
    )
    sleeps, sleep = list[float](), one._clock.sleep

    def slept(seconds: float) -> None:
        sleeps.append(seconds)
        sleep(seconds)

    monkeypatch.setattr(one._clock, "sleep", slept)
    one.send(chain.deposit(key.address, TOKEN), name="later")
    assert deposits(world, key.address) == 1
    assert sum(sleeps) < 15, "and not three deadlines"


def test_a_late_deed_that_got_another_nonce_has_time_to_land_with_it(
    world: World, faulty: FaultyEndpoint, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing after it could land before it."""
    monkeypatch.setattr("protocol.chain.sender._ALONE_SECONDS", 2.0)
    monkeypatch.setattr("protocol.chain.sender._RESEND_SECONDS", 0.2)
    chain = Chain(faulty.url, world.chain.runs.address, timeout=20)
    one, journal = displaced(world, chain, key, 1, SendLimits(deadline=20))
    with monkeypatch.context() as patch:
        patch.setattr(Finality, "user", lambda *_: None)
        one.recover()
    (deed,) = journal.pending()
    assert deed in one._late
    refused = [0]

    def full(method: str, _: object) -> bytes | None:
        if method != _SENDING or journal.again(deed).nonce == deed.nonce or refused[0] == 3:
            return None
        refused[0] += 1
        return error(-32000, "txpool is full")

    faulty.fault = full
    one.send(chain.deposit(key.address, TOKEN), name="later")
    assert refused == [3]
    assert deposits(world, key.address) == 2
