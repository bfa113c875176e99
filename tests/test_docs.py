"""What the pages point at is there: files, links, sections, commands, settings and ports; and so are the settings that messages and hints name."""

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
from protocol.page import server as page_server
from protocol.runspec import RunSpec
from protocol.runspec_environments import FromFiles, Generated
from protocol.shell.peers import BootnodeSettings
from protocol.shell.runfile import PolicyTable
from trainer.config import RunSettings, SoloTable

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TOP = ("contracts", "docs", "node", "protocol", "scripts", "tests", "trainer")
_PAGES_OF_ROLES = ("contribute.md", "validate.md", "relay.md", "train-a-run.md")
_WORDS_MOST = 22
"""Of a sentence on these pages, code aside."""
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


@cache
def sections(page: Path) -> set[str]:
    """The names that a link to a part of the page may end in, as GitHub makes them of headings."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", one) for one in re.findall(r"^#+ (.+)$", text, re.MULTILINE))
    slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)"', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_section_that_a_page_links_to_is_there(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:\s]*\.md)?#([^)\s]+)\)", page.read_text())
    assert not [
        f"{to}#{name}" for to, name in links if name not in sections((page.parent / to).resolve() if to else page)
    ]


@pytest.mark.parametrize("name", _PAGES_OF_ROLES)
def test_a_roles_page_opens_with_a_picture_and_speaks_in_short_sentences(name: str) -> None:
    text = (ROOT / "docs" / name).read_text()
    opening, _, _ = text.partition("\n## ")
    assert re.search(r"^!\[[^]]{20,}\]\(pictures/", opening, re.MULTILINE)
    prose = re.sub(
        r"^ *```.*?^ *```|^\|.*?$|^!.*?$|^#.*?$|\]\([^)]*\)|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE
    )
    sentences = re.split(r"[.!?](?:\s|\*\*|$)|\n\n|^ *(?:-|\d+\.) ", prose, flags=re.MULTILINE)
    assert not [each for each in sentences if len(each.split()) > _WORDS_MOST]


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


def ports(tree: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """(setting, default, where) of each port that a role with these settings listens on."""
    for name, field in tree.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            yield from ports(section, f"{prefix}{name}.")
        elif name == "listen":
            _, host, port = re.fullmatch(r"/ip(4|6)/(.+)/tcp/(\d+)", field.default).groups()  # type: ignore[union-attr]
            yield prefix + name, _port(int(port)), _where(host)
        elif name == "port" or name.endswith("_port"):
            host = tree.model_fields["host"].default if "host" in tree.model_fields else page_server.HOST
            yield prefix + name, _port(field.default), _where(host)


def _port(number: int | None) -> str:
    return "off" if number is None else str(number) if number else "any free port"


def _where(host: str) -> str:
    return {"0.0.0.0": "all addresses", "127.0.0.1": "loopback"}[host]


def test_the_table_of_ports_names_every_port_with_its_default() -> None:
    roles: dict[str, type[BaseModel]] = {
        "node": NodeSettings, "validator": ValidatorSettings, "relay": RelaySettings, "bootnode": BootnodeSettings, "trainer": RunSettings,
    }  # fmt: skip
    expected = {(role, *port) for role, tree in roles.items() for port in ports(tree)}
    table = (ROOT / "docs" / "running.md").read_text().partition("\n## Ports\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\w+) \| `([\w.]+)` \| ([^|;]+?)(?:; [^|]*)? \| ([^|]+?) \|", table, re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert set(rows) == expected


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
