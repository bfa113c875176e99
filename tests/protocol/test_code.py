"""The environment `code`: what a program is worth, measured here and as somebody else may have measured it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from protocol.environments import taskfile
from protocol.environments.blocks import PYTHON
from protocol.environments.code import ExpectedOutput, JudgedCode, agrees, cases_of, same
from protocol.environments.programs import Claim, Range, Trial, TrialRun
from protocol.errors import Malformed, PreflightError
from protocol.folders import TASKS_VARIABLE
from protocol.reward import STEP, canonical
from protocol.runspec import FromFiles
from protocol.sandbox import EnvironmentSandbox
from protocol.sandbox.programs import Runner, idleness, survey, walls
from tests.corpora.programs import answer_of, problems

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is Linux's")
DOUBLE = json.dumps(
    {"test_cases": [{"type": "stdin_stdout", "input": f"{n}\n", "output": f"{2 * n}\n"} for n in (1, 4)]}
)
RIGHT = "```python\nprint(2 * int(input()))\n```"
HALF = "```python\nprint(2)\n```"
NONE = "```python\nprint(3)\n```"
LOOP = "```python\nwhile True: pass\n```"
Opened = Callable[..., EnvironmentSandbox]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """A sandbox of `code` with these tasks' tests; the held-out one is the last."""
    monkeypatch.setattr(taskfile, "TEXT_BYTES_MAX", 8 << 20)  # one problem of the corpus is larger
    monkeypatch.setenv(TASKS_VARIABLE, str(tmp_path / "tasks"))

    def sandbox(*answers: str, **config: Any) -> EnvironmentSandbox:
        rows = [(f"question {number}", answer) for number, answer in enumerate((*answers, DOUBLE))]
        taskfile.write(iter(rows), tmp_path / "code.parquet")
        file = taskfile.add(tmp_path / "code.parquet")
        table = {
            "package": "code", "version": JudgedCode.version, "dataset": "x", "config": config, "files": [file.model_dump()],
            "size": len(answers), "held_out_size": 1, "head": "0" * 64, "exact": False,
        }  # fmt: skip
        return EnvironmentSandbox([FromFiles.model_validate(table)])

    return sandbox


def test_a_program_is_worth_what_its_tests_say(opened: Opened) -> None:
    with opened(DOUBLE) as sandbox:
        assert sandbox.score([(0, RIGHT), (0, HALF), (0, "no program"), (0, None)]) == [1.0, 0.0, 0.0, 0.0]
        assert sandbox.score([(0, RIGHT)], held_out=True) == [1.0]
    with opened(DOUBLE, reward="share") as sandbox:
        assert sandbox.score([(0, RIGHT), (0, HALF)]) == [1.0, 0.5]


def test_a_solution_beside_the_tests_is_the_right_answer_and_nothing_else_changes(opened: Opened) -> None:
    solved = json.dumps(json.loads(DOUBLE) | {"solution": "print(2 * int(input()))"})
    broken = [json.dumps(json.loads(DOUBLE) | {"solution": one}) for one in (7, "a\n```\nb", "\ud800", None)]
    with opened(solved, DOUBLE, *broken) as sandbox:
        answers = [problem.answer for problem in sandbox.problems(range(2 + len(broken)))]
        assert answers == [RIGHT, *[None] * (1 + len(broken))]
        assert sandbox.score([(0, RIGHT), (0, HALF), (1, RIGHT), (2, RIGHT)]) == [1.0, 0.0, 1.0, 1.0]


def test_a_claim_that_another_machine_may_honestly_make_stands_and_no_other(opened: Opened) -> None:
    with opened(DOUBLE, cpu_seconds=1) as sandbox:
        answers = [(0, RIGHT), (0, RIGHT), (0, HALF), (0, LOOP)]
        bounds = sandbox.bounds(answers, [1.0, 0.0, 1.0, 0.0])
        assert bounds == [(1.0, 1.0), (1.0, 1.0), (0.0, 0.0), (0.0, 0.0)]


LOOPS_ON_THE_SECOND = "```python\nn = int(input())\nwhile n > 1: pass\nprint(2 * n)\n```"
# More than is let pass at a quarter of a second: where only the kernel counts, whose limit is two, its ticks run ahead on one machine and behind
# on another.
SLOW_ON_THE_SECOND = f"""```python
import resource
n = int(input())
while n > 1 and sum(resource.getrusage(0)[:2]) < {1.5 if idleness.is_counted() else 3}: pass
print(2 * n)
```"""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The CPU seconds for one test of each trial that is run."""
    noted: list[float] = []
    run_all = Runner.run_all

    def noting(self: Runner, trials: Sequence[Trial]) -> list[list[TrialRun]]:
        noted.extend(trial.cpu for trial in trials)
        return run_all(self, trials)

    monkeypatch.setattr(Runner, "run_all", noting)
    return noted


def test_what_passes_in_a_quarter_of_the_limits_needs_no_more_to_be_claimed(opened: Opened, asked: list[float]) -> None:
    """Else whoever checks a share would wait four times as long as who made it for each test that never ends."""
    with opened(DOUBLE, reward="share", cpu_seconds=1) as sandbox:
        assert sandbox.bounds([(0, LOOPS_ON_THE_SECOND)], [0.5]) == [(0.5, 0.5)]
        assert sandbox.bounds([(0, RIGHT)], [1.0]) == [(1.0, 1.0)]
        assert asked == [0.25, 0.25]
        asked.clear()
        assert sandbox.bounds([(0, SLOW_ON_THE_SECOND), (0, LOOP), (0, RIGHT)], [1.0, 0.0, 0.5]) == [
            (0.5, 1.0), (0.0, 0.0), (1.0, 1.0),
        ]  # fmt: skip
        assert asked == [0.25, 0.25, 0.25, 4.0]


def test_a_claim_that_is_forgiven_beside_what_a_quarter_of_the_limits_gives_needs_no_more(
    opened: Opened, asked: list[float]
) -> None:
    """It is paid, so it must cost no more than the true one."""
    tolerances = (2 * STEP, 2.6 * STEP, 0.125)
    with opened(DOUBLE, cpu_seconds=1) as sandbox:
        assert sandbox.bounds([(0, LOOP)], [0.125], 0.125) == [(0.0, 0.0)]
        for tolerance in tolerances:
            assert sandbox.bounds([(0, HALF), (0, NONE)], [tolerance, -tolerance], tolerance) == [(0.0, 0.0)] * 2
    with opened(DOUBLE, reward="share", cpu_seconds=1) as sandbox:
        for tolerance in tolerances:
            claims = [tolerance, 0.5 + tolerance]
            assert sandbox.bounds([(0, NONE), (0, HALF)], claims, tolerance) == [(0.0, 0.0), (0.5, 0.5)]
    assert asked == [0.25] * 13


@pytest.mark.parametrize(
    ("reward", "claims"), [("all", [3 * STEP, 0.5, 1 - 3 * STEP, 7.0]), ("share", [3 * STEP, 0.75, 7.0])]
)
def test_a_claim_of_what_no_answer_can_earn_is_false_after_a_quarter_of_the_limits(
    opened: Opened, asked: list[float], reward: str, claims: list[float]
) -> None:
    with opened(DOUBLE, reward=reward, cpu_seconds=1) as sandbox:
        found = sandbox.bounds([(0, LOOP)] * len(claims), claims)
    assert found == [(0.0, 0.0)] * len(claims)
    assert asked == [0.25] * len(claims)


@pytest.mark.parametrize("reward", ["all", "share"])
def test_whatever_an_answer_can_earn_is_looked_for_at_four_times_the_limits_and_what_is_forgiven_beside_it(
    reward: str,
) -> None:
    """A worker may have measured it: no tolerance, and no machine that rounds to the neighbouring step, makes an honest claim a false one."""
    environment = JudgedCode.__new__(JudgedCode)
    environment.config = JudgedCode.Config(reward=reward, tests=256)
    for tests in (1, 2, 3, 7, 32, 256):
        entry = {"question": "", "answer": json.dumps({"test_cases": tests * json.loads(DOUBLE)["test_cases"][:1]})}
        for passed in [tests] if reward == "all" else range(1, tests + 1):
            for away in (-STEP, 0.0, STEP, -2 * STEP, 2 * STEP):
                claim = Claim(canonical(passed / tests) + away)
                trial = environment.trial(entry, RIGHT, claim)
                assert trial is not None
                wide = trial if reward == "all" else environment.wider(trial, claim, Range(0.0, (passed - 1) / tests))
                assert wide is not None and wide.cpu == 4 * environment.config.cpu_seconds


@pytest.mark.parametrize(("cpu", "low", "high"), [(0.2, 1.0, 1.0), (0.3, 0.0, 1.0), (3.9, 0.0, 1.0), (4.1, 0.0, 0.0)])
def test_between_a_quarter_and_four_times_the_limit_a_test_may_have_passed_or_not(
    cpu: float, low: float, high: float
) -> None:
    environment = JudgedCode.__new__(JudgedCode)
    environment.config = JudgedCode.Config(cpu_seconds=1)
    entry = {"question": "", "answer": DOUBLE}
    trial = environment.trial(entry, RIGHT, Claim(1.0))
    assert trial is not None and trial.cpu == 4.0
    runs = [TrialRun(0, 0.01, 0.01, b"2"), TrialRun(0, cpu, cpu, b"8 \n\n")]
    assert environment.judge(entry, trial, runs, Claim(1.0)) == (low, high)
    assert environment.judge(entry, trial, runs, None) == (float(cpu <= 1), float(cpu <= 1))


@pytest.mark.parametrize(("idle", "low", "high"), [(0.1, 1.0, 1.0), (0.2, 0.0, 1.0), (1.9, 0.0, 1.0), (2.1, 0.0, 0.0)])
def test_idle_time_of_all_tests_together_is_judged_by_the_same_factor(idle: float, low: float, high: float) -> None:
    environment = JudgedCode.__new__(JudgedCode)
    environment.config = JudgedCode.Config(cpu_seconds=6)
    entry = {"question": "", "answer": DOUBLE}
    trial = environment.trial(entry, RIGHT, Claim(1.0))
    assert trial is not None and trial.idle == 4.0
    runs = [TrialRun(0, 0.01, idle, output, idle=idle) for output in (b"2", b"8")]
    assert environment.judge(entry, trial, runs, Claim(1.0)) == (low, high)
    assert environment.judge(entry, trial, runs, None) == (float(idle < 0.5),) * 2


@pytest.mark.parametrize("reward", ["all", "share"])
def test_many_answers_that_sleep_earn_nothing_and_are_not_waited_for(opened: Opened, reward: str) -> None:
    """Each may take hours by its CPU time: what ends them is that they are idle."""
    many = json.dumps({"test_cases": 32 * json.loads(DOUBLE)["test_cases"]})
    sleeping = [(0, f"```python\nimport time\ntime.sleep({1000 + n})\nprint(2 * int(input()))\n```") for n in range(6)]
    with opened(many, reward=reward, cpu_seconds=60, total_seconds=300, tests=64) as sandbox:
        assert sandbox.score([*sleeping, (0, RIGHT)]) == [0.0] * 6 + [1.0]
        assert sandbox.bounds(sleeping[:2], [0.0, 1.0]) == [(0.0, 0.0)] * 2


def test_without_bubblewrap_code_is_refused_before_any_work_and_others_are_not(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walls, "bubblewrap", lambda: None)
    survey.require.cache_clear()
    try:
        with opened(DOUBLE) as sandbox, pytest.raises(PreflightError, match="bubblewrap"):
            sandbox.warm_up()
    finally:
        survey.require.cache_clear()


@pytest.mark.parametrize(
    ("completion", "program"),
    [
        ("```python\na\n```\n```python\nb\n```", "b\n"),
        ("<think>```python\na\n```</think>no", None),
        ("<think>```python\na\n```", None),
        ("```python\na", None),
        ("```\na\n```", "a\n"),
        ("```python\na\n```\nIt prints:\n```\n3\n```", "a\n"),
        ("```\na\n```\nIn C:\n```c\nb\n```", "a\n"),
        ("```c\na\n```", None),
        ("```python\n'''\n  ```\n'''\n```", "'''\n  ```\n'''\n"),
        ("```py\na\n```", "a\n"),
        ("```Python3 \na\n```", "a\n"),
        ("```Python\na\n```", "a\n"),
        ("1. so:\n   ```python\n   if a:\n       b\n\n   c\n   ```\n", "if a:\n    b\n\nc\n"),
        ("- so:\n\t```py\n\ta\n\t```", "a\n"),
        ("```python\na = '''\n  ```text\n'''\n```", "a = '''\n  ```text\n'''\n"),
        ("```python\r\na\r\n```\r\n", "a\n"),
        ("1. ```\n   3\n   ```\n\nSo:\n\n```python\na\n```", "a\n"),
        ("- ```text\n  3\n  ```\n\n```python\na\n```", "a\n"),
        ("  ```text\n  3\n    ```\n\n```python\na\n```", "a\n"),
        ("    ```text\n    out\n\n```python\na\n```", "a\n"),
        ("```\n3\n\n```python\na\n```", "a\n"),
        ("2. ```python\n   a\n   ```", "a\n"),
        ("```python\na\n```\n8```python\nb\n```", "a\n"),
        ("- 8```python\na\n```", None),
    ],
)
def test_the_program_is_the_last_closed_block_of_python_after_the_thoughts(
    completion: str, program: str | None
) -> None:
    assert PYTHON.program_of(completion) == program


def contest_tests(*cases: dict[str, Any], metadata: Any = "{}") -> str:
    """In the form of LiveCodeBench."""
    return json.dumps({"public_test_cases": json.dumps(cases), "private_test_cases": "[]", "metadata": metadata})


FUNCTIONAL = {"input": "1", "output": "2", "testtype": "functional"}
NAMELESS = [
    contest_tests(FUNCTIONAL, metadata=one) for one in ("{}", "", '{"func_name": ""}', "null", "5", '{"func_name": 5}')
]
ODD = [
    *NAMELESS,
    contest_tests({**FUNCTIONAL, "testtype": "x"}, metadata='{"func_name": "f"}'),
    contest_tests({**FUNCTIONAL, "testtype": "stdin", "output": 2}),
    contest_tests({**FUNCTIONAL, "testtype": "stdin", "input": None}),
    *(
        json.dumps({"test_cases": [{"type": "function_call", "fn_name": name, "input": [1], "output": 2}]})
        for name in ("", None, 5)
    ),
    json.dumps({"test_cases": [{"type": "stdin_stdout", "input": "1", "output": "2", "tolerance": 10**400}]}),
    '{"test_cases": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "no JSON", "[]",
]  # fmt: skip


@pytest.mark.usefixtures("deep")
@pytest.mark.parametrize("answer", ODD, ids=range(len(ODD)))
def test_a_test_that_nothing_can_be_compared_with_is_malformed(answer: str) -> None:
    with pytest.raises(Malformed, match="no tests that can be read"):
        cases_of(answer)


@pytest.mark.usefixtures("deep")
def test_what_a_program_nests_without_end_is_no_value() -> None:
    assert not agrees(ExpectedOutput("[1]", "f", 2), b"[" * 100_000 + b"]" * 100_000)
    assert agrees(ExpectedOutput("[1]", "f", [[2]]), b"[[2]]")


def test_a_row_without_tests_earns_nothing_and_costs_no_other_answer_its_score(opened: Opened) -> None:
    with opened(*NAMELESS[:2], DOUBLE, ODD[6]) as sandbox:
        assert sandbox.score([(0, RIGHT), (2, RIGHT), (1, RIGHT), (3, "no program"), (2, HALF)]) == [0, 1, 0, 0, 0]
        assert sandbox.bounds([(0, RIGHT), (2, RIGHT)], [0.0, 1.0]) == [(0, 0), (1, 1)]
        assert sandbox.restarts == 0


def test_the_row_without_tests_is_named_when_a_run_is_created(opened: Opened) -> None:
    with opened(DOUBLE, NAMELESS[0]) as sandbox, pytest.raises(Malformed, match="problem 1 of x: a task of code"):
        sandbox.head(FromFiles.model_validate(sandbox._environments[0]))


@pytest.mark.parametrize("wanted", [1.5, 10**400, [1.5]])
def test_a_number_of_any_length_is_compared_within_a_tolerance(wanted: Any) -> None:
    case = {"type": "function_call", "fn_name": "f", "input": [], "output": wanted, "tolerance": 1e-3}
    (test,) = cases_of(json.dumps({"test_cases": [case]}))
    for said in (10**400 + 1, -(10**400), 1e308, 2):
        assert not agrees(test, json.dumps(said).encode())
    assert agrees(test, json.dumps(wanted).encode())


def test_values_are_compared_as_json() -> None:
    assert same([1, {"a": 5}], [1.0, {"a": 5}]) and same(None, None) and same(0.3, 0.1 + 0.2, 1e-9)
    assert not same(True, 1) and not same([1], [1, 2]) and not same("1", 1) and not same(0.3, 0.1 + 0.2)


def _solutions(kinds: set[str], per_problem: int) -> list[tuple[int, str, dict[str, Any]]]:
    return [
        (number, problem["id"], each)
        for number, problem in enumerate(problems())
        for each in [one for one in problem["solutions"] if one["kind"] in kinds][:per_problem]
    ]


@pytest.mark.parametrize(
    "some", [1, pytest.param(99, marks=[pytest.mark.long, pytest.mark.timeout(3000)])], ids=["one-of-each", "all"]
)
def test_every_program_of_the_corpus_has_the_share_that_it_is_labelled_with(opened: Opened, some: int) -> None:
    kinds = {"right", "wrong", "crashing"} | ({"slow"} if some > 1 else set())
    chosen = _solutions(kinds, some)[:: 1 if some > 1 else 2]  # among every second one are tests of each form
    found: list[float] = []
    with opened(*map(answer_of, problems()), reward="share", cpu_seconds=2, tests=256) as sandbox:
        for at in range(0, len(chosen), 16):
            found += sandbox.score([(number, each["completion"]) for number, _, each in chosen[at : at + 16]])
    counts = [len(cases_of(answer_of(problem))) for problem in problems()]
    wrong = {
        (name, each["why"]): (share * counts[number], each["passed"])
        for (number, name, each), share in zip(chosen, found, strict=True)
        if round(share * counts[number]) != each["passed"]
    }
    assert not wrong


def test_blank_lines_around_an_output_mean_nothing_and_tolerance_only_where_a_test_says_so() -> None:
    (loose,) = cases_of(
        json.dumps({"test_cases": [{"type": "stdin_stdout", "input": "", "output": "a 0.5\n", "tolerance": "1e-3"}]})
    )
    (strict,) = cases_of(json.dumps({"test_cases": [{"type": "stdin_stdout", "input": "", "output": "a 0.5\n"}]}))
    assert agrees(loose, b"\n\na 0.5001  \n\n") and not agrees(strict, b"a 0.5001") and agrees(strict, b"a 0.5")
    assert not agrees(loose, b"b 0.5") and not agrees(loose, b"a 0.51") and not agrees(strict, b"\xff")
