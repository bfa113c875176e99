"""What is wrong with a table or document, a line for each place: pydantic finds it, this says it to people."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

_AS_PYDANTIC_SAYS = re.compile(r"^(Input|Value|List|Tuple|Dictionary|String) should ")


def complaints(
    error: ValidationError, tree: type[BaseModel], *, within: str = "", origins: Mapping[str, str] | None = None
) -> str:
    """Lines of the dotted path below `within`, what is wrong there, and of `origins` where that value came from.

    `tree` is the model that was validated. Of a key that it does not hold, the nearest one is named that it does.
    """
    return "\n".join(f"  {line}" for line in _lines(error, tree, within, origins or {}))


def _lines(error: ValidationError, tree: type[BaseModel], within: str, origins: Mapping[str, str]) -> Iterator[str]:
    found = [(without_tags(tree, e["loc"]), e) for e in error.errors(include_url=False, include_input=False)]
    for place, of_place in groupby(found, lambda pair: pair[0]):
        (_, e), *others = of_place
        path = ".".join(map(str, (within, *place) if within else place))
        origin = f" ({origins[path]})" if path in origins else ""
        if e["type"] == "missing":
            yield f"{path} is not set"
        elif e["type"] == "extra_forbidden":
            near = difflib.get_close_matches(str(place[-1]), _keys(tree, place[:-1]), 1, 0.5)
            yield f"unknown setting {path!r}{origin}" + (f", did you mean {near[0]!r}?" if near else "")
        else:
            # What a validator of ours raised is told as it said it, without pydantic's name for the kind.
            said = e["ctx"]["error"] if e["type"] in ("value_error", "assertion_error") else e["msg"]
            said = _AS_PYDANTIC_SAYS.sub("must ", str(said)).replace(" after validation", "")
            said = " or ".join([said, *(other["msg"].removeprefix("Input should be ") for _, other in others)])
            yield f"{path}: {said}{origin}" if path else str(said)


def without_tags(tree: type[BaseModel], place: tuple[Any, ...]) -> tuple[Any, ...]:
    """A place without the names that pydantic puts in for the members of a union: of a tagged one (by our rule, their classes'), and of the
    types that a plain value may have."""
    models, path, kinds = [tree], list[Any](), list[Any]()
    for key in place:
        if not isinstance(key, str) or any(key in model.model_fields for model in models):
            path.append(key)
            if isinstance(key, str):
                kinds = [model.model_fields[key].annotation for model in models if key in model.model_fields]
                models = [model for kind in kinds for model in _models_in(kind)]
        elif named := [model for model in models if model.__name__ == key]:
            models = named
        elif kinds and not models and not any(map(_holds_names, kinds)):
            break  # of a plain value: which of its types it is not
        else:
            path.append(key)
            models = []
    return tuple(path)


def _keys(tree: type[BaseModel], place: tuple[Any, ...]) -> list[str]:
    """The keys of the model at `place`: of those that a list or an optional field may hold, as well."""
    models = [tree]
    for key in place:
        if isinstance(key, str):
            fields = [model.model_fields[key] for model in models if key in model.model_fields]
            models = [model for field in fields for model in _models_in(field.annotation)]
    return [name for model in models for name in model.model_fields]


def _holds_names(annotation: Any) -> bool:
    """Whether keys that no model names may stand below it."""
    return annotation in (dict, Any) or get_origin(annotation) is dict or any(map(_holds_names, get_args(annotation)))


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)
