"""What people do, to the model and to the contracts at once."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

from eth_utils import keccak
from swarm.anvil import Anvil

from protocol.chain import Chain, Sender
from protocol.chain.deploy import deploy
from protocol.chain.types import Stage
from protocol.identity import Key
from protocol.signing import Join, Typed, Verdict, Voucher
from protocol.submission import SubmissionRef
from tests.chain.model import Model
from tests.chain.model.books import Finding, Hashes, Refused, Run
from tests.chain.model.work import Turn
from tests.chain.twins.comparison import Comparison, Disagreement
from tests.chain.twins.people import (
    BENCHES,
    DELAY,
    FOREVER,
    NODES,
    OPERATORS,
    OWNERS,
    PEOPLE,
    POLICIES,
    SINK,
    TRAINERS,
    WEALTH,
)
from tests.chain.twins.wire import Wire

START = 2_000_000_000
SETTLED = START + 1_000
"""When the first action may happen: however long the set-up took, so that epochs begin at the same ones."""
MANIFEST = b"\x0a" * 32

Rule = Callable[[Model, int, int], None]
"""An action on the model, at this time and in this block."""


def _copied(model: Model) -> Model:
    """In a fraction of the time that `copy.deepcopy` takes, once for each action."""
    return cast("Model", pickle.loads(pickle.dumps(model, pickle.HIGHEST_PROTOCOL)))


class Twins:
    def __init__(self, anvil: Anvil) -> None:
        self._wire = wire = Wire(anvil)
        bank = Sender(Chain(anvil.rpc, None), anvil.bank)
        deployment = deploy(bank, withdrawal_delay=DELAY, sink=SINK)
        chain = self.chain = Chain(anvil.rpc, deployment.runs)
        self._comparison = Comparison(chain, deployment.vouchers, wire)
        self.done: Counter[tuple[str, str]] = Counter()
        """(function, "done" or the error's name): how often."""
        self.verdicts: Counter[tuple[Stage, bool]] = Counter()
        """(stage, whether it convicted): how many cases ended so, or were left undecided."""
        holders = (chain.bonds.address, chain.runs.address, self._comparison.vouchers.address)
        self.model = Model(*holders, SINK, DELAY)
        for person in PEOPLE:
            anvil.give(person.address, 10**20)
            bank.send(chain.transfer_tokens(person.address, WEALTH))
            self.model.tokens[person.address] = WEALTH
        for number, policy in enumerate(POLICIES, 1):
            bank.send(chain.create(policy, b"\x07" * 32))
            self.model.runs[number] = Run(policy)
        wire.ask("anvil_autoImpersonateAccount", True)
        self.now, self.height = 0, wire.height()
        self.wait_until(START)
        for person in PEOPLE:
            for spender in holders:
                data = "0x" + chain.token.functions.approve(spender, 2**255).data.hex()
                wire.send(person.address, chain.token.address, data)
        self.height = wire.height()
        self.wait_until(SETTLED)
        self._save()

    # ---- time and place --------------------------------------------------------------------------------------------

    def _save(self) -> None:
        self._saved = _copied(self.model), self.now, self.height, self._wire.ask("evm_snapshot")

    def start_over(self) -> None:
        """Back to when `settle_in` was done."""
        model, self.now, self.height, snapshot = self._saved
        self.model = _copied(model)
        self._wire.revert(snapshot)
        self._save()

    def wait_until(self, at: int) -> None:
        """A block without transactions."""
        self._wire.batch([("evm_setNextBlockTimestamp", [at]), ("evm_mine", [])])
        self.now, self.height = at, self.height + 1

    def wait_for_blocks(self, many: int) -> None:
        """One a second."""
        self._wire.ask(
            "anvil_setBlockTimestampInterval", 1
        )  # with `anvil_mine`'s own, the machine's clock counts as well
        self._wire.ask("anvil_mine", hex(many))
        self._wire.ask("anvil_removeBlockTimestampInterval")
        self.now, self.height = self.now + many, self.height + many

    def compare(self) -> None:
        self._comparison.compare(self.model, self.now, self.height)

    def settle_in(self) -> None:
        """A world at work: stakes, budgets, a bench, two seats in every run, one version published."""
        for person in (*OPERATORS, *BENCHES[1]):
            self.deposit(person, person.address, 400)
        for run, policy in enumerate(POLICIES, 1):
            owner = next(owner for owner in OWNERS if owner.address == policy.owner)
            self.fund(owner, run, 300)
            self.fund_vouchers(owner, run, 100)
            for validator in BENCHES[run - 1]:
                self.approve(owner, run, validator.address, True)
                self.enlist(validator, run, True)
            for operator, node in zip(OPERATORS, NODES, strict=False):
                self.join(operator, run, node)
            self.publish(TRAINERS[0], run, 0)
        self.wait_until(self.now + 1)
        self._save()

    # ---- stake and money -------------------------------------------------------------------------------------------

    def deposit(self, by: Key, account: str, amount: int) -> None:
        self._act(by, "bonds", "deposit", [account, amount], lambda m, *_: m.deposit(by.address, account, amount))

    def unbond(self, by: Key, amount: int) -> None:
        self._act(by, "bonds", "unbond", [amount], lambda m, at, _: m.unbond(by.address, at, amount))

    def rebond(self, by: Key, amount: int) -> None:
        self._act(by, "bonds", "rebond", [amount], lambda m, *_: m.rebond(by.address, amount))

    def withdraw(self, by: Key) -> None:
        self._act(by, "bonds", "withdraw", [], lambda m, at, _: m.withdraw(by.address, at))

    def fund(self, by: Key, run: int, amount: int) -> None:
        self._act(by, "runs", "fund", [run, amount], lambda m, *_: m.fund(by.address, run, amount))

    def defund(self, by: Key, run: int, amount: int) -> None:
        self._act(by, "runs", "defund", [run, amount], lambda m, at, _: m.defund(by.address, at, run, amount))

    def collect(self, by: Key, run: int) -> None:
        self._act(by, "runs", "collect", [run], lambda m, at, _: m.collect(by.address, at, run))

    def pause(self, by: Key, run: int, on: bool) -> None:
        self._act(by, "runs", "pause", [run, on], lambda m, at, _: m.pause(by.address, at, run, on))

    def fund_vouchers(self, by: Key, run: int, amount: int) -> None:
        rule: Rule = lambda m, *_: m.fund_vouchers(by.address, run, amount)  # noqa: E731
        self._act(by, "vouchers", "fund", [run, amount], rule)

    def redeem(self, by: Key, run: int, validator: str, total: int, signer: Key) -> None:
        signature = self._signature(signer, Voucher(run, validator, total))
        rule: Rule = lambda m, at, _: m.redeem(by.address, at, run, validator, total, signer.address)  # noqa: E731
        self._act(by, "vouchers", "redeem", [run, validator, total, signature], rule)

    # ---- weights ---------------------------------------------------------------------------------------------------

    def publish(self, by: Key, run: int, step: int) -> None:
        rule: Rule = lambda m, at, block: m.publish(by.address, at, block, run, step, MANIFEST)  # noqa: E731
        self._act(by, "weights", "publish", [run, step, MANIFEST], rule)

    def draw(self, by: Key, run: int, step: int) -> None:
        rule: Rule = lambda m, _, block: m.draw(block, run, step, self._hashes(block))  # noqa: E731
        self._act(by, "weights", "draw", [run, step], rule)

    def appoint(self, by: Key, run: int, trainer: str) -> None:
        rule: Rule = lambda m, at, _: m.appoint(by.address, at, run, trainer)  # noqa: E731
        self._act(by, "weights", "appoint", [run, trainer], rule)

    def beacon(self, run: int, step: int) -> bytes:
        """As the next transaction will find or draw it; zeros where it cannot."""
        return self.model.beacon_of(run, step, self._hashes(self.height + 1))

    def _hashes(self, block: int) -> Hashes:
        return lambda number: self._wire.hash_of(number, block)

    # ---- seats -----------------------------------------------------------------------------------------------------

    def join(
        self, by: Key, run: int, node: Key, hardware: int = 0, *, deadline: int = FOREVER, for_run: int = 0
    ) -> None:
        """`for_run`: another run that the consent is for."""
        signature = self._consent(for_run or run, by.address, node, hardware, deadline)
        consents = for_run in (0, run)

        def rule(m: Model, at: int, block: int) -> None:
            m.join(by.address, at, block, run, node.address, hardware, deadline, consents)

        self._act(by, "runs", "join", [run, node.address, node.peer, hardware, deadline, signature, b""], rule)

    def rotate(self, by: Key, run: int, node: str, new: Key, *, deadline: int = FOREVER, for_run: int = 0) -> None:
        """`for_run`: another run that the consent of the new key is for."""
        hardware = self.model.runs[run].seat(node).hardware
        signature = self._consent(for_run or run, by.address, new, hardware, deadline)
        consents = for_run in (0, run)

        def rule(m: Model, at: int, block: int) -> None:
            m.rotate(by.address, at, block, run, node, new.address, deadline, consents)

        self._act(by, "runs", "rotate", [run, node, new.address, new.peer, deadline, signature], rule)

    def offer(self, by: Key, run: int, node: str, to: str, deadline: int = FOREVER) -> None:
        rule: Rule = lambda m, *_: m.offer(by.address, run, node, to, deadline)  # noqa: E731
        self._act(by, "runs", "offer", [run, node, to, deadline], rule)

    def accept(self, by: Key, run: int, node: str) -> None:
        rule: Rule = lambda m, at, block: m.accept(by.address, at, block, run, node)  # noqa: E731
        self._act(by, "runs", "accept", [run, node], rule)

    def leave(self, by: Key, run: int, node: str) -> None:
        self._act(by, "runs", "leave", [run, node], lambda m, at, _: m.leave(by.address, at, run, node))

    def ban(self, by: Key, run: int, node: str) -> None:
        self._act(by, "runs", "ban", [run, node], lambda m, at, _: m.ban(by.address, at, run, node))

    def release(self, by: Key, run: int, node: str) -> None:
        self._act(by, "runs", "release", [run, node], lambda m, at, _: m.release(at, run, node))

    # ---- work ------------------------------------------------------------------------------------------------------

    def submit(self, by: Key, run: int, turn: Turn, items: list[tuple[bytes, int]]) -> None:
        def rule(m: Model, at: int, block: int) -> None:
            m.submit(by.address, at, block, run, turn, items, self._hashes(block))

        if len(items) == 1:
            arguments = [run, items[0][0], turn.step, turn.sequence, items[0][1], turn.beacon]
            self._act(by, "runs", "submit", arguments, rule)
        else:
            self._act(by, "runs", "submitMany", [run, turn.step, turn.sequence, turn.beacon, items], rule)

    def skip(self, by: Key, run: int, turn: Turn) -> None:
        rule: Rule = lambda m, at, block: m.skip(by.address, at, block, run, turn, self._hashes(block))  # noqa: E731
        self._act(by, "runs", "skip", [run, turn.step, turn.sequence, turn.beacon], rule)

    def claim(self, by: Key, run: int, node: str) -> None:
        self._act(by, "runs", "claim", [run, node], lambda m, at, _: m.claim(at, run, node))

    # ---- the bench -------------------------------------------------------------------------------------------------

    def approve(self, by: Key, run: int, validator: str, on: bool) -> None:
        rule: Rule = lambda m, at, _: m.approve(by.address, at, run, validator, on)  # noqa: E731
        self._act(by, "bench", "approve", [run, validator, on], rule)

    def enlist(self, by: Key, run: int, on: bool) -> None:
        self._act(by, "bench", "enlist", [run, on], lambda m, at, _: m.enlist(by.address, at, run, on))

    def reinforce(self, by: Key, run: int, amount: int) -> None:
        self._act(by, "bench", "reinforce", [run, amount], lambda m, *_: m.reinforce(by.address, run, amount))

    def unseat(self, by: Key, run: int, validator: str) -> None:
        self._act(by, "bench", "unseat", [run, validator], lambda m, at, _: m.unseat(at, run, validator))

    def release_validator(self, by: Key, run: int, validator: str) -> None:
        rule: Rule = lambda m, at, _: m.release_validator(at, run, validator)  # noqa: E731
        self._act(by, "bench", "release", [run, validator], rule)

    # ---- cases -----------------------------------------------------------------------------------------------------

    def challenge(self, by: Key, run: int, refs: list[SubmissionRef]) -> None:
        arguments = [run, [ref.as_tuple() for ref in refs], b"\x0e" * 32]
        self._act(by, "court", "challenge", arguments, lambda m, at, _: m.challenge(by.address, at, run, refs))

    def challenge_again(self, by: Key, run: int, seat: str, number: int) -> None:
        rule: Rule = lambda m, at, _: m.challenge_again(by.address, at, run, seat, number)  # noqa: E731
        self._act(by, "court", "challengeAgain", [run, seat, number, b"\x0e" * 32], rule)

    def accuse(
        self, by: Key, run: int, ref: SubmissionRef, samples: int, second: Key, named: int, *, for_run: int = 0
    ) -> None:
        """`second` signs that the samples `named` are false, in a verdict for `for_run` where that is given."""
        signed_for = for_run or run
        verdict = Verdict(signed_for, ref.submission_id(run), 3, named, b"\x0d" * 32)
        signer = (second.address, named) if signed_for == run else None
        rule: Rule = lambda m, at, _: m.accuse(by.address, at, run, ref, samples, signer)  # noqa: E731
        arguments = [run, ref.as_tuple(), samples, b"\x0e" * 32, self._receipt(second, verdict)]
        self._act(by, "court", "accuse", arguments, rule)

    def impeach(
        self, by: Key, run: int, ref: SubmissionRef, number: int, who: Key, samples: int, *, outcome: int = 1
    ) -> None:
        """`who` has signed `outcome` (1: accepted) for these samples."""
        verdict = Verdict(run, ref.submission_id(run), outcome, samples, b"\x0c" * 32)
        rule: Rule = lambda m, *_: m.impeach(by.address, run, ref, number, who.address, samples, outcome == 1)  # noqa: E731
        self._act(by, "court", "impeach", [run, ref.as_tuple(), number, self._receipt(who, verdict)], rule)

    def appeal(self, by: Key, run: int, seat: str, number: int) -> None:
        rule: Rule = lambda m, at, _: m.appeal(by.address, at, run, seat, number)  # noqa: E731
        self._act(by, "court", "appeal", [run, seat, number], rule)

    def vote(self, by: Key, run: int, seat: str, number: int, false: set[int], hard: set[int]) -> None:
        finding = Finding(frozenset(false), frozenset(hard))
        masks = [sum(1 << i for i in some) for some in (false, hard)]
        rule: Rule = lambda m, at, _: m.vote(by.address, at, run, seat, number, finding)  # noqa: E731
        self._act(by, "court", "vote", [run, seat, number, *masks, b"\x0f" * 32], rule)

    def abstain(self, by: Key, run: int, seat: str, number: int, reason: str) -> None:
        rule: Rule = lambda m, at, _: m.abstain(by.address, at, run, seat, number, reason)  # noqa: E731
        self._act(by, "court", "abstain", [run, seat, number, reason], rule)

    def settle(self, by: Key, run: int, seat: str, number: int) -> None:
        self._act(by, "court", "settle", [run, seat, number], lambda m, at, _: m.settle(at, run, seat, number))

    # ---- both at once ----------------------------------------------------------------------------------------------

    def _act(self, by: Key, contract: str, function: str, arguments: list[Any], rule: Rule) -> None:
        """One transaction, a second after the last block. Raises Disagreement."""
        before, at, refused = _copied(self.model), self.now + 1, None
        cases = self._stages()
        try:
            rule(self.model, at, self.height + 1)
        except Refused as error:
            self.model, refused = before, str(error)
        target = self._comparison.contract(contract)
        data = "0x" + target.functions[function](*arguments).data.hex()
        reason = self._wire.refusal(at, by.address, target.address, data)
        what = f"{contract}.{function}({', '.join(map(str, arguments))}) by {by.address} at {at - START}"
        if reason != refused:
            raise Disagreement(f"{what}: the contracts say {reason or 'yes'}, the model {refused or 'yes'}")
        self.done[f"{contract}.{function}", refused or "done"] += 1
        if refused is not None:
            return
        if not self._wire.send(by.address, target.address, data):
            raise Disagreement(f"{what} failed, and would not have a moment ago")
        self.now, self.height = at, self.height + 1
        self.verdicts.update(self._stages() - cases)
        try:
            self.compare()
        except Disagreement as error:
            raise Disagreement(f"after {what}:\n{error}") from None

    def _stages(self) -> Counter[tuple[Stage, bool]]:
        seats = [seat for run in self.model.runs.values() for seat in run.seats.values()]
        return Counter((case.stage, case.hard) for seat in seats for case in seat.cases if not case.disputed)

    @lru_cache(maxsize=1000)  # noqa: B019  as many as there are signers and runs; the twins live as long as the tests
    def _consent(self, run: int, operator: str, node: Key, hardware: int, deadline: int) -> bytes:
        return Join(run, operator, node.address, keccak(node.peer), hardware, deadline).sign(node, self.chain.domain)

    @lru_cache(maxsize=1000)  # noqa: B019
    def _signature(self, signer: Key, message: Typed) -> bytes:
        return message.sign(signer, self.chain.domain)

    def _receipt(self, signer: Key, verdict: Verdict) -> tuple[str, int, bytes, bytes]:
        return signer.address, verdict.samples, verdict.details, self._signature(signer, verdict)
