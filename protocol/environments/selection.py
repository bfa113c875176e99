"""Selections: which problems of an environment are trained on, in the file that the offline filter wrote.

`murmur trainer filter` writes one canonical JSON file for all environments of a run: numbers, solve rates, and what they were
measured with. A run spec that names it (`kept`) pins it by SHA-256; it lies in the machine's task folder under that name, as
task files do. Problem i of the run is then the i-th number of the file; held-out problems stay what they were.

It does not say which problems are worth keeping: trainer/evaluation/filter.py does.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, ValidationError

from protocol import canonical
from protocol.environments import taskfile
from protocol.errors import ConfigError, HashMismatch, Malformed, MurmurationError, Oversized
from protocol.runspec import AnyEnvironment, EnvironmentSpec, Part, Selection

FILE_BYTES_MAX = 16 << 20
"""Of one file: over a million problems, which no run has asked for yet."""


class Kept(Part):
    """What was kept of one environment."""

    environment: AnyEnvironment
    """As it was tried, all `size` problems of it."""
    tried: int = Field(ge=0)
    """Problems, without those that evaluation asks as well."""
    pass_at: dict[str, str] = Field(default={})
    """pass@k over those, by k; decimals from 0 to 1."""
    indices: list[Annotated[int, Field(ge=0, lt=2**31)]]
    """Numbers below `size`, ascending."""
    rates: list[str]
    """The solve rate of each, that is its mean task reward: a decimal from 0 to 1."""
    solved: list[int] = Field(default=[])
    """Answers to each that had the full task reward."""


class SelectionFile(Part):
    format: Literal["murmuration/selection/1"] = "murmuration/selection/1"
    model: dict[str, str]
    """SHA-256 of the files of the model that tried."""
    sampling: dict[str, int | str]
    band: dict[str, str]
    """Lowest and highest rate that was kept."""
    environments: list[Kept]

    def encode(self) -> bytes:
        """Canonical bytes. Raises ConfigError where nobody would read that much."""
        data = canonical.encode(self.model_dump(mode="json"))
        if len(data) > FILE_BYTES_MAX:
            raise ConfigError(
                f"a selection of {len(data) >> 20} MiB is more than {FILE_BYTES_MAX >> 20} MiB",
                hint="try fewer problems, or keep a narrower band",
            )
        return data


def read(path: Path) -> SelectionFile:
    """Raises ConfigError where the file is not here, Oversized or Malformed where it is no selection."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size > FILE_BYTES_MAX:
                raise Oversized(f"{path.name} has more than {FILE_BYTES_MAX} bytes")
            data = file.read(FILE_BYTES_MAX)
    except OSError as error:
        hint = "nodes and validators fetch it when they start; else copy it there"
        raise ConfigError(f"cannot read {path}: {error.strerror}", hint=hint) from error
    try:
        return SelectionFile.model_validate(canonical.parse(data, path.name))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise Malformed(f"{path.name} is no selection: {place}: {first['msg']}") from None


def numbers(file: SelectionFile, spec: EnvironmentSpec) -> np.ndarray:
    """int64, ascending: the problems that are kept of `spec`. Raises Malformed where the file says nothing of it."""
    for kept in file.environments:
        if _means(kept.environment) == _means(spec):
            if not kept.indices:
                raise Malformed(f"no problem of {spec.dataset} was kept")
            found = np.array(kept.indices, np.int64)
            fits = len(found) == len(kept.rates) and found[-1] < spec.size
            if not fits or not (np.diff(found) > 0).all():
                raise Malformed(
                    f"the selection of {spec.dataset} is not an ascending list of problems below {spec.size}"
                )
            return found
    raise Malformed(f"the selection was made of other problems than those of {spec.dataset}")


def _means(spec: EnvironmentSpec) -> dict[str, Any]:
    """What problem i is, of an environment."""
    return spec.model_dump(include={"package", "version", "dataset", "config", "files", "seed"})


def add(source: Path, spec: EnvironmentSpec) -> Selection:
    """Takes a copy of what the filter wrote into the task folder. Raises ConfigError where it is not of `spec`'s problems."""
    try:
        file = read(source)
        rows = len(numbers(file, spec))
        return taskfile.keep(file.encode(), Selection, rows=rows)
    except (MurmurationError, OSError) as error:
        hint = "`murmur trainer filter` with this run.toml writes such files"
        raise ConfigError(f"{source} cannot be used: {error}", hint=hint) from error


def require(spec: EnvironmentSpec) -> None:
    """Raises ConfigError, HashMismatch or Malformed unless what `spec` keeps is here, and whole."""
    if spec.kept is not None:
        pinned(spec)
        path = taskfile.path_of(spec.kept)
        if taskfile.digest_of(path) != spec.kept.sha256:
            raise HashMismatch(f"{path} was changed")


def pinned(spec: EnvironmentSpec) -> np.ndarray:
    """The numbers in the file that `spec` names, as many as it says."""
    assert spec.kept is not None
    found = numbers(read(taskfile.path_of(spec.kept)), spec)
    if len(found) != spec.kept.rows:
        raise Malformed(f"the selection keeps {len(found)} problems, and the run spec says {spec.kept.rows}")
    return found
