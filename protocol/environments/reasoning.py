"""Problems and verifiers of the package reasoning-gym.

Some of its verifiers pass an answer to `eval`; an answer is a stranger's bytes. Only datasets whose verifier was read and
found harmless are allowed, and those that would evaluate text get a parser of literals in its place: it gives the same
result for every literal and refuses everything else. `codeio` and whatever needs sympy's parser stay out.
"""

from __future__ import annotations

import ast
import importlib
import math
from functools import cache
from importlib.metadata import version
from typing import Any

from protocol.errors import ConfigError, VersionMismatch
from protocol.runspec import EnvironmentSpec

# Dataset -> module whose `eval` is replaced, or None where the verifier evaluates nothing.
AUDITED: dict[str, str | None] = {
    "count_bits": None,
    "lcm": None,
    "letter_counting": None,
    "manipulate_matrix": None,
    "number_filtering": None,
    "palindrome_generation": None,
    "rotate_matrix": None,
    "spell_backward": None,
    "spiral_matrix": "reasoning_gym.algorithmic.spiral_matrix",
    "word_sequence_reversal": None,
    "word_sorting": None,
}
"""Read for reasoning-gym 0.1.25; another version is refused by `Dataset`."""

AUDITED_VERSION = "0.1.25"


class Dataset:
    """One dataset; entry i is drawn from the seed `seed + i`, so any index is as quick as the first."""

    def __init__(self, spec: EnvironmentSpec, seed: int, size: int | None) -> None:
        """`size` None: unbounded. Raises ConfigError or VersionMismatch when the dataset may not be used here."""
        _require_audited(spec)
        import reasoning_gym

        try:
            self._data = reasoning_gym.create_dataset(spec.dataset, seed=seed, size=size or 2**31 - 1, **spec.config)
        except (TypeError, ValueError, AssertionError) as error:
            raise ConfigError(f"reasoning-gym refuses the configuration of {spec.dataset}: {error}") from error

    def entry(self, index: int) -> dict[str, Any]:
        return self._data[index]

    def prompt(self, entry: dict[str, Any]) -> str:
        return entry["question"]

    def score(self, entry: dict[str, Any], completion: str | None) -> float:
        """The dataset's own verifier, as a float in [0, 1]."""
        reward = float(self._data.score_answer(completion, entry))
        return min(max(reward, 0.0), 1.0) if math.isfinite(reward) else 0.0


@cache
def _installed() -> str:
    return version("reasoning-gym")


def _require_audited(spec: EnvironmentSpec) -> None:
    if spec.dataset not in AUDITED:
        raise ConfigError(
            f"the dataset {spec.dataset!r} of reasoning-gym may not be used: its verifier was not audited",
            hint="allowed: " + ", ".join(sorted(AUDITED)),
        )
    if _installed() != spec.version or spec.version != AUDITED_VERSION:
        raise VersionMismatch(
            f"the run wants reasoning-gym {spec.version}; installed is {_installed()}, audited {AUDITED_VERSION}",
            hint=f"install reasoning-gym=={spec.version}",
        )
    evaluator = AUDITED[spec.dataset]
    if evaluator is not None:
        importlib.import_module(evaluator).eval = ast.literal_eval  # type: ignore[attr-defined]
