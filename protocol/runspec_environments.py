"""The environments of a run spec: which problems a run is about, named so that all parties draw the very same ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from protocol.runspec_part import HexDigest, Part, PinnedFile
from protocol.runspec_reward import RewardSpec

ConfigValue = bool | int | str | list[int] | list[str]


class TaskFile(PinnedFile):
    """One file of a task set (protocol/environments/taskfile.py)."""

    rows: int = Field(gt=0, lt=2**31)
    """Problems in it."""
    suffix: ClassVar[str] = ".parquet"


class Selection(TaskFile):
    """What the offline filter kept (protocol/environments/selection.py); `rows` are problems of this environment."""

    suffix: ClassVar[str] = ".json"


class EnvironmentSpec(Part):
    """One task set, named so that all parties draw the very same problems. `Generated` or `FromFiles`."""

    from_files: ClassVar[bool]

    package: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")
    """Name of the environment (protocol/environments/registry.py)."""
    version: str = Field(max_length=64)
    """Of the environment."""
    content: HexDigest | None = None
    """Of an installed package: digest of its files (protocol/environments/content.py), the same in the wheel. None: the version has to do."""
    dataset: str
    """The environment's name of it; of "parquet" any name."""
    config: dict[str, ConfigValue] = Field(default={})
    """Fields that the environment's class knows."""
    kept: Selection | None = None
    """In run.toml: the path of what `murmur trainer filter` wrote. Only what it kept, out of the first `size`, is trained on."""
    seed: int = Field(ge=0, lt=2**62)
    """Of the training problems."""
    size: int = Field(gt=0, lt=2**31)
    """Training problems, before `kept` chooses of them."""
    head: HexDigest
    """SHA-256 of the first 256 problems (fewer if the set is smaller); each party checks it before it starts."""
    exact: bool
    """Whether the verifier's reward is exact and always terminates: only then may a wrong reward be a hard verdict."""
    held_out_seed: int = Field(ge=0, lt=2**62)
    """Of the held-out problems; problem i is drawn from the seed + i, so the two must lie far apart."""
    held_out_size: int = Field(ge=0, le=100_000)
    """Problems for evaluation; a training problem with the same question is never assigned."""
    reward: RewardSpec | None = None
    """What this environment's answers earn besides their task reward, in place of [spec.reward]; an empty table: nothing."""

    @model_validator(mode="after")
    def _kept_fit(self) -> Self:
        if self.kept is not None and self.kept.rows > self.size:
            raise ValueError(f"{self.kept.rows} problems kept of {self.size}")
        return self

    @property
    def all_files(self) -> list[TaskFile]:
        """All that its problems and replies come from."""
        return []

    @property
    def problems(self) -> int:
        """Number of the training problems."""
        return self.size if self.kept is None else self.kept.rows


class Generated(EnvironmentSpec):
    """Problems that an environment draws from seeds."""

    from_files = False


class FromFiles(EnvironmentSpec):
    """Problems that are the rows of task files: the first `size` for training, the last `held_out_size` held out."""

    from_files = True

    files: list[TaskFile] = Field(min_length=1, max_length=256)
    """In run.toml: their paths."""
    corpus: list[TaskFile] = Field(default=[], max_length=256)
    """In run.toml: paths of the files that are searched in, where the environment searches: task files whose questions are titles, and whose
    answers the documents' texts."""
    seed: Literal[0] = 0
    """Rows need none."""
    held_out_seed: Literal[0] = 0
    """Rows need none."""

    @model_validator(mode="after")
    def _files_fit(self) -> Self:
        rows = sum(file.rows for file in self.files)
        if self.size + self.held_out_size > rows:
            raise ValueError(f"{self.size} + {self.held_out_size} problems in files of {rows} rows")
        return self

    @property
    def all_files(self) -> list[TaskFile]:
        return [*self.files, *self.corpus]


def environment_kind(value: Any) -> type[EnvironmentSpec]:
    """The kind of environment that a table, or a spec, is."""
    if isinstance(value, EnvironmentSpec):
        return type(value)
    named = isinstance(value, dict) and (value.get("package") == "parquet" or bool(value.get("files")))
    return FromFiles if named else Generated


AnyEnvironment = Annotated[
    Annotated[Generated, Tag("Generated")] | Annotated[FromFiles, Tag("FromFiles")],
    Discriminator(lambda value: environment_kind(value).__name__),
]


def starts(environments: Sequence[EnvironmentSpec]) -> list[int]:
    """The number of each environment's first training problem in the run, and last the number of all."""
    return [0, *accumulate(environment.problems for environment in environments)]
