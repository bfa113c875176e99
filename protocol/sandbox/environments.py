"""A run's environments, as everybody but the sandbox's child sees them: questions in batches, answers within deadlines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from protocol.environments.environment import Grants
from protocol.environments.problems import Problem
from protocol.environments.programs import Range
from protocol.errors import Malformed, Unavailable
from protocol.replies import Asked, bounded
from protocol.reward import FORGIVEN, canonical
from protocol.rollout import ToolCall, ToolResult
from protocol.runspec import EnvironmentSpec
from protocol.sandbox.process import ChildProcess
from protocol.sandbox.programs import Runner

S = TypeVar("S", bound="EnvironmentSandbox")

_AT_ONCE = 4096  # problems in one request
_REPLIES_AT_ONCE = 256  # in one request


@dataclass(frozen=True)
class Description:
    """What an environment's class says of itself: what a spec made on this machine names."""

    version: str
    exact: bool
    from_files: bool
    content: str | None
    grants: Grants


class EnvironmentSandbox(ChildProcess):
    """The environments of a run, or of one that is being written; may be shared by threads. Use as a context manager."""

    unended = False
    """Answers that never ended score 0."""

    def __init__(
        self, environments: Sequence[EnvironmentSpec] = (), *, deadline: float = 30.0, memory: int = 4 << 30
    ) -> None:
        super().__init__(environments, deadline=deadline, memory=memory)

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def warm_up(self) -> None:
        """Starts the child now, so that the first request does not wait for its imports. Raises ConfigError or VersionMismatch."""
        self.score([])

    def describe(self, package: str) -> Description:
        """Raises ConfigError where no environment is called so, or it cannot be loaded."""
        head, _ = self._ask({"op": "describe", "package": package})
        content = head.get("content")
        return Description(
            str(head.get("version")), head.get("exact") is True, head.get("from_files") is True,
            content if isinstance(content, str) else None, _grants(head),
        )  # fmt: skip

    def head(self, environment: EnvironmentSpec) -> str:
        """SHA-256 (hex) over the first problems of an environment, under what it is granted: one of these, or any other. Raises Unavailable
        where it draws none in time."""
        table = environment.model_dump(mode="json")
        if table not in self._environments:
            needed = self.describe(environment.package).grants
            if needed.memory > self._memory or needed.seconds > self._deadline or needed.files > self._files:
                with _Drawing([environment], deadline=self._deadline, memory=self._memory) as own:
                    return own.head(environment)
        looked = -1
        while True:
            head, _ = self._ask({"op": "head", "environment": table, "seconds": float(self._deadline) / 2})
            if isinstance(digest := head.get("digest"), str):
                return digest
            if _counted(head) <= looked:
                raise Unavailable(
                    f"the environment {environment.dataset} draws no problem within {self._deadline / 2:g} s"
                )
            looked = _counted(head)

    def problems(self, indices: Sequence[int]) -> list[Problem]:
        """Training problems by index in the run. Raises Unavailable where the environments give none in time."""
        found: list[Problem] = []
        looked = -1
        while len(found) < len(indices):
            wanted = list(indices[len(found) : len(found) + _AT_ONCE])
            head, _ = self._ask({"op": "problems", "indices": wanted, "seconds": float(self._deadline) / 2})
            got = list(_problems(head))
            if [problem.index for problem in got] != wanted[: len(got)]:
                raise Unavailable("the environments' answer makes no sense")
            if not (got or _counted(head) > looked):
                raise Unavailable(f"the environments draw no problem within {self._deadline / 2:g} s")
            looked = _counted(head)
            found += got
        return found

    def held_out(self) -> list[Problem]:
        """Evaluation problems, no question twice. Raises Unavailable where the environments give none in time."""
        found: list[Problem] = []
        looked = -1
        while True:
            head, _ = self._ask({"op": "held out", "start": len(found), "seconds": float(self._deadline) / 2})
            got = list(_problems(head))
            if [problem.index for problem in got] != list(range(len(found), len(found) + len(got))):
                raise Unavailable("the environments' answer makes no sense")
            found += got
            if head.get("done") is True:
                return found
            if not got and _counted(head) <= looked:
                raise Unavailable(f"the environments draw no held-out problem within {self._deadline / 2:g} s")
            looked = _counted(head)

    def score(self, items: Sequence[tuple[int, str | None]], *, held_out: bool = False) -> list[float]:
        """Canonical task rewards of (index, answer) pairs; indices are of training problems, or of the held-out ones.

        Raises Unavailable when a verifier dies or takes too long.
        """
        return [high for _, high in self._ranges(items, None, held_out)]

    def bounds(
        self, items: Sequence[tuple[int, str | None]], claims: Sequence[float], tolerance: float = FORGIVEN
    ) -> list[Range]:
        """The canonical rewards that somebody may honestly have measured, lowest and highest, for answers of training problems.

        `claims` are what they say they measured, `tolerance` is how far from it a reward may be that makes it right. The two ends differ
        only where a verdict depends on how fast a machine is. Raises as `score`, and Interrupted where no answer is to blame. Asks once:
        who judges asks again.
        """
        finite = [float(claim) if math.isfinite(claim) else 0.0 for claim in claims]
        return self._ranges(items, finite, False, 1, float(tolerance))

    def _ranges(
        self,
        items: Sequence[tuple[int, str | None]],
        claims: list[float] | None,
        held_out: bool,
        attempts: int = 2,
        tolerance: float = FORGIVEN,
    ) -> list[Range]:
        request = {
            "op": "score",
            "items": [list(item) for item in items],
            "held_out": held_out,
            "claims": claims,
            "tolerance": tolerance,
        }
        head, _ = self._ask(request, attempts=attempts)
        rewards = head.get("rewards")
        if not isinstance(rewards, list) or len(rewards) != len(items):
            raise Unavailable("the verifiers' answer makes no sense")
        found = []
        for ends in rewards:
            match ends:
                case [float(low), float(high)]:
                    found.append(Range(canonical(low), canonical(high)))
                case _:
                    raise Unavailable("the verifiers' answer makes no sense")
        return found

    def converses(self, environment: int) -> bool:
        """Whether an environment replies to turns, so that samples may have several."""
        if self._converses is None:
            self.warm_up()
        return bool(self._converses and self._converses[environment])

    def too_slow(self, environment: int) -> str | None:
        """What an environment replies to a call that took too long, where it says so: that depends on how fast a machine is."""
        return self._too_slow[environment] if self.converses(environment) else None

    def replies(self, asked: Sequence[Asked], *, held_out: bool = False) -> list[list[ToolResult]]:
        """What the environment says to each turn from `first` on, until it says nothing; problems are of the training, or held-out ones.

        Raises Malformed where what it says is no reply, or too much; Unavailable where it does not work.
        """
        found: list[list[ToolResult]] = []
        for portion in _portions(asked):
            request = {"op": "replies", "asked": [_row_of(one) for one in portion]}
            head, _ = self._ask({**request, "held_out": held_out})
            try:
                of = list(zip(head["texts"], head["calls"], strict=True))
                got = [[_reply(*one) for one in zip(texts, calls, strict=True)] for texts, calls in of]
            except (KeyError, TypeError, ValueError, Malformed) as error:
                raise Unavailable(f"the environments' replies make no sense: {error}") from error
            if [len(one) <= len(of.turns) - of.first for one, of in zip(got, portion, strict=True)] != [True] * len(
                got
            ):
                raise Unavailable("the environments reply to more turns than there are")
            found += got
        return found

    def calls(self, texts: Sequence[str]) -> list[list[str]]:
        """Turns that hand each of these texts to the tool of the first environment, in all its forms; none where there is no tool."""
        head, _ = self._ask({"op": "calls", "texts": list(texts)})
        return list(head["turns"])

    def answers(self, programs: Sequence[str]) -> list[str | None]:
        """Answers to problems of the first environment that are these programs in Python; None where they cannot be."""
        head, _ = self._ask({"op": "answers", "programs": list(programs)})
        return list(head["answers"])

    def rows(self, path: Path) -> int:
        """Rows of a task file, by its footer. Raises Malformed for what is none."""
        head, _ = self._ask({"op": "rows", "path": str(path.resolve())})
        return int(head["rows"])

    def files(self, indices: Sequence[int] | None = None) -> list[str]:
        """SHA-256 of the task files that these training problems are in; None: of those that are needed before any other. Raises Unavailable."""
        head, _ = self._ask({"op": "files", "indices": None if indices is None else list(indices)})
        found = head.get("files")
        if not isinstance(found, list) or not all(isinstance(digest, str) for digest in found):
            raise Unavailable("the environments' answer makes no sense")
        return found

    def require_task_file(self, path: Path) -> None:
        """Reads all of a task file. Raises Malformed for what is none, Unavailable when that kills the reader."""
        group = 0
        while group >= 0:
            request = {"op": "tasks", "path": str(path.resolve()), "group": group}
            head, _ = self._ask(request, of_a_stranger=True)
            following = head.get("next")
            if not isinstance(following, int) or following == group:
                raise Unavailable("the reader's answer makes no sense")
            group = following


class _Drawing(EnvironmentSandbox):
    """Draws problems alone, for which no stranger's program is run."""

    def _programs(self, head: dict[str, Any]) -> Runner:
        return Runner()


def _grants(head: dict[str, Any]) -> Grants:
    match head.get("grants"):
        case [int(memory), float() | int() as seconds, int(files)]:
            return Grants(memory, float(seconds), files)
    raise Unavailable("the sandbox's answer makes no sense")


def _problems(head: dict[str, Any]) -> Iterator[Problem]:
    listed = head.get("problems")
    if not isinstance(listed, list):
        raise Unavailable("the environments' answer makes no sense")
    for row in listed:
        match row:
            case [int(environment), int(index), str(prompt), str() | None as answer, bool(is_held_out)]:
                yield Problem(environment, index, prompt, answer, is_held_out)
            case _:
                raise Unavailable("the environments' answer makes no sense")


def _portions(asked: Sequence[Asked]) -> Iterator[list[Asked]]:
    """What is asked for in one request: as many turns as it has room for the replies to, or one conversation."""
    portion: list[Asked] = []
    turns = 0
    for one in asked:
        if portion and turns + len(one.turns) - one.first > _REPLIES_AT_ONCE:
            yield portion
            portion, turns = [], 0
        portion.append(one)
        turns += len(one.turns) - one.first
    if portion:
        yield portion


def _row_of(one: Asked) -> list[Any]:
    return [one.problem, list(one.turns), one.first, list(one.claims)]


def _reply(text: Any, calls: Any) -> ToolResult:
    """As the child says it, which is not believed. Raises TypeError, ValueError or Malformed."""
    if not isinstance(text, str):
        raise TypeError("a reply that is no text")
    made = bounded(ToolResult(text, tuple(ToolCall(*call) for call in calls)))
    assert made is not None
    return made


def _counted(head: dict[str, Any]) -> int:
    looked = head.get("looked")
    return looked if isinstance(looked, int) else -1
