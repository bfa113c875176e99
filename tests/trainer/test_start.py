"""What the trainer refuses to begin with, where it goes on from, and what it outlives while it waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from swarm.processes import wait_until
from swarm.world import World

from node.engine.weights import stored_tensors
from protocol.chain import Chain
from protocol.chain.settings import ChainSettings
from protocol.chain.sync import Book
from protocol.errors import DeadlineExceeded, IntegrityError, LockHeld, MurmurationError, Unavailable, UsageError
from protocol.hub.client import HubClient
from protocol.hub.need import RENEWED_SECONDS, SignedNeed
from protocol.identity import Key
from protocol.runspec import RunSpec
from protocol.sandbox import Sandbox
from protocol.shell.home import Home, read_json
from protocol.shell.signals import Ending
from protocol.signing import Domain, Need
from tests.clock import VirtualClock
from tests.hub.desk import run_settings, small_spec
from tests.trainer import small
from trainer.config import DeadlineSettings, Layout
from trainer.evaluation.evaluate import Evaluation
from trainer.hub.outbox import Outbox
from trainer.hub.process import HubProcess
from trainer.learning import base, tensors
from trainer.learning.checkpoint import TENSORS, Checkpoints
from trainer.learning.learner import MODEL, Learner
from trainer.learning.ranks import Ranks
from trainer.learning.snapshot import snapshot
from trainer.loop.followers import Lead
from trainer.loop.train import Trainer
from trainer.rollouts.counts import DataCounts
from trainer.rollouts.data import RolloutSource
from trainer.rollouts.files import Bounds
from trainer.rollouts.pool import TrainingGroup


@dataclass
class Bench:
    world: World
    layout: Layout
    spec: RunSpec
    learner: Learner
    clock: VirtualClock = field(default_factory=VirtualClock)

    def checkpoint(self, step: int) -> None:
        state = {
            "spec": self.spec.digest.hex(), "base": base.digest_of(self.layout.model), "lora": None, "consumed": [],
            "trained_tokens": 5, "evaluations": [], "counts": DataCounts().for_checkpoint(),
        }  # fmt: skip
        Checkpoints(self.layout.checkpoints, keep=2).save(step, state, Lead(self.learner).save)

    def trainer(self, spec: RunSpec | None = None, **changes: Any) -> Trainer:
        settings, _ = run_settings(self.world, self.layout.file)
        settings = settings.model_copy(update={"trainer": settings.trainer.model_copy(update=changes)})
        self.layout.output.mkdir(exist_ok=True)
        hub = HubProcess(self.layout, None)
        return Trainer(settings, self.layout, spec or self.spec, hub, Ending(), Ranks.alone(), clock=self.clock)

    def outbox(self, *steps: int) -> Outbox:
        made = Outbox(self.layout.outgoing, self.layout.model)
        for step in steps:
            made.write(snapshot(self.learner.model), step)
        return made

    def source(self, url: str = "http://127.0.0.1:9") -> RolloutSource:
        chain, run = self.world.chain, self.world.run
        hub = HubClient(url, run, chain.domain, timeout=60)
        incoming = self.layout.output / "incoming"
        book, bounds = Book(chain, run), Bounds(9, 9)
        return RolloutSource(chain, run, self.spec, book, hub, Sandbox(self.spec), incoming, bounds, end_tokens=[1])


@pytest.fixture
def bench(anvil: Any, model: Path, tmp_path: Path, new_learner: Callable[..., Learner]) -> Bench:
    spec = small_spec()
    world = World.fresh(anvil, spec.digest)
    (tmp_path / "policy").symlink_to(model)
    _, layout = run_settings(world, tmp_path / "run.toml")
    return Bench(world, layout, spec, new_learner())


# ---- beginning -----------------------------------------------------------------------------------------------------------


def test_a_run_in_progress_is_not_begun_again(bench: Bench) -> None:
    bench.checkpoint(0)
    with pytest.raises(UsageError, match="run in progress") as caught:
        bench.trainer().run(resume=False)
    assert (caught.value.exit_code, caught.value.hint) == (2, "murmur trainer resume")
    assert not bench.layout.hub.exists()  # nothing was started
    assert not bench.layout.status.exists()  # nor said


def test_what_has_begun_is_gone_on_with_by_whoever_does_not_say(bench: Bench) -> None:
    bench.checkpoint(0)
    trainer, opened = bench.trainer(), []
    trainer._open_world = lambda begins: opened.append(begins) or trainer._stop.set()  # type: ignore[method-assign]
    with suppress(Exception):  # nothing else is up
        trainer.run(resume=None)
    assert opened == [False]


def test_nothing_is_resumed_where_there_is_nothing(bench: Bench) -> None:
    with pytest.raises(UsageError, match="no checkpoint") as caught:
        bench.trainer().run(resume=True)
    assert caught.value.hint == "murmur trainer run"


@pytest.mark.parametrize("where", ["chain", "outbox"])
def test_a_run_whose_checkpoints_are_gone_is_not_begun_again(bench: Bench, where: str) -> None:
    """It would publish other weights under the numbers of steps that are out."""
    if where == "chain":
        bench.world.publish(0)
    else:
        bench.outbox(0)
    with pytest.raises(IntegrityError, match="no checkpoint of them is here"):
        bench.trainer().run(resume=False)
    assert not bench.layout.hub.exists()


def test_another_spec_than_the_chains_is_refused(bench: Bench) -> None:
    with pytest.raises(IntegrityError, match="not the spec of run"):
        bench.trainer(spec=small_spec(name="another")).run(resume=False)


# ---- going on ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("published", "waiting", "step"),
    [
        (5, [2, 3, 4], 4),  # the checkpoint's own version is the newest
        (4, [2, 3], 4),  # … and was not handed over yet
        (4, [2, 3, 4], 4),  # … or not published yet
        (7, [4, 5, 6], 7),  # later versions are out
        (5, [3, 4, 5, 6], 7),  # … or on their way out
        (6, [5, 6, 7], 8),  # … or both
        (7, [], 7),  # … and gone from here
    ],
)
def test_resumed_weights_come_after_every_version_that_is_out_or_on_its_way(
    bench: Bench, published: int, waiting: list[int], step: int
) -> None:
    bench.checkpoint(4)
    for version in range(published):
        bench.world.publish(version)
    trainer = bench.trainer()
    trainer._open_chain()
    trainer._outbox = bench.outbox(*waiting)
    trainer._lead, trainer._source = Lead(bench.learner), bench.source()
    found = Checkpoints(bench.layout.checkpoints, keep=2).newest()
    assert found is not None
    trainer._restore(*found)
    assert trainer._step == step


def test_one_endpoint_that_tells_of_versions_that_are_not_there_moves_no_training_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Past the last step it would be over."""
    rpc, contract = bench.world.anvil.rpc, bench.world.chain.runs.address
    chain: Any = Chain([rpc, rpc, rpc], contract)  # asked one by one they tell the truth
    chain.published = lambda run: 1_000
    monkeypatch.setattr(ChainSettings, "open", lambda self: chain)
    bench.checkpoint(4)
    trainer = bench.trainer()
    trainer._open_chain()
    trainer._outbox, trainer._lead, trainer._source = bench.outbox(4), Lead(bench.learner), bench.source()
    found = Checkpoints(bench.layout.checkpoints, keep=2).newest()
    assert found is not None
    trainer._restore(*found)
    assert trainer._step == 4


def test_a_checkpoint_of_another_spec_is_refused(bench: Bench) -> None:
    trainer = bench.trainer()
    with pytest.raises(IntegrityError, match="another spec"):
        trainer._restore(Path("step_4"), {"spec": "00"})


# ---- waiting -------------------------------------------------------------------------------------------------------------

NONSENSE = [
    b"", b"[]", b"{}", b'{"entries": 3}', b'{"entries": [{"id": "x", "value": {}}]}', b'{"entries": [{"id": -5, "value": {}}]}',
    b'{"entries": [{"id": 1, "value": {"details": 1.5}}]}', b'{"entries": [{"id": 1, "value": "receipt"}]}', b"\xff\xfe",
]  # fmt: skip


@pytest.fixture
def lying_hub() -> Iterator[tuple[str, list[bytes]]]:
    """Answers whatever is asked with the next piece of nonsense; what is left of it can be watched."""
    left = list(NONSENSE)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = left.pop(0) if left else b'{"entries": []}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", left
    server.shutdown()
    server.server_close()


class Idle:
    """A hub process that runs."""

    def require_running(self) -> str | None:
        return None


def test_nonsense_from_the_hub_does_not_end_the_wait_but_its_deadline_does(
    bench: Bench, lying_hub: tuple[str, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, left = lying_hub
    monkeypatch.setattr(RolloutSource, "has_seats", True)  # else it waits for one
    trainer: Any = bench.trainer(groups_per_step=3, rollout_wait_seconds=60)
    trainer._hub, trainer._source = Idle(), bench.source(url)
    bench.clock.meanwhile = lambda: bench.clock.advance(0 if left else 60)  # the deadline comes after all was said
    with pytest.raises(DeadlineExceeded, match="only 0 of 3 groups"):
        trainer._wait_for_batch()
    assert left == []


class Shelf:
    """A source with so many groups, that many more after each look of a second, and a cap that lets all be taken."""

    def __init__(self, clock: VirtualClock, *counts: int) -> None:
        self._clock = clock
        self.left, self.now = list(counts), 0

    def poll(self, *, wait: int) -> None:
        self._clock.advance(wait)
        self.now = self.left.pop(0) if self.left else self.now

    def ready(self, step: int) -> int:
        return self.now

    def settled(self, step: int) -> int:
        return 0

    def workforce(self, step: int) -> None:
        return None

    usable, has_seats = 1.0, True

    def take(self, step: int, count: int, *, uncapped: bool) -> list[int] | None:
        return list(range(count)) if count <= self.now else None


@pytest.mark.parametrize(
    ("counts", "taken"),
    [
        ((3, 5, 5, 8), 8),  # full in time
        ((6, 6, 6, 6), 6),  # two quiet looks, then as it is
        ((1, 2, 3, 4, 5, 6, 7), 8),  # never quiet for long
        ((3, 3, 3, 3, 4, 4, 4), 4),  # fewer than half: waits on
    ],
)
def test_a_batch_that_does_not_fill_is_taken_once_nothing_more_comes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, counts: tuple[int, ...], taken: int
) -> None:
    trainer: Any = bench.trainer(
        groups_per_step=8, rollout_wait_seconds=100, rollout_quiet_seconds=2, optimizer_steps=1
    )
    trainer._hub, trainer._source = Idle(), Shelf(bench.clock, *counts, *[8] * (taken == 8))
    monkeypatch.setattr(trainer, "_say", lambda *_, **__: None)
    assert len(trainer._wait_for_batch()) == taken


def test_the_trainer_says_what_it_needs_while_it_waits_and_then_what_the_next_batch_needs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer: Any = bench.trainer(groups_per_step=8, rollouts_ahead=1.5)
    trainer._hub, trainer._source = Idle(), Shelf(bench.clock, 3, 5, 8)
    told: list[tuple[int, int]] = []

    def note(*_: Any, **__: Any) -> None:
        said = read_json(trainer._layout.need)
        told.append((said["step"], said["ready"]))

    monkeypatch.setattr(trainer, "_say", note)
    trainer._wait_for_batch()
    assert told == [(0, 3), (0, 5)]
    said = read_json(trainer._layout.need)
    SignedNeed.issue(Need(run=1, until=0, **said), Key.generate(), Domain(1, "0x" + "42" * 20))  # type: ignore[arg-type]
    assert (said["step"], said["groups"], said["ahead"]) == (1, 8, 150)


def test_the_trainer_says_what_it_needs_again_while_nothing_changes(bench: Bench) -> None:
    """Or nobody could tell it from one that has ended."""
    trainer: Any = bench.trainer(groups_per_step=8)
    trainer._source = Shelf(bench.clock, *[3] * 9)
    trainer._tell_need(0)
    file = trainer._layout.need
    for seconds, is_written in ((RENEWED_SECONDS / 2, False), (RENEWED_SECONDS, True), (1, False)):
        file.unlink(missing_ok=True)
        bench.clock.advance(seconds)
        trainer._tell_need(0)
        assert file.exists() == is_written


def test_too_few_groups_end_the_wait_at_its_deadline(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer: Any = bench.trainer(groups_per_step=8, rollout_wait_seconds=20, rollout_quiet_seconds=2, groups_least=6)
    trainer._hub, trainer._source = Idle(), Shelf(bench.clock, 5)
    monkeypatch.setattr(trainer, "_say", lambda *_, **__: None)
    with pytest.raises(DeadlineExceeded, match="only 5 of 8 groups"):
        trainer._wait_for_batch()


def test_an_evaluation_that_hangs_does_not_end_the_training(bench: Bench) -> None:
    class Hanging:
        def evaluate(self, folder: Path, **_: Any) -> Any:
            raise Unavailable("the sandbox failed twice")

    trainer: Any = bench.trainer()
    trainer._outbox, trainer._evaluator, trainer._lead = bench.outbox(), Hanging(), Lead(bench.learner)
    trainer._publish()
    trainer._evaluate()
    trainer._note_evaluation(trainer._evaluating.finish())
    assert trainer._report.evaluations == []


def test_an_evaluation_that_overruns_its_deadline_is_a_missing_point_and_nothing_else(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.loop.training._ENDING_SECONDS", 0.0)
    released = threading.Event()

    class Slow:
        def evaluate(self, folder: Path, *, left: Any) -> Any:
            assert left() <= 0.05
            released.wait(30)
            return Evaluation(0.5, {}, 1, 1)

    trainer: Any = bench.trainer(deadlines=DeadlineSettings(evaluating=0.05))
    trainer._outbox, trainer._evaluator, trainer._lead = bench.outbox(), Slow(), Lead(bench.learner)
    trainer._publish()
    trainer._evaluate()
    trainer._publishing.finish()
    assert trainer._phases.most_urgent() is None  # or the watchdog would end the process
    trainer._evaluate()
    assert "the training goes on without it" in caplog.text
    assert "step 0 is not evaluated: the evaluation before it does not end" in caplog.text
    released.set()
    wait_until(lambda: not trainer._evaluating.is_busy, deadline=30, what="the evaluation")
    trainer._finish_evaluation()  # late, and true all the same
    assert [one["score"] for one in trainer._report.evaluations] == [0.5]


# ---- ending by an error --------------------------------------------------------------------------------------------------


def training(bench: Bench, monkeypatch: pytest.MonkeyPatch, batches: list[list[TrainingGroup]]) -> Any:
    """A trainer in the middle of its run: step 0 is saved, these batches come, and then no more do."""
    trainer: Any = bench.trainer(steps=9, checkpoint_every=8, evaluate_every=100, rollout_wait_seconds=0)
    trainer._hub, trainer._source, trainer._lead = Idle(), bench.source(), Lead(bench.learner)
    trainer._checkpoints, trainer._outbox = Checkpoints(bench.layout.checkpoints, keep=2), bench.outbox(0)
    monkeypatch.setattr(trainer, "_open", lambda resume: trainer._save())
    monkeypatch.setattr(trainer._source, "poll", lambda wait: bench.clock.advance(wait))
    monkeypatch.setattr(trainer._source, "take", lambda step, count, uncapped: batches.pop(0) if batches else None)
    return trainer


def batch(step: int) -> list[TrainingGroup]:
    return [TrainingGroup(bytes([step, number]), 0, "0x", step, small.group(number)) for number in range(2)]


def test_an_error_while_waiting_gives_up_none_of_the_steps_that_are_out(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = training(bench, monkeypatch, [batch(0), batch(1), batch(2)])
    with pytest.raises(DeadlineExceeded):
        trainer.run(resume=False)
    found = trainer._checkpoints.newest()
    assert found is not None
    assert found[1]["step"] == 3
    assert small.equal(tensors.read(found[0] / TENSORS, MODEL), stored_tensors(bench.learner.model))


def test_weights_in_the_middle_of_a_step_are_not_saved_as_those_of_a_step(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the number of a version that is out, a resumed run would hold other weights than everybody else."""
    trainer = training(bench, monkeypatch, [batch(0), batch(1)])
    learn = bench.learner.learn

    def breaking(groups: Any, step: int) -> Any:
        metrics = learn(groups, step)
        if step == 1:
            raise MurmurationError("out of memory after the first of two optimizer steps")
        return metrics

    monkeypatch.setattr(bench.learner, "learn", breaking)
    with pytest.raises(MurmurationError, match="out of memory"):
        trainer.run(resume=False)
    assert trainer._checkpoints.steps() == [0]


def test_a_save_that_fails_as_well_does_not_hide_the_error(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = training(bench, monkeypatch, [batch(0)])
    write = bench.learner.save

    def full(folder: Path) -> None:
        if trainer._step:
            raise OSError(28, "No space left on device")
        write(folder)

    monkeypatch.setattr(bench.learner, "save", full)
    with pytest.raises(DeadlineExceeded):
        trainer.run(resume=False)
    assert "step 1 could not be saved: cannot write the checkpoint of step 1: No space left on device" in caplog.text
    assert "Traceback" not in caplog.text
    assert "No space left" in caplog.text


# ---- the hub's process -----------------------------------------------------------------------------------------------------


def test_a_hub_waits_for_the_one_a_killed_trainer_left_behind(bench: Bench) -> None:
    """And what ends it by itself (here there is no run.toml) ends the trainer, with the same exit code."""
    starting, released = threading.Event(), threading.Event()
    errors: list[MurmurationError] = []
    with HubProcess(bench.layout, None) as hub:

        def start() -> None:
            starting.set()
            hub.start()
            assert released.is_set()
            try:
                hub.wait_for_url(60)
            except MurmurationError as error:
                errors.append(error)

        with Home(bench.layout.hub, "hub").lock():
            thread = threading.Thread(target=start)
            thread.start()
            assert starting.wait(10)
            assert hub._process is None
            released.set()
        thread.join(60)
        assert [error.exit_code for error in errors] == [3]
        wait_until(lambda: hub._process is not None and hub._process.poll() is not None, deadline=10, what="it ended")


def test_a_hub_that_keeps_ending_ends_the_trainer_with_its_exit_code(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.hub.process._RESTARTS_PER_HOUR", 2)
    with HubProcess(bench.layout, None) as hub:
        hub.start()
        wait_until(lambda: hub._process is not None and hub._process.poll() is not None, deadline=60, what="it ended")
        with pytest.raises(MurmurationError, match="ended with exit code 3") as caught:
            hub.require_running()
        assert caught.value.exit_code == 3
        assert len(hub._started) == 2


def test_a_folder_that_another_hub_keeps_is_an_error_in_the_end(bench: Bench) -> None:
    with Home(bench.layout.hub, "hub").lock(), HubProcess(bench.layout, None) as hub, pytest.raises(LockHeld):
        hub.start(deadline=0)
