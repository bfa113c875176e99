"""A small world on Anvil for tests: contracts, one run, and helpers that seat operators, nodes and validators."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

from eth_abi import encode
from eth_utils import keccak

from protocol.chain import Chain, Sender
from protocol.chain.deploy import deploy
from protocol.chain.ethereum import data, quantity
from protocol.chain.events import Event, RunCreated
from protocol.chain.sender import Sent
from protocol.chain.types import Policy
from protocol.identity import Key
from protocol.signing import Join
from protocol.submission import SubmissionRef
from swarm.anvil import Anvil

TOKEN = 10**18
DAY = 86_400
_LEVELS_SLOT = 4  # of Bench: mapping `_levels`


def policy_for(owner: Key, trainer: Key, **changes: object) -> Policy:
    policy = Policy(
        owner=owner.address, fee=TOKEN, trainer=trainer.address, reward=TOKEN // 100, gate="0x" + "0" * 40,  # type: ignore[arg-type]
        notice=60, grace=60, max_units=100_000, bond=10 * TOKEN, jury_fee=TOKEN, bond_bps=1000, finder_bps=2000, co_signers=0,
        strikes=10, leverage=200, window=DAY, appeal=3600, vote=3600, max_per_step=16, node_stake=100 * TOKEN,
        penalty=60 * TOKEN, validator_stake=500 * TOKEN, voucher_cap=10**6 * TOKEN,
    )  # fmt: skip
    return replace(policy, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Snapshot:
    what: object
    id: str
    runs: str
    run: int
    vouchers: str
    trainer: Key


_snapshots: WeakKeyDictionary[Anvil, list[_Snapshot]] = WeakKeyDictionary()


@dataclass
class World:
    anvil: Anvil
    chain: Chain
    owner: Sender
    trainer: Sender
    run: int
    spec_digest: bytes
    vouchers: str
    """Address of Vouchers."""
    senders: dict[str, Sender] = field(default_factory=dict)
    real: bool = False
    """Whether a validator was seated: then Bench counts those that are."""

    @classmethod
    def fresh(cls, anvil: Anvil, spec_digest: bytes = b"\x07" * 32, **policy: object) -> World:
        """The same world again is Anvil's snapshot of it: whatever was made on `anvil` since is gone."""
        kept = _snapshots.setdefault(anvil, [])
        what = (spec_digest, tuple(sorted(policy.items())))
        at = next((at for at, snapshot in enumerate(kept) if snapshot.what == what), None)
        if at is None:
            made = cls.another(anvil, spec_digest, **policy)
            trainer = made.trainer.key
        else:
            snapshot, chain = kept[at], Chain(anvil.rpc, kept[at].runs)
            del kept[at:]  # Anvil forgets a snapshot with going back to it, and all later ones
            assert anvil.request("evm_revert", snapshot.id)
            anvil.advance(max(0, int(time.time()) - chain.block().time))
            trainer = snapshot.trainer
            made = cls(
                anvil,
                chain,
                Sender(chain, anvil.bank),
                Sender(chain, trainer),
                snapshot.run,
                spec_digest,
                snapshot.vouchers,
            )
        kept.append(
            _Snapshot(what, anvil.request("evm_snapshot"), made.chain.runs.address, made.run, made.vouchers, trainer)
        )
        return made

    @classmethod
    def another(cls, anvil: Anvil, spec_digest: bytes = b"\x07" * 32, **policy: object) -> World:
        """Contracts and a run beside those that are there."""
        bank = Sender(Chain(anvil.rpc, None), anvil.bank)
        deployment = deploy(bank, withdrawal_delay=7 * DAY, sink="0x" + "51" * 20)
        chain = Chain(anvil.rpc, deployment.runs)
        owner, trainer = Sender(chain, anvil.bank), Sender(chain, Key.generate())
        anvil.give(trainer.key.address, TOKEN)
        for spender in (chain.runs.address, chain.bonds.address):
            owner.send(chain.approve_tokens(spender, 10**9 * TOKEN))
        sent = owner.send(chain.create(policy_for(owner.key, trainer.key, **policy), spec_digest))
        run = sent.event(RunCreated).run
        owner.send(chain.fund(run, 10**6 * TOKEN))
        world = cls(anvil, chain, owner, trainer, run, spec_digest, deployment.vouchers)
        world.pretend_jury()
        return world

    @classmethod
    def sharing(cls, world: World, **policy: object) -> World:
        """Another run in the contracts of a world."""
        chain, trainer = Chain(world.anvil.rpc, world.chain.runs.address), Key.generate()
        world.anvil.give(trainer.address, TOKEN)
        created = world.owner.send(chain.create(policy_for(world.owner.key, trainer, **policy), world.spec_digest))
        run = created.event(RunCreated).run
        world.owner.send(chain.fund(run, 10**6 * TOKEN))
        made = cls(world.anvil, chain, world.owner, Sender(chain, trainer), run, world.spec_digest, world.vouchers)
        made.pretend_jury()
        return made

    def logs(self, first: int = 0, last: int | None = None) -> list[Event]:
        """Events of the contracts in blocks first … last, in order, decoded as those of receipts are: what books are held to."""
        chain = self.chain
        addresses = [*chain.places, chain.bonds.address]
        until = "latest" if last is None else hex(last)
        entries = chain.ask("eth_getLogs", [{"address": addresses, "fromBlock": hex(first), "toBlock": until}])
        return [
            Event(found, quantity(e["blockNumber"]), data(e["blockHash"], 32), quantity(e["logIndex"]), data(e["transactionHash"], 32))
            for e in entries
            if (found := chain.decode(e)) is not None
        ]  # fmt: skip

    def pretend_jury(self, validators: int = 100) -> None:
        """Has Bench count seated validators where there are none: most tests publish without a whole jury at work.

        Of the first real one on (`seat_validator`) Bench counts those, for they are who votes; `publish` pretends a jury for as
        long as it takes."""
        self._set_levels((0, validators) if validators else None)
        assert self.chain.seated_validators(self.run) == validators

    def _set_levels(self, level: tuple[int, int] | None) -> None:
        """Makes this (since, validators) the only entry of Bench's count; None: there is none."""
        slot = keccak(encode(["uint256", "uint256"], [self.run, _LEVELS_SLOT]))
        self._store(slot, int(level is not None))
        if level is not None:
            self._store(keccak(slot), level[0] | level[1] << 40)

    def _store(self, slot: bytes, value: int) -> None:
        place, word = "0x" + slot.hex(), "0x" + value.to_bytes(32, "big").hex()
        self.anvil.request("anvil_setStorageAt", self.chain.bench.address, place, word)

    def _levels(self) -> tuple[bytes, int]:
        """(slot, value) of the newest entry of Bench's count."""
        slot = keccak(encode(["uint256", "uint256"], [self.run, _LEVELS_SLOT]))

        def ask(place: bytes) -> int:
            return int(
                self.anvil.request("eth_getStorageAt", self.chain.bench.address, "0x" + place.hex(), "latest"), 16
            )

        newest = (int.from_bytes(keccak(slot), "big") + max(0, ask(slot) - 1)).to_bytes(32, "big")
        return newest, ask(newest)

    def sender(self, key: Key) -> Sender:
        """A sender with gas money for `key`; always the same one for the same key."""
        if key.address not in self.senders:
            self.anvil.give(key.address, TOKEN)
            self.senders[key.address] = Sender(self.chain, key)
        return self.senders[key.address]

    def seat_node(self, operator: Key, node: Key, hardware: int = 0) -> None:
        """Stakes for `operator` and seats `node`."""
        stake = self.chain.policy(self.run).node_stake
        self.owner.send(self.chain.deposit(operator.address, stake))
        deadline = self.chain.block().time + 600
        consent = Join(self.run, operator.address, node.address, keccak(node.peer), hardware, deadline)
        signature = consent.sign(node, self.chain.domain)
        self.sender(operator).send(self.chain.join(self.run, node.address, node.peer, hardware, deadline, signature))
        self.sender(node)

    def seat_validator(self, validator: Key) -> None:
        policy = self.chain.policy(self.run)
        if not self.real:
            self.pretend_jury(0)
            self.real = True
        self.owner.send(self.chain.deposit(validator.address, policy.validator_stake))
        self.owner.send(self.chain.approve_validator(self.run, validator.address, True))
        self.sender(validator).send(self.chain.enlist(self.run, True))
        self.anvil.advance(1)  # who judges a submission was seated in an earlier second

    def accuse(self, validator: Key, ref: SubmissionRef, samples: int = 2**256 - 1) -> Sent:
        """A hard case of a run that asks for no second validator."""
        nobody = ("0x" + "0" * 40, 0, bytes(32), b"")
        return self.sender(validator).send(self.chain.accuse(self.run, ref, samples, b"\x0e" * 32, nobody))

    def publish(self, step: int, manifest: bytes = b"\x0a" * 32) -> bytes:
        """Publishes a version, draws its beacon and returns it."""
        place, level = self._levels()
        if self.real:
            self._store(place, level & ((1 << 40) - 1) | 100 << 40)
        self.trainer.send(self.chain.publish(self.run, step, manifest))
        if self.real:
            self._store(place, level)
        for _ in range(2):  # the block whose hash the beacon is made of, and one that can look back at it
            self.anvil.request("evm_mine")
        self.trainer.send(self.chain.draw(self.run, step))
        return self.chain.publication(self.run, step).beacon

    def submit(self, node: Key, step: int, sequence: int, root: bytes, units: int = 10) -> SubmissionRef:
        ref = SubmissionRef(node.address, step, sequence, root)
        beacon = self.chain.publication(self.run, step).beacon
        self.sender(node).send(self.chain.submit(self.run, ref, units, beacon))
        return ref
