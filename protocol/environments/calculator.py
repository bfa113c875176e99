"""Arithmetic with a calculator: a turn that ends in <<47 * (12 + 3)>> is told the value, and another turn follows.

Problems are sums and products of random numbers; the answer is the number alone. The calculator is exact: fractions of whole numbers,
+ - * / and brackets, in at most EXPRESSION_MAX characters, so that nothing it is given takes long. What it cannot compute is told "error".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction

from pydantic import Field

from protocol.environments.answer import is_right
from protocol.environments.environment import Config, Environment
from protocol.rollout import ToolCall, ToolResult

TOOL = "calculator"
EXPRESSION_MAX = 200
_CALL = re.compile(r"<<([^<>]*)>>\s*\Z")
_TOKEN = re.compile(r"\s*([0-9]+|[-+*/()])")
_DEPTH_MAX = 40


class CalculatorConfig(Config):
    digits: int = Field(default=2, ge=1, le=9)
    """Of each number."""
    terms: int = Field(default=2, ge=2, le=8)
    operators: str = Field(default="+-*", pattern=r"^[-+*]{1,3}$")


class Calculator(Environment):
    """Entry: the text of an expression."""

    name = "calculator"
    version = "1"
    exact = True
    Config = CalculatorConfig

    def entry(self, index: int) -> str:
        draw, most = self.random(index), 10**self.config.digits - 1
        text = str(draw.randint(0, most))
        for _ in range(self.config.terms - 1):
            text += f" {draw.choice(self.config.operators)} {draw.randint(0, most)}"
        return text

    def prompt(self, entry: str) -> str:
        return f"What is {entry}? To calculate, end a turn with <<an expression>>; you are told its value. Then answer with the number alone."

    def reply(self, entry: str, turns: Sequence[str]) -> ToolResult | None:
        expression = _call_in(turns[-1])
        if expression is None:
            return None
        result = value(expression)
        return ToolResult(result, (ToolCall(len(turns) - 1, TOOL, expression, result),))

    def as_call(self, text: str) -> str | None:
        call = f"<<{text}>>"
        return call if _call_in(call) is not None else None

    def score(self, entry: str, completion: str) -> float:
        return float(is_right(completion, self.answer(entry)))

    def answer(self, entry: str) -> str:
        return value(entry)


def _call_in(turn: str) -> str | None:
    """The expression that a turn ends in; None: it ends in none, or in one that is too long or no text."""
    call = _CALL.search(turn)
    if call is None or len(call[1]) > EXPRESSION_MAX or any("\ud800" <= letter <= "\udfff" for letter in call[1]):
        return None
    return call[1]


def value(expression: str) -> str:
    """A whole number, a fraction in lowest terms, or "error"."""
    try:
        tokens = list(_tokens(expression))
        found, end = _sum(tokens, 0, 0)
        return str(found) if end == len(tokens) else "error"
    except (ValueError, ZeroDivisionError, IndexError):
        return "error"


def _tokens(expression: str) -> Iterator[str]:
    place = 0
    expression = expression.rstrip()
    while place < len(expression):
        found = _TOKEN.match(expression, place)
        if found is None:
            raise ValueError(expression)
        yield found[1]
        place = found.end()


def _sum(tokens: Sequence[str], at: int, depth: int) -> tuple[Fraction, int]:
    found, at = _product(tokens, at, depth)
    while at < len(tokens) and tokens[at] in "+-":
        sign = 1 if tokens[at] == "+" else -1
        term, at = _product(tokens, at + 1, depth)
        found += sign * term
    return found, at


def _product(tokens: Sequence[str], at: int, depth: int) -> tuple[Fraction, int]:
    found, at = _factor(tokens, at, depth)
    while at < len(tokens) and tokens[at] in "*/":
        divides = tokens[at] == "/"
        factor, at = _factor(tokens, at + 1, depth)
        found = found / factor if divides else found * factor
    return found, at


def _factor(tokens: Sequence[str], at: int, depth: int) -> tuple[Fraction, int]:
    if depth > _DEPTH_MAX:
        raise ValueError("brackets within brackets")
    if tokens[at] == "-":
        found, at = _factor(tokens, at + 1, depth + 1)
        return -found, at
    if tokens[at] == "(":
        found, at = _sum(tokens, at + 1, depth + 1)
        if tokens[at] != ")":
            raise ValueError("a bracket that is not closed")
        return found, at + 1
    return Fraction(int(tokens[at])), at + 1
