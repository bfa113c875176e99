"""One of three endpoints lies, first in the list: about deeds that the other two take, show late, or cannot show for a moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from swarm.faulty_endpoint import Drop, FaultyEndpoint, Hang, error, result
from swarm.world import TOKEN, World

from protocol.chain import Chain, Sender
from protocol.chain.command import open_sender
from protocol.chain.finality import Finality
from protocol.chain.sender import SendLimits
from protocol.chain.transaction_log import TransactionLog
from protocol.errors import DeadlineExceeded, InsufficientFunds, MurmurationError, RpcUnavailable
from protocol.identity import Key
from protocol.shell.money import deposit
from tests.chain.lying_contracts import THEIRS, Liar, newcomer
from tests.chain.paying import begun, deposits
from tests.chain.test_one_refuses import REVERTS
from tests.chain.test_slow_endpoints import swallowing, three
from tests.chain.test_told import Killed, die, forgetful

__all__ = ["three"]
_SENDING, _RECEIPT, _COUNT = "eth_sendRawTransaction", "eth_getTransactionReceipt", "eth_getTransactionCount"


@pytest.fixture
def both(world: World, faulty: FaultyEndpoint, honest: list[FaultyEndpoint]) -> Chain:
    """The liar and the honest ones."""
    chain = Chain([faulty.url, *(each.url for each in honest)], world.chain.runs.address, timeout=3)
    chain.check()
    return chain


def away(*_: object) -> bytes | None:
    raise Drop


def there(*_: object) -> bytes | None:
    return None


def invented(world: World, wrong: dict[str, str]) -> Callable[[str, Any], bytes | None]:
    def fault(method: str, params: Any) -> bytes | None:
        found = world.anvil.request(method, *params) if method == _RECEIPT else None
        return result({**found, **wrong}) if found else None

    return fault


def counting(world: World, more: int) -> Callable[[str, Any], bytes | None]:
    """Shows so many transactions more than there are."""

    def fault(method: str, params: Any) -> bytes | None:
        return result(hex(int(world.anvil.request(method, *params), 16) + more)) if method == _COUNT else None

    return fault


# ---- what it says ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [_RECEIPT, "eth_getBalance", _COUNT, "eth_getBlockByNumber"])
@pytest.mark.parametrize("answer", [REVERTS, error(-32000, "you have used up your plan")], ids=["reverted", "no more"])
def test_what_runs_no_code_does_not_revert_and_who_refuses_it_is_passed_over(
    world: World, faulty: FaultyEndpoint, both: Chain, key: Key, method: str, answer: bytes
) -> None:
    service = Sender(both, key, begun(world, key), SendLimits(deadline=8))
    faulty.fault = lambda asked, _: answer if asked == method else None
    for number in range(2):
        service.send(both.deposit(key.address, TOKEN), name=f"deed/{number}")
    assert deposits(world, key.address) == 2


def test_what_it_says_would_revert_is_not_believed_while_the_others_break_connections(
    faulty: FaultyEndpoint, honest: list[FaultyEndpoint], both: Chain, key: Key
) -> None:
    for each in honest:
        each.fault = lambda method, _: away() if method == "eth_estimateGas" else None
    faulty.fault = lambda method, _: REVERTS if method == "eth_estimateGas" else None
    with pytest.raises(RpcUnavailable, match="by another endpoint it would be refused"):
        Sender(both, key).send(both.deposit(key.address, TOKEN))


@pytest.mark.parametrize("words", ["intrinsic gas too low", "insufficient funds"])
def test_what_it_refuses_and_the_others_took_is_not_told_as_refused(
    world: World, faulty: FaultyEndpoint, honest: list[FaultyEndpoint], both: Chain, key: Key, words: str
) -> None:
    """Their answers are lost."""
    sent: list[str] = []

    def lost(method: str, params: Any) -> bytes | None:
        if method != _SENDING:
            return None
        if not sent:
            sent.append(world.anvil.request(method, *params))
        raise Drop

    for each in honest:
        each.fault = lost
    faulty.fault = lambda method, _: error(-32000, words) if method == _SENDING else None
    try:
        Sender(both, key, begun(world, key), SendLimits(deadline=8)).send(both.deposit(key.address, TOKEN))
    except (RpcUnavailable, DeadlineExceeded, InsufficientFunds) as problem:
        assert "may still land" in f"{problem} {problem.hint}"


@pytest.mark.parametrize("block", ["0x1", "0x1" + "0" * 30], ids=["another", "none that a database takes"])
def test_the_block_that_is_noted_is_the_one_that_most_show(
    world: World, faulty: FaultyEndpoint, both: Chain, key: Key, block: str
) -> None:
    journal = TransactionLog()
    service = Sender(both, key, journal, SendLimits(depth=3, deadline=10))
    sent = service.send(both.deposit(key.address, TOKEN), name="deed")
    world.anvil.request("anvil_mine", hex(5))
    faulty.fault = invented(world, {"blockNumber": block})
    service.recover()
    assert (noted := journal.named("deed")) is not None
    assert noted.block == sent.block
    service.send(both.deposit(key.address, TOKEN), name="next")


def test_a_head_beyond_all_blocks_is_nonsense(faulty: FaultyEndpoint, both: Chain, key: Key) -> None:
    def lie(method: str, params: Any) -> bytes | None:
        if method == "eth_blockNumber":
            return result(hex(2**255))
        return result(hex(10**6 if int(params[1], 16) > 2**253 else 0)) if method == _COUNT else None

    faulty.fault, before = lie, faulty.requests
    Finality(both, key.address, 12).user(3, [])
    assert faulty.requests - before < 10


# ---- while the others are away -----------------------------------------------------------------------------------------------


def test_a_count_that_is_too_high_stops_no_key_for_good(
    world: World, faulty: FaultyEndpoint, honest: list[FaultyEndpoint], both: Chain, key: Key
) -> None:
    """What is signed with such a nonce never lands, nor does anything after it."""
    service = Sender(both, key, begun(world, key), SendLimits(deadline=8))
    for each in honest:
        each.fault = away
    faulty.fault = counting(world, 1000)
    with suppress(MurmurationError):
        service.send(both.deposit(key.address, TOKEN), name="deed/0")
    for each in honest:
        each.fault = there
    for number in range(2):
        service.send(both.deposit(key.address, TOKEN), name=f"deed/{number}")
    assert deposits(world, key.address) == 2


def test_a_new_journal_believes_no_count_of_one(
    world: World, faulty: FaultyEndpoint, honest: list[FaultyEndpoint], both: Chain, key: Key
) -> None:
    faulty.fault = counting(world, 1)
    for each in honest:
        each.fault = away
    with pytest.raises(RpcUnavailable, match="more than half of the endpoints must say how many") as raised:
        Sender(both, key).send(both.deposit(key.address, TOKEN))
    assert all(each.url in str(raised.value.hint) for each in honest)


def test_after_an_outage_of_ones_own_line_the_others_are_asked_before_it_is_believed(
    world: World, faulty: FaultyEndpoint, honest: list[FaultyEndpoint], three: Chain, key: Key
) -> None:
    """They rest then, and nobody has asked them since they failed."""
    journal, everyone = begun(world, key), (faulty, *honest)
    for each in everyone:
        each.fault = away
    for one in three.singles * 4:
        with suppress(RpcUnavailable):
            one.block_number()
    for each in honest:
        each.fault = there
    faulty.fault = swallowing(world)
    time.sleep(1.1)  # so long are they silent, as far as is known
    Sender(three, key, journal, SendLimits(deadline=8)).send(three.deposit(key.address, TOKEN))
    assert deposits(world, key.address) == 1, "told as done"


def test_who_hung_once_and_is_slow_is_still_a_voice(
    world: World, faulty: FaultyEndpoint, honest: list[FaultyEndpoint], three: Chain, key: Key
) -> None:
    hung = set[int]()

    def slow(number: int) -> Callable[[str, Any], bytes | None]:
        def fault(*_: object) -> bytes | None:
            if number not in hung:
                hung.add(number)
                raise Hang
            time.sleep(0.4)
            return None

        return fault

    journal = begun(world, key)
    for number, each in enumerate(honest, 1):
        each.fault = slow(number)
        with suppress(RpcUnavailable):
            three.singles[number].block_number()
    faulty.fault = swallowing(world)
    with suppress(RpcUnavailable, DeadlineExceeded):
        Sender(three, key, journal, SendLimits(deadline=3)).send(three.deposit(key.address, TOKEN))
        assert deposits(world, key.address) == 1, "told as done"


# ---- what it shows -----------------------------------------------------------------------------------------------------------


def test_leave_is_withheld_though_it_shows_a_receipt(
    world: World, faulty: FaultyEndpoint, honest: list[FaultyEndpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier command signed it on the liar's word, and was killed before it was sent."""
    key, lie, limits, keystore = newcomer(world), Liar(world, "bonds"), SendLimits(deadline=15), tmp_path / "key.json"
    faulty.fault = lie
    misled = open_sender(Chain(faulty.url, world.chain.runs.address, timeout=3), key, keystore, limits)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("protocol.chain.sender.push", die)
        deposit(misled, key.address, TOKEN)
    misled.close()
    newest = world.anvil.request("eth_getBlockByNumber", "latest", False)
    shown = {
        "blockNumber": newest["number"],
        "blockHash": newest["hash"],
        "gasUsed": "0x9000",
        "status": "0x1",
        "logs": [],
    }
    faulty.fault = lambda method, params: (
        result({"transactionHash": params[0], **shown}) if method == _RECEIPT else lie(method, params)
    )
    seen: list[int] = []

    def watched(*_: object) -> bytes | None:
        seen.append(world.chain.allowance(key.address, THEIRS))
        return None

    honest[0].fault = watched
    chain = Chain([*(each.url for each in honest), faulty.url], world.chain.runs.address, timeout=3)
    open_sender(chain, key, keystore, limits).close()
    assert seen
    assert not any(seen)


@pytest.mark.parametrize("many", [2, 3])
def test_where_one_shows_what_used_a_nonce_and_one_has_forgotten_later_deeds_go_on(
    world: World,
    faulty: FaultyEndpoint,
    honest: list[FaultyEndpoint],
    key: Key,
    monkeypatch: pytest.MonkeyPatch,
    many: int,
) -> None:
    """All honest. Of three, one is down."""
    journal = begun(world, key)
    world.anvil.request("anvil_mine", hex(200))
    chain = Chain([honest[0].url, faulty.url, honest[1].url][:many], world.chain.runs.address, timeout=3)
    service = Sender(chain, key, journal, SendLimits(deadline=4))
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Sender, "_finish", die)
        service.send(chain.deposit(key.address, TOKEN), name="deed/0")
    Sender(world.chain, key).send(world.chain.transfer_tokens(world.owner.key.address, 1))  # with the same key
    world.anvil.request("anvil_mine", hex(200))
    faulty.fault, honest[1].fault = forgetful(world), away
    service.send(chain.deposit(key.address, 2 * TOKEN), name="deed/1")
    assert deposits(world, key.address) == 1


def test_a_withdrawal_that_is_done_is_not_tried_again_because_it_estimates_one(
    world: World, faulty: FaultyEndpoint, both: Chain, tmp_path: Path
) -> None:
    key, limits = newcomer(world), SendLimits(deadline=10)
    keystore = tmp_path / "key.json"
    first = open_sender(both, key, keystore, limits)
    everything = both.transfer_tokens(world.owner.key.address, both.token_balance(key.address))
    done = first.send(once := replace(everything, adds=False))
    first.close()
    faulty.fault = lambda method, _: result("0xffff") if method == "eth_estimateGas" else None
    again = open_sender(both, key, keystore, limits)
    assert again.send(once).hash == done.hash
    again.close()
    with pytest.raises(InsufficientFunds):
        Sender(world.chain, key).send(once)


@pytest.mark.parametrize("is_first", [True, False], ids=["liar first", "liar second"])
def test_who_refuses_to_estimate_in_words_is_no_second_voice_for_a_revert(
    world: World, faulty: FaultyEndpoint, honest: list[FaultyEndpoint], key: Key, is_first: bool
) -> None:
    """The third, which is honest, is asked, too."""
    limited = error(-32016, "over rate limit")
    faulty.fault = lambda method, _: REVERTS if method == "eth_estimateGas" else None
    honest[0].fault = lambda method, _: limited if method == "eth_estimateGas" else None
    two = [faulty.url, honest[0].url] if is_first else [honest[0].url, faulty.url]
    chain = Chain([*two, honest[1].url], world.chain.runs.address, timeout=3)
    Sender(chain, key, begun(world, key)).send(chain.deposit(key.address, TOKEN))
    assert deposits(world, key.address) == 1


def test_a_count_that_is_too_low_makes_no_new_deed_one_that_may_have_been_done(
    world: World, faulty: FaultyEndpoint, honest: list[FaultyEndpoint], both: Chain, key: Key
) -> None:
    """A wallet with the same key used some nonces, longer ago than endpoints keep states."""
    world.anvil.request("anvil_mine", hex(200))
    journal = begun(world, key)
    low = world.chain.ethereum.transaction_count(key.address)
    for _ in range(3):
        Sender(world.chain, key).send(world.chain.transfer_tokens(world.owner.key.address, 1))
    world.anvil.request("anvil_mine", hex(300))
    for each in honest:
        each.fault = forgetful(world)
    faulty.fault = lambda method, params: result(hex(low)) if method == _COUNT and params[1] == "latest" else None
    Sender(both, key, journal, SendLimits(deadline=8)).send(both.deposit(key.address, TOKEN), name="deed")
    assert deposits(world, key.address) == 1
    deed = journal.named("deed")
    assert deed is not None and len(journal.attempts(deed)) == 2, "signed anew once, with the count of most"


def test_one_that_names_a_head_beyond_all_blocks_and_answers_late_is_not_asked_for_ever(
    world: World, faulty: FaultyEndpoint, honest: list[FaultyEndpoint], key: Key
) -> None:
    """The honest ones cannot tell yet what used a nonce: no block stands on it."""
    world.anvil.request("anvil_mine", "0x14")
    journal, limits = begun(world, key), SendLimits(deadline=1, depth=3)
    chain = Chain([*(each.url for each in honest), faulty.url], world.chain.runs.address, timeout=0.8)
    one = Sender(chain, key, journal, limits)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Sender, "_finish", die)
        one.send(chain.deposit(key.address, TOKEN), name="deed")
    Sender(world.chain, key).send(world.chain.transfer_tokens(world.owner.key.address, 1))

    def fault(method: str, params: Any) -> bytes | None:
        if method == "eth_blockNumber":
            return result(hex(2**61))
        if method == _COUNT and params[1] != "latest":
            time.sleep(0.2)
            return result(hex(10**6 if int(params[1], 16) > 2**20 + 12_345 else 0))
        return None

    faulty.fault = fault
    (deed,) = journal.pending()
    assert Finality(chain, key.address, 3).user(deed.nonce, ()) is None
    assert 4 < faulty.asked[_COUNT] < 30, "of the hundred and twenty that such a head takes"


def test_what_was_signed_this_moment_is_not_told_as_of_long_ago_by_the_grace_of_a_liar(
    world: World, faulty: FaultyEndpoint, honest: list[FaultyEndpoint], key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First of three: it shows the count of before a wallet sent three things with the key, and takes whatever it is given."""
    monkeypatch.setattr("protocol.chain.sender._RESEND_SECONDS", 0.5)
    world.anvil.request("anvil_mine", hex(300))
    chain, journal = (
        Chain([faulty.url, *(each.url for each in honest)], world.chain.runs.address, timeout=3),
        begun(world, key),
    )
    had = world.chain.ethereum.transaction_count(key.address)
    for _ in range(3):
        Sender(world.chain, key).send(world.chain.transfer_tokens(world.owner.key.address, 1))
    world.anvil.request("anvil_mine", hex(300))
    forget = forgetful(world)

    def lie(method: str, params: Any) -> bytes | None:
        if method == "eth_getTransactionCount" and params[1] == "latest":
            return result(hex(had))
        if method == _SENDING:
            return result("0x" + "11" * 32)
        return None

    faulty.fault = lie
    for each in honest:
        each.fault = forget
    one = Sender(chain, key, journal, SendLimits(deadline=8, depth=12))
    said = []
    for _ in range(4):
        try:
            one.send(chain.deposit(key.address, TOKEN), name="deed")
            break
        except MurmurationError as problem:
            said.append(str(problem))
    assert not said
