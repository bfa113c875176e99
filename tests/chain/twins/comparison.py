"""Every value that the contracts keep, and what the model says it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from eth_abi import decode

from protocol.chain import Chain, artifacts
from protocol.chain.contract import Contract
from protocol.chain.types import Role, Stage
from tests.chain.model import Model
from tests.chain.model.books import EPOCHS_TO_MATURE, Case, Place, Run, Seat
from tests.chain.twins.people import NOBODY, NODES, PEOPLE, SINK
from tests.chain.twins.wire import Wire


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
    seen_as: Callable[[Any], Any]


class Comparison:
    def __init__(self, chain: Chain, vouchers: str, wire: Wire) -> None:
        self.chain, self._wire = chain, wire
        self.vouchers = Contract(chain.ethereum, vouchers, artifacts.load("Vouchers").abi)

    def compare(self, model: Model, now: int, height: int) -> None:
        """Raises Disagreement that names every value that differs."""
        readings = list(self._readings(model, now, height))
        calls = [("eth_call", ({"to": reading.to, "data": reading.data}, "latest")) for reading in readings]
        differ = []
        for reading, answer in zip(readings, self._wire.batch(calls), strict=True):
            seen = reading.seen_as(_decoded(reading.types, answer))
            if seen != reading.expected:
                differ.append(f"  {reading.what}: the contracts hold {seen}, the model {reading.expected}")
        if differ:
            raise Disagreement("\n".join(differ))

    def contract(self, name: str) -> Contract:
        return self.vouchers if name == "vouchers" else getattr(self.chain, name)

    # ---- what is compared ------------------------------------------------------------------------------------------

    def _readings(self, m: Model, now: int, height: int) -> Iterator[Reading]:
        holders = [SINK, m.bonds, m.treasury, m.pots, self.chain.bench.address]
        for person in [key.address for key in PEOPLE] + holders:
            yield self._reading("token", "balanceOf", [person], m.tokens.get(person, 0))
            a = m.account(person)
            yield self._reading("bonds", "accounts", [person], (a.active, a.locked, a.leaving, a.ready_at))
        stake = sum(account.active + account.leaving for account in m.accounts.values())
        yield self._reading("bonds", "total", [], stake)
        for number, run in m.runs.items():
            yield self._reading("runs", "funds", [number], (run.free, run.reserved))
            yield self._reading("runs", "status", [number], (run.paused_from, run.defunded_from, run.leaving))
            yield self._reading("vouchers", "pots", [number], run.pot)
            yield self._reading("vouchers", "left", [number], m.voucher_room(number, now))
            yield from self._weights(m, number, run, now, height)
            yield self._reading("bench", "seated", [number], run.seated)
            for address, v in run.validators.items():
                validator = (v.locked, run.at_risk(address), v.approved, v.since, v.until, v.place)
                yield self._reading("bench", "validators", [number, address], validator)
                yield self._reading("vouchers", "redeemed", [number, address], run.redeemed.get(address, 0))
            for node in NODES:
                name = run.seat(node.address).node
                yield self._reading("runs", "seatOf", [number, node.address], name.lower())
            for seat in run.seats.values():
                yield from self._seat(number, run, seat, now)

    def _weights(self, m: Model, number: int, run: Run, now: int, height: int) -> Iterator[Reading]:
        yield self._reading("weights", "trainer", [number], _address(run.trainer(now)))
        yield self._reading("weights", "replaced", [number], tuple(map(_address, run.replaced)))
        since, key = next(((since, key) for since, key in run.appointed if since > now), (0, None))
        yield self._reading("weights", "successor", [number], (_address(key), since))
        yield self._reading("weights", "published", [number], len(run.publications))
        for step, p in enumerate(run.publications):
            published = (p.manifest, p.beacon, p.block, p.time, p.superseded)
            yield self._reading("weights", "publications", [number, step], published)
            yield self._reading("weights", "sourceOf", [number, step], p.source)
            if not any(p.beacon):
                beacon = m.beacon_of(number, step, lambda source: self._wire.hash_of(source, height))
                yield self._reading("weights", "beaconOf", [number, step], beacon)

    def _seat(self, number: int, run: Run, seat: Seat, now: int) -> Iterator[Reading]:
        yield self._reading("runs", "claimable", [number, seat.node], run.claimable(seat, now))
        see = partial(_compare_seat, run, seat)
        yield self._reading("runs", "seats", [number, seat.node], "as the model's", see)
        offer = (_address(seat.offered), seat.offer_ends)
        yield self._reading("runs", "offers", [number, seat.node], offer)
        for submission in seat.submissions:
            w = (submission.time, submission.units, submission.case, submission.index)
            yield self._reading("runs", "submissions", [submission.ref.submission_id(number)], w)
            state = int(seat.state_of(submission))
            yield self._reading("court", "stateOf", [number, submission.ref.as_tuple()], state)
            if (
                now < submission.time + run.policy.span
            ):  # later nobody asks, and who was of that bench may have a new seat
                bench = len(run.bench(submission.time))
                yield self._reading("bench", "benchAt", [number, submission.time], bench)
                yield self._reading("bench", "termOf", [number, submission.time], run.term(submission.time))
        for i, case in enumerate(seat.cases, 1):
            compare = partial(_compare_case, run, seat, case)
            yield self._reading("court", "cases", [number, seat.node, i], "as the model's", compare)
            yield self._reading("court", "ballots", [number, seat.node, i], _ballots(run, case))
            if case.stage == Stage.APPEALED:
                for who in run.validators:
                    may = who in run.bench(case.earliest) - case.excused - set(case.votes) and now < case.deadline
                    yield self._reading("court", "isJuror", [number, seat.node, i, who], may)

    def _reading(
        self, contract: str, function: str, arguments: list[Any], expected: Any, see: Callable[[Any], Any] | None = None
    ) -> Reading:
        to, data, types = self._question(contract, function, tuple(arguments))
        what = f"{function}({', '.join(map(str, arguments))})"
        return Reading(what, to, data, types, expected, (lambda v: see(v[0])) if see else _plain)

    @lru_cache(maxsize=10_000)  # noqa: B019  the twins live as long as the tests
    def _question(self, contract: str, function: str, arguments: tuple[Any, ...]) -> tuple[str, str, tuple[str, ...]]:
        target = self.contract(contract)
        asked = target.functions[function](*arguments)
        return target.address, "0x" + asked.data.hex(), asked.outputs


def _plain(values: Any) -> Any:
    return values[0] if len(values) == 1 else values


def _compare_seat(run: Run, seat: Seat, seen: tuple[Any, ...]) -> str:
    """Units are compared as of the last time the contract looked at its clock."""
    (operator, role, rotated, swept, since, worth, ring, vested, step, following, held, proven, open_cases, open_hard,
     strikes, strikes_since, locked, safe, until, hardware, cases, key, spent, shut_until) = seen  # fmt: skip
    newest, units = _buckets(ring)
    at_seat = [submission for submission in seat.submissions if submission.place == Place.SEAT]
    young: Counter[int] = Counter()
    old = held_safe = 0
    for submission in at_seat:
        epoch = run.epoch(submission.time)
        if epoch > newest - EPOCHS_TO_MATURE:
            young[epoch] += submission.units
        else:
            old += submission.units
        held_safe += submission.units * submission.safe
    pairs = {
        "operator": (operator, _address(seat.operator)),
        "role": (Role(role), seat.role),
        "key": (key if rotated else None, seat.rotated_to and _address(seat.rotated_to)),
        "hardware": (hardware, seat.hardware),
        "since": (since, seat.since),
        "most": (min(worth * run.policy.leverage, worth + proven, 2**32 - 1), seat.most),
        "proven": (proven, seat.proven),
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
        "spent": (spent, seat.spent),
        "shut until": (shut_until, seat.shut_until),
    }
    return _differences(pairs)


def _compare_case(run: Run, seat: Seat, case: Case, seen: tuple[Any, ...]) -> str:
    (challenger, earliest, deadline, stage, submissions, ring, co_signer, bond, hard, appellant, jurors, keyed, again,
     parted, samples, excused, gone, upheld, cleared) = seen  # fmt: skip
    units: Counter[int] = Counter()
    for i in case.members if case.open and not case.bare else ():
        units[run.epoch(case.listed[i].time)] += case.listed[i].units
    split = case.open or case.stage == Stage.SPLIT  # else the stage says it of all
    pairs = {
        "challenger": (challenger, _address(case.challenger)),
        "earliest": (earliest, case.earliest),
        "deadline": (deadline, case.deadline),
        "stage": (Stage(stage), case.stage),
        "submissions": (submissions, len(case.listed)),
        "ring": (_buckets(ring)[1], dict(units)),
        "co-signer": (co_signer, _address(case.co_signer)),
        "bond": (bond, case.bond),
        "hard": (hard, hard if case.stage in (Stage.CLEARED, Stage.RETURNED) else case.hard),  # then it says nothing
        "appellant": (appellant, _address(case.appellant)),
        "jurors": (jurors, case.jurors),
        "keyed": (keyed, case.keyed),
        "again": (again, case.again),
        "parted": (parted, bool(case.gone)),
        "samples": (samples, case.samples),
        "excused": (excused, _bits(run.validator(who).place for who in case.excused)),
        "gone": (gone, _bits(case.gone)),
        "upheld": (upheld, _bits(case.upheld) if split else upheld),
        "cleared": (cleared, _bits(case.cleared) if split else cleared),
    }
    return _differences(pairs)


def _ballots(run: Run, case: Case) -> tuple[tuple[int, int, int], ...]:
    """Votes that are alike are kept once, in the order in which the first of them was cast."""
    return tuple(
        (
            _bits(finding.false),
            _bits(finding.hard),
            _bits(run.validator(who).place for who, other in case.votes.items() if other == finding),
        )
        for finding in dict.fromkeys(case.votes.values())
    )


def _buckets(ring: int) -> tuple[int, dict[int, int]]:
    """(epoch of the newest bucket, units by epoch) of a ring, as Ring.sol lays it out."""
    newest = ring & (2**64 - 1)
    epochs = range(max(0, newest - EPOCHS_TO_MATURE + 1), newest + 1)
    units = {epoch: ring >> 64 + 32 * (epoch % EPOCHS_TO_MATURE) & (2**32 - 1) for epoch in epochs}
    return newest, {epoch: many for epoch, many in units.items() if many}


def _bits(places: Iterable[int]) -> int:
    return sum(1 << place for place in places)


def _differences(pairs: dict[str, tuple[Any, Any]]) -> str:
    differ = [f"{name} is {seen}, not {expected}" for name, (seen, expected) in pairs.items() if seen != expected]
    return "; ".join(differ) or "as the model's"


def _address(address: str | None) -> str:
    return (address or NOBODY).lower()


@lru_cache(maxsize=50_000)
def _decoded(types: tuple[str, ...], answer: str) -> Any:
    return decode(types, bytes.fromhex(answer[2:]))
