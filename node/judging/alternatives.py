"""Named alternatives: prefilling work with what a cheat may have used in place of the published weights (protocol/statistics.py).

Rows are prefilled twice more, with the published weights and with the alternative, by one engine; on whose side does each near tie and each chunk of proofs lie? Alternatives are computed by the torch engine, whatever engine judges: it is one that can round
weights and caches. It takes as much memory again as the model; where there is none, or a version before is not here, that alternative is left out.

Does not decide which work is prefilled again (node/validator/alternatives.py), nor what follows (node/judging/history.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from node.engine import Adjustable, Engine, EngineSettings, Verifier, make_engine
from protocol.eprocess import Sums
from protocol.errors import PreflightError
from protocol.model_files import weight_files
from protocol.sampling import TokenScores
from protocol.statistics import TEMPERATURES
from protocol.toploc import Bits, Points

if TYPE_CHECKING:
    from torch import Tensor

    from node.engine.interface import TokenIds

TOKENS_MOST = 1 << 16
"""Of one submission that are prefilled again with an alternative: what is kept of them meanwhile takes some 6 MiB."""
REFERENCE = ""
"""In place of an alternative's name: the published weights themselves."""
_BEFORE = "before_"
_LOWER = "bfloat16"

VersionBefore = Callable[[int], Path | None]
"""The folder of the version so many steps before the one that is judged by; None where it is not here."""


def steps_before(name: str) -> int:
    """Of an alternative that is an earlier version; 0 of others."""
    return int(name.removeprefix(_BEFORE)) if name.startswith(_BEFORE) else 0


def applies(name: str, compute_dtype: str) -> bool:
    """Whether an alternative is one in a run of this type: what the run computes in is none."""
    return name != compute_dtype


class _Alternative(Engine, Adjustable, Protocol):
    """An engine whose weights and caches can be rounded."""


class _AtAnotherTemperature:
    """A verifier that draws at `factor` times the temperature it is told."""

    def __init__(self, engine: Verifier, factor: float) -> None:
        self._engine = engine
        self._factor = factor

    def score(
        self, hidden_TH: Tensor, tokens_T: TokenIds, *, key: int, temperature: float, top_k: int = 0, top_p: float = 1.0
    ) -> TokenScores:
        return self._engine.score(
            hidden_TH, tokens_T, key=key, temperature=temperature * self._factor, top_k=top_k, top_p=top_p
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class Alternatives:
    """Engines of one judge, made when they are first needed: one, and another for computing in a lower precision."""

    def __init__(self, settings: EngineSettings, compute_dtype: str) -> None:
        own = {"name": "torch", "dtype": "auto", "tensor_parallel": 1, "batch_invariant": False}
        self._settings = settings.model_copy(update=own)
        self._compute_dtype = compute_dtype
        self._engines: dict[str, _Alternative] = {}

    def engine(self, name: str, folder: Path, before: VersionBefore) -> Verifier:
        """One that holds an alternative to the version in `folder`; good until the next call. Raises PreflightError where it would take more than half of the memory that is
        free, or the version before is not here, and as `Engine.load`."""
        from node.engine.degrade import CACHES, DEGRADATIONS

        if name in TEMPERATURES:
            return cast(Verifier, _AtAnotherTemperature(self.engine(REFERENCE, folder, before), TEMPERATURES[name]))
        back = steps_before(name)
        version = before(back) if back else folder
        if version is None:
            raise PreflightError(f"the version {back} steps before is not here")
        dtype = _LOWER if name == _LOWER else self._compute_dtype
        engine = self._engines.get(dtype)
        if engine is None:
            self._require_room(version, dtype)
            engine = self._engines[dtype] = cast(_Alternative, make_engine(self._settings, dtype))
        engine.load(version)
        if name not in (REFERENCE, _LOWER) and not back:
            engine.degrade((DEGRADATIONS | CACHES)[name])
        return engine

    def _require_room(self, version: Path, dtype: str) -> None:
        """The engine that judges has made its plans before, and must not run out of memory for this one."""
        from node.engine.device import free_bytes, named

        stored = sum((version / name).stat().st_size for name in weight_files(version))  # in bfloat16
        needed, free = (2 if dtype == "float32" else 1) * stored, free_bytes(named(self._settings.device))
        if needed > free // 2:
            raise PreflightError(f"an alternative takes {needed >> 20} MiB, and {free >> 20} MiB of memory are free")


def sides(
    scores: TokenScores,
    tokens: NDArray[np.integer[Any]],
    alternative: NDArray[np.integer[Any]],
    counts: NDArray[np.bool_] | None = None,
) -> Sums:
    """Of the positions where the alternative draws another token than the reference, and the completion has one of the two: a success is
    one where it has the alternative's. `tokens` and `alternative` [T]; `counts` [T]: at which positions, None: at all."""
    differ = (scores.drawn != alternative) & ((tokens == scores.drawn) | (tokens == alternative))
    if counts is not None:
        differ &= counts
    return Sums.of_trials(int(np.count_nonzero(tokens[differ] == alternative[differ])), int(np.count_nonzero(differ)))


def nearer(points: Sequence[Points], chunks: Sequence[Bits]) -> Sums:
    """Of the chunks whose proof lies nearer to one side: a success is one that lies nearer to the alternative, whose activations `chunks` are."""
    found = [of.side(chunk) for of, chunk in zip(points, chunks, strict=True)]
    return Sums.of_trials(found.count(1), len(found) - found.count(0))
