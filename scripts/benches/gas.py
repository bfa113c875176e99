"""Gas: what the common transactions cost on a real Anvil, sent by the Python client and read from their receipts.

The peer is Prime Intellect's contracts (PrimeNetwork, StakeManager, ComputePool, SyntheticDataWorkValidator); its figures are
those measured from its sources, the lower end where there are two, and it knows neither batches nor appeals. "Steady" is a
seat that has worked before, in another block of the same step: what nearly every transaction of a run is. A *submission* of
submitMany is compared with a submission of the peer, which has to send one each.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from eth_utils import keccak
from swarm.anvil import Anvil
from swarm.world import DAY, TOKEN, World

from benches import Bench, Cost
from protocol.chain.calls import Call
from protocol.chain.sender import Sent
from protocol.chain.vouchers import Vouchers
from protocol.identity import Key
from protocol.signing import Join, Verdict, Voucher
from protocol.submission import SubmissionRef
from protocol.verdict import Outcome

SUBMIT, SOFT, HARD, CLAIM, JOIN = 239_000, 191_000, 411_000, 77_000, 255_000 + 311_000
"""The peer's gas."""
_BATCH = 64
_NODES = 6
_UNITS = 100
_ALL = 2**256 - 1


def run() -> Bench:
    with tempfile.TemporaryDirectory() as folder:
        anvil = Anvil(Path(folder))
        try:
            return _measure(_Field(anvil))
        finally:
            anvil.stop()


class _Field:
    """A run at work: five validators (challenger, co-signer, three jurors), a node that keeps others' slots warm, and a sink that was paid
    before: the first slash of a deployment costs 17,100 more."""

    def __init__(self, anvil: Anvil) -> None:
        self.world = World.fresh(anvil, co_signers=1, max_per_step=2 * _BATCH)
        self.validators = [Key.generate() for _ in range(5)]
        for validator in self.validators:
            self.world.seat_validator(validator)
        self._fresh = [Key.generate() for _ in range(_NODES)]
        for node in self._fresh:  # a seat works from the next version on
            self.world.seat_node(Key.generate(), node)
        self.beacon = self.world.publish(0)
        self._next: dict[str, int] = {}
        self.submit(self.node())
        sink = self.world.chain.bonds.functions.sink().call()
        self.world.owner.send(self.world.chain.deposit(sink, 1))

    def node(self) -> Key:
        """One that has not worked yet."""
        return self._fresh.pop()

    def ref(self, node: Key) -> SubmissionRef:
        sequence = self._next.get(node.address, 0)
        self._next[node.address] = sequence + 1
        return SubmissionRef(node.address, 0, sequence, keccak(text=f"{node.address} {sequence}"))

    def send(self, key: Key, call: Call) -> Sent:
        return self.world.sender(key).send(call)

    def submit(self, node: Key) -> tuple[SubmissionRef, int]:
        """(the submission, its gas)."""
        ref = self.ref(node)
        return ref, self.send(node, self.world.chain.submit(self.world.run, ref, _UNITS, self.beacon)).gas_used

    def accuse(self, ref: SubmissionRef) -> int:
        """A hard case with a second validator's signature."""
        details = bytes(range(32))
        verdict = Verdict(self.world.run, ref.submission_id(self.world.run), Outcome.HARD, _ALL, details)
        second = self.validators[1]
        receipt = (second.address, _ALL, details, verdict.sign(second, self.world.chain.domain))
        call = self.world.chain.accuse(self.world.run, ref, _ALL, b"\x0e" * 32, receipt)
        return self.send(self.validators[0], call).gas_used

    def wait(self, seconds: int) -> None:
        self.world.anvil.advance(seconds)


def _measure(field: _Field) -> Bench:
    bench = Bench("gas")
    _submissions(bench, field)
    _cases(bench, field)
    _money(bench, field)
    _once(bench, field)
    return bench


def _add(bench: Bench, name: str, gas: float, peer: float | None = None, goal: float | None = None) -> None:
    bench.rows.append(Cost(name, "gas", gas, peer, peer / gas if peer else None, goal))


def _submissions(bench: Bench, field: _Field) -> None:
    node = field.node()
    _, first = field.submit(node)
    _add(bench, "submit, a seat's first", first, SUBMIT)
    steady = []
    for _ in range(4):  # the dearest counts
        field.wait(2 * 3600)
        steady.append(field.submit(node)[1])
    _add(bench, "submit, steady", max(steady), SUBMIT, 78_000)
    refs = [field.ref(node) for _ in range(_BATCH)]
    call = field.world.chain.submit_many(field.world.run, refs, [_UNITS] * _BATCH, field.beacon)
    _add(bench, f"submitMany({_BATCH}), per submission", field.send(node, call).gas_used / _BATCH, SUBMIT, 30_000)


def _cases(bench: Bench, field: _Field) -> None:
    run, chain, node = field.world.run, field.world.chain, field.node()
    field.submit(node)
    ref, _ = field.submit(node)
    call = chain.challenge(run, [ref], b"\x0e" * 32)
    _add(bench, "soft: challenge", field.send(field.validators[0], call).gas_used, SOFT, 160_000)
    field.wait(3600)
    _add(
        bench,
        "soft: settle",
        field.send(field.validators[0], chain.settle(run, node.address, 1)).gas_used,
        None,
        120_000,
    )

    convicted = field.node()
    field.submit(convicted)
    accuse = field.accuse(field.submit(convicted)[0])
    field.wait(3600)
    settle = field.send(field.validators[0], chain.settle(run, convicted.address, 1)).gas_used
    _add(bench, "hard: accuse and settle", accuse + settle, HARD, 450_000)

    accused = field.node()
    field.submit(accused)
    field.accuse(field.submit(accused)[0])
    appeal = field.send(accused, chain.appeal(run, accused.address, 1)).gas_used
    receipts = b"\x0d" * 32
    votes = [
        field.send(juror, chain.vote(run, accused.address, 1, 0, 0, receipts)).gas_used
        for juror in field.validators[2:4]
    ]
    _add(bench, "appeal", appeal)
    _add(bench, "vote", votes[0], None, 100_000)
    _add(bench, "vote that decides (acquits)", votes[1], None, 180_000)
    _add(bench, "appeal path: appeal and two votes", appeal + sum(votes))


def _money(bench: Bench, field: _Field) -> None:
    world, chain, node, stranger = field.world, field.world.chain, field.node(), Key.generate()
    claims = []
    for _ in range(2):
        field.submit(node)
        field.wait(2 * DAY)
        claims.append(field.send(stranger, chain.claim(world.run, node.address)).gas_used)
    _add(bench, "claim, an operator's first", claims[0], CLAIM, 80_000)
    _add(bench, "claim", claims[1], CLAIM, 80_000)
    vouchers = Vouchers(chain, world.vouchers)
    world.owner.send(chain.approve_tokens(vouchers.address, 1000 * TOKEN))
    world.owner.send(vouchers.fund(world.run, 1000 * TOKEN))
    validator = field.validators[0].address
    for total, name in ((TOKEN, "redeem, a validator's first"), (2 * TOKEN, "redeem")):
        voucher = Voucher(world.run, validator, total)
        call = vouchers.redeem(voucher, voucher.sign(world.trainer.key, chain.domain))
        _add(bench, name, field.send(stranger, call).gas_used)


def _once(bench: Bench, field: _Field) -> None:
    world, chain, operator, node = field.world, field.world.chain, Key.generate(), Key.generate()
    world.owner.send(chain.deposit(operator.address, chain.policy(world.run).node_stake))
    deadline = chain.block().time + 600
    consent = Join(world.run, operator.address, node.address, keccak(node.peer), 0, deadline)
    call = chain.join(world.run, node.address, node.peer, 0, deadline, consent.sign(node, chain.domain))
    _add(bench, "join", field.send(operator, call).gas_used, JOIN, 110_000)
    world.publish(1)
    publish = world.trainer.send(chain.publish(world.run, 2, b"\x0c" * 32)).gas_used
    for _ in range(2):  # the block whose hash the beacon is made of, and one that can look back at it
        field.wait(1)
    draw = world.trainer.send(chain.draw(world.run, 2)).gas_used
    _add(bench, "publish and draw", publish + draw, None, 150_000)
    _add(bench, "deploy: Runs, Court, Vouchers and what they bring", _deployment(world))


def _deployment(world: World) -> int:
    """Gas of the transactions that created the contracts, without the development token's."""
    ethereum, gas = world.chain.ethereum, 0
    for number in range(1, world.chain.block_number()):
        for transaction in ethereum.request("eth_getBlockByNumber", hex(number), False)["transactions"]:
            receipt = ethereum.receipt(bytes.fromhex(transaction[2:]))
            if receipt and receipt.contract not in (None, world.chain.token.address):
                gas += receipt.gas_used
        if ethereum.code(world.vouchers, number):
            return gas
    raise AssertionError("the contracts were never deployed")
