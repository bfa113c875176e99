"""A recording: what each of many distinct completions adds to the sums over a seat's work, by who made it and who computed it again.

The unit is a completion. Several backends compute it again, and so it is one unit of several pairs; within a pair it comes once.

Shapes: U units, N checks (a unit by a backend), L looks at the sums: NULLS and the sides of mismatched tokens.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.eprocess import Sums
from protocol.statistics import MARGINS_HARD, MARGINS_SOFT, TEMPERATURE, SumsByName

TIGHT = "margins_tight"
"""Margins against a null far below honest noise: whoever weighs with it must find honest seats."""
TIGHTER = 8
"""Its noise is the soft one's divided by this."""
STATISTICS = (MARGINS_HARD, MARGINS_SOFT, TIGHT, TEMPERATURE)
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class PairWork:
    """Of one pair: its units' work, one row each."""

    made_by: str
    checked_by: str
    policies: NDArray[np.integer[Any]]
    """[U] number of the policy."""
    lengths: NDArray[np.integer[Any]]
    """[U] the most tokens that were asked for: 8, 100 or 1,000."""
    tokens: NDArray[np.integer[Any]]
    """[U]"""
    sums: Integers
    """[U, STATISTICS, 3] totals, squares and counts."""

    @property
    def name(self) -> str:
        return f"{self.made_by} → {self.checked_by}"

    @property
    def strata(self) -> list[NDArray[np.integer[Any]]]:
        """The units of each policy and length."""
        return [
            np.flatnonzero((self.policies == policy) & (self.lengths == length))
            for policy, length in sorted(set(zip(self.policies.tolist(), self.lengths.tolist(), strict=True)))
        ]


@dataclass(frozen=True)
class Recording:
    about: dict[str, Any]
    """What the file of JSON says."""
    arrays: Mapping[str, NDArray[Any]]

    def pairs(self) -> Iterator[PairWork]:
        """Of honest backends and of noisy ones, each pair that has units."""
        names = self.about["backends"]
        made_by = self.arrays["made_by"][self.arrays["unit"]]
        for made, checked in sorted(set(zip(made_by.tolist(), self.arrays["checked_by"].tolist(), strict=True))):
            rows = np.flatnonzero((made_by == made) & (self.arrays["checked_by"] == checked))
            units = self.arrays["unit"][rows]
            of = {name: self.arrays[name][units] for name in ("policies", "lengths", "tokens")}
            yield PairWork(names[made], names[checked], sums=self.arrays["sums"][:, :, rows].transpose(2, 0, 1), **of)

    def pair(self, made_by: str, checked_by: str) -> PairWork:
        """Raises LookupError."""
        for pair in self.pairs():
            if (pair.made_by, pair.checked_by) == (made_by, checked_by):
                return pair
        raise LookupError(f"nothing was recorded of {made_by} and {checked_by}")


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read(path: Path) -> Recording:
    """OUT.npz, with OUT.json beside it."""
    with np.load(path, allow_pickle=False) as file:
        return Recording(json.loads(path.with_suffix(".json").read_text()), dict(file))


def write(path: Path, recording: Recording) -> None:
    np.savez_compressed(path, allow_pickle=False, **recording.arrays)
    about = recording.about | {"sha256": digest(path)}
    path.with_suffix(".json").write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n")


def join(parts: Sequence[Recording]) -> Recording:
    """Of other policies or other draws each, as one. Raises ValueError where they are of other backends, or compared with other noise."""
    first = parts[0].about
    common = ("calibration", "noise", "backends")
    if any(part.about[name] != first[name] for part in parts for name in common):
        raise ValueError("the parts are of other backends or of other noise")
    arrays: dict[str, list[NDArray[Any]]] = {name: [] for name in parts[0].arrays}
    before = 0
    for part in parts:
        for name, of in part.arrays.items():
            arrays[name].append(of + before if name == "unit" else of)
        before += len(part.arrays["tokens"])
    about = {name: first[name] for name in common} | {
        "units": before,
        "tokens": sum(part.about["tokens"] for part in parts),
        "pairs": _joined_pairs(parts),
        "parts": [{name: of for name, of in part.about.items() if name not in common} for part in parts],
    }
    return Recording(about, {name: np.concatenate(of, axis=-1) for name, of in arrays.items()})


def _joined_pairs(parts: Sequence[Recording]) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for of in (of for part in parts for of in part.about["pairs"]):
        pair = (of["made_by"], of["checked_by"])
        one = found.setdefault(pair, dict(zip(("made_by", "checked_by"), pair, strict=True)))
        for name in ("units", "tokens", "mismatches"):
            one[name] = one.get(name, 0) + of[name]
    return [found[pair] for pair in sorted(found)]


def row_of(sums: SumsByName) -> list[list[int]]:
    """[STATISTICS, 3]"""
    found = [sums.get(name, Sums()) for name in STATISTICS]
    return [[of.total, of.squares, of.count] for of in found]


def sums_of(row: Integers) -> dict[str, Sums]:
    """The statistics that are judged by, of [STATISTICS, 3]."""
    return {name: Sums(*map(int, of)) for name, of in zip(STATISTICS, row, strict=True) if name != TIGHT}
