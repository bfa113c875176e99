"""Configuration in layers: command line > environment > TOML file > default. Every value knows where it came from.

A role's settings are one tree of pydantic models. A TOML key or an override that the tree does not hold is an error that
names the nearest one it does hold; a wrong value is an error that names its place and origin.

Environment: MURMUR_ and the path in capitals with two underscores between levels, e.g. MURMUR_CHAIN__RPC. Several roles may
share an environment: a variable of a section that the tree does not hold is another role's and ignored. In a section that
it does hold, a key that it does not is the same error as in TOML. MURMUR_ names without two underscores are ignored too
unless they are settings.
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from protocol.complaints import complaints
from protocol.errors import ConfigError, PreflightError, UsageError
from protocol.http_url import shown_setting

PREFIX = "MURMUR_"
_NOT_SETTINGS = {"MURMUR_PASSWORD", "MURMUR_PYTHON"}  # read elsewhere; a password is never a setting


class Settings(BaseModel):
    """Base of all settings: immutable, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


S = TypeVar("S", bound=Settings)


class Loaded(Generic[S]):
    """Settings and the origin of each value, by dotted path."""

    def __init__(self, value: S, origins: dict[str, str]) -> None:
        self.value = value
        self.origins = origins

    def table(self) -> dict[str, Any]:
        """All settings as nested tables, for people: URLs without their secrets."""
        return dict(shown_setting(self.value.model_dump(mode="json")))

    def lines(self) -> Iterator[tuple[str, Any, str]]:
        """(path, value, origin) of every setting, for people: URLs without their secrets."""
        for path, value in leaves(self.table()):
            yield path, value, self.origins.get(path, "default")


def load(
    tree: type[S], file: Path | None, overrides: Mapping[str, Any] | None = None, *, tables: tuple[str, ...] = ()
) -> Loaded[S]:
    """Reads `file` (None: no file), the environment and `overrides` by dotted path; None overrides count as not given.

    `tables`: top-level tables of the file that belong to somebody else and are skipped.
    """
    values: dict[str, tuple[Any, str]] = {}
    known = list(_paths(tree))
    sections = {path.split(".")[0] for path in known if "." in path}
    if file is not None:
        for path, value in leaves({k: v for k, v in read_toml(file).items() if k not in tables}):
            values[_known(path, known, str(file))] = (value, str(file))
    for name, text in os.environ.items():
        if name.startswith(PREFIX) and name not in _NOT_SETTINGS:
            path = name[len(PREFIX) :].lower().replace("__", ".")
            if path in known or path.split(".")[0] in sections:  # other roles' variables may be set as well
                origin = f"environment {name}"
                values[_known(path, known, origin)] = (_from_text(text), origin)
    for path, value in (overrides or {}).items():
        if value is not None:
            values[_known(path, known, "command line")] = (value, "command line")
    nested: dict[str, Any] = {}
    for path, (value, _) in values.items():
        place = nested
        *parents, leaf = path.split(".")
        for parent in parents:
            place = place.setdefault(parent, {})
        place[leaf] = value
    origins = {path: origin for path, (_, origin) in values.items()}
    try:
        return Loaded(tree.model_validate(nested), origins)
    except ValidationError as error:
        heading = "the configuration is wrong" + (f" ({file})" if file else "")
        raise ConfigError(f"{heading}:\n{complaints(error, tree, origins=origins)}") from None


def checked(tree: type[S], values: Mapping[str, Any], section: str = "") -> S:
    """What a command was given for a role's settings, or for one section of them, before it writes them. Raises ConfigError."""
    try:
        return tree.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(f"the settings are wrong:\n{complaints(error, tree, within=section)}") from None


def parse_overrides(texts: Iterable[str]) -> dict[str, Any]:
    """Values by dotted path from `PATH=VALUE` arguments. Raises UsageError."""
    found = {}
    for text in texts:
        path, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"{text!r} is no setting", hint="write it as trainer.steps=500")
        found[path.strip()] = _from_text(value.strip())
    return found


def as_environment(overrides: Mapping[str, Any]) -> dict[str, str]:
    """The same values as variables, for child processes that read the same file."""
    return {PREFIX + path.upper().replace(".", "__"): _as_text(value) for path, value in overrides.items()}


def read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error


def write_toml(file: Path, tables: Mapping[str, Any], comment: str, *, mode: int | None = None) -> None:
    """Writes what `toml` makes, for files that commands make: all of it, or nothing; with the rights of `mode`, else the usual ones. Raises PreflightError."""
    arriving = file.with_name(f".{file.name}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            if mode is not None:
                arriving.touch(mode)
            arriving.write_text(toml(tables, comment))
            os.replace(arriving, file)
        except BaseException:
            arriving.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise PreflightError(
            f"cannot write {file}: {error.strerror}", hint="free some space or check the folder's rights"
        ) from error


def toml(tables: Mapping[str, Any], comment: str) -> str:
    """Nested tables of strings, integers, floats, booleans and lists as TOML."""
    lines = [f"# {line}" for line in comment.splitlines()]
    _write_table(lines, "", tables)
    return "\n".join(lines) + "\n"


def _write_table(lines: list[str], name: str, table: Mapping[str, Any]) -> None:
    plain = {k: v for k, v in table.items() if not isinstance(v, Mapping) and v is not None and not _is_tables(v)}
    if name and plain:
        lines += ["", f"[{name}]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in plain.items()]  # JSON scalars and lists are valid TOML
    for key, value in table.items():
        path = f"{name}.{key}" if name else key
        if isinstance(value, Mapping):
            _write_table(lines, path, value)
        elif _is_tables(value):
            for item in value:
                lines += ["", f"[[{path}]]"]
                lines += [f"{k} = {_inline(v)}" for k, v in item.items() if not isinstance(v, Mapping)]
                lines += [f"{k} = {_inline(v)}" for k, v in item.items() if isinstance(v, Mapping)]


def _inline(value: Any) -> str:
    if not isinstance(value, Mapping):
        return json.dumps(value)
    return "{" + ", ".join(f"{key} = {_inline(inner)}" for key, inner in value.items()) + "}"


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _paths(tree: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in tree.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _paths(kind, f"{prefix}{name}.")
        else:
            yield prefix + name


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of everything in nested tables."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _known(path: str, known: list[str], origin: str) -> str:
    if path in known:
        return path
    near = difflib.get_close_matches(path, known, 1, 0.5)
    raise ConfigError(f"unknown setting {path!r} ({origin})", hint=f"did you mean {near[0]!r}?" if near else "")


def _from_text(text: str) -> Any:
    """A TOML value where the text is one (numbers, lists, booleans), the text itself otherwise."""
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
