"""A run's task set, as everybody sees it: problems by index, drawn where environments live.

    with Sandbox(spec) as sandbox:
        tasks = TaskSet(spec.environments, sandbox)

Each look at problems is a request to the sandbox's child: ask for many at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Protocol

from protocol.environments import selection, taskfile
from protocol.environments.problems import Problem
from protocol.errors import HashMismatch, Malformed, VersionMismatch
from protocol.replies import Asked
from protocol.rollout import ToolResult
from protocol.runspec import EnvironmentSpec, TaskFile, starts


class ProblemSource(Protocol):
    """Where problems are drawn: protocol/sandbox/environments.py."""

    def problems(self, indices: Sequence[int]) -> list[Problem]: ...

    def held_out(self) -> list[Problem]: ...

    def head(self, environment: EnvironmentSpec) -> str: ...

    def rows(self, path: Path) -> int: ...

    def files(self, indices: Sequence[int] | None = None) -> list[str]: ...


class Tasks(Protocol):
    """What is trained on and evaluated with, as far as those who ask and score care: a `TaskSet`, or somebody's own rows."""

    @property
    def size(self) -> int: ...

    @property
    def datasets(self) -> Sequence[str]:
        """What each environment draws from, by its number in `Problem.environment`."""
        ...

    @property
    def held_out(self) -> list[Problem]: ...

    def problems(self, indices: Sequence[int]) -> list[Problem]: ...


class Grader(Protocol):
    """What an answer is worth: a sandbox (protocol/sandbox/environments.py), or somebody's own function."""

    unended: bool
    """Whether it also wants the text of answers that never ended; else they come as None, and score 0."""

    def score(self, items: Sequence[tuple[int, str | None]], *, held_out: bool = False) -> list[float]:
        """Rewards of (index of the problem, answer) pairs; indices are of training problems, or of the held-out ones."""
        ...

    def converses(self, environment: int) -> bool:
        """Whether an environment, by its number in `Problem.environment`, replies to turns."""
        ...

    def replies(self, asked: Sequence[Asked], *, held_out: bool = False) -> list[list[ToolResult]]:
        """What is said to each turn from `first` on, until nothing is."""
        ...


class TaskSet:
    """All problems of a run. Construction is quick; nothing is drawn before it is asked for."""

    def __init__(
        self,
        environments: Sequence[EnvironmentSpec],
        source: ProblemSource,
        fetch: Callable[[TaskFile], None] | None = None,
    ) -> None:
        """`source` draws the problems of exactly these environments.

        `fetch` brings a task file onto this machine where it is not here. Then each is brought and checked before the first of its problems is
        asked for; without it all must be here from the start.
        """
        self.specs = list(environments)
        self._source = source
        self._fetch = fetch
        self._starts = starts(self.specs)
        self._checking = Lock()
        self._unchecked = {file.sha256: file for spec in self.specs for file in spec.all_files}

    @property
    def size(self) -> int:
        return self._starts[-1]

    @property
    def datasets(self) -> list[str]:
        return [spec.dataset for spec in self.specs]

    def problem(self, index: int) -> Problem:
        """The training problem of `index` in [0, size)."""
        return self.problems([index])[0]

    def problems(self, indices: Sequence[int]) -> list[Problem]:
        """Training problems, in this order. Raises IndexError beyond the last, Unavailable where none come in time."""
        if beyond := [index for index in indices if not 0 <= index < self.size]:
            raise IndexError(f"problem {beyond[0]} of {self.size}")
        if self._fetch is not None and self._unchecked:
            self._require_files(self._source.files(indices))
        return self._source.problems(indices)

    def first(self, count: int) -> list[str]:
        """What the first so many training problems of each environment ask, or all it has."""
        places = zip(self._starts, self._starts[1:], strict=False)
        indices = [index for start, end in places for index in range(start, min(end, start + count))]
        return [problem.prompt for problem in self.problems(indices)]

    @cached_property
    def held_out(self) -> list[Problem]:
        """Evaluation problems, no question twice."""
        return self._source.held_out()

    def require_same_problems(self) -> None:
        """Raises VersionMismatch unless this machine draws the problems the spec was written for.

        Of files it reads every byte, or of those that are needed first where others may come later: raises ConfigError, HashMismatch or
        Malformed unless they are here and whole.
        """
        for spec in self.specs:
            if spec.kept is not None and self._fetch is not None:
                self._fetch(spec.kept)
            selection.require(spec)
        self._require_files(list(self._unchecked) if self._fetch is None else self._source.files())
        for spec in self.specs:
            if self._source.head(spec) != spec.head:
                raise VersionMismatch(
                    f"{spec.package} draws other problems for {spec.dataset} here than the run was created with",
                    hint=f"install {spec.package}=={spec.version}",
                )

    def _require_files(self, digests: Sequence[str]) -> None:
        with self._checking:  # one at a time: two threads would fetch into one partial file
            for digest in digests:
                if digest in self._unchecked:
                    self._require(self._unchecked[digest])
                    del self._unchecked[digest]

    def _require(self, file: TaskFile) -> None:
        if self._fetch is not None:
            self._fetch(file)
        path = taskfile.path_of(file)
        rows = self._source.rows(path)
        if rows != file.rows:
            raise Malformed(f"the task file {file.sha256} has {rows} rows, and the run spec says {file.rows}")
        if taskfile.digest_of(path) != file.sha256:
            raise HashMismatch(f"{path} was changed")
