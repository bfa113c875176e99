"""Problems and verifiers of the package reasoning-gym.

Some of its verifiers pass an answer to `eval`; an answer is a stranger's bytes. Only datasets whose verifier was read and
found harmless are allowed, and those that would evaluate text get a parser of literals in its place: it gives the same
result for every literal and refuses everything else. `codeio` and whatever needs sympy's parser stay out.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
import threading
from functools import cache
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel, ConfigDict

from protocol.environments.environment import Environment
from protocol.errors import ConfigError, VersionMismatch
from protocol.runspec import EnvironmentSpec

# Dataset -> (where in reasoning-gym it is, whether that module's `eval` is replaced; the other verifiers evaluate nothing).
AUDITED: dict[str, tuple[str, bool]] = {
    "count_bits": ("arithmetic.count_bits", False),
    "lcm": ("arithmetic.lcm", False),
    "letter_counting": ("algorithmic.letter_counting", False),
    "manipulate_matrix": ("algorithmic.manipulate_matrix", False),
    "number_filtering": ("algorithmic.number_filtering", False),
    "palindrome_generation": ("algorithmic.palindrome_generation", False),
    "rotate_matrix": ("algorithmic.rotate_matrix", False),
    "spell_backward": ("algorithmic.spell_backward", False),
    "spiral_matrix": ("algorithmic.spiral_matrix", True),
    "word_sequence_reversal": ("algorithmic.word_sequence_reversal", False),
    "word_sorting": ("algorithmic.word_sorting", False),
}
"""Read for reasoning-gym 0.1.25; another version is refused by `Dataset`."""

AUDITED_VERSION = "0.1.25"
_importing = threading.Lock()


class AnyConfig(BaseModel):
    """The data sets of reasoning-gym check their fields themselves."""

    model_config = ConfigDict(extra="allow", frozen=True)


class ReasoningGym(Environment):
    """One data set; entry i is drawn from the seed `seed + i`, so any index is as quick as the first."""

    name = "reasoning-gym"
    version = AUDITED_VERSION
    exact = True
    Config = AnyConfig

    def __init__(self, spec: EnvironmentSpec, *, held_out: bool) -> None:
        super().__init__(spec, held_out=held_out)
        _require_audited(spec)
        _load(spec.dataset)
        from reasoning_gym.factory import create_dataset

        size = 2**31 - 1 if held_out else spec.size
        try:
            self._data = create_dataset(spec.dataset, seed=self.seed, size=size, **spec.config)
        except (TypeError, ValueError, AssertionError) as error:
            raise ConfigError(f"reasoning-gym refuses the configuration of {spec.dataset}: {error}") from error

    def entry(self, index: int) -> dict[str, Any]:
        return self._data[index]

    def prompt(self, entry: dict[str, Any]) -> str:
        return entry["question"]

    def answer(self, entry: dict[str, Any]) -> str:
        return str(entry["answer"])

    def score(self, entry: dict[str, Any], completion: str) -> float:
        """The data set's own verifier."""
        return float(self._data.score_answer(completion, entry))


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


@cache
def _load(dataset: str) -> None:
    """Imports the module of one dataset, and nothing that was not read.

    The package's own `__init__` imports all its datasets, and with them sympy and matplotlib: over a second and 75 MB in every
    process of a role. So the packages above the module are empty while it is imported.
    """
    path, evaluates = AUDITED[dataset]
    with _importing:
        shells = [
            name for name in ("reasoning_gym", f"reasoning_gym.{path.partition('.')[0]}") if name not in sys.modules
        ]
        for name in shells:
            found = importlib.util.find_spec(name)
            assert found is not None
            sys.modules[name] = importlib.util.module_from_spec(found)
        try:
            module = importlib.import_module(f"reasoning_gym.{path}")
        finally:
            for name in shells:  # whoever imports the whole package later gets it
                del sys.modules[name]
    if evaluates:
        module.eval = ast.literal_eval  # type: ignore[attr-defined]
