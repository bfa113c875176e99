"""Leave to take tokens that a command signed on a liar's word, and that was killed, does not last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from eth_utils import keccak, to_checksum_address
from swarm.faulty_endpoint import FaultyEndpoint, error, result
from swarm.world import TOKEN, World

from protocol.chain import Chain, Sender
from protocol.chain.calls import Call
from protocol.chain.command import open_sender
from protocol.chain.contract import Function
from protocol.chain.sender import SendLimits
from protocol.errors import InsufficientFunds
from protocol.identity import Key
from protocol.shell.money import deposit
from tests.chain.lying_contracts import THEIRS, Liar, newcomer
from tests.chain.paying import deposits


class Killed(BaseException):
    pass


def die(*_: object, **__: object) -> None:
    raise Killed


@pytest.mark.parametrize("fee", ["usual", "at the cap"])
@pytest.mark.parametrize("killed_at", ["push", "Sender._close"])
def test_leave_that_was_signed_on_a_liars_word_does_not_last(
    world: World, faulty: FaultyEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: str, fee: str
) -> None:
    """Killed before it was sent, or after it had landed; then another endpoint is asked."""

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    key, lie, limits = newcomer(world), Liar(world, "bonds"), SendLimits()

    def fault(method: str, params: Any) -> bytes | None:
        if fee == "at the cap" and method == "eth_getBlockByNumber" and params[0] == "latest":
            return result({**world.anvil.request(method, *params), "baseFeePerGas": hex(limits.fee // 2 + 1)})
        return lie(method, params)

    faulty.fault = fault
    misled = open_sender(Chain(faulty.url, world.chain.runs.address, timeout=20), key, tmp_path / "key.json", limits)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(f"protocol.chain.sender.{killed_at}", killed)
        deposit(misled, key.address, TOKEN)
    misled.close()
    one = open_sender(world.chain, key, tmp_path / "key.json", limits)
    assert world.chain.allowance(key.address, THEIRS) == 0
    deposit(one, key.address, TOKEN)
    one.close()
    assert deposits(world, key.address) == 1


def test_leave_for_our_contracts_is_sent_after_a_kill(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    key = newcomer(world)
    first = open_sender(world.chain, key, tmp_path / "key.json", SendLimits())
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("protocol.chain.sender.push", killed)
        deposit(first, key.address, TOKEN)
    first.close()
    open_sender(world.chain, key, tmp_path / "key.json", SendLimits()).close()
    assert world.chain.allowance(key.address, world.chain.bonds.address) == TOKEN


def test_leave_that_lands_while_it_is_withheld_is_taken_back(
    world: World, faulty: FaultyEndpoint, tmp_path: Path
) -> None:
    key, kept, lie = newcomer(world), list[bytes](), Liar(world, "bonds")
    faulty.fault = lie
    chain = Chain(faulty.url, world.chain.runs.address, timeout=20)
    misled = open_sender(chain, key, tmp_path / "key.json", SendLimits())

    def keep(chain: Chain, raw: bytes, *_: object, **__: object) -> None:
        kept.append(raw)
        raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr("protocol.chain.sender.push", keep)
        deposit(misled, key.address, TOKEN)
    misled.close()

    def publish(method: str, _: Any) -> bytes | None:
        if method == "eth_sendRawTransaction" and kept:
            world.anvil.request(method, "0x" + kept.pop().hex())
        return None

    faulty.fault = publish
    open_sender(chain, key, tmp_path / "key.json", SendLimits()).close()
    assert not kept
    assert world.chain.allowance(key.address, THEIRS) == 0


def test_leave_that_was_noted_as_given_is_taken_back(world: World, faulty: FaultyEndpoint, tmp_path: Path) -> None:
    """Killed before it asked for the deposit."""
    key = newcomer(world)
    faulty.fault = Liar(world, "bonds")
    chain = Chain(faulty.url, world.chain.runs.address, timeout=20)
    misled = open_sender(chain, key, tmp_path / "key.json", SendLimits())
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Sender, "_result", die)
        deposit(misled, key.address, TOKEN)
    misled.close()
    assert world.chain.allowance(key.address, THEIRS) == TOKEN
    open_sender(world.chain, key, tmp_path / "key.json", SendLimits()).close()
    assert world.chain.allowance(key.address, THEIRS) == 0


def test_leave_that_was_refused_and_published_is_taken_back(
    world: World, faulty: FaultyEndpoint, tmp_path: Path
) -> None:
    key, kept, lie = newcomer(world), list[str](), Liar(world, "bonds")

    def fault(method: str, params: Any) -> bytes | None:
        if method == "eth_sendRawTransaction":
            kept.append(params[0])
            return error(-32000, "insufficient funds for gas * price + value")
        return lie(method, params)

    faulty.fault = fault
    chain = Chain(faulty.url, world.chain.runs.address, timeout=20)
    misled = open_sender(chain, key, tmp_path / "key.json", SendLimits())
    with pytest.raises(InsufficientFunds):
        deposit(misled, key.address, TOKEN)
    misled.close()
    world.anvil.request("eth_sendRawTransaction", kept[0])
    open_sender(world.chain, key, tmp_path / "key.json", SendLimits()).close()
    assert world.chain.allowance(key.address, THEIRS) == 0


def test_leave_that_cannot_be_taken_back_stops_no_command(world: World, key: Key, tmp_path: Path) -> None:
    """Of a token that a liar named, and that reverts."""
    selector = keccak(text="approve(address,uint256)")[:4]
    answers_one = bytes.fromhex("600160005260206000f3")
    to_none = b"\x60\x00\x35\x60\xe0\x1c\x63" + selector + bytes.fromhex("14602435151660" + "1f" + "57")
    code = (to_none + answers_one).ljust(0x1F, b"\0") + bytes.fromhex("5b60006000fd")  # reverts at approve(…, 0)
    world.anvil.request("anvil_setCode", THEIRS, "0x" + code.hex())
    leave = Function(
        world.chain.ethereum, to_checksum_address(THEIRS), selector + bytes(31) + b"\x43" + (5).to_bytes(32, "big")
    )
    one = open_sender(world.chain, key, tmp_path / "key.json", SendLimits())
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Sender, "_result", die)
        one.send(Call("approving tokens", leave, adds=False))
    one.close()
    two = open_sender(world.chain, key, tmp_path / "key.json", SendLimits())
    two.send(two.chain.deposit(key.address, TOKEN))
    two.close()
    assert deposits(world, key.address) == 1
