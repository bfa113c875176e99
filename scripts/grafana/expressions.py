"""What an expression of a board or an alert asks for: metrics with the labels that they are asked by. No more of PromQL than ours use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_SELECTOR = re.compile(r"\b((?:murmur|process)_\w+|up)\b(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"[^"]*"')
_GROUPED = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_SHOWN = re.compile(r"\{\{ *(?:\$labels\.)?(\w+) *\}\}")
_OF_GRAFANA = {"$instance": ".+", "$__rate_interval": "1m"}


@dataclass(frozen=True)
class Selector:
    """`text`: as it stands there."""

    text: str
    metric: str
    labels: tuple[str, ...]


def selectors(expression: str) -> Iterator[Selector]:
    for found in _SELECTOR.finditer(expression):
        yield Selector(found.group(), found.group(1), tuple(_MATCHER.findall(found.group(2) or "")))


def grouped(expression: str) -> set[str]:
    """Labels by which it sums up or joins."""
    return {label.strip() for found in _GROUPED.findall(expression) for label in found.split(",") if label.strip()}


def shown(text: str) -> set[str]:
    """Labels that a legend or a sentence shows."""
    return {label for label in _SHOWN.findall(text) if label != "value"}


def asked(expression: str) -> str:
    """As Grafana sends it, all instances chosen."""
    for name, value in _OF_GRAFANA.items():
        expression = expression.replace(name, value)
    return expression
