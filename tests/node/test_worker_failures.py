"""Turns that fail for reasons nobody foresaw: the node goes on where that can help, ends clearly where not, and owes nothing then."""

from __future__ import annotations

import errno
import os
import shutil
from typing import Any

import pytest
import torch
from starlette.responses import PlainTextResponse, Response

from node.contributor import submission_log as states
from node.contributor.failures import Failures
from node.contributor.worker import Worker
from node.engine.torch_engine import TorchEngine
from protocol.errors import Banned, MurmurationError, PreflightError, Unavailable
from tests.clock import VirtualClock, eventually
from tests.node.stage import Stage, running
from tests.node.working import a_worker, hooked, stored, submitted, waits_because

NO_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nSee documentation")
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
READ_ONLY = OSError(errno.EROFS, os.strerror(errno.EROFS), "/data")


class FailingEngine(TorchEngine):
    """Raises what it is told to instead of generating, once each."""

    def __init__(self, dtype: str, *errors: Exception) -> None:
        super().__init__(dtype)
        self.errors = list(errors)

    def generate(self, *arguments: Any, **options: Any) -> Any:
        if self.errors:
            raise self.errors.pop(0)
        return super().generate(*arguments, **options)


@pytest.fixture
def failures() -> Failures:
    return Failures(1.0, VirtualClock())


def reasons_of(worker: Worker) -> list[str]:
    """Fills with the reasons for which a worker waits."""
    reasons: list[str] = []
    say = worker._say

    def said(state: str, **more: object) -> None:
        reasons.extend([str(more["reason"])] if "reason" in more else [])
        say(state, **more)

    worker._say = said  # type: ignore[method-assign]
    return reasons


def test_a_fault_of_the_program_or_a_lack_of_memory_passes(stage: Stage) -> None:
    node = stage.seated()
    stage.publish()
    worker = a_worker(stage, node, engine=lambda dtype: FailingEngine(dtype, KeyError("x"), NO_MEMORY, MemoryError()))
    reasons = reasons_of(worker)
    with running(worker) as ended:
        eventually(lambda: stored(stage, node) >= 1, what="it works in the end")
        assert not ended.event.is_set()
    assert reasons[0] == "KeyError: 'x'"
    assert reasons[1].endswith("ran out of memory: CUDA out of memory. Tried to allocate 20.00 MiB.")
    assert reasons[2].endswith("ran out of memory: MemoryError")


def test_a_disk_that_is_full_after_the_commitment_costs_no_submission(stage: Stage) -> None:
    """The node waits for room, and what it committed to is at the hub nevertheless."""
    node = stage.seated()
    stage.publish()
    worker = a_worker(stage, node)

    def fill() -> None:
        def refuse(*_: object, **__: object) -> None:
            raise FULL

        worker.submissions.advance = worker.submissions.keep_storage_receipt = refuse  # type: ignore[method-assign]

    hooked(worker).after = fill
    with running(worker) as ended:
        eventually(waits_because(stage, "the disk is full"), what="the status says so")
        eventually(lambda: stored(stage, node) == 1, what="it is uploaded")
        assert not ended.event.is_set()
    assert len(submitted(stage)) == 1


def test_a_status_that_cannot_be_written_ends_it_and_the_commitment_is_delivered(stage: Stage) -> None:
    node = stage.seated()
    stage.publish()
    worker = a_worker(stage, node)
    write, down = worker._home.write_status, []

    def write_status(**values: object) -> None:
        if down:
            raise PreflightError("cannot write status.json: No space left on device")
        write(**values)

    def fail() -> None:
        down.append(True)
        raise Unavailable("the endpoint went away")

    worker._home.write_status = write_status  # type: ignore[method-assign]
    hooked(worker).after = fail
    with running(worker) as ended:
        assert ended.event.wait(20)
    assert isinstance(ended.error, PreflightError)
    assert stored(stage, node) == len(submitted(stage)) == 1


def test_one_file_that_cannot_be_delivered_does_not_hold_back_the_others(stage: Stage) -> None:
    node = stage.seated()
    stage.publish()
    worker = a_worker(stage, node)
    for sequence in (0, 1):
        made = stage.make(node, sequence)
        worker.submissions.add(made.ref, stage.commit(node, made.ref, made.units), made.units, sequence)
        worker._workbench.rollouts.mkdir(exist_ok=True)
        shutil.copy(made.path, worker._workbench.rollouts)
    failing = iter([503])

    def fail(method: str, path: str) -> Response | None:
        status = next(failing, None) if method == "PUT" else None
        return PlainTextResponse("no", status) if status else None

    stage.hub.fault = fail
    worker._delivery.deliver_rest()
    assert [s.ref.sequence for s in worker.submissions.all(states.STORED)] == [1]
    worker.close()


def test_what_is_left_behind_is_said(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    node = stage.seated()
    stage.publish()
    worker = a_worker(stage, node)

    def end() -> None:
        stage.hub.stop()
        raise READ_ONLY

    hooked(worker).after = end
    with running(worker) as ended:
        assert ended.event.wait(20)
    assert isinstance(ended.error, PreflightError)
    assert "1 submissions may be on chain and are not uploaded; start again within" in caplog.text


def test_cases_are_answered_while_no_work_can_be_made(stage: Stage) -> None:
    node, liar, world = stage.seated(), stage.validator(), stage.world
    stage.publish()
    with running(a_worker(stage, node)):
        eventually(waits_because(stage, "done for this version"), within=40, what="it works")
    ref = submitted(stage)[0].ref
    broken = a_worker(stage, node)
    judge, seen = broken._defence._judge, []
    reasons = reasons_of(broken)

    def fail_once(submission: Any) -> Any:
        if not seen:
            seen.append(submission)
            raise KeyError("a fault in a rule")
        return judge(submission)

    broken._defence._judge = fail_once
    world.accuse(liar, ref)
    with running(broken) as ended:
        state = lambda: world.chain.state(world.run, ref).name  # noqa: E731
        eventually(lambda: state() == "APPEALED", what="a fault in judging again is lived through")
        assert not ended.event.is_set()
    assert seen
    assert not any("KeyError" in reason for reason in reasons), "it fails the one case, and not the turn"


def test_unknown_failures_are_lived_through_with_growing_pauses_and_end_it_when_they_stay(failures: Failures) -> None:
    pauses = [failures.failed(RuntimeError("CUDA error: an illegal memory access"))[1] for _ in range(8)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    with pytest.raises(MurmurationError, match="9 attempts in a row failed, the last with RuntimeError: CUDA error"):
        failures.failed(RuntimeError("CUDA error: an illegal memory access"))


def test_a_turn_that_succeeds_forgives_all_failures(failures: Failures) -> None:
    for _ in range(30):
        assert failures.failed(ValueError("x"))[1] == 1
        failures.succeeded()


def test_a_lack_of_memory_never_ends_it(failures: Failures) -> None:
    for error in [NO_MEMORY, RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), MemoryError()] * 9:
        assert "ran out of memory" in failures.failed(error)[0]


def test_a_network_s_failures_are_tried_again_at_the_same_pace(failures: Failures) -> None:
    assert [failures.failed(Unavailable("x"))[1] for _ in range(30)] == [1] * 30


@pytest.mark.parametrize("error", [Banned("slashed"), READ_ONLY])
def test_own_trouble_ends_it_at_once(failures: Failures, error: Exception) -> None:
    with pytest.raises(Banned if isinstance(error, Banned) else PreflightError):
        failures.failed(error)


def test_a_node_without_room_to_generate_the_longest_answer_ends_before_it_makes_one(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:

    def full(engine: TorchEngine, tokens: int, *, prompt: int | None = None) -> None:
        if prompt is not None:
            raise PreflightError(f"no room to generate {tokens - prompt} tokens")

    monkeypatch.setattr(TorchEngine, "require_room", full)
    node = stage.seated()
    stage.publish()
    worker = a_worker(stage, node)
    with running(worker) as ended:
        assert ended.event.wait(20)
    assert isinstance(ended.error, PreflightError)
    assert "no room to generate" in str(ended.error)
    assert not submitted(stage)
