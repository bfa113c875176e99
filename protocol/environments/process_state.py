"""State that a whole process shares, and that an environment may set or depend on: the decimal context, global generators and the like.

A child runs several environments, asked in another order on each machine, and is sometimes replaced by a fresh one. So before each call
of an environment its process is put back: to what it was at the start, with what the environment's own constructor has set since. What
an import sets is put back too, because a module is imported once, by whichever environment comes first.

Does not cover: variables of modules, and caches. `murmur env check` draws beside other environments to see those.
"""

from __future__ import annotations

import calendar
import decimal
import locale
import os
import random
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

E = TypeVar("E")


@dataclass(frozen=True)
class _Setting:
    """`write` takes what `read` gave."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    module: str = "sys"
    """Before it is imported there is nothing to read."""
    fresh: Callable[[], Any] | None = None
    """What each process begins with; without it, what this one had. A generator begins alike in all."""
    blind: bool = False
    """Whether it is quicker to write than to compare."""
    is_quiet: bool = False
    """Whether imports change it and mean no harm."""


def _context(of: decimal.Context) -> tuple[Any, ...]:
    traps = frozenset(one for one, on in of.traps.items() if on)
    return of.prec, of.rounding, of.Emin, of.Emax, of.capitals, of.clamp, traps


def _set_context(value: tuple[Any, ...]) -> None:
    prec, rounding, least, most, capitals, clamp, traps = value
    decimal.setcontext(decimal.Context(prec, rounding, least, most, capitals, clamp, [], list(traps)))


def _set_default_context(value: tuple[Any, ...]) -> None:
    of = decimal.DefaultContext
    of.prec, of.rounding, of.Emin, of.Emax, of.capitals, of.clamp, _ = value
    of.traps = dict.fromkeys(of.traps, False) | dict.fromkeys(value[6], True)


def _set_filters(value: list[Any]) -> None:
    warnings.resetwarnings()  # also has modules forget what they remember of the filters
    warnings.filters.extend(value)  # type: ignore[attr-defined]


def _set_variables(value: dict[str, str]) -> None:
    for name in os.environ.keys() - value.keys():
        del os.environ[name]
    os.environ.update(value)
    time.tzset()


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


def _set_folder(value: str) -> None:
    with suppress(OSError):  # somebody has removed it: a fresh child could not be there either
        os.chdir(value)


def _numpy() -> Any:
    import numpy.random

    return numpy


def _mpmath() -> Any:
    return sys.modules["mpmath"].mp


def _set_mpmath(value: int) -> None:
    _mpmath().prec = value


def _sympy() -> list[bool]:
    return [getattr(sys.modules[_OF_SYMPY].global_parameters, name) for name in _PARAMETERS]


def _set_sympy(value: list[bool]) -> None:
    for name, one in zip(_PARAMETERS, value, strict=True):
        setattr(sys.modules[_OF_SYMPY].global_parameters, name, one)


def _generator() -> Any:
    return _numpy().random.get_state()


def _set_generator(value: Any) -> None:
    _numpy().random.set_state(value)


_FRESH_CONTEXT = (
    28, decimal.ROUND_HALF_EVEN, -999999, 999999, 1, 0,
    frozenset([decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow]),
)  # fmt: skip
_OF_SYMPY = "sympy.core.parameters"
_PARAMETERS = ("evaluate", "distribute", "exp_is_pow")
_SETTINGS = (
    _Setting("the decimal context", lambda: _context(decimal.getcontext()), _set_context, fresh=lambda: _FRESH_CONTEXT, blind=True),
    _Setting("decimal.DefaultContext", lambda: _context(decimal.DefaultContext), _set_default_context),
    _Setting("the generator of `random`", random.getstate, random.setstate, fresh=lambda: random.Random(0).getstate(), blind=True, is_quiet=True),
    _Setting(
        "the generator of numpy", _generator, _set_generator,
        fresh=lambda: _numpy().random.RandomState(0).get_state(), blind=True, is_quiet=True,
    ),
    _Setting("numpy's treatment of errors", lambda: _numpy().geterr(), lambda value: _numpy().seterr(**value)),
    _Setting("numpy's print options", lambda: _numpy().get_printoptions(), lambda value: _numpy().set_printoptions(**value)),
    _Setting("the locale", lambda: locale.setlocale(locale.LC_ALL), lambda value: locale.setlocale(locale.LC_ALL, value)),
    _Setting("environment variables", lambda: dict(os.environ), _set_variables, is_quiet=True),
    _Setting("the time zone", lambda: (time.tzname, time.timezone), lambda _: time.tzset()),
    _Setting("the working directory", _folder, _set_folder),
    _Setting("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    _Setting("the digits of whole numbers as text", sys.get_int_max_str_digits, sys.set_int_max_str_digits),
    _Setting("warnings", lambda: list(warnings.filters), _set_filters, is_quiet=True),
    _Setting("the first day of a week", calendar.firstweekday, calendar.setfirstweekday),
    _Setting("the precision of mpmath", lambda: _mpmath().prec, _set_mpmath, module="mpmath", fresh=lambda: 53),
    _Setting("what sympy evaluates", _sympy, _set_sympy, module=_OF_SYMPY, fresh=lambda: [True, True, False]),
)  # fmt: skip

State = dict[str, Any]


def _read() -> State:
    return {one.name: one.read() for one in _SETTINGS if one.module in sys.modules}


@cache
def _fresh() -> State:
    return {one.name: one.fresh() for one in _SETTINGS if one.fresh is not None}


def _write(state: State) -> None:
    for one in _SETTINGS:
        if one.module in sys.modules:
            value = state[one.name]
            if one.blind or one.read() != value:
                one.write(value)


def _differences(before: State, after: State) -> list[_Setting]:
    return [one for one in _SETTINGS if _plain(after.get(one.name)) != _plain(before[one.name]) and one.name in after]


def _plain(value: Any) -> Any:
    """As something that can be compared: numpy's state holds an array."""
    return [part.tobytes() if hasattr(part, "tobytes") else part for part in value] if type(value) is tuple else value


class Isolation:
    """Has each environment find the process as it was when this was made, but for what its own constructor has set."""

    def __init__(self) -> None:
        self._beginning = _read() | _fresh()
        self._opened: dict[int, tuple[object, State]] = {}
        self.set_by_imports: set[str] = set()
        """What imports have set, in vain: it is put back."""

    def open(self, make: Callable[[], E]) -> E:
        """The environment that `make` makes. It is made twice where its imports have set something: what a second time sets is its own."""
        _write(self._beginning)
        imported = len(sys.modules)
        environment = make()
        state = self._beginning | _read()
        if len(sys.modules) > imported and (set_once := _differences(self._beginning, state)):
            _write(self._beginning)
            environment = make()
            state = self._beginning | _read()
            kept = {one.name for one in _differences(self._beginning, state)}
            self.set_by_imports |= {one.name for one in set_once if not one.is_quiet and one.name not in kept}
        self._opened[id(environment)] = environment, state
        return environment

    def restore(self, environment: object) -> None:
        """Before each call of what `open` gave."""
        _, state = self._opened[id(environment)]
        _write(state)

    def forget(self, environment: object) -> None:
        """What is not called any more."""
        del self._opened[id(environment)]

    def changed(self, environment: object) -> list[str]:
        """What has been set since, by name."""
        _, state = self._opened[id(environment)]
        return [one.name for one in _differences(state, _read())]
