"""A run's problems as its environments draw them: in the sandbox's child, where strangers' code runs.

Index i counts through the environments in the order of the spec. Held-out problems come from other seeds or rows; a training
problem that asks the same question as one of them says so, and is never assigned.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from protocol import canonical
from protocol.constants import HEAD_PROBLEMS, HELD_OUT_LOOKS
from protocol.environments import selection, taskfile
from protocol.environments.environment import Environment, Grants
from protocol.environments.process_state import Isolation
from protocol.environments.programs import Claim, Interpreter, ProgramEnvironment, ProgramTool, Range, Trial, TrialRun
from protocol.environments.registry import open_environment
from protocol.environments.unicode import known
from protocol.errors import Malformed, Unavailable
from protocol.replies import Asked, bounded
from protocol.reward import FORGIVEN
from protocol.reward import canonical as canonical_reward
from protocol.rollout import ToolResult
from protocol.runspec import EnvironmentSpec, starts

RunPrograms = Callable[[Sequence[Trial]], Sequence[Sequence[TrialRun]]]
"""Runs each trial; the runs of its first tests, in order."""


@dataclass(frozen=True)
class Problem:
    """`index` counts through the run, or through the held-out problems for one of those."""

    environment: int
    index: int
    prompt: str
    answer: str | None
    """A right one, where the environment knows its text."""
    is_held_out: bool
    """Whether evaluation asks this question."""


class Problems:
    """All problems of a run. Construction is quick; nothing is drawn before it is asked for."""

    def __init__(self, environments: Sequence[EnvironmentSpec]) -> None:
        """Raises ConfigError or VersionMismatch where this machine does not have an environment as its spec says."""
        self.specs = list(environments)
        self._isolation = Isolation()
        self._train = [_Training(spec, self._isolation) for spec in self.specs]
        self._test = [_opened(spec, self._isolation, held_out=True) for spec in self.specs]
        self._starts = starts(self.specs)
        self._held_out: list[tuple[_Entry, Problem]] = []
        self._prompts: set[str] = set()
        self._drawing = self._draw_held_out()
        self.around_score: AbstractContextManager[object] = nullcontext()
        """Entered for each call of an environment that is about an answer or a turn, which are a stranger's."""
        self.strayed: str | None = None
        """A score outside of 0 … 1, which counts as the nearest in it, or a problem that cannot be scored, of which every answer earns 0."""
        self.left: set[str] | None = None
        """What of the process environments have set and left so, where somebody looks."""
        self._head: FirstProblems | None = None
        self.looked = 0
        """How many problems were drawn for the held-out ones so far, those that asked a question again included."""

    @property
    def runs_programs(self) -> bool:
        return any(isinstance(one, ProgramEnvironment | ProgramTool) for one in self._test)

    @property
    def interpreters(self) -> list[Interpreter]:
        """Of other languages than Python, which these programs need."""
        needed = [one.interpreter for one in self._test if isinstance(one, ProgramEnvironment)]
        return [one for one in needed if one is not None]

    @property
    def grants(self) -> Grants:
        """What the environments need, the most of each."""
        needed = [Grants(), *(type(one).grants for one in self._test)]
        return Grants(
            max(one.memory for one in needed), max(one.seconds for one in needed), max(one.files for one in needed)
        )

    def problems(self, indices: Sequence[int]) -> list[Problem]:
        """Training problems, by index in the run. Raises IndexError beyond the last."""
        self.draw_held_out()
        return [self._problem(*self._place(index), index) for index in indices]

    def held_out(self, start: int = 0) -> list[Problem]:
        """Evaluation problems from number `start` on, no question twice."""
        self.draw_held_out()
        return [problem for _, problem in self._held_out[start:]]

    def score(self, items: Sequence[tuple[int, str | None]], *, held_out: bool = False) -> list[float]:
        """Canonical task rewards of (index, answer); None stands for an answer that never ended and scores 0. Runs no programs."""
        return [high for _, high in self.ranges(items, held_out=held_out)]

    def ranges(
        self, items: Sequence[tuple[int, str | None]], *, held_out: bool = False, claims: Sequence[float] | None = None,
        tolerance: float = FORGIVEN, run: RunPrograms | None = None,
    ) -> list[Range]:  # fmt: skip
        """The same, lowest and highest, of programs as well.

        They differ only where `claims` says what somebody else measured, and an honest party may have measured either. `tolerance` is what
        is forgiven between a claim and a reward.
        """
        if held_out:
            self.draw_held_out()
        found = [Range(0.0, 0.0)] * len(items)
        calling = self._calling
        claimed = [None] * len(items) if claims is None else [Claim(claim, tolerance) for claim in claims]
        asked: list[tuple[int, ProgramEnvironment, _Entry, Trial]] = []
        for number, (index, answer) in enumerate(items):
            if answer is None:
                continue
            source = self._asked(index, held_out)
            environment = source.environment
            (text,) = self._seen(source, [answer])
            entry = source.fresh()
            if isinstance(environment, ProgramEnvironment):
                try:
                    with calling(environment), self.around_score:
                        trial = environment.trial(entry, text, claimed[number])
                except Malformed as error:  # the problem's own fault: answers to others keep their rewards
                    self.strayed, trial = f"problem {index} cannot be scored: {error}", None
                if trial is not None:
                    asked.append((number, environment, source, trial))
            else:
                with calling(environment), self.around_score:
                    score = float(environment.score(entry, text))
                if not 0 <= score <= 1:
                    self.strayed = f"problem {index} gives {score:g}"
                found[number] = Range(*[canonical_reward(score)] * 2)
        while asked:
            ran, again = _ran(run, [trial for *_, trial in asked]), []
            for (number, environment, source, trial), runs in zip(asked, ran, strict=True):
                claim, entry = claimed[number], source.fresh()
                with calling(environment), self.around_score:
                    ends = environment.judge(entry, trial, runs, claim)
                    wider = None if claim is None else environment.wider(trial, claim, ends)
                found[number] = Range(*map(canonical_reward, ends))
                if wider is not None:
                    again.append((number, environment, source, wider))
            asked = again
        return found

    @property
    def converses(self) -> list[bool]:
        """Of each environment, whether it replies to turns."""
        return [one.converses() for one in self._test]

    @property
    def too_slow(self) -> list[str | None]:
        """Of each environment, what it replies to a call that took too long, where it says so."""
        return [one.too_slow if isinstance(one, ProgramTool) else None for one in self._test]

    def replies(
        self, asked: Sequence[Asked], *, held_out: bool = False, run: RunPrograms | None = None
    ) -> list[list[ToolResult]]:
        """What follows on each turn from `first` on, until the environment says nothing. Raises Malformed for replies that are none."""
        if held_out:
            self.draw_held_out()
        found: list[list[ToolResult]] = []
        called: list[_Called] = []
        for one in asked:
            source = self._asked(one.problem, held_out)
            environment = source.environment
            seen = self._seen(source, one.turns)
            prefixes = (seen[: n + 1] for n in range(one.first, len(seen)))
            found.append([])
            if isinstance(environment, ProgramTool):
                for turns in prefixes:
                    entry = source.fresh()
                    with self._calling(environment), self.around_score:
                        call = _Called(found[-1], environment, source, entry, turns, one.claim(len(turns) - 1))
                    if call.trial is None:
                        break
                    called.append(call)
            else:
                for turns in prefixes:
                    entry = source.fresh()
                    with self._calling(environment), self.around_score:
                        reply = bounded(environment.reply(entry, turns))
                    if reply is None:
                        break
                    found[-1].append(reply)
        if called:
            for call, runs in zip(called, _ran(run, [call.trial for call in called if call.trial]), strict=True):
                entry = call.source.fresh()
                with self._calling(call.environment), self.around_score:
                    call.take(entry, runs)
        return found

    def calls(self, texts: Sequence[str]) -> list[list[str]]:
        """Turns that hand each of these texts to the tool of the first environment, in all its forms; none where there is no tool."""
        found = []
        for text in texts:
            with self._calling(self._test[0]):
                said = self._test[0].as_call(text)
            found.append([] if said is None else [said] if isinstance(said, str) else [*said])
        return found

    def answers(self, programs: Sequence[str]) -> list[str | None]:
        """Answers to problems of the first environment that are these programs in Python; None where they cannot be."""
        found = []
        for program in programs:
            with self._calling(self._test[0]):
                found.append(self._test[0].as_answer(program))
        return found

    def head(self, environment: EnvironmentSpec, until: float = float("inf")) -> str | None:
        """SHA-256 (hex) over the first problems of an environment, one of these or any other; None where they are not drawn by this monotonic
        time: further with each call."""
        if self._head is None or self._head.spec != environment:
            self._head = None
            self._head = FirstProblems(environment, self._isolation)
        if not self._head.draw(until):
            return None
        head, self._head = self._head, None
        return head.digest

    @property
    def drawn_of_head(self) -> int:
        """How many problems the head that is under way has so far."""
        return 0 if self._head is None else self._head.drawn

    @property
    def set_by_imports(self) -> set[str]:
        """What of the process the environments' modules have set when they were imported, which does not last."""
        return self._isolation.set_by_imports

    def _seen(self, source: _Entry, texts: Sequence[str]) -> Sequence[str]:
        """What an environment sees of a stranger's texts."""
        environment = source.environment
        if not environment.spec.exact or all(text.isascii() for text in texts):
            return texts
        entry = source.fresh()
        with self._calling(environment):
            return [known(text, environment, entry) for text in texts]

    @contextmanager
    def _calling(self, environment: Environment) -> Iterator[None]:
        """Around each call of one, so that it finds the process as in a fresh child."""
        self._isolation.restore(environment)
        yield
        if self.left is not None:
            self.left |= set(self._isolation.changed(environment))

    def files(self, indices: Sequence[int] | None = None) -> list[str]:
        """SHA-256 of the task files that these training problems are in; None: of those that everybody needs before any other.

        These are what is held out, with which each training problem is compared, and the first problems, which the spec's digest covers, with
        what is found for them in a corpus.
        """
        found: dict[str, None] = {}
        if indices is not None:
            for index in indices:
                number, within = self._place(index)
                found |= dict.fromkeys(self._train[number].files([within]))
        else:
            for spec, held_out, training in zip(self.specs, self._test, self._train, strict=True):
                found |= dict.fromkeys(training.files(range(min(HEAD_PROBLEMS, spec.problems))))
                if isinstance(held_out, taskfile.TaskFiles):
                    found |= dict.fromkeys(file.sha256 for file in held_out.spec.corpus)
                    found |= dict.fromkeys(held_out.file(index).sha256 for index in range(spec.held_out_size))
        return list(found)

    def rows(self, path: Path) -> int:
        """Rows of a task file. Raises ConfigError where it is not here, Malformed where it is none."""
        return taskfile.Groups(path).rows

    def draw_held_out(self, until: float = float("inf")) -> bool:
        """Draws held-out problems up to this monotonic time, further with each call; whether all are drawn."""
        return all(time.monotonic() < until for _ in self._drawing)

    def _draw_held_out(self) -> Iterator[None]:
        for number, (spec, environment) in enumerate(zip(self.specs, self._test, strict=True)):
            enough = len(self._held_out) + spec.held_out_size
            for index in range(spec.held_out_size if spec.from_files else HELD_OUT_LOOKS * spec.held_out_size):
                if len(self._held_out) == enough:
                    break
                with self._calling(environment):
                    entry = environment.entry(index)
                    prompt, answer = environment.prompt(entry), environment.answer(entry)
                if prompt not in self._prompts:
                    self._prompts.add(prompt)
                    problem = Problem(number, len(self._held_out), prompt, answer, True)
                    self._held_out.append((self._source(environment, partial(environment.entry, index)), problem))
                self.looked += 1
                yield

    def _place(self, index: int) -> tuple[int, int]:
        """(environment, index within it)."""
        if not 0 <= index < self._starts[-1]:
            raise IndexError(f"problem {index} of {self._starts[-1]}")
        environment = next(i for i, start in enumerate(self._starts[1:]) if index < start)
        return environment, index - self._starts[environment]

    def _problem(self, number: int, within: int, index: int) -> Problem:
        source = self._train[number]
        with self._calling(source.environment):
            entry = source.entry(within)
            prompt, answer = source.environment.prompt(entry), source.environment.answer(entry)
        return Problem(number, index, prompt, answer, prompt in self._prompts)

    def _asked(self, index: int, held_out: bool) -> _Entry:
        if held_out:
            return self._held_out[index][0]
        number, within = self._place(index)
        source = self._train[number]
        return self._source(source.environment, lambda: source.entry(within))

    def _source(self, environment: Environment, draw: Callable[[], Any]) -> _Entry:
        return _Entry(environment, draw, self._calling)


class _Entry:
    """Of one problem, what each call of its environment is given.

    Drawn for each anew, so that none finds what another has left in it: a worker asks for a conversation turn by turn, a validator perhaps for
    all of it, and held-out problems are scored again and again. What nothing can be left in is drawn once.
    """

    def __init__(
        self, environment: Environment, draw: Callable[[], Any],
        calling: Callable[[Environment], AbstractContextManager[None]],
    ) -> None:  # fmt: skip
        self.environment = environment
        self._draw, self._calling = draw, calling
        self._constant: list[Any] = []

    def fresh(self) -> Any:
        """Raises what drawing raises."""
        if self._constant:
            return self._constant[0]
        with self._calling(self.environment):
            entry = self._draw()
        if _is_constant(entry):
            self._constant = [entry]
        return entry


def _is_constant(entry: Any) -> bool:
    if type(entry) is tuple:
        return all(map(_is_constant, entry))
    return entry is None or type(entry) in (str, bytes, bool, int, float)


class _Called:
    """A turn that calls a program, and where the reply to it goes."""

    def __init__(
        self, into: list[ToolResult], environment: ProgramTool, source: _Entry, entry: Any, turns: Sequence[str],
        claimed: str | None,
    ) -> None:  # fmt: skip
        self._into, self.environment, self.source = into, environment, source
        self._turns, self._claimed = turns, claimed
        self.trial = environment.call(entry, turns, claimed)

    def take(self, entry: Any, runs: Sequence[TrialRun]) -> None:
        reply = bounded(self.environment.told(entry, self._turns, runs[0], self._claimed))
        assert reply is not None
        self._into.append(reply)


def _ran(run: RunPrograms | None, trials: Sequence[Trial]) -> Sequence[Sequence[TrialRun]]:
    if run is None:
        raise Unavailable("programs are run by the parent of the sandbox's child alone")
    return run(trials)


class _Training:
    """The training problems of one environment: all of them, or those that a filter kept."""

    def __init__(self, spec: EnvironmentSpec, isolation: Isolation) -> None:
        self._spec = spec
        self.environment = _opened(spec, isolation, held_out=False)
        self._kept: Any = None

    def entry(self, index: int) -> Any:
        """Raises what reading a selection raises."""
        return self.environment.entry(self._number(index))

    def files(self, indices: Iterable[int]) -> list[str]:
        """SHA-256 of the task files that these problems are in. Raises what reading a selection raises."""
        if not isinstance(self.environment, taskfile.TaskFiles):
            return []
        return [self.environment.file(self._number(index)).sha256 for index in indices]

    def _number(self, index: int) -> int:
        """Of the problem in its environment."""
        if self._spec.kept is None:
            return index
        if self._kept is None:
            self._kept = selection.pinned(self._spec)
        return int(self._kept[index])


class FirstProblems:
    """The first problems of an environment, which the spec's digest covers: questions and answers."""

    def __init__(self, spec: EnvironmentSpec, isolation: Isolation) -> None:
        self.spec = spec
        self._isolation = isolation
        self._source = _Training(spec, isolation)
        self._found: list[list[str]] = []

    @property
    def drawn(self) -> int:
        return len(self._found)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of what was drawn."""
        return hashlib.sha256(canonical.encode(self._found)).hexdigest()

    def draw(self, until: float) -> bool:
        """Draws on until this monotonic time, one problem at least; whether all are drawn. Raises Malformed, which names the problem."""
        environment = self._source.environment
        try:
            for index in range(self.drawn, min(HEAD_PROBLEMS, self.spec.problems)):
                self._isolation.restore(environment)
                self._found.append(environment.fingerprint(self._source.entry(index)))
                if time.monotonic() > until:
                    break
        except Malformed as error:
            raise Malformed(f"problem {self.drawn} of {self.spec.dataset}: {error}") from error
        if self.drawn < min(HEAD_PROBLEMS, self.spec.problems):
            return False
        self._isolation.forget(environment)
        return True


def head_digest(spec: EnvironmentSpec) -> str:
    """SHA-256 (hex) over the first problems of an environment."""
    head = FirstProblems(spec, Isolation())
    head.draw(float("inf"))
    return head.digest


def _opened(spec: EnvironmentSpec, isolation: Isolation, *, held_out: bool) -> Environment:
    return isolation.open(lambda: open_environment(spec, held_out=held_out))
