"""No problem, score or reply depends on what ran in the sandbox's child before: each environment finds the process as a fresh one is."""

from __future__ import annotations

import datetime
from types import ModuleType
from typing import Any

import pytest

from protocol.environments import reasoning
from protocol.environments.problems import Problem
from protocol.replies import Asked
from protocol.runspec import Generated
from protocol.sandbox import EnvironmentSandbox
from protocol.sandbox.inspection import examination
from protocol.sandbox.inspection.examinee import Examinee
from protocol.shell import runfile
from tests.protocol.conftest import Install
from tests.protocol.test_inspection import found

STATES = """
import calendar, decimal, importlib, locale, os, random, sys, time, warnings

import numpy as np

from protocol.environments import Environment


def state():
    import mpmath

    return {
        "decimal": str(decimal.getcontext()).replace("Inexact, ", "").replace("Rounded", ""),
        "of new threads": str(decimal.DefaultContext),
        "generators": (random.random(), np.random.random()),
        "locale": locale.setlocale(locale.LC_ALL),
        "variables": (os.environ.get("UNRULY"), time.tzname, os.getcwd()),
        "limits": (sys.getrecursionlimit(), sys.get_int_max_str_digits()),
        "numpy": (np.geterr(), np.get_printoptions()),
        "others": (calendar.firstweekday(), [one[0] for one in warnings.filters][:1], mpmath.mp.prec),
    }


def disturb():
    import mpmath

    for context in (decimal.getcontext(), decimal.DefaultContext):
        context.prec, context.rounding = 3, decimal.ROUND_UP
        context.traps[decimal.Inexact] = True
    random.seed(time.time())
    np.random.seed(None)
    locale.setlocale(locale.LC_ALL, "C.UTF-8" if locale.setlocale(locale.LC_ALL) == "C" else "C")
    os.environ.update(UNRULY="1", TZ="Pacific/Apia")
    time.tzset()
    os.chdir("/")
    sys.setrecursionlimit(3000)
    sys.set_int_max_str_digits(0)
    np.seterr(all="raise")
    np.set_printoptions(precision=2)
    calendar.setfirstweekday(6)
    warnings.simplefilter("error")
    mpmath.mp.prec = 200


class Observer(Environment):
    name = "observer"
    exact = True

    def entry(self, index):
        return state()

    def prompt(self, entry):
        return repr(entry)

    def reply(self, entry, turns):
        return repr(state())

    def score(self, entry, completion):
        return float(completion == repr(state()))


class Unruly(Observer):
    name = "unruly"

    def entry(self, index):
        disturb()
        return index

    def reply(self, entry, turns):
        disturb()
        return "well"

    def score(self, entry, completion):
        disturb()
        return 0.5
"""


def environment(package: str, version: str = "1.0", dataset: str = "check", seed: int = 5, **config: Any) -> Generated:
    return Generated(
        package=package, version=version, dataset=dataset, config=config, seed=seed, size=100, head="0" * 64, exact=True,
        held_out_seed=1 << 30, held_out_size=2,
    )  # fmt: skip


def of_reasoning_gym(dataset: str, seed: int = 5, **config: Any) -> Generated:
    return environment("reasoning-gym", reasoning.EXAMINED_VERSION, dataset, seed, **config)


def asked(problem: int) -> Asked:
    return Asked(problem, ["say it"])


@pytest.fixture
def states(install: Install) -> None:
    install(STATES, name="observer = states:Observer\nunruly", place="states:Unruly")


def test_nothing_that_one_environment_sets_reaches_another(states: None) -> None:
    specs = [environment("unruly"), environment("observer")]
    with EnvironmentSandbox(specs) as fresh:
        (want,) = fresh.problems([100])
    with EnvironmentSandbox(specs) as sandbox:
        for number in range(3):
            sandbox.score([(number, "disturb")])
            (seen,) = sandbox.problems([100])
            assert seen == want
            sandbox.problems([number])
            assert sandbox.score([(100, want.prompt)]) == [1]
            (disturbed, replies) = sandbox.replies([asked(number), asked(100)])
            assert [disturbed[0].text, replies[0].text] == ["well", want.prompt]
        assert sandbox.restarts == 0


SETS = """
from decimal import Decimal, getcontext

from protocol.environments import Config, Environment

getcontext().prec = 60


class SevenConfig(Config):
    precision: int = 0


class Seventh(Environment):
    name = "seventh"
    exact = True
    Config = SevenConfig
    drawn = {}

    def __init__(self, spec, *, held_out):
        super().__init__(spec, held_out=held_out)
        if self.config.precision:
            getcontext().prec = self.config.precision

    def entry(self, index):
        return self.drawn.setdefault((self.held_out, index), self.random(index).randint(1, 10**9))

    def prompt(self, entry):
        return f"What is {entry} / 7, to {getcontext().prec} digits?"

    def answer(self, entry):
        return str(Decimal(entry) / 7)

    def score(self, entry, completion):
        return float(completion == self.answer(entry))
"""


def test_what_a_constructor_sets_holds_and_what_an_import_sets_does_not(install: Install) -> None:
    install(SETS, name="seventh", place="seventh:Seventh")
    specs = [environment("seventh", precision=precision) for precision in (6, 0, 40)]
    order = [200, 0, 100, 1, 201, 101]
    with EnvironmentSandbox(specs) as sandbox, EnvironmentSandbox(specs[::-1]) as other:
        asked = sandbox.problems(order)
        held_out = sandbox.held_out()
        again = other.problems([200 - index // 100 * 100 + index % 100 for index in order])
        assert sandbox.score([(one.index, one.answer) for one in asked]) == [1] * len(asked)
    digits = {0: "6 digits", 1: "28 digits", 2: "40 digits"}
    assert all(digits[one.environment] in one.prompt for one in [*asked, *held_out])
    assert [one.answer for one in asked] == [one.answer for one in again]


@pytest.mark.usefixtures("quick_inspection")
def test_what_an_import_sets_and_what_is_kept_between_environments_is_named(install: Install) -> None:
    """By itself, in whatever order, it draws the same: `drawn` forgets only whose problem it was."""
    install(SETS, name="seventh", place="seventh:Seventh")
    of = found(runfile.environment_alone("seventh", "check", {}, []))
    assert {name for name, seen in of.items() if seen.holds is False} == {"process", "beside others"}
    assert "an import sets the decimal context" in of["process"].detail
    assert "is another one" in of["beside others"].detail


def test_what_is_put_back_is_named_and_is_no_fault(states: None) -> None:
    with Examinee(environment("unruly"), 20.0, 0) as examinee:
        assert not examinee.told().left
        examinee.drawn([0])
        examinee.told()
        seen = examination._of_process(examinee.told())
    assert seen.holds
    assert "sets decimal.DefaultContext, environment variables" in seen.detail


def drawn_and_scored(sandbox: EnvironmentSandbox, indices: list[int]) -> tuple[list[Problem], list[float]]:
    problems = sandbox.problems(indices)
    texts = [(p.index, text) for p in problems for text in (p.answer, f"{p.answer}1", f"{p.answer}00", "7")]
    return problems, sandbox.score(texts)


def test_a_precision_that_a_set_of_reasoning_gym_computes_with_is_its_own() -> None:
    """decimal_arithmetic sets that of the process whenever it draws; decimal_chain_sum draws and scores with whatever it finds."""
    specs = [
        of_reasoning_gym("decimal_arithmetic", precision=6),
        of_reasoning_gym("decimal_arithmetic", precision=12),
        of_reasoning_gym("decimal_chain_sum"),
        of_reasoning_gym("decimal_chain_sum", max_digits=10),
    ]
    with EnvironmentSandbox(specs) as first, EnvironmentSandbox(specs) as second:
        first.problems([1, 101, 2, 0])
        indices = [*range(200, 240), *range(300, 340), *range(10), *range(100, 110)]
        assert drawn_and_scored(first, indices) == drawn_and_scored(second, indices)


def test_no_problem_of_reasoning_gym_depends_on_the_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two times of one problem, parsed at midnight."""
    from dateutil.parser import _parser

    times = reasoning.ReasoningGym(of_reasoning_gym("time_intervals"), held_out=False)
    before = [times.entry(index)["answer"] for index in range(40)]
    days = iter(range(1, 10_000))

    class Midnight(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
            return datetime.datetime(2026, 1, 1) + datetime.timedelta(days=next(days))

    clock = ModuleType("datetime")
    vars(clock).update(vars(datetime) | {"datetime": Midnight})
    monkeypatch.setattr(_parser, "datetime", clock)
    assert [times.entry(index)["answer"] for index in range(40)] == before
