"""An endpoint that names a Bonds or a token of its own gets nobody's leave to take tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from swarm.faulty_endpoint import Drop, FaultyEndpoint, Hang, Refuse, result
from swarm.world import TOKEN, World

from protocol.chain import Chain, Sender, networks
from protocol.chain.agreement import require_agreement, require_same_run
from protocol.chain.command import journal_path, open_sender
from protocol.chain.endpoints import EndpointsDisagree
from protocol.chain.sender import SendLimits
from protocol.errors import RpcUnavailable, WrongChain
from protocol.http_url import is_of_this_machine
from protocol.identity import Key
from protocol.shell.money import deposit
from tests.chain.lying_contracts import THEIRS, Liar, input_of, newcomer
from tests.chain.paying import deposits


@pytest.fixture
def honest(world: World) -> Iterator[FaultyEndpoint]:
    endpoint = FaultyEndpoint(world.anvil.rpc)
    yield endpoint
    endpoint.close()


@pytest.fixture
def two(world: World, faulty: FaultyEndpoint, honest: FaultyEndpoint) -> Callable[..., Chain]:
    def made(*, liar_first: bool) -> Chain:
        urls = [faulty.url, honest.url] if liar_first else [honest.url, faulty.url]
        return Chain(urls, world.chain.runs.address, timeout=2)

    return made


@pytest.mark.parametrize("liar_first", [True, False], ids=["liar first", "liar second"])
@pytest.mark.parametrize("what", ["bonds", "token"])
def test_where_one_lies_no_leave_is_given(
    world: World, faulty: FaultyEndpoint, two: Callable[..., Chain], what: str, liar_first: bool
) -> None:
    faulty.fault = Liar(world, what)
    chain, key = two(liar_first=liar_first), newcomer(world)
    with pytest.raises(WrongChain, match="the endpoints do not agree on") as raised:
        deposit(Sender(chain, key), key.address, TOKEN)
    assert faulty.url in str(raised.value) or THEIRS in str(raised.value).lower()
    assert world.chain.ethereum.transaction_count(key.address) == 0


def test_where_all_agree_the_deposit_is_made(world: World, two: Callable[..., Chain]) -> None:
    chain, key = two(liar_first=True), newcomer(world)
    deposit(Sender(chain, key), key.address, TOKEN)
    assert deposits(world, key.address) == 1
    assert require_same_run(chain, world.run).told == chain.endpoints


def test_other_code_and_another_policy_are_contradictions(
    world: World, faulty: FaultyEndpoint, two: Callable[..., Chain]
) -> None:
    chain, bonds = two(liar_first=False), world.chain.bonds.address.lower()
    is_of_bonds = lambda method, params: method == "eth_getCode" and params[0].lower() == bonds  # noqa: E731
    faulty.fault = lambda method, params: result("0x6001") if is_of_bonds(method, params) else None
    with pytest.raises(WrongChain, match=f"{faulty.url} contradicts"):
        require_agreement(chain)
    policies, ask = world.chain.policies.address.lower(), world.chain.ethereum

    def dearer(method: str, params: Any) -> bytes | None:
        if method != "eth_call" or params[0]["to"].lower() != policies:
            return None
        told = bytearray(ask.call(params[0]))
        told[31] ^= 1
        return result("0x" + told.hex())

    faulty.fault = dearer
    assert require_agreement(chain)
    with pytest.raises(WrongChain, match="do not agree on the policy's owner"):
        require_same_run(chain, world.run)


def test_one_that_is_silent_contradicts_nobody(
    world: World, faulty: FaultyEndpoint, honest: FaultyEndpoint, two: Callable[..., Chain]
) -> None:
    """From the beginning: one that has answered is asked to the end."""

    def hang(method: str, params: Any) -> bytes | None:
        raise Hang

    faulty.fault = hang
    chain = two(liar_first=False)
    found = require_same_run(chain, world.run)
    assert (found.told, found.silent) == ((honest.url,), (faulty.url,))
    faulty.released.set()


def test_on_a_public_network_its_own_endpoint_is_asked_too(
    world: World, faulty: FaultyEndpoint, honest: FaultyEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty.fault = Liar(world, "bonds")
    chain = Chain(faulty.url, world.chain.runs.address, timeout=2)
    assert require_agreement(chain).told == (faulty.url,), "nobody else is known on a chain without a name"
    public = networks.Network(chain.chain_id, honest.url)
    monkeypatch.setitem(networks.NETWORKS, networks.Name.ANVIL, public)
    monkeypatch.setattr(networks.Network, "is_public", True)
    assert require_agreement(chain).told == (faulty.url,), "nor of one that is on this machine alone"
    monkeypatch.setattr("protocol.chain.agreement.is_of_this_machine", lambda _: False)
    with pytest.raises(WrongChain, match="do not agree on Bonds"):
        require_agreement(chain)
    faulty.fault = lambda method, params: None
    chain = Chain(faulty.url, world.chain.runs.address, timeout=2)
    assert require_agreement(chain).told == (faulty.url, honest.url)


def test_endpoints_that_hold_different_blocks_leave_nobody_out(
    two: Callable[..., Chain], monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = two(liar_first=True)
    chain.check()

    real = Chain.ask_chain_id

    def disagree(self: Chain) -> int:
        if self.place:
            raise EndpointsDisagree("the RPC endpoints hold different blocks")
        return real(self)

    monkeypatch.setattr(Chain, "ask_chain_id", disagree)
    with pytest.raises(EndpointsDisagree):
        require_agreement(chain)


def first_block_of(world: World, told: str | None) -> Callable[[str, Any], bytes | None]:
    def fault(method: str, params: Any) -> bytes | None:
        if method != "eth_getBlockByNumber" or params[0] != "0x0":
            return None
        return result(told and {**world.anvil.request(method, *params), "hash": told})

    return fault


def test_where_first_blocks_differ_no_other_journal_is_begun(
    world: World, faulty: FaultyEndpoint, two: Callable[..., Chain], tmp_path: Path
) -> None:
    chain, key, place = two(liar_first=True), Key.generate(), tmp_path / "key.json"
    path = journal_path(chain, key, place)
    faulty.fault = first_block_of(world, None)
    with pytest.raises(RpcUnavailable, match="1 of 2 endpoints say what the first block"):
        journal_path(chain, key, place)
    path.touch()
    assert journal_path(chain, key, place) == path, "one that has forgotten it, and a journal that is there"
    faulty.fault = first_block_of(world, "0x" + "cd" * 32)
    with pytest.raises(WrongChain, match="do not have the same first block"):
        journal_path(chain, key, place)
    alone = Chain(faulty.url, world.chain.runs.address, timeout=20)
    assert journal_path(alone, key, place) != path, "another chain of the same number"


@pytest.mark.parametrize("told", [None, "0x" + "cd" * 32], ids=["forgotten", "a lie"])
def test_what_one_says_of_the_first_block_has_no_deed_done_twice(
    world: World, faulty: FaultyEndpoint, honest: FaultyEndpoint, two: Callable[..., Chain], key: Key, tmp_path: Path, told: str | None
) -> None:  # fmt: skip
    """A deposit has landed, and its command was killed; then the honest endpoint is down."""
    one = open_sender(two(liar_first=True), key, tmp_path / "key.json", SendLimits())

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    def drop(*_: object) -> bytes | None:
        raise Drop

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Sender, "_result", die)
        one.send(one.chain.deposit(key.address, TOKEN))
    one.close()
    honest.fault, faulty.fault = drop, first_block_of(world, told)
    with pytest.raises(RpcUnavailable, match="of 2 endpoints say what the first block"):
        open_sender(two(liar_first=True), key, tmp_path / "key.json", SendLimits())
    alone = Chain(faulty.url, world.chain.runs.address, timeout=2)
    if told is None:
        with pytest.raises(RpcUnavailable, match="0 of 1 endpoints"):
            open_sender(alone, key, tmp_path / "key.json", SendLimits())
    assert deposits(world, key.address) == 1


@pytest.mark.parametrize("limited", [{"eth_chainId"}, {"eth_call", "eth_getCode"}])
def test_an_endpoint_that_was_there_is_not_left_out(
    world: World, faulty: FaultyEndpoint, honest: FaultyEndpoint, two: Callable[..., Chain], limited: set[str]
) -> None:
    faulty.fault = Liar(world, "bonds")
    chain, key = two(liar_first=True), newcomer(world)
    chain.check()

    def fault(method: str, _: Any) -> bytes | None:
        if method in limited:
            raise Refuse(429)
        return None

    honest.fault = fault
    with pytest.raises(RpcUnavailable, match="could not be asked to the end"):
        deposit(Sender(chain, key), key.address, TOKEN)
    assert world.chain.ethereum.transaction_count(key.address) == 0


def test_the_seat_of_a_node_is_what_all_say(world: World, faulty: FaultyEndpoint, two: Callable[..., Chain]) -> None:
    node, operator, chain = Key.generate(), Key.generate(), two(liar_first=True)
    world.seat_node(operator, node)
    assert require_same_run(chain, world.run, node=node.address)
    nobody = Key.generate()
    asked = chain.runs.functions.seats(world.run, nobody.address).transaction()["data"]
    shown = world.anvil.request("eth_call", chain.runs.functions.seats(world.run, node.address).transaction(), "latest")
    faulty.fault = lambda method, params: result(shown) if method == "eth_call" and input_of(params) == asked else None
    with pytest.raises(WrongChain, match="do not agree on the seat"):
        require_same_run(chain, world.run, node=nobody.address)


def test_which_urls_are_of_this_machine() -> None:
    here = "http://127.0.0.1:8545", "http://localhost", "http://[::1]:1", "https://user:pass@127.9.9.9/key"
    there = "https://sepolia.base.org", "http://10.0.0.1", "http://localhost.example", "http://[", "", "127.0.0.1:8545"
    assert [is_of_this_machine(url) for url in (*here, *there)] == [True] * len(here) + [False] * len(there)
