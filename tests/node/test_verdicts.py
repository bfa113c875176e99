"""Hearing what became of the submissions: each receipt once, whatever the hub's history, its outages and its rebuilding."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from node.contributor import submission_log as states
from node.contributor.submission_log import SubmissionLog
from node.contributor.verdicts import Verdicts
from protocol import canonical
from protocol.chain.types import Validator
from protocol.errors import RpcUnavailable, Unavailable
from protocol.hub.client import HubClient
from protocol.hub.wire import PAGE, TryAgain
from protocol.identity import Key
from protocol.signing import Domain
from protocol.submission import SubmissionRef
from protocol.verdict import Details, Outcome, Receipt
from tests.clock import VirtualClock
from tests.node.stage import Stage
from tests.node.working import a_worker, judged

RUN = 1
DOMAIN = Domain(31337, "0x" + "11" * 20)
NODE, ONE, TWO = Key.generate(), Key.generate(), Key.generate()
SEATED = Validator(0, 0, True, 1, 0, 0)
NOBODY = Validator(0, 0, False, 0, 0, 0)


def a_ref(sequence: int, node: str = NODE.address) -> SubmissionRef:
    return SubmissionRef(node, 0, sequence, bytes(32))  # type: ignore[arg-type]


def a_receipt(ref: SubmissionRef, validator: Key = ONE, outcome: Outcome = Outcome.ACCEPT) -> bytes:
    rule = "" if outcome == Outcome.ACCEPT else "sampling"
    details = Details(
        protocol=1, chain_id=DOMAIN.chain_id, contract=DOMAIN.contract, run=RUN, submission=ref.submission_id(RUN).hex(),
        node=ref.node, step=ref.step, sequence=ref.sequence, root=ref.root.hex(), units=1, spec="00" * 32,
        outcome=int(outcome), rule=rule, measured="", threshold="", detail="", samples="0" * 63 + "1",
        sequences_checked=1, proofs_checked=1, tokens_checked=1, time=1,
    )  # fmt: skip
    return Receipt.issue(details, validator, DOMAIN).encode()


OWN = [a_receipt(a_ref(number)) for number in range(20)]


class Hub(HubClient):
    """A hub's client whose answers lie in memory: entries under numbers. Counts pages and entries."""

    def __init__(self, first: int = 1000) -> None:
        super().__init__("http://hub.invalid", RUN, DOMAIN)
        self.next = first
        self.entries: list[tuple[int, Any]] = []
        self.pages = self.handed_out = 0
        self.is_down = self.is_crowded = False
        self.asked: list[tuple[str, int]] = []
        self.waited: Callable[[float], object] = lambda seconds: None

    def list(self, *receipts: bytes) -> None:
        for receipt in receipts:
            self.entries.append((self.next, canonical.parse(receipt, "receipt")))
            self.next += 1

    def fill(self, count: int) -> None:
        """Receipts of other nodes."""
        self.list(*[b'{"details":{"submission":"%064x"}}' % (1 << 200 | number) for number in range(count)])

    def _json(self, path: str, *, wait: int = 0) -> Any:
        self.asked.append((path, wait))
        if self.is_down:
            raise Unavailable("the hub is down")
        if self.is_crowded:
            raise TryAgain("there are too many", 15)
        where, _, query = path.partition("?")
        said = {name: values[0] for name, values in parse_qs(query).items()}
        nodes = [where.removeprefix("nodes/"), *said.get("also", "").split()]
        start = self._start(int(said["after"]), bytes.fromhex(said.get("mark", "")))
        listed = [(number, value) for number, value in self.entries if value["details"].get("node") in nodes]
        page = [(number, value) for number, value in listed if number > start][:PAGE]
        if not page:
            self.waited(wait)
        self.pages += 1
        self.handed_out += len(page)
        entries = [{"id": number, "value": value} for number, value in page]
        return {"entries": entries, "from": start, "since": 0, "challenge": "", "tag": "", "need": None}

    def _start(self, after: int, digest: bytes) -> int:
        known = [value for number, value in self.entries if number == after]
        if known:
            return after if not digest or sha256(canonical.encode(known[0])).digest() == digest else 0
        return after if after < self.next else 0


class Chain:
    domain = DOMAIN

    def __init__(self) -> None:
        self.calls = 0
        self.seats = {ONE.address: SEATED, TWO.address: SEATED}
        self.is_down = False

    def validator(self, run: int, address: str) -> Validator:
        self.calls += 1
        if self.is_down:
            raise RpcUnavailable("no endpoint")
        return self.seats.get(address, NOBODY)


class Scene:
    """A node's log, a hub and a chain, behind as much of a connection as following needs. Built anew, it is a restart."""

    run = RUN

    key = NODE

    class settings:
        poll_seconds = 1.0

    trainer = TWO.address

    class spec:
        class verification:
            history = None
            recalibration = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hub, self.chain, self.clock = Hub(), Chain(), VirtualClock()
        self.log = SubmissionLog(folder / states.FILE)
        self.forgotten = 0
        self.restart()

    def restart(self) -> None:
        self.log.close()
        self.log = SubmissionLog(self.folder / states.FILE)
        self.verdicts = Verdicts(self, self.log, 1.0, self.clock)  # type: ignore[arg-type]

    def block_time(self) -> int:
        self.chain.calls += 1
        return 100

    def forget_hub(self) -> None:
        self.forgotten += 1

    def submit(self, *refs: SubmissionRef) -> None:
        for ref in refs:
            self.log.add(ref, ref.submission_id(RUN), 1, 0)
            self.log.advance(ref.submission_id(RUN), states.STORED)

    def state(self, ref: SubmissionRef) -> str:
        found = self.log.get(ref.submission_id(RUN))
        assert found is not None
        return found.state

    def cost(self, action: Callable[[], object]) -> tuple[int, int, int]:
        """(pages, entries, calls of the chain) that an action took."""
        hub = self.hub
        before = hub.pages, hub.handed_out, self.chain.calls
        action()
        return hub.pages - before[0], hub.handed_out - before[1], self.chain.calls - before[2]

    def follow(self, turns: int) -> None:
        """Follows for so many waits."""
        stop = threading.Event()
        left = iter(range(turns - 1))
        self.clock.meanwhile = lambda: next(left, None) is None and stop.set()
        self.verdicts.follow(stop)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.log.close()


@pytest.mark.parametrize("history", [3 * PAGE, 20 * PAGE])
def test_a_start_and_an_outage_cost_the_same_whatever_the_history(scene: Scene, history: int) -> None:
    scene.submit(*map(a_ref, range(19)))
    scene.hub.list(*OWN[:19])
    scene.hub.fill(history)
    scene.verdicts.turn()
    assert scene.log.counts() == {states.ACCEPTED: 19}

    scene.restart()
    assert scene.cost(scene.verdicts.turn) == (1, 0, 0), "a start"
    scene.hub.is_down = True
    scene.follow(3)
    scene.hub.is_down = False
    assert scene.cost(scene.verdicts.turn) == (1, 0, 0), "an outage"

    scene.submit(a_ref(19))
    scene.hub.list(OWN[19])
    scene.restart()
    assert scene.cost(scene.verdicts.turn) == (1, 1, 2), "a start with one verdict that is new"
    assert scene.state(a_ref(19)) == states.ACCEPTED


def test_the_chain_is_asked_once_for_each_validator_of_a_turn(scene: Scene) -> None:
    scene.submit(*map(a_ref, range(20)))
    scene.hub.list(*OWN, *(a_receipt(a_ref(number), TWO) for number in range(5)))
    scene.hub.list(a_receipt(a_ref(0), TWO, Outcome.SOFT))
    assert scene.cost(scene.verdicts.turn)[2] == 4, "two validators, each with a seat and the time"
    assert scene.log.counts() == {states.ACCEPTED: 19, states.SOFT: 1}


@pytest.mark.parametrize("first", [1, 990, 5000], ids=["lower", "overlapping", "higher"])
def test_a_hub_that_was_replaced_is_read_from_its_start_and_costs_no_calls_for_what_is_known(
    scene: Scene, first: int
) -> None:
    scene.submit(*map(a_ref, range(20)))
    scene.hub.list(*OWN[:18])
    scene.verdicts.turn()
    scene.hub = Hub(first)
    scene.hub.list(*reversed(OWN[:18]))
    assert scene.cost(scene.verdicts.turn)[2] == 0
    scene.hub.list(*OWN[18:])
    assert scene.cost(scene.verdicts.turn)[2] == 2
    assert scene.log.counts() == {states.ACCEPTED: 20}
    scene.restart()
    assert scene.cost(scene.verdicts.turn) == (1, 0, 0), "the mark is of the new hub"


def test_a_hub_that_was_emptied_is_followed_from_its_first_entry(scene: Scene) -> None:
    scene.submit(a_ref(0), a_ref(1))
    scene.hub.list(OWN[0])
    scene.verdicts.turn()
    scene.hub = Hub(7)
    scene.verdicts.turn()
    scene.restart()
    scene.hub.list(OWN[1])
    scene.verdicts.turn()
    assert scene.state(a_ref(1)) == states.ACCEPTED


def test_a_verdict_whose_signer_could_not_be_looked_up_comes_again(scene: Scene) -> None:
    scene.submit(a_ref(0), a_ref(1))
    scene.hub.list(OWN[0])
    scene.verdicts.turn()
    scene.hub.list(OWN[1])
    scene.chain.is_down = True
    scene.follow(2)
    assert scene.state(a_ref(1)) == states.STORED
    scene.restart()
    scene.chain.is_down = False
    scene.verdicts.turn()
    assert scene.state(a_ref(1)) == states.ACCEPTED


def test_a_validator_that_the_endpoint_does_not_know_yet_is_looked_up_again_a_few_times(scene: Scene) -> None:
    scene.submit(a_ref(0), a_ref(1))
    scene.chain.seats = {}
    scene.hub.list(OWN[0])
    scene.verdicts.turn()
    scene.chain.seats = {ONE.address: SEATED}
    scene.verdicts.turn()
    assert scene.state(a_ref(0)) == states.ACCEPTED
    scene.chain.seats = {}
    scene.hub.list(OWN[1])
    for _ in range(10):
        scene.verdicts.turn()
    assert scene.cost(scene.verdicts.turn)[2] == 0, "a stranger is not asked about for ever"


def test_verdicts_on_work_of_an_earlier_key_of_the_seat_are_heard(scene: Scene) -> None:
    ref = a_ref(3, Key.generate().address)
    scene.submit(a_ref(0), ref)
    scene.hub.list(a_receipt(ref, ONE, Outcome.HARD))
    scene.verdicts.turn()
    assert scene.state(ref) == states.HARD


def test_pauses_after_failures_grow_and_the_hub_is_looked_for_anew(scene: Scene) -> None:
    scene.hub.is_down = True
    scene.follow(6)
    assert scene.clock.waits == [1, 2, 4, 8, 12, 12]
    assert scene.forgotten == 6


def test_a_node_that_idles_asks_the_hub_at_most_twice_a_minute(scene: Scene) -> None:
    minutes = 30
    scene.hub.waited = scene.clock.advance
    stop, until = threading.Event(), scene.clock.monotonic() + 60 * minutes
    scene.clock.meanwhile = lambda: scene.clock.monotonic() >= until and stop.set()
    scene.verdicts.follow(stop)
    assert minutes <= scene.hub.pages <= 2 * minutes


def test_whatever_fails_the_next_poll_goes_on_where_the_last_ended(scene: Scene) -> None:
    """And a hub that has too much to do is not looked for elsewhere, nor asked before it said."""
    scene.submit(a_ref(0))
    scene.hub.list(OWN[0])
    scene.verdicts.turn()
    scene.hub.asked.clear()
    scene.hub.is_crowded = True
    scene.follow(3)
    assert scene.forgotten == 0
    assert all(15 <= wait <= 22.5 for wait in scene.clock.waits)
    scene.hub.is_crowded, scene.hub.is_down = False, True
    scene.follow(2)
    scene.restart()
    scene.hub.is_down = False
    scene.verdicts.turn()
    digest = sha256(OWN[0]).hexdigest()
    assert all(f"?after=1000&mark={digest}&" in path for path, _ in scene.hub.asked)


def test_a_verdict_outlives_a_restart_before_its_signers_seat_is_seen(stage: Stage) -> None:
    node, validator = stage.seated(), stage.validator()
    stage.publish()
    made = stage.make(node)
    submission = stage.submit(node, made)
    judged(stage, validator, submission, Outcome.HARD)
    worker = a_worker(stage, node)
    worker.submissions.add(made.ref, submission, made.units, 0)
    worker.submissions.advance(submission, states.STORED)
    worker._verdicts._may_judge = lambda validator: False  # type: ignore[method-assign]  # the endpoint lags
    worker._verdicts.turn()
    worker.close()
    worker = a_worker(stage, node)
    worker._verdicts.turn()
    known = worker.submissions.get(submission)
    assert known is not None
    assert known.state == states.HARD
    assert worker.submissions.mark("receipts").number
    worker.close()
