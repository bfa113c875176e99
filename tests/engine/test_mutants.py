"""Each check of tests/engine/contract.py refuses an engine that is wrong in one way, and says in which. The engine that they are made of
passes all of them (test_contract.py)."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from tests.engine.contract import EngineContract, Setting, generate
from tests.engine.mutants import MUTANTS
from tests.engine.numpy_engine import numpy_setting


def run(check: str, setting: Setting) -> None:
    """One check of the suite, with what pytest would give it."""
    method = getattr(EngineContract, check)
    given: dict[str, Any] = {"setting": setting}
    names = list(inspect.signature(method).parameters)[1:]
    if {"engine", "made"} & set(names):
        given["engine"] = setting.loaded()
    if "made" in names:
        given["made"] = generate(given["engine"], setting.prompts)
    method(EngineContract(), **{name: given[name] for name in names})


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_refused_by_its_check(name: str, tmp_path: Path) -> None:
    kind, (check, complaint) = MUTANTS[name]
    with pytest.raises((AssertionError, pytest.fail.Exception), match=complaint):
        run(check, numpy_setting(tmp_path, kind))


def test_every_check_refuses_a_mutant() -> None:
    checks = {name for name in vars(EngineContract) if name.startswith("test_")}
    assert checks == {check for _, (check, _) in MUTANTS.values()}
