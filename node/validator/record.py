"""What the chain's events say of one run: who validates, how a node was seated, what it committed to before.

A validator's removal takes effect later than it is announced, when every case on earlier work is closed; until then it judges.

It reads the index, never the contract's present state: a work is judged as things stood in the block of its commitment, so
that nobody can change a verdict afterwards by leaving and joining again.
"""

from __future__ import annotations

from functools import lru_cache

from protocol import rendezvous
from protocol.chain.events import Appealed, Challenged, Event, Joined, Rotated, Settled, Submitted, ValidatorSeated
from protocol.chain.index import EventIndex
from protocol.chain.types import Stage
from protocol.submission import SubmissionRef

CaseName = tuple[str, int]
"""Seat and number of a case."""
Place = tuple[int, int]
"""Where an event stands: block and index in it."""


class Record:
    def __init__(self, index: EventIndex, run: int) -> None:
        self._index = index
        self._run = run
        self.rebuild()

    def rebuild(self) -> None:
        """Reads everything anew; needed when the chain took something back."""
        self._service: dict[str, int] = {}  # validator → end of service in block time, 0: none in sight
        self._hardware: dict[str, list[tuple[Place, int]]] = {}
        self._roots: dict[str, list[tuple[Place, bytes]]] = {}
        self._seats: dict[str, str] = {}  # key of a node → name of its seat, where they differ
        self.cases: dict[CaseName, list[SubmissionRef]] = {}
        self.appeals: set[CaseName] = set()
        self.convictions: dict[CaseName, SubmissionRef] = {}
        """Works that hard cases found false in the end."""
        kinds = (Joined, Rotated, Submitted, ValidatorSeated, Challenged, Appealed, Settled)
        for event in sorted((event for kind in kinds for event, _ in self._index.events(kind)), key=_place):
            self.add(event)

    def add(self, event: Event) -> None:
        """Takes in the next event; events of other runs and kinds are nothing to it."""
        if getattr(event.data, "run", None) != self._run:
            return
        match event.data:
            case Joined() as joined:
                self._hardware.setdefault(joined.node, []).append((_place(event), joined.hardware))
            case Submitted() as submitted:
                self._roots.setdefault(submitted.node, []).append((_place(event), submitted.root))
            case Rotated() as rotated:
                self._seats[rotated.node] = rotated.seat
                self._hardware[rotated.node] = list(self._hardware.get(rotated.seat, []))
            case Challenged() as c:
                ref = SubmissionRef(c.node, c.step, c.sequence, c.root)
                self.cases.setdefault((c.seat, c.number), []).append(ref)
            case Appealed() as appealed:
                self.appeals.add((appealed.seat, appealed.number))
            case Settled() as settled:
                self.appeals.discard((settled.seat, settled.number))
                refs = self.cases.pop((settled.seat, settled.number), [])
                if refs and settled.hard and settled.verdict == Stage.UPHELD:
                    self.convictions[settled.seat, settled.number] = refs[0]  # a hard case concerns one work
            case ValidatorSeated() as seated:
                self._service[seated.validator] = seated.until

    def validators(self, now: int) -> frozenset[str]:
        """Who judges; `now` in block time."""
        return frozenset(v for v, until in self._service.items() if until == 0 or now < until)

    @property
    def ever_validated(self) -> frozenset[str]:
        """Who has, or had, a validator's seat."""
        return frozenset(self._service)

    def seat(self, node: str) -> str:
        """Name of a node's seat: the first key it had."""
        return self._seats.get(node, node)

    def submission(self, ref: SubmissionRef) -> Event | None:
        """The event that committed to a work."""
        work = ref.work_id(self._run)
        found = self._index.find(Submitted, lambda s: s.node == ref.node and work_id(s) == work)
        return None if found is None else found[0]

    def works(self) -> list[Event]:
        """All commitments of the run, oldest first."""
        return [event for event, submitted in self._index.events(Submitted) if submitted.run == self._run]

    def hardware(self, event: Event) -> int | None:
        """Hardware class of the node's seat when it committed; None when its seat is older than the index."""
        before = [hardware for place, hardware in self._hardware.get(event.data.node, []) if place < _place(event)]
        return before[-1] if before else None

    def earlier_roots(self, event: Event) -> frozenset[bytes]:
        """Roots the same node committed to before."""
        return frozenset(root for place, root in self._roots.get(event.data.node, []) if place < _place(event))

    def line(self, event: Event, now: int) -> tuple[str, ...]:
        """Validators in the order in which this work is theirs to judge."""
        return _line(work_id(event.data), event.block_hash, self.validators(now))


def work_id(submitted: Submitted) -> bytes:
    return ref_of(submitted).work_id(submitted.run)


def ref_of(submitted: Submitted) -> SubmissionRef:
    return SubmissionRef(submitted.node, submitted.step, submitted.sequence, submitted.root)


def _place(event: Event) -> Place:
    return event.block, event.log_index


@lru_cache(1 << 16)
def _line(work: bytes, block_hash: bytes, validators: frozenset[str]) -> tuple[str, ...]:
    return tuple(rendezvous.order(work, block_hash, validators))
