"""An environment is one file and one line: what docs/environments.md shows works, and what is wrong is named once."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from swarm.tiny_run import TinyRun, run_tables

from node.judging.judge import judge
from protocol.environments import TaskSet
from protocol.environments.assignment import mixture
from protocol.errors import ConfigError, MurmurationError, PreflightError, Unavailable, VersionMismatch
from protocol.reward import canonical
from protocol.runspec import EnvironmentSpec, Generated, RunSpec
from protocol.sandbox import EnvironmentSandbox, Sandbox
from protocol.settings import write_toml
from protocol.shell import runfile
from tests.protocol.conftest import ROOT, Install

PAGE = (ROOT / "docs/environments.md").read_text()


def block(opening: str) -> str:
    """The page's block of code that begins with this line."""
    (found,) = (b for b in re.findall(r"```\w+\n(.*?)```", PAGE, re.DOTALL) if b.startswith(opening))
    return found


@pytest.fixture
def sums(install: Install) -> None:
    install(block("# sums.py"))


def spec_of(folder: Path, tiny_run: TinyRun, table: dict[str, Any]) -> RunSpec:
    tables = run_tables()
    tables["spec"]["environments"] = [table]
    write_toml(folder / "run.toml", tables, "x")
    return runfile.complete(folder / "run.toml", tiny_run.model)


def table_of_the_page() -> dict[str, Any]:
    (table,) = tomllib.loads(block("# run.toml"))["spec"]["environments"]
    return table


def test_the_page_registers_what_it_writes() -> None:
    points = tomllib.loads(block("# pyproject.toml"))["project"]["entry-points"]["murmuration.environments"]
    assert points == {"sums": "sums:Sums"}


def test_the_pages_environment_is_generated_scored_and_judged(tmp_path: Path, tiny_run: TinyRun, sums: None) -> None:
    spec = spec_of(tmp_path, tiny_run, table_of_the_page())
    (environment,) = spec.environments
    assert (environment.version, environment.exact) == ("1.0", True)
    with Sandbox(spec) as sandbox:
        tasks = TaskSet(spec.environments, sandbox)
        tasks.require_same_problems()
        assert len({problem.prompt for problem in tasks.held_out}) == 100
        problem = tasks.problem(99_999)
        left, right = map(int, re.findall(r"\d+", problem.prompt))
        assert problem.answer == str(left + right)
        answers = [(99_999, f" {left + right}\n"), (99_999, "I do not know"), (99_999, None)]
        assert sandbox.score(answers) == [1.0, 0.0, 0.0]

        context = replace(tiny_run.context, spec=spec, tasks=tasks, sandbox=sandbox)
        run = replace(tiny_run, folder=tmp_path, spec=spec, context=context)
        made = run.honest()
        assert judge(run.candidate(made)) is None
        file = run.read(made)
        claimed = tuple(replace(s, task_reward=1.0, reward=1.0 - s.length_penalty) for s in file.samples)
        finding = judge(run.rewrite(made, replace(file, samples=claimed)))
        assert finding is not None
        assert finding.rule == "reward"
    assert "sums" not in sys.modules  # drawn, asked and scored in the child alone


def environment(**changes: Any) -> EnvironmentSpec:
    values = {
        "package": "sums", "version": "1.0", "dataset": "x", "seed": 1, "size": 100, "head": "0" * 64, "exact": False,
        "held_out_seed": 2, "held_out_size": 4, **changes,
    }  # fmt: skip
    return Generated.model_validate(values)


WRONG: list[tuple[dict[str, Any], type[MurmurationError], str]] = [
    ({"package": "summs"}, ConfigError, "no environment is called 'summs' here; did you mean 'sums'"),
    ({"version": "1.1"}, VersionMismatch, "the run wants sums 1.1; installed is 1.0"),
    ({"config": {"digit": 2}}, ConfigError, "unknown setting 'config.digit', did you mean 'digits'"),
    ({"config": {"digits": "two"}}, ConfigError, "config.digits: must be a valid integer"),
]


@pytest.mark.parametrize(("changes", "kind", "complaint"), WRONG, ids=[next(iter(c)) for c, _, _ in WRONG])
def test_what_is_wrong_is_one_clear_error(
    sums: None, changes: dict[str, Any], kind: type[MurmurationError], complaint: str
) -> None:
    with EnvironmentSandbox([environment(**changes)]) as sandbox, pytest.raises(kind, match=complaint):
        sandbox.warm_up()


def test_a_misnamed_package_is_named_before_there_is_a_run(tmp_path: Path, tiny_run: TinyRun, sums: None) -> None:
    with pytest.raises(
        ConfigError, match="no environment is called 'reasoning_gym' here; did you mean 'reasoning-gym'"
    ):
        spec_of(tmp_path, tiny_run, run_tables()["spec"]["environments"][0] | {"package": "reasoning_gym"})


BASE = "from protocol.environments import Config, Environment, Grants\n"
QUIET = """
class Sums(Environment):
    name = "sums"
    def entry(self, index): return index
    def prompt(self, entry): return str(entry)
    def score(self, entry, completion): return 0.5
"""


@pytest.mark.parametrize(
    ("code", "kind", "complaint"),
    [
        ("raise OSError('no licence')", ConfigError, "cannot be loaded from sums:Sums: no licence"),
        ("Sums = 5", ConfigError, "sums:Sums is no environment"),
        (BASE + QUIET.replace('"sums"', '"other"'), ConfigError, "registered as 'sums' and calls itself 'other'"),
        (
            "from protocol.environments.taskfile import TaskFiles\nclass Sums(TaskFiles): name = 'sums'",
            ConfigError,
            "'sums' draws its problems from task files: name them in `files`",
        ),
        (BASE + QUIET + "    grants = Grants(memory=1 << 45)", PreflightError, "needs 33554432 MiB"),
    ],
)
def test_a_class_that_cannot_be_used_is_one_clear_error(
    install: Install, code: str, kind: type[MurmurationError], complaint: str
) -> None:
    install(code)
    with EnvironmentSandbox([environment()]) as sandbox, pytest.raises(kind, match=complaint):
        sandbox.warm_up()


def test_what_an_environment_claims_beyond_its_class_is_refused(install: Install) -> None:
    install(BASE + QUIET)
    with (
        EnvironmentSandbox([environment(exact=True)]) as sandbox,
        pytest.raises(ConfigError, match="not score exactly"),
    ):
        sandbox.warm_up()


def test_a_score_that_is_no_number_is_nothing_and_an_environment_that_fails_is_no_verdict(install: Install) -> None:
    fails = "float(completion) if completion != 'break' else 1 / 0"
    install(BASE + QUIET.replace("return 0.5", f"return {fails}"))
    with EnvironmentSandbox([environment()]) as sandbox:
        assert sandbox.score([(0, text) for text in ("nan", "inf", "-3", "7", "0.9999999999999999")]) == [0, 0, 0, 1, 1]
        with pytest.raises(Unavailable, match="ZeroDivisionError"):
            sandbox.score([(0, "break")])
        assert sandbox.score([(0, "1")]) == [1]


ENDLESS = """
from protocol.environments.calculator import Calculator
from protocol.sandbox import child

child.ANSWER_CPU_SECONDS = 0.2
here = child.Child()
table = {"package": "calculator", "version": "1", "dataset": "sums", "seed": 1, "size": 100, "head": "0" * 64, "exact": True}
here.answer({"op": "open", "environments": [{**table, "held_out_seed": 2, "held_out_size": 4}]})
Calculator.score = lambda *_: float(max(iter(int, 1)))
here.answer({"op": "score", "items": [[0, "hang"]], "held_out": False, "claims": None, "tolerance": 0.0})
"""


def test_the_child_ends_with_an_answer_that_has_none_in_the_middle_of_c_code() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDLESS], capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == -signal.SIGPROF, ended.stderr


@pytest.mark.long
@pytest.mark.timeout(500)
def test_an_answer_without_end_costs_its_own_time_and_not_that_of_a_request(install: Install) -> None:
    """The request may take ten minutes here, and this test eight. The verifier is in the middle of C code."""
    hangs = BASE + QUIET.replace("return 0.5", "return 0.5 if completion != 'hang' else float(max(iter(int, 1)))")
    install(hangs + "    grants = Grants(seconds=600.0)")
    with EnvironmentSandbox([environment()]) as sandbox:
        with pytest.raises(Unavailable, match="it ended"):
            sandbox.bounds([(0, "well"), (0, "hang")], [0.5, 0.5])
        assert sandbox.restarts == 1  # those beside it are asked for by themselves; this one a second time only then
        assert sandbox.bounds([(0, "well")], [0.5]) == [(0.5, 0.5)]


GRANTED = """
    grants = Grants(memory=5 << 30)
    def fingerprint(self, entry):
        import resource
        if resource.getrlimit(resource.RLIMIT_AS)[0] < 5 << 30:
            raise MemoryError
        return ["x"]
"""
SLOW = """
    def fingerprint(self, entry):
        import time
        time.sleep(0.05)
        return ["x"]
"""


def test_the_sandbox_grants_what_the_class_asks_for(install: Install) -> None:
    install(BASE + QUIET + "    grants = Grants(memory=5 << 30, seconds=77.0, files=99)")
    with EnvironmentSandbox([environment()]) as sandbox:
        sandbox.warm_up()
        assert sandbox._process
        limits = Path(f"/proc/{sandbox._process.pid}/limits").read_text()
        assert re.search(rf"Max address space +{5 << 30} ", limits)
        assert re.search(r"Max open files +99 ", limits)
        assert sandbox._deadline == 77


def test_the_first_problems_are_drawn_under_the_same_grants(install: Install) -> None:
    install(BASE + QUIET + GRANTED)
    spec = environment()
    with EnvironmentSandbox([spec]) as sandbox:
        expected = sandbox.head(spec)
    with EnvironmentSandbox() as bare:
        assert bare.head(spec) == expected


def test_the_first_problems_may_take_many_times_as_long_as_a_request(install: Install) -> None:
    install(BASE + QUIET + SLOW)
    spec = environment().model_copy(update={"size": 60})
    with EnvironmentSandbox(deadline=1.0) as sandbox:
        assert len(sandbox.head(spec)) == 64


def test_two_packages_of_one_name_are_refused(install: Install) -> None:
    install(BASE + QUIET)
    install(BASE + QUIET, place="others:Sums")
    with EnvironmentSandbox([environment()]) as sandbox, pytest.raises(ConfigError, match="two packages call"):
        sandbox.warm_up()


def slow_problems(install: Install) -> None:
    """Each draw takes so long that a request has time for a few."""
    install("import time\n" + BASE + QUIET.replace("return index\n", "time.sleep(0.02); return index\n"))


def test_what_does_not_fit_one_request_is_asked_for_again(install: Install) -> None:
    slow_problems(install)
    with EnvironmentSandbox([environment(held_out_size=10)]) as sandbox:
        sandbox.warm_up()
        sandbox._deadline = 0.3
        assert [problem.prompt for problem in sandbox.problems(range(20, 50))] == [str(i) for i in range(20, 50)]
        assert [problem.prompt for problem in sandbox.held_out()] == [str(i) for i in range(10)]
        assert [problem.is_held_out for problem in sandbox.problems([9, 10])] == [True, False]
        assert sandbox.restarts == 0


def test_problems_too_large_for_one_answer_come_in_several(install: Install) -> None:
    install(BASE + QUIET.replace("return str(entry)", "return str(entry) + 'x' * (1 << 20)"))
    with EnvironmentSandbox([environment()]) as sandbox:
        found = sandbox.problems(range(30))
    assert [problem.index for problem in found] == list(range(30))


@pytest.fixture
def reasoning() -> Iterator[EnvironmentSandbox]:
    spec = environment(package="reasoning-gym", version="0.1.25", dataset="spell_backward", exact=True)
    with EnvironmentSandbox([spec]) as sandbox:
        yield sandbox


def test_a_sum_that_is_one_but_for_its_last_place_is_one(reasoning: EnvironmentSandbox) -> None:
    """spell_backward adds up a share for each right letter: 0.9999999999999999 for some lengths, 1 − 0.2 for the others."""
    found = reasoning.problems(range(50))
    assert reasoning.score([(problem.index, problem.answer) for problem in found]) == [1.0] * 50
    rewards = reasoning.score([(problem.index, f"{problem.answer}!") for problem in found])
    assert set(rewards) == {1.0, canonical(0.8)}


def test_the_mixture_says_how_often_each_environment_is_asked(tiny_run: TinyRun) -> None:
    one = tiny_run.spec.environments[0]
    sized = [
        one.model_copy(update={"dataset": name, "size": size, "kept": None})
        for name, size in (("sums", 24_900), ("fractions", 100), ("primes", 7))
    ]
    assert mixture(sized) == "99.6 % sums, 0.4 % fractions, 0.03 % primes"
    assert mixture(sized[:1]) == "100.0 % sums"


@pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is Linux's")
def test_the_environment_of_programs_that_the_page_shows_scores_and_judges_claims(install: Install) -> None:
    limits = "CPU, TOTAL, WALL, IDLE = 2.0, 4.0, 11.0, 1.0"
    page = block("# multiply.py")
    assert limits in page
    install(
        page.replace(limits, "CPU, TOTAL, WALL, IDLE = 0.25, 0.5, 11.0, 1.0"),
        name="multiply",
        place="multiply:Multiply",
    )
    with EnvironmentSandbox([runfile.environment_alone("multiply", "any", {}, [])]) as sandbox:
        (problem,) = sandbox.problems([0])
        assert problem.answer is not None
        wrong = "```python\nprint(input())\n```"
        once = problem.answer.replace("int(input())", "abs(int(input()))")
        answers = [(0, problem.answer), (0, wrong), (0, once), (0, "no program")]
        assert sandbox.score(answers) == [1.0, 0.0, 0.0, 0.0]
        assert sandbox.bounds(answers, [1.0, 1.0, 1.0, 1.0]) == [(1.0, 1.0)] + [(0.0, 0.0)] * 3
        loop = "```python\nwhile True: pass\n```"
        assert sandbox.bounds([(0, loop)], [0.0]) == [(0.0, 0.0)]
