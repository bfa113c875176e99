"""The last turn ends with a program whose result has no room: who makes it and who checks it run it on machines of different speed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from swarm.tiny_run import tokens_of

from node.engine.conversing import Respondent
from node.engine.interface import Completion, Ended
from node.judging.rules import conversation
from protocol.environments import Problem, taskfile
from protocol.environments.interpreter import PythonTool
from protocol.environments.programs import Trial, TrialRun
from protocol.errors import Interrupted, Unavailable
from protocol.folders import TASKS_VARIABLE
from protocol.rollout import Sample
from protocol.runspec import FromFiles
from protocol.sandbox import EnvironmentSandbox
from protocol.verdict import Outcome

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is Linux's")

CPU_SECONDS = 5
SLOW = f"It took longer than {CPU_SECONDS} s."
TURN = "```python\nprint(7)\n```"
END = 1


class Machine:
    """Runs programs in no time: each takes so many seconds of CPU time, and prints this."""

    def __init__(self, cpu: float, output: str) -> None:
        self.cpu, self.output = cpu, output
        self.limits: list[float] = []

    def run_all(self, trials: Sequence[Trial]) -> list[list[TrialRun]]:
        self.limits += [trial.cpu for trial in trials]
        return [[self._run(trial)] for trial in trials]

    def _run(self, trial: Trial) -> TrialRun:
        most = 1.5 * trial.cpu + 1
        used = min(self.cpu, most)
        return TrialRun(-9, used, used) if self.cpu > most else TrialRun(0, used, used, f"{self.output}\n".encode())


class Letters:
    """A tokenizer whose tokens are letters."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def text(self, tokens: Sequence[int]) -> str:
        return "".join(map(chr, tokens))

    def answer(self, completion: list[int]) -> str | None:
        return self.text(completion[:-1]) if completion[-1] == END else None


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnvironmentSandbox]:
    folder = tmp_path_factory.mktemp("tool")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TASKS_VARIABLE, str(folder / "tasks"))
        taskfile.write(iter([("What is 2 ** 10?", "1024"), ("And 3 ** 3?", "27")]), folder / "rows.parquet")
        file = taskfile.add(folder / "rows.parquet")
        spec = FromFiles.model_validate({
            "package": "python", "version": PythonTool.version, "dataset": "x", "config": {"cpu_seconds": CPU_SECONDS},
            "files": [file.model_dump()], "size": 1, "held_out_size": 1, "head": "0" * 64, "exact": False,
        })  # fmt: skip
        with EnvironmentSandbox([spec]) as made:
            made.warm_up()
            yield made


def sampling(room: int, *, turns: int = 8, most: int = 500) -> Any:
    return SimpleNamespace(turns=turns, reply_tokens=room, max_new_tokens=most, reply_template="{reply}")


def made_on(machine: Machine, sandbox: EnvironmentSandbox, spec: Any) -> Sample:
    """What an honest worker hands in, whose model calls the program once and ends where it is told something."""
    sandbox._runner = machine  # type: ignore[assignment]
    tokenizer, first = Letters(), [*Letters().encode(TURN), END]
    respondent = Respondent(spec, tokenizer, sandbox, [Problem(0, 0, "", None, False)], held_out=False)  # type: ignore[arg-type]
    (given,) = respondent([Ended(0, 0, Completion(tokens=list(first)))])
    last = [*tokenizer.encode("ok"), END] if given else []
    return Sample(
        group=0, sample=0, problem=0, budget=0, prompt=tokens_of([2]), completion=tokens_of(first + last), logprobs=None, proofs=(),
        task_reward=0.0, length_penalty=0.0, reward=0.0, turns=tokens_of([len(first)] if given else []),
        answers=tokens_of([len(given)] if given else []), given=tokens_of(given), calls=respondent.calls(0, 0),
    )  # fmt: skip


def judged_on(machine: Machine, sandbox: EnvironmentSandbox, spec: Any, sample: Sample, *, exact: bool = False) -> Any:
    sandbox._runner = machine  # type: ignore[assignment]
    group = SimpleNamespace(problem=SimpleNamespace(environment=0))
    candidate: Any = SimpleNamespace(
        samples=[sample], assigned=[group], is_exact=lambda row: exact, tokenizer=Letters(),
        context=SimpleNamespace(sandbox=sandbox), spec=SimpleNamespace(sampling=spec), plan=SimpleNamespace(by_clock=False),
    )  # fmt: skip
    return conversation.check(candidate) or conversation.check_inexact(candidate, lambda rows, finding: finding)


SPEEDS = [(3.0, 3.0), (3.0, 5.5), (4.9, 5.1), (5.5, 4.5), (2.0, 7.9), (7.9, 2.0), (5.0, 19.9), (5.2, 1.3)]
"""Seconds of the program on the worker's and the validator's machine, of which neither is four times as fast as the other."""
RESULTS = {
    "what it prints has no room": (64, "7" * 100),
    "too slow has none": (4, "7"),
    "neither has": (4, "7" * 100),
    "both have": (200, "7"),
}


@pytest.mark.parametrize(("room", "output"), RESULTS.values(), ids=RESULTS)
@pytest.mark.parametrize(("worker", "validator"), SPEEDS)
def test_an_honest_sample_is_accepted_wherever_its_last_call_is_checked(
    sandbox: EnvironmentSandbox, worker: float, validator: float, room: int, output: str
) -> None:
    spec = sampling(room)
    sample = made_on(Machine(worker, output), sandbox, spec)
    assert judged_on(Machine(validator, output), sandbox, spec, sample) is None


@pytest.mark.parametrize(
    ("seconds", "room", "output", "limit"),
    [(20.5, 64, "7" * 100, 20), (0.1, 64, "7", 20), (19.0, 64, "7", 20), (1.2, 4, "7", 1.25), (0.1, 4, "7", 1.25)],
)
def test_an_end_that_no_honest_machine_came_to_is_found(
    sandbox: EnvironmentSandbox, seconds: float, room: int, output: str, limit: float
) -> None:
    """The sample ends with a call that something would have been told of."""
    spec, machine = sampling(room), Machine(seconds, output)
    sample = made_on(Machine(0.1, "7" * 300), sandbox, spec)
    assert not len(sample.given)
    finding = judged_on(machine, sandbox, spec, sample)
    assert (finding.outcome, finding.detail) == (Outcome.SOFT, "row 0: the environment ends it elsewhere")
    assert machine.limits == [limit]


def test_an_end_in_an_exact_environment_is_what_this_machine_says(sandbox: EnvironmentSandbox) -> None:
    spec = sampling(64)
    sample = made_on(Machine(3.0, "7" * 100), sandbox, spec)
    assert judged_on(Machine(4.9, "7" * 100), sandbox, spec, sample, exact=True) is None
    finding = judged_on(Machine(5.5, "7" * 100), sandbox, spec, sample, exact=True)
    assert finding.outcome == Outcome.HARD


@pytest.mark.parametrize("spent", [{"turns": 2}, {"most": 2 * (len(TURN) + 1)}], ids=["turns", "tokens"])
def test_no_program_is_run_after_which_no_turn_may_follow(sandbox: EnvironmentSandbox, spent: dict[str, int]) -> None:
    """Both turns call it. The worker is told nothing of the second, and nobody runs that."""
    spec, turn, machine = sampling(64, **spent), [*Letters().encode(TURN), END], Machine(0.1, "7")
    once = made_on(Machine(0.1, "7"), sandbox, spec)
    assert judged_on(machine, sandbox, spec, replace(once, completion=tokens_of(turn + turn))) is None
    assert machine.limits == [4 * CPU_SECONDS], "of the first turn alone, whose result is claimed"


class Failing(Machine):
    """One that cannot start a sandbox so many times."""

    def __init__(self, times: int) -> None:
        super().__init__(0.1, "7")
        self._left = times

    def run_all(self, trials: Sequence[Trial]) -> list[list[TrialRun]]:
        if self._left:
            self._left -= 1
            raise Unavailable("bubblewrap cannot be started: Resource temporarily unavailable")
        return super().run_all(trials)


def test_a_machine_that_breaks_a_call_off_says_nothing_of_the_sample(sandbox: EnvironmentSandbox) -> None:
    spec = sampling(200)
    sample = made_on(Machine(0.1, "7"), sandbox, spec)
    assert judged_on(Failing(1), sandbox, spec, sample) is None
    with pytest.raises(Interrupted):
        judged_on(Failing(9), sandbox, spec, sample)
