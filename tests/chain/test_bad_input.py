"""What Python signs and sends counts in one place and time only, and a token that is not plain is refused by name.

Tokens that answer false or re-enter: contracts/test/bonds/Deposit.t.sol and contracts/test/attacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from eth_utils import keccak
from swarm.anvil import Anvil
from swarm.world import TOKEN, World, policy_for

from protocol.chain import Chain, Sender
from protocol.chain.calls import Call
from protocol.chain.ethereum import Ethereum, RpcRefusal
from protocol.chain.reverts import HINTS
from protocol.errors import TransactionReverted, WrongChain
from protocol.identity import Key
from protocol.signing import Domain, Join, Verdict
from protocol.submission import SubmissionRef

FOREVER = 2**40


@pytest.fixture(scope="module")
def other_chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Anvil]:
    anvil = Anvil(tmp_path_factory.mktemp("other"), chain_id=84532)
    yield anvil
    anvil.stop()


def another_run(world: World) -> int:
    policy = policy_for(world.owner.key, world.trainer.key)
    world.owner.send(world.chain.create(policy, b"\x08" * 32))
    return world.chain.run_count()


def join(world: World, consent: Join, signer: Key, domain: Domain, *, run: int) -> Call:
    signature = consent.sign(signer, domain)
    return world.chain.join(run, signer.address, signer.peer, consent.hardware, consent.deadline, signature)


@pytest.fixture
def consent(world: World) -> tuple[Key, Key, Join]:
    """(operator with stake, node, the node's word for the world's run)"""
    operator, node = Key.generate(), Key.generate()
    world.owner.send(world.chain.deposit(operator.address, 500 * TOKEN))
    return operator, node, Join(world.run, operator.address, node.address, keccak(node.peer), 0, FOREVER)


def test_a_consent_counts_in_its_run_only(world: World, consent: tuple[Key, Key, Join]) -> None:
    operator, node, word = consent
    with pytest.raises(TransactionReverted) as refused:
        world.sender(operator).send(join(world, word, node, world.chain.domain, run=another_run(world)))
    assert refused.value.reason == "Denied"
    world.sender(operator).send(join(world, word, node, world.chain.domain, run=world.run))


@pytest.mark.parametrize("change", [{"chain_id": 84532}, {"contract": "0x" + "42" * 20}])
def test_a_consent_counts_on_its_chain_and_deployment_only(
    world: World, consent: tuple[Key, Key, Join], change: dict[str, object]
) -> None:
    operator, node, word = consent
    elsewhere = replace(world.chain.domain, **change)  # type: ignore[arg-type]
    with pytest.raises(TransactionReverted) as refused:
        world.sender(operator).send(join(world, word, node, elsewhere, run=world.run))
    assert refused.value.reason == "Denied"


def test_a_consent_counts_for_its_operator_only(world: World, consent: tuple[Key, Key, Join]) -> None:
    _, node, word = consent
    thief = Key.generate()
    world.owner.send(world.chain.deposit(thief.address, 500 * TOKEN))
    with pytest.raises(TransactionReverted) as refused:
        world.sender(thief).send(join(world, word, node, world.chain.domain, run=world.run))
    assert refused.value.reason == "Denied"


def test_an_expired_consent_is_refused_and_tells_when_it_ended(world: World, consent: tuple[Key, Key, Join]) -> None:
    operator, node, word = consent
    expired = replace(word, deadline=world.chain.block().time)
    world.anvil.advance(2)
    with pytest.raises(TransactionReverted) as refused:
        world.sender(operator).send(join(world, expired, node, world.chain.domain, run=world.run))
    assert (refused.value.reason, refused.value.arguments) == ("TooLate", (expired.deadline,))


@pytest.mark.parametrize("fault", ["another run", "another chain", "another outcome", "other samples"])
def test_a_verdict_serves_for_what_it_says_only(anvil: Anvil, fault: str) -> None:
    world = World.fresh(anvil, co_signers=1)
    accuser, second, node = Key.generate(), Key.generate(), Key.generate()
    world.seat_validator(accuser)
    world.seat_validator(second)
    world.seat_node(Key.generate(), node)
    world.publish(0)
    ref: SubmissionRef = world.submit(node, 0, 0, b"\x01" * 32)
    details = b"\x0d" * 32
    right = Verdict(world.run, ref.submission_id(world.run), 3, 1, details)
    signed, domain = right, world.chain.domain
    if fault == "another run":
        signed = replace(right, run=world.run + 1)
    elif fault == "another chain":
        domain = replace(domain, chain_id=84532)
    elif fault == "another outcome":
        signed = replace(right, outcome=2)
    else:
        signed = replace(right, samples=2)
    sender = world.sender(accuser)
    wrong = (second.address, 1, details, signed.sign(second, domain))
    with pytest.raises(TransactionReverted) as refused:
        sender.send(world.chain.accuse(world.run, ref, 1, b"\x0e" * 32, wrong))
    assert (refused.value.reason, refused.value.arguments) == ("Denied", (second.address.lower(),))
    honest = (second.address, 1, details, right.sign(second, world.chain.domain))
    sender.send(world.chain.accuse(world.run, ref, 1, b"\x0e" * 32, honest))


def test_a_wrong_chain_id_is_noticed_before_anything_is_signed(world: World, other_chain: Anvil) -> None:
    with pytest.raises(WrongChain, match="is chain 84532, not 31337"):
        Chain(other_chain.rpc, world.chain.runs.address).check(31337)
    with pytest.raises(WrongChain, match="no such contract"):
        Chain(other_chain.rpc, world.chain.runs.address).check(84532)


def test_a_transaction_signed_for_another_chain_does_not_land(
    world: World, other_chain: Anvil, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where the same key has gas on both: EIP-155."""
    key = Key.generate()
    for anvil in (world.anvil, other_chain):
        anvil.give(key.address, TOKEN)
    chain = Chain(world.anvil.rpc, world.chain.runs.address)
    sender = Sender(chain, key)
    assert chain.chain_id == 31337
    seen: list[bytes] = []
    real = Ethereum.send_raw
    monkeypatch.setattr(Ethereum, "send_raw", lambda self, raw: (seen.append(raw), real(self, raw))[1])
    sender.send(chain.approve_tokens(chain.runs.address, 1))
    other = Chain(other_chain.rpc, None).ethereum
    with pytest.raises(RpcRefusal, match=r"(?i)chain"):
        other.send_raw(seen[0])
    assert other.transaction_count(key.address) == 0


SAYS_YES = "0x60015f5260205ff3"  # returns 1 whatever it is asked: balances never move
SAYS_NO = "0x5f5f5260205ff3"  # returns 0


@pytest.mark.parametrize(
    ("code", "reason"), [(SAYS_YES, "WrongAmount"), (SAYS_NO, "SafeERC20FailedOperation")], ids=["yes", "no"]
)
def test_a_token_that_moves_nothing_is_refused_by_name(world: World, code: str, reason: str) -> None:
    snapshot = world.anvil.request("evm_snapshot")
    world.anvil.request("anvil_setCode", world.chain.token.address, code)
    try:
        for call in (world.chain.deposit(world.owner.key.address, TOKEN), world.chain.fund(world.run, TOKEN)):
            with pytest.raises(TransactionReverted) as refused:
                world.owner.send(call)
            assert (refused.value.reason, refused.value.hint) == (reason, HINTS[reason])
    finally:
        world.anvil.request("evm_revert", snapshot)
