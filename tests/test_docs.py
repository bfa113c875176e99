"""What the pages point at is there: files, links and commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TOP = ("contracts", "docs", "node", "protocol", "scripts", "tests", "trainer")
_LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
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
    for called, words in re.findall(r"`(murmur|node) ([a-z][a-z-]*(?: [a-z][a-z-]*)*)", page.read_text()):
        named = ([] if called == "murmur" else ["node"]) + words.split()
        is_group = any(each.startswith(f"{named[0]} ") for each in known)
        assert " ".join(named[: 1 + is_group]) in known, f"{called} {words}"
