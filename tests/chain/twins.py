"""The reference model (model.py) and the deployed contracts side by side: every action is tried on both, every book compared.

Speaks plain JSON-RPC to Anvil, which signs for everybody: thousands of actions take seconds. Each action is mined in a block
of its own, at a time that is chosen, so that the same actions always do the same.
"""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import requests
from eth_abi import decode
from eth_utils import keccak
from eth_utils.abi import collapse_if_tuple
from swarm.anvil import Anvil

from protocol.chain import Chain, Sender, artifacts
from protocol.chain.deploy import deploy
from protocol.chain.types import Policy, Role, Stage
from protocol.identity import Key
from protocol.signing import Join, Verdict
from protocol.submission import SubmissionRef
from tests.chain.model import EPOCHS_TO_MATURE, Case, Model, Place, Publication, Refused, Run, Seat, state_of

NOBODY = "0x" + "0" * 40
START = 2_000_000_000
SETTLED = START + 1_000
"""When the first action may happen: however long the set-up took, so that epochs begin at the same ones."""
DELAY = 2_000
FOREVER = 2**40
WEALTH = 3_000

SINK = "0x" + "51" * 20


def key(name: str) -> Key:
    return Key.from_secret(keccak(text=name))


OWNERS = [key("owner 0"), key("owner 1")]
TRAINER = key("trainer")
OPERATORS = [key("operator 0"), key("operator 1")]
NODES = [key(f"node {i}") for i in range(4)]
VALIDATORS = [key(f"validator {i}") for i in range(5)]
PEOPLE = [*OWNERS, TRAINER, *OPERATORS, *NODES, *VALIDATORS]

POLICIES = [
    # appeals and a second validator; numbers that do not divide evenly
    Policy(
        owner=OWNERS[0].address, fee=3, trainer=TRAINER.address, reward=3, gate=NOBODY,  # type: ignore[arg-type]
        notice=120, grace=60, max_units=25, bond=21, window=1000, appeal=300, vote=400, finder_bps=3333, quorum=2,
        co_signers=1, node_stake=100, validator_stake=50, penalty=60, max_per_step=4, leverage=2, strikes=3,
    ),
    # appeals, one accuser, a stake that just covers what can be lost, a window that five does not divide
    Policy(
        owner=OWNERS[1].address, fee=7, trainer=TRAINER.address, reward=1, gate=NOBODY,  # type: ignore[arg-type]
        notice=70, grace=70, max_units=40, bond=10, window=503, appeal=200, vote=150, finder_bps=5000, quorum=1,
        co_signers=0, node_stake=54, validator_stake=15, penalty=30, max_per_step=6, leverage=3, strikes=2,
    ),
    # instant verdicts
    Policy(
        owner=OWNERS[0].address, fee=1, trainer=TRAINER.address, reward=2, gate=NOBODY,  # type: ignore[arg-type]
        notice=9, grace=5, max_units=10, bond=5, window=22, appeal=0, vote=0, finder_bps=2000, quorum=0,
        co_signers=0, node_stake=50, validator_stake=5, penalty=40, max_per_step=8, leverage=1, strikes=5,
    ),
]  # fmt: skip


class Disagreement(AssertionError):
    """The contracts did something else than the model."""


@dataclass(frozen=True)
class Reading:
    """One value to compare: what to ask a contract, and what the model says."""

    what: str
    to: str
    data: str
    types: tuple[str, ...]
    expected: Any
    seen_as: Callable[[Any], Any] = lambda values: values[0] if len(values) == 1 else values


def _copied(model: Model) -> Model:
    """In a fraction of the time that `copy.deepcopy` takes, once for each action."""
    return cast("Model", pickle.loads(pickle.dumps(model, pickle.HIGHEST_PROTOCOL)))


class Twins:
    def __init__(self, anvil: Anvil) -> None:
        self._anvil = anvil
        self._http = requests.Session()
        self._http.trust_env = False  # to look for a proxy each time takes longer than to ask
        bank = Sender(Chain(anvil.rpc, None), anvil.bank)
        chain = self.chain = Chain(anvil.rpc, deploy(bank, withdrawal_delay=DELAY, sink=SINK).runs)
        self._errors = _selectors()
        self.done: Counter[tuple[str, str]] = Counter()
        """(function, "done" or the error's name): how often."""
        self.verdicts: Counter[tuple[Stage, bool]] = Counter()
        """(verdict, hard): how many cases ended so."""
        self.model = Model(chain.bonds.address, chain.runs.address, SINK, DELAY)
        for person in PEOPLE:
            anvil.give(person.address, 10**20)
            bank.send(chain.transfer_tokens(person.address, WEALTH))
            self.model.tokens[person.address] = WEALTH
        for number, policy in enumerate(POLICIES, 1):
            bank.send(chain.create(policy, b"\x07" * 32))
            self.model.runs[number] = Run(policy)
        self.rpc("anvil_autoImpersonateAccount", True)
        self.wait_until(START)
        for person in PEOPLE:
            for spender in (chain.bonds.address, chain.runs.address):
                self._send(
                    person.address,
                    chain.token.address,
                    "0x" + chain.token.functions.approve(spender, 2**255).data.hex(),
                )
        self.wait_until(SETTLED)
        self._save()

    # ---- time and place --------------------------------------------------------------------------------------------

    def _save(self) -> None:
        self._saved = _copied(self.model), self.now, self.rpc("evm_snapshot")

    def start_over(self) -> None:
        """Back to when `settle_in` was done."""
        model, self.now, snapshot = self._saved
        self.model = _copied(model)
        if not self.rpc("evm_revert", snapshot):
            raise RuntimeError("Anvil has lost its snapshot")
        self._save()

    def wait_until(self, at: int) -> None:
        self.rpc("evm_setNextBlockTimestamp", at)
        self.rpc("evm_mine")
        self.now = at

    def settle_in(self) -> None:
        """A world at work: stakes, budgets, a bench, two seats in every run, one version published."""
        for person in (*OPERATORS, *VALIDATORS):
            self.deposit(person, person.address, 400)
        for run, policy in enumerate(POLICIES, 1):
            owner = next(owner for owner in OWNERS if owner.address == policy.owner)
            self.fund(owner, run, 300)
            for validator in VALIDATORS[: 5 if policy.appeal else 2]:
                self.approve(owner, run, validator.address, True)
                self.enlist(validator, run, True)
            for operator, node in zip(OPERATORS, NODES, strict=False):
                self.join(operator, run, node)
            self.publish(TRAINER, run, 0)
        self._save()

    # ---- actions ---------------------------------------------------------------------------------------------------

    def deposit(self, by: Key, account: str, amount: int) -> None:
        self._act(by, "bonds", "deposit", [account, amount], lambda m, at: m.deposit(by.address, account, amount))

    def unbond(self, by: Key, amount: int) -> None:
        self._act(by, "bonds", "unbond", [amount], lambda m, at: m.unbond(by.address, at, amount))

    def rebond(self, by: Key, amount: int) -> None:
        self._act(by, "bonds", "rebond", [amount], lambda m, at: m.rebond(by.address, amount))

    def withdraw(self, by: Key) -> None:
        self._act(by, "bonds", "withdraw", [], lambda m, at: m.withdraw(by.address, at))

    def fund(self, by: Key, run: int, amount: int) -> None:
        self._act(by, "runs", "fund", [run, amount], lambda m, at: m.fund(by.address, run, amount))

    def defund(self, by: Key, run: int, amount: int) -> None:
        self._act(by, "runs", "defund", [run, amount], lambda m, at: m.defund(by.address, at, run, amount))

    def collect(self, by: Key, run: int) -> None:
        self._act(by, "runs", "collect", [run], lambda m, at: m.collect(by.address, at, run))

    def pause(self, by: Key, run: int, on: bool) -> None:
        self._act(by, "runs", "pause", [run, on], lambda m, at: m.pause(by.address, at, run, on))

    def publish(self, by: Key, run: int, step: int) -> None:
        def rule(m: Model, at: int) -> None:
            m.publish(by.address, at, self._height() + 1, run, step, b"")

        def learn_beacon() -> None:
            head: Publication = self.model.runs[run].publications[-1]
            head.beacon = self.chain.publication(run, step).beacon

        self._act(by, "runs", "publish", [run, step, b"\x0a" * 32], rule, learn_beacon)

    def join(
        self, by: Key, run: int, node: Key, hardware: int = 0, *, deadline: int = FOREVER, for_run: int = 0
    ) -> None:
        """`for_run`: another run that the consent is for."""
        signature = self._consent(for_run or run, by.address, node, hardware, deadline)
        consents = for_run in (0, run)

        def rule(m: Model, at: int) -> None:
            m.join(by.address, at, self._height() + 1, run, node.address, hardware, deadline, consents)

        self._act(by, "runs", "join", [run, node.address, node.peer, hardware, deadline, signature, b""], rule)

    def rotate(self, by: Key, run: int, node: str, new: Key, *, deadline: int = FOREVER, for_run: int = 0) -> None:
        """`for_run`: another run that the consent of the new key is for."""
        hardware = self.model.runs[run].seat(node).hardware
        signature = self._consent(for_run or run, by.address, new, hardware, deadline)
        consents = for_run in (0, run)

        def rule(m: Model, at: int) -> None:
            m.rotate(by.address, at, self._height() + 1, run, node, new.address, deadline, consents)

        self._act(by, "runs", "rotate", [run, node, new.address, new.peer, deadline, signature], rule)

    def offer(self, by: Key, run: int, node: str, to: str) -> None:
        self._act(by, "runs", "offer", [run, node, to], lambda m, at: m.offer(by.address, run, node, to))

    def accept(self, by: Key, run: int, node: str) -> None:
        rule = lambda m, at: m.accept(by.address, self._height() + 1, run, node)  # noqa: E731
        self._act(by, "runs", "accept", [run, node], rule)

    def leave(self, by: Key, run: int, node: str) -> None:
        self._act(by, "runs", "leave", [run, node], lambda m, at: m.leave(by.address, at, run, node))

    def ban(self, by: Key, run: int, node: str) -> None:
        self._act(by, "runs", "ban", [run, node], lambda m, at: m.ban(by.address, at, run, node))

    def release(self, by: Key, run: int, node: str) -> None:
        self._act(by, "runs", "release", [run, node], lambda m, at: m.release(by.address, at, run, node))

    def submit(
        self, by: Key, run: int, step: int, sequence: int, beacon: bytes, items: list[tuple[bytes, int]]
    ) -> None:
        def rule(m: Model, at: int) -> None:
            m.submit(by.address, at, run, step, sequence, beacon, items)

        if len(items) == 1:
            root, units = items[0]
            self._act(by, "runs", "submit", [run, root, step, sequence, units, beacon], rule)
        else:
            self._act(by, "runs", "submitMany", [run, step, sequence, beacon, items], rule)

    def skip(self, by: Key, run: int, step: int, sequence: int, beacon: bytes) -> None:
        rule = lambda m, at: m.skip(by.address, at, run, step, sequence, beacon)  # noqa: E731
        self._act(by, "runs", "skip", [run, step, sequence, beacon], rule)

    def claim(self, by: Key, run: int, node: str) -> None:
        self._act(by, "runs", "claim", [run, node], lambda m, at: m.claim(by.address, at, run, node))

    def approve(self, by: Key, run: int, validator: str, on: bool) -> None:
        rule = lambda m, at: m.approve(by.address, at, run, validator, on)  # noqa: E731
        self._act(by, "court", "approve", [run, validator, on], rule)

    def enlist(self, by: Key, run: int, on: bool) -> None:
        self._act(by, "court", "enlist", [run, on], lambda m, at: m.enlist(by.address, at, run, on))

    def reinforce(self, by: Key, run: int, amount: int) -> None:
        self._act(by, "court", "reinforce", [run, amount], lambda m, at: m.reinforce(by.address, at, run, amount))

    def unseat(self, by: Key, run: int, validator: str) -> None:
        self._act(by, "court", "unseat", [run, validator], lambda m, at: m.unseat(by.address, at, run, validator))

    def release_validator(self, by: Key, run: int, validator: str) -> None:
        rule = lambda m, at: m.release_validator(by.address, at, run, validator)  # noqa: E731
        self._act(by, "court", "release", [run, validator], rule)

    def challenge(self, by: Key, run: int, refs: list[SubmissionRef]) -> None:
        arguments = [run, [ref.as_tuple() for ref in refs], b"\x0e" * 32]
        self._act(by, "court", "challenge", arguments, lambda m, at: m.challenge(by.address, at, run, refs))

    def accuse(
        self, by: Key, run: int, ref: SubmissionRef, samples: int, second: Key, named: int, *, for_run: int = 0
    ) -> None:
        """`second` signs that the samples `named` are false, in a verdict for `for_run` where that is given."""
        signed_for = for_run or run
        details = b"\x0d" * 32
        verdict = Verdict(signed_for, ref.submission_id(run), 3, named, details)
        receipt = (second.address, named, details, self._signature(second, verdict))
        signer = (second.address, named) if signed_for == run else None
        arguments = [run, ref.as_tuple(), samples, b"\x0e" * 32, receipt]
        self._act(by, "court", "accuse", arguments, lambda m, at: m.accuse(by.address, at, run, ref, samples, signer))

    def impeach(
        self, by: Key, run: int, ref: SubmissionRef, number: int, who: Key, samples: int, *, outcome: int = 1
    ) -> None:
        """`who` has signed `outcome` (1: accepted) for these samples."""
        details = b"\x0c" * 32
        verdict = Verdict(run, ref.submission_id(run), outcome, samples, details)
        receipt = (who.address, samples, details, self._signature(who, verdict))
        rule = lambda m, at: m.impeach(by.address, run, ref, number, who.address, samples, outcome == 1)  # noqa: E731
        self._act(by, "court", "impeach", [run, ref.as_tuple(), number, receipt], rule)

    def appeal(self, by: Key, run: int, seat: str, number: int) -> None:
        rule = lambda m, at: m.appeal(by.address, at, run, seat, number)  # noqa: E731
        self._act(by, "court", "appeal", [run, seat, number], rule)

    def vote(self, by: Key, run: int, seat: str, number: int, uphold: bool) -> None:
        rule = lambda m, at: m.vote(by.address, at, run, seat, number, uphold)  # noqa: E731
        self._act(by, "court", "vote", [run, seat, number, uphold], rule)

    def settle(self, by: Key, run: int, seat: str, number: int) -> None:
        rule = lambda m, at: m.settle(by.address, at, run, seat, number)  # noqa: E731
        self._act(by, "court", "settle", [run, seat, number], rule)

    def _act(
        self,
        by: Key,
        contract: str,
        function: str,
        arguments: list[Any],
        rule: Callable[[Model, int], None],
        learn: Callable[[], None] = lambda: None,
    ) -> None:
        """One transaction, a second after the last block. Raises Disagreement."""
        before, at, refused = _copied(self.model), self.now + 1, None
        cases = self._closed()
        try:
            rule(self.model, at)
        except Refused as error:
            self.model, refused = before, str(error)
        target = getattr(self.chain, contract)
        data = "0x" + target.functions[function](*arguments).data.hex()
        self.rpc("evm_setNextBlockTimestamp", at)
        reason = self._refusal(by.address, target.address, data)
        what = f"{function}({', '.join(map(str, arguments))}) by {by.address} at {at - START}"
        if reason != refused:
            raise Disagreement(f"{what}: the contracts say {reason or 'yes'}, the model {refused or 'yes'}")
        self.done[function, refused or "done"] += 1
        if refused is not None:
            return
        self._send(by.address, target.address, data)
        self.now = at
        learn()
        self.verdicts.update(self._closed() - cases)
        try:
            self.compare()
        except Disagreement as error:
            raise Disagreement(f"after {what}:\n{error}") from None

    def _closed(self) -> Counter[tuple[Stage, bool]]:
        seats = [seat for run in self.model.runs.values() for seat in run.seats.values()]
        return Counter((case.stage, case.hard) for seat in seats for case in seat.cases if case.stage.closed)

    @lru_cache(maxsize=1000)  # noqa: B019  as many as there are signers and runs; the twins live as long as the tests
    def _consent(self, run: int, operator: str, node: Key, hardware: int, deadline: int) -> bytes:
        return Join(run, operator, node.address, keccak(node.peer), hardware, deadline).sign(node, self.chain.domain)

    @lru_cache(maxsize=1000)  # noqa: B019
    def _signature(self, signer: Key, verdict: Verdict) -> bytes:
        return verdict.sign(signer, self.chain.domain)

    # ---- comparing -------------------------------------------------------------------------------------------------

    def compare(self) -> None:
        """Raises Disagreement that names every value that differs."""
        readings = list(self._readings())
        calls = [("eth_call", ({"to": reading.to, "data": reading.data}, "latest")) for reading in readings]
        differ = []
        for reading, answer in zip(readings, self._batch(calls), strict=True):
            seen = reading.seen_as(_decoded(reading.types, answer))
            if seen != reading.expected:
                differ.append(f"  {reading.what}: the contracts hold {seen}, the model {reading.expected}")
        if differ:
            raise Disagreement("\n".join(differ))

    def _readings(self) -> Any:
        m = self.model
        for person in [key.address for key in PEOPLE] + [SINK, m.bonds, m.treasury]:
            yield self._reading("token", "balanceOf", [person], m.tokens.get(person, 0))
            a = m.account(person)
            yield self._reading("bonds", "accounts", [person], (a.active, a.locked, a.leaving, a.ready_at))
        stake = sum(account.active + account.leaving for account in m.accounts.values())
        yield self._reading("bonds", "total", [], stake)
        for number, run in m.runs.items():
            yield self._reading("runs", "funds", [number], (run.free, run.reserved))
            status = (len(run.publications), run.paused_from, run.defunded_from, run.leaving)
            yield self._reading("runs", "status", [number], status)
            yield self._reading("court", "seated", [number], run.seated)
            for step, p in enumerate(run.publications):
                expected = (p.beacon, p.block, p.superseded)
                see = lambda v: (v[0][1], v[0][2], v[0][4])  # noqa: E731
                yield self._reading("runs", "publications", [number, step], expected, see)
            for validator in VALIDATORS:
                v = run.validator(validator.address)
                at_risk = run.bonds_at_risk(validator.address)
                expected_validator = (v.approved, v.since, v.until, at_risk, v.locked)
                yield self._reading("court", "validators", [number, validator.address], expected_validator)
            for node in NODES:
                name = run.seat(node.address).node
                yield self._reading("runs", "seatOf", [number, node.address], name.lower())
            for seat in run.seats.values():
                yield from self._seat_readings(number, run, seat)

    def _seat_readings(self, number: int, run: Run, seat: Seat) -> Any:
        yield self._reading("runs", "claimable", [number, seat.node], run.claimable(seat, self.now))
        yield self._reading(
            "runs", "seats", [number, seat.node], "as the model's", lambda v: _compare_seat(run, seat, v[0])
        )
        for submission in seat.submissions:
            w = (submission.time, submission.units, submission.case)
            yield self._reading("runs", "submissions", [submission.ref.submission_id(number)], w)
            yield self._reading(
                "court", "stateOf", [number, submission.ref.as_tuple()], int(state_of(seat, submission))
            )
        for i, case in enumerate(seat.cases, 1):
            see = lambda v, i=i, case=case: _compare_case(run, seat, i, case, v[0])  # noqa: E731
            yield self._reading("court", "cases", [number, seat.node, i], "as the model's", see)

    def _reading(self, contract: str, function: str, arguments: list[Any], expected: Any, see: Any = None) -> Reading:
        to, data, types = self._question(contract, function, tuple(arguments))
        what = f"{function}({', '.join(map(str, arguments))})"
        return Reading(what, to, data, types, expected, *([see] if see else []))

    @lru_cache(maxsize=10_000)  # noqa: B019
    def _question(self, contract: str, function: str, arguments: tuple[Any, ...]) -> tuple[str, str, tuple[str, ...]]:
        target = getattr(self.chain, contract)
        asked = target.functions[function](*arguments)
        return target.address, "0x" + asked.data.hex(), asked.outputs

    # ---- the wire --------------------------------------------------------------------------------------------------

    def rpc(self, method: str, *parameters: Any) -> Any:
        return self._batch([(method, parameters)])[0]

    def _batch(self, calls: list[tuple[str, Any]]) -> list[Any]:
        body = [
            {"jsonrpc": "2.0", "id": i, "method": method, "params": list(parameters)}
            for i, (method, parameters) in enumerate(calls)
        ]
        answers = self._http.post(self._anvil.rpc, json=body, timeout=30).json()
        if wrong := [answer["error"] for answer in answers if "error" in answer]:
            raise RuntimeError(f"{calls[0][0]}: {wrong[0]}")
        return [answer["result"] for answer in sorted(answers, key=lambda answer: int(answer["id"]))]

    def _refusal(self, by: str, to: str, data: str) -> str | None:
        """Name of the error with which the next block would refuse this; None: it would not."""
        call = {"from": by, "to": to, "data": data}
        body = {"jsonrpc": "2.0", "id": 1, "method": "eth_call", "params": [call, "pending"]}
        answer = self._http.post(self._anvil.rpc, json=body, timeout=30).json()
        if "error" not in answer:
            return None
        thrown = str(answer["error"].get("data"))[2:10]
        return self._errors.get(thrown, f"{thrown} ({answer['error']['message']})")

    def _send(self, by: str, to: str, data: str) -> None:
        call = {"from": by, "to": to, "data": data, "gas": hex(5_000_000)}
        sent, until = self.rpc("eth_sendTransaction", call), time.monotonic() + 10
        while (receipt := self.rpc("eth_getTransactionReceipt", sent)) is None:  # Anvil mines a moment after it answers
            if time.monotonic() > until:
                raise RuntimeError("Anvil mines nothing")
        if receipt["status"] != "0x1":
            raise Disagreement("a transaction failed that would not have a moment ago")

    def _height(self) -> int:
        return int(self.rpc("eth_blockNumber"), 16)


def _buckets(ring: int) -> tuple[int, dict[int, int]]:
    """(epoch of the newest bucket, units by epoch) of a ring, as Ring.sol lays it out."""
    newest = ring & (2**64 - 1)
    epochs = range(max(0, newest - EPOCHS_TO_MATURE + 1), newest + 1)
    units = {epoch: ring >> 64 + 32 * (epoch % EPOCHS_TO_MATURE) & (2**32 - 1) for epoch in epochs}
    return newest, {epoch: many for epoch, many in units.items() if many}


def _compare_seat(run: Run, seat: Seat, seen: tuple[Any, ...]) -> str:
    """Units are compared as of the last time the contract looked at its clock."""
    (operator, role, hardware, rotated, since, most, ring, vested, step, following, held, cases, open_cases, open_hard,
     strikes, strikes_since, swept, locked, safe, until, key) = seen  # fmt: skip
    newest, units = _buckets(ring)
    young: Counter[int] = Counter()
    old = 0
    for submission in seat.submissions:
        epoch = run.epoch(submission.time)
        if submission.place == Place.SEAT and epoch > newest - EPOCHS_TO_MATURE:
            young[epoch] += submission.units
        elif submission.place == Place.SEAT:
            old += submission.units
    held_safe = sum(
        submission.units for submission in seat.submissions if submission.place == Place.SEAT and submission.safe
    )
    pairs = {
        "operator": (operator, _address(seat.operator)),
        "role": (Role(role), seat.role),
        "key": (key if rotated else None, seat.rotated_to and _address(seat.rotated_to)),
        "hardware": (hardware, seat.hardware),
        "since": (since, seat.since),
        "most": (most, run.most_units(seat)),
        "ring": (units, dict(young)),
        "vested": (vested, old),
        "step": (step, seat.step),
        "next": (following, seat.next),
        "held": (held, seat.held),
        "cases": (cases, len(seat.cases)),
        "open cases": (open_cases, seat.open_cases),
        "open hard cases": (open_hard, seat.open_hard),
        "strikes": (strikes, seat.strikes),
        "strikes since": (strikes_since, seat.strikes_since),
        "swept": (swept, seat.swept),
        "locked": (locked, seat.locked),
        "safe": (safe, held_safe if seat.open_hard else safe),
        "until": (until, seat.until),
    }
    return _differences(pairs)


def _compare_case(run: Run, seat: Seat, number: int, case: Case, seen: tuple[Any, ...]) -> str:
    challenger, earliest, deadline, stage, submissions, ring, appellant, uphold, reject, co_signer, hard, samples = seen
    units: Counter[int] = Counter()
    for submission in seat.in_case(number):
        units[run.epoch(submission.time)] += submission.units
    votes = list(case.votes.values())
    pairs = {
        "challenger": (challenger, _address(case.challenger)),
        "earliest": (earliest, case.earliest),
        "deadline": (deadline, case.deadline),
        "stage": (Stage(stage), case.stage),
        "submissions": (submissions, case.submissions),
        # a conviction beside it has taken the units of an open case, which does not learn of it
        "ring": (_buckets(ring)[1], _buckets(ring)[1] if case.open and seat.swept else dict(units)),
        "appellant": (appellant, _address(case.appellant)),
        "uphold": (uphold, votes.count(True)),
        "reject": (reject, votes.count(False)),
        "co-signer": (co_signer, _address(case.co_signer)),
        "hard": (hard, case.hard),
        "samples": (samples, case.samples),
    }
    return _differences(pairs)


def _differences(pairs: dict[str, tuple[Any, Any]]) -> str:
    differ = [f"{name} is {seen}, not {expected}" for name, (seen, expected) in pairs.items() if seen != expected]
    return "; ".join(differ) or "as the model's"


def _address(address: str | None) -> str:
    return (address or NOBODY).lower()


@lru_cache(maxsize=50_000)
def _decoded(types: tuple[str, ...], answer: str) -> Any:
    return decode(types, bytes.fromhex(answer[2:]))


def _selectors() -> dict[str, str]:
    errors = [item for name in artifacts.CONTRACTS for item in artifacts.load(name).abi if item["type"] == "error"]
    return {
        keccak(text=f"{e['name']}({','.join(map(collapse_if_tuple, e['inputs']))})")[:4].hex(): e["name"]
        for e in errors
    }
