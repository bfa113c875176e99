"""The layers that import-linter cannot say: flat modules, scripts, and that its lists name all that is there."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ENTRIES = {"protocol/__main__.py"}
"""Flat files that start a program: they stand above the rooms."""


ENGINE_SEAM = {
    "interface", "factory", "settings", "device", "hardware", "footprint", "fit", "memory", "weights", "proofs", "degrade",
    "samples", "conversing", "output", "products", "checked_engine", "lengths", "self_check", "plain", "features", "int8", "separate_engine", "separate_messages", "process", "version_files", "tensor_files",
}  # fmt: skip
"""What others may import of node.engine. Every other file there is an engine's own, a new one by itself."""


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rooms(package: str) -> set[str]:
    return {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}


def contracts() -> list[dict[str, object]]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def test_the_contract_on_what_the_trainer_imports_of_node_names_every_module_but_the_engine() -> None:
    """import-linter has no "all but": a module that is missing from the list could be imported unseen."""
    (contract,) = (each for each in contracts() if each.get("source_modules") == ["trainer"])
    modules = {path.stem for path in (ROOT / "node").glob("*.py")} - {"__init__"}
    assert sorted(contract["forbidden_modules"]) == sorted(
        f"node.{name}" for name in modules | rooms("node") - {"engine"}
    )


@pytest.mark.parametrize("package", ["protocol", "node", "trainer"])
def test_every_room_has_its_place_among_the_layers(package: str) -> None:
    (contract,) = (each for each in contracts() if each.get("containers") == [package])
    assert {name for layer in contract["layers"] for name in layer.split(" | ")} == rooms(package)


@pytest.mark.parametrize("package", ["protocol", "node", "trainer"])
def test_what_lies_flat_in_a_package_imports_none_of_its_rooms(package: str) -> None:
    above = {f"{package}.{room}" for room in rooms(package)}
    for path in (ROOT / package).glob("*.py"):
        if str(path.relative_to(ROOT)) not in ENTRIES:
            found = {name for name in imports(path) if ".".join(name.split(".")[:2]) in above}
            assert not found, f"{path.name} imports {found}"


def test_nobody_but_the_factory_reaches_an_engine() -> None:
    """And the factory by its name alone. What the seam imports is of the seam too, so that nobody comes round by it."""
    engines = {path.stem for path in (ROOT / "node/engine").glob("*.py")} - ENGINE_SEAM - {"__init__"}
    assert "torch_engine" in engines
    for path in (file for package in ("node", "trainer") for file in (ROOT / package).rglob("*.py")):
        if path.parent.name == "engine" and path.stem in engines:
            continue
        reached = {name for name in imports(path) if name.startswith("node.engine.") and name.split(".")[2] in engines}
        assert not reached, f"{path.relative_to(ROOT)} imports {reached}: ask node.engine.make_engine"


def test_scripts_import_nothing_of_the_tests() -> None:
    for path in (ROOT / "scripts").rglob("*"):
        if path.is_file() and (path.suffix == ".py" or path.read_bytes().startswith(b"#!/usr/bin/env python3")):
            assert not [name for name in imports(path) if name.split(".")[0] == "tests"], path


def test_what_rules_find_at_hand_is_put_together_in_one_place() -> None:
    """Worker, validator and replay judge with the same things: what one of them left out, a rule would find there alone."""
    makers = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "node").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("Candidate", "RunContext")
    }
    assert makers == {"node/judging/equipment.py"}


def test_a_class_name_has_one_meaning() -> None:
    """Private classes aside, no two modules of the packages define a class of the same name."""
    defined: dict[str, list[str]] = {}
    for package in ("protocol", "node", "trainer"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    defined.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert not {name: places for name, places in defined.items() if len(places) > 1}


def test_a_rooms_map_names_every_file_in_it_and_none_that_is_gone() -> None:
    """docs/developing.md sends people to these maps. A room that names no file says in a sentence what it is."""
    for package in ("protocol", "node", "trainer"):
        for path in (ROOT / package).rglob("__init__.py"):
            named = set(re.findall(r"(?<![\w/])(\w+)\.py", ast.get_docstring(ast.parse(path.read_text())) or ""))
            there = {file.stem for file in path.parent.glob("*.py")} - {"__init__"}
            assert not named or named == there, f"{path.parent.relative_to(ROOT)}: {sorted(named ^ there)}"
