"""What the pages point at is there: files, links, commands and settings; and so are the settings that messages and hints name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from pydantic import BaseModel

from node.contributor.settings import NodeSettings
from node.relay.service import RelaySettings
from node.validator.settings import ValidatorSettings
from protocol.runspec import RunSpec
from protocol.runspec_environments import FromFiles, Generated
from protocol.shell.runfile import PolicyTable
from trainer.config import RunSettings, SoloTable

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TOP = ("contracts", "docs", "node", "protocol", "scripts", "tests", "trainer")
_LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
_COMMAND = re.compile(r"(?:`|^\$ )(murmur|node) ([a-z][a-z-]*(?: [a-z][a-z-]*)*)", re.MULTILINE)
_PATH = re.compile(rf"`((?:{'|'.join(TOP)})/[\w./-]+)[^`]*`")


def missing(page: Path) -> Iterator[str]:
    text = page.read_text()
    yield from (link for link in _LINK.findall(text) if not (page.parent / link).exists())
    named = (path.rstrip(".") for path in _PATH.findall(text) if "NAME" not in path)
    yield from (path for path in named if not (ROOT / path).exists())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    assert not list(missing(page))


def commands() -> set[str]:
    """Every command and group of the reference, which is made from the programs themselves."""
    reference = (ROOT / "docs" / "reference-cli.md").read_text()
    found = [line.strip("#` ").split() for line in reference.splitlines() if re.match(r"##+ `?murmur ", line)]
    return {" ".join(words[1:n]) for words in found for n in range(2, len(words) + 1)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_a_page_names_is_there(page: Path) -> None:
    known = commands()
    for called, words in _COMMAND.findall(page.read_text()):
        named = ([] if called == "murmur" else ["node"]) + words.split()
        is_group = any(each.startswith(f"{named[0]} ") for each in known)
        assert " ".join(named[: 1 + is_group]) in known, f"{called} {words}"


_TREES: tuple[tuple[str, type[BaseModel]], ...] = (
    ("spec.", RunSpec), ("spec.environments.", Generated), ("spec.environments.", FromFiles), ("policy.", PolicyTable), ("solo.", SoloTable),
)  # fmt: skip
_FILES = ("json", "jsonl", "py", "safetensors", "sqlite", "toml")
_PROGRAMS = [path for room in ("protocol", "node", "trainer") for path in sorted((ROOT / room).rglob("*.py"))]
_OTHERS = {"trainer.hub", "spec.sampling.distribution"}  # a package in decisions/0006, a property in vllm_sampling.py


def paths(tree: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in tree.model_fields.items():
        yield prefix + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from paths(field.annotation, f"{prefix}{name}.")


@cache
def settings() -> set[str]:
    """Every setting and section of every role's file, by its dotted path."""
    roles = (RunSettings, NodeSettings, ValidatorSettings, RelaySettings)
    return {path for tree in roles for path in paths(tree)} | {
        path for prefix, tree in _TREES for path in (prefix.rstrip("."), *paths(tree, prefix))
    }


def unknown(texts: Iterator[str], below: tuple[str, ...]) -> Iterator[str]:
    """What reads like a setting in `texts`, and is none. A path may begin in a section of `below` ("" is the top)."""
    known = {path.removeprefix(prefix) for path in settings() for prefix in below if path.startswith(prefix)}
    sections = {path.split(".")[0] for path in known if "." in path}
    for text in texts:
        for path in re.findall(r"(?<![\w./-])[a-z]\w*(?:\.[a-z]\w*)+(?![\w(])", text):
            first, last = path.split(".")[0], path.split(".")[-1]
            if first in sections and path not in known | _OTHERS and last not in _FILES:
                yield path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_setting_that_a_page_names_is_there(page: Path) -> None:
    quoted = re.findall(r"`[^`\n]+`", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL))
    assert not list(unknown(iter(quoted), ("", "spec.", "trainer.")))


def test_every_setting_that_a_program_names_is_there() -> None:
    for path in _PROGRAMS:
        nodes = ast.walk(ast.parse(path.read_text()))
        texts = (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
        assert not list(unknown(texts, ("",))), path
