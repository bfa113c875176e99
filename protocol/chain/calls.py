"""The calls that `Sender` sends. Building one asks an endpoint nothing but where the contracts are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from eth_typing import ChecksumAddress
from eth_utils import to_checksum_address

from protocol.chain.access import Access
from protocol.chain.contract import Function
from protocol.chain.types import (
    Policy,
)
from protocol.submission import SubmissionRef

_VERDICT_ROOM = 1_500_000
"""Gas to carry out a verdict: 220,000 on one submission, 274,000 on fifteen; a case has at most 255."""


@dataclass(frozen=True)
class Call:
    """A contract call that may be sent. `doing` says in words what it does ("submitting work")."""

    doing: str
    function: Function
    room: int = 60_000
    """Gas beyond the estimate, unused where nothing happens in between: two storage words more than as of the estimate, such as a bench or an
    epoch that has moved on by a second. More where the deeds of others make the call do much more."""
    adds: bool = True
    """Whether the same call again would do it once more. False: it sets a state, takes what is due, or is refused the second time."""


class Calls(Access):
    """Each method builds one call; docs/contracts.md says what the contract makes of it."""

    def approve_tokens(self, spender: ChecksumAddress, amount: int) -> Call:
        return Call("approving tokens", self.token.functions.approve(spender, amount), adds=False)

    def transfer_tokens(self, to: str, amount: int) -> Call:
        return Call(f"sending {_amount(amount)} tokens to {to}", self.token.functions.transfer(to, amount))

    def transfer_ether(self, to: str, wei: int) -> Call:
        return Call(
            f"sending {_amount(wei)} ETH to {to}",
            Function(self.ethereum, to_checksum_address(to), b"", value=wei),
            room=0,
        )

    def deposit(self, account: str, amount: int) -> Call:
        return Call("depositing stake", self.bonds.functions.deposit(account, amount))

    def unbond(self, amount: int) -> Call:
        return Call("unbonding stake", self.bonds.functions.unbond(amount))

    def rebond(self, amount: int) -> Call:
        return Call("rebonding stake", self.bonds.functions.rebond(amount))

    def withdraw(self) -> Call:
        return Call("withdrawing stake", self.bonds.functions.withdraw(), adds=False)

    def create(self, policy: Policy, spec_digest: bytes) -> Call:
        return Call("creating the run", self.policies.functions.create(policy.as_tuple(), spec_digest))

    def fund(self, run: int, amount: int) -> Call:
        return Call("funding the run", self.runs.functions.fund(run, amount))

    def pause(self, run: int, on: bool) -> Call:
        return Call("pausing the run" if on else "resuming the run", self.runs.functions.pause(run, on), adds=False)

    def locate(self, run: int, where: bytes) -> Call:
        doing = "saying where the run is" if where else "taking it back"
        return Call(doing, self.locations.functions.locate(run, where), adds=False)

    def approve_validator(self, run: int, validator: str, on: bool) -> Call:
        return Call("approving the validator", self.bench.functions.approve(run, validator, on), adds=False)

    def enlist(self, run: int, on: bool) -> Call:
        return Call(
            "taking the validator seat" if on else "leaving the seat", self.bench.functions.enlist(run, on), adds=False
        )

    def reinforce(self, run: int, amount: int) -> Call:
        return Call("locking more stake", self.bench.functions.reinforce(run, amount))

    def release_validator(self, run: int, validator: str) -> Call:
        return Call("freeing the seat's stake", self.bench.functions.release(run, validator), adds=False)

    def join(
        self, run: int, node: str, peer: bytes, hardware: int, deadline: int, consent: bytes, invite: bytes = b""
    ) -> Call:
        """`consent` is the node's signature, `invite` that of the run's gate, where it has one: both until `deadline`."""
        function = self.runs.functions.join(run, node, peer, hardware, deadline, consent, invite)
        return Call("taking a seat", function, adds=False)

    def leave(self, run: int, node: str) -> Call:
        return Call("leaving the seat", self.runs.functions.leave(run, node), adds=False)

    def release(self, run: int, node: str) -> Call:
        return Call("freeing the seat's stake", self.runs.functions.release(run, node), adds=False)

    def rotate(self, run: int, node: str, new: str, peer: bytes, deadline: int, consent: bytes) -> Call:
        return Call(
            "changing the node's key", self.runs.functions.rotate(run, node, new, peer, deadline, consent), adds=False
        )

    def offer(self, run: int, node: str, to: str, deadline: int) -> Call:
        """`deadline`: the last block time at which it may be accepted."""
        return Call("offering the seat", self.runs.functions.offer(run, node, to, deadline), adds=False)

    def accept(self, run: int, node: str) -> Call:
        return Call("taking over the seat", self.runs.functions.accept(run, node), adds=False)

    def ban(self, run: int, node: str) -> Call:
        return Call("banning the node", self.runs.functions.ban(run, node), adds=False)

    def defund(self, run: int, amount: int) -> Call:
        return Call("announcing the withdrawal", self.runs.functions.defund(run, amount), adds=False)

    def collect(self, run: int) -> Call:
        return Call("collecting from the budget", self.runs.functions.collect(run), adds=False)

    def publish(self, run: int, step: int, manifest: bytes) -> Call:
        return Call("publishing weights", self.weights.functions.publish(run, step, manifest), adds=False)

    def draw(self, run: int, step: int) -> Call:
        """Writes down the beacon of a version; where its block is out of reach, names the next one instead."""
        return Call("drawing the beacon", self.weights.functions.draw(run, step), adds=False)

    def appoint(self, run: int, trainer: str) -> Call:
        return Call("appointing the trainer", self.weights.functions.appoint(run, trainer), adds=False)

    def submit(self, run: int, ref: SubmissionRef, units: int, beacon: bytes) -> Call:
        function = self.runs.functions.submit(run, ref.root, ref.step, ref.sequence, units, beacon)
        return Call("submitting work", function, adds=False)

    def submit_many(self, run: int, refs: Sequence[SubmissionRef], units: Sequence[int], beacon: bytes) -> Call:
        """Of one step, their sequence numbers counted up from the first."""
        first = refs[0]
        if any((ref.step, ref.sequence) != (first.step, first.sequence + i) for i, ref in enumerate(refs)):
            raise ValueError("submissions of one call are of one step and follow each other")
        items = [(ref.root, many) for ref, many in zip(refs, units, strict=True)]
        function = self.runs.functions.submitMany(run, first.step, first.sequence, beacon, items)
        return Call(f"submitting {len(refs)} files", function, adds=False)

    def challenge(self, run: int, refs: Sequence[SubmissionRef], evidence: bytes) -> Call:
        """A soft case on submissions of one seat; those past their window or in a case already are left out."""
        function = self.court.functions.challenge(run, [ref.as_tuple() for ref in refs], evidence)
        return Call("challenging submissions", function, adds=False)

    def accuse(self, run: int, ref: SubmissionRef, samples: int, evidence: bytes, second: tuple[object, ...]) -> Call:
        """A hard case; bit i of `samples`: sample i is false; 0: none by itself, but the sums over the seat's work. `second`: another validator's receipt, as Receipt.on_chain."""
        return Call(
            "accusing a node",
            self.court.functions.accuse(run, ref.as_tuple(), samples, evidence, second),
            _VERDICT_ROOM,
            adds=False,
        )  # it may empty a soft case

    def appeal(self, run: int, seat: str, number: int) -> Call:
        return Call("appealing", self.court.functions.appeal(run, seat, number), adds=False)

    def challenge_again(self, run: int, seat: str, number: int, evidence: bytes) -> Call:
        """Takes up a case that found no majority, as it stands."""
        return Call("challenging again", self.court.functions.challengeAgain(run, seat, number, evidence), adds=False)

    def vote(self, run: int, seat: str, number: int, found_false: int, found_hard: int, receipts: bytes) -> Call:
        """Bit i: submission i of the case; `receipts`: digest of what the juror hands over after the close, zeros: nothing."""
        function = self.court.functions.vote(run, seat, number, found_false, found_hard, receipts)
        return Call("voting on an appeal", function, _VERDICT_ROOM, adds=False)  # with others before it, it decides

    def abstain(self, run: int, seat: str, number: int, reason: str) -> Call:
        """`reason`: at most 128 bytes."""
        return Call("abstaining", self.court.functions.abstain(run, seat, number, reason), adds=False)

    def settle(self, run: int, seat: str, number: int) -> Call:
        return Call("settling a case", self.court.functions.settle(run, seat, number), adds=False)

    def impeach(self, run: int, ref: SubmissionRef, number: int, accepted: tuple[object, ...]) -> Call:
        """Slashes a validator whose accept receipt covers a sample that case `number` convicted."""
        return Call(
            "impeaching a validator", self.court.functions.impeach(run, ref.as_tuple(), number, accepted), adds=False
        )

    def claim(self, run: int, node: str) -> Call:
        return Call("claiming rewards", self.runs.functions.claim(run, node), adds=False)


def _amount(wei: int) -> str:
    return f"{Decimal(wei).scaleb(-18).normalize():f}"
