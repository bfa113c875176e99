"""What import-linter is told about the layers agrees with the modules that are really there."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_contract_on_what_the_trainer_imports_of_node_names_every_module_but_the_engine() -> None:
    """import-linter has no "all but": a module that is missing from the list could be imported unseen."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = (each for each in linter["contracts"] if each["source_modules"] == ["trainer"])
    modules = {path.stem for path in (ROOT / "node").glob("*.py")} - {"__init__"}
    packages = {path.parent.name for path in (ROOT / "node").glob("*/__init__.py")}
    assert sorted(contract["forbidden_modules"]) == sorted(f"node.{name}" for name in modules | packages - {"engine"})
