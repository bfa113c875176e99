"""What the environment `math` takes for equal, what it does with hostile answers, and that everybody gets the same scores.

tests/corpora/math.jsonl was frozen before there was a scorer. math_rules.jsonl beside this file was written with the scorer, for its rules.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from protocol.environments import math as maths
from protocol.environments import taskfile
from protocol.environments.maths import deadline, grade, library
from protocol.environments.maths.grade import is_right
from protocol.environments.registry import find, open_environment, version_of
from protocol.errors import ConfigError
from protocol.runspec import FromFiles
from protocol.sandbox import EnvironmentSandbox
from tests.corpora import hostile

CORPORA = Path(__file__).parent.parent / "corpora"
ROOT = Path(__file__).parent.parent.parent
KNOWN_ACCEPTED: dict[str, str] = {}
"""Unequal pairs of the corpus that are accepted, by id, with the reason. None today: one that comes new fails."""

Pair = tuple[str, str, bool]
"""Reference, completion, whether they are equal."""


def corpus() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (CORPORA / "math.jsonl").read_text(encoding="utf-8").splitlines()]


def rules() -> Iterator[Pair]:
    for line in (Path(__file__).parent / "math_rules.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        for label in ("equal", "unequal"):
            yield from ((row["reference"], text, label == "equal") for text in row[label])


# ---- what is equal ---------------------------------------------------------------------------------------------------------


def test_97_percent_of_the_corpus_are_right_and_no_unequal_pair_is_accepted_that_is_not_known() -> None:
    pairs = corpus()
    wrong = [pair for pair in pairs if is_right(pair["completion"], pair["reference"]) is not pair["equal"]]
    topics, missed = Counter(pair["topic"] for pair in pairs), Counter(pair["topic"] for pair in wrong)
    table = "\n".join(f"{topic:24} {count - missed[topic]:3} of {count}" for topic, count in topics.items())
    assert len(wrong) <= 0.03 * len(pairs), f"\n{table}\n{[pair['id'] for pair in wrong]}"
    assert {pair["id"] for pair in wrong if not pair["equal"]} == set(KNOWN_ACCEPTED), table


def test_every_rule_of_the_page_holds_for_its_examples() -> None:
    wrong = [pair for pair in rules() if is_right(pair[1], pair[0]) is not pair[2]]
    assert wrong == []


@pytest.mark.parametrize(
    ("reference", "answer"),
    [
        (r"\frac{1}{2}", r"\int_0^1 x\,dx"),
        ("55", r"\sum_{k=1}^{10} k"),
        ("1", r"\lim_{x\to 0} \frac{\sin x}{x}"),
        ("x > y", "y < x"),
    ],
)
def test_what_our_grammar_does_not_know_is_put_to_math_verify(reference: str, answer: str) -> None:
    assert is_right(rf"\boxed{{{answer}}}", reference)
    assert not is_right(rf"\boxed{{{answer} + 1}}", reference)


def test_a_decimal_that_math_verify_would_round_is_still_not_the_number() -> None:
    assert not is_right(r"\boxed{0.3333333333}", r"\int_0^1 x^2\,dx")
    assert is_right(r"\boxed{\frac13}", r"\int_0^1 x^2\,dx")


# ---- hostile answers -------------------------------------------------------------------------------------------------------

LONG = 1 << 19
HOSTILE = [
    r"\boxed{9^{9^{9^9}}}", r"\boxed{2^{2^{2^{2^{2^{2}}}}}}", r"\boxed{100000!}", r"\boxed{((((((100!)!)!)!)!)!)}",
    r"\boxed{\binom{10^9}{5\cdot10^8}}", r"\boxed{1e999999999}", r"\boxed{10^{-40000}}", r"\boxed{1.0000000001^{10^{15}}}",
    r"\boxed{e^{e^{e^{e^{9}}}}}", r"\boxed{\exp(\exp(\exp(\exp(10))))}", r"\boxed{\sin(10^{300})}", r"\boxed{\lfloor 10^{300}\pi\rfloor}",
    r"\boxed{\cosh(1000000)}", r"\boxed{\pi^{\pi^{\pi^{\pi}}}}", r"\boxed{i^{i^{i^{i}}}}", r"\boxed{(x+1)^{100000}}",
    r"\boxed{(a+b+c+d+e+f+g+h)^{60000}}", r"\boxed{\sqrt[9999999]{6}}", r"\boxed{(10^{4000}+1)^{1/3}}", r"\boxed{0^{-1}}", r"\boxed{\frac{0}{0}}",
    r"\boxed{\log_{0}{0}}", r"\boxed{\infty-\infty}", r"\boxed{x_{" * 3 + "1" + "}" * 4, "\\boxed{" + "(" * 5000 + "1" + ")" * 5000 + "}",
    "\\boxed{" + "{" * 1500 + "7" + ")" * 1500 + "}", "\\boxed{" + "\\sqrt{" * 500 + "2" + "}" * 501, "\\boxed{" + "-" * 3000 + "1}",
    "\\boxed{" + "1+" * 1900 + "1}", "\\boxed{" + "x^" * 1900 + "2}", "\\boxed{" + "9" * 3900 + "}", "\\boxed{0." + "1" * 3900 + "}",
    "\\boxed{0." + "12" * 1900 + "...}", "\\boxed{0.\\overline{" + "1" * 3000 + "}}", "\\boxed{" + "\\sin " * 700 + "x}",
    "\\boxed{" + "\\frac{" * 600 + "1}", "\\boxed{" + "|" * 3000 + "}", "\\boxed{" + "\\pm" * 1000 + "7}", "\\boxed{x" + "'" * 3000 + "}",
    "\\boxed{8" + "!" * 3000 + "}", "\\boxed{" + ",".join(map(str, range(900))) + "}", "\\boxed{7" + ":7" * 1900 + "}",
    "\\boxed{" + ",".join(rf"\sqrt{{{i}}}" for i in range(60)) + "}", "\\boxed{" + r"\cup".join(f"({i},{i + 1})" for i in range(200)) + "}",
    "\\boxed{" + r"\cup".join(rf"(\sqrt{{{i}}},{i}.5)" for i in range(30)) + "}", "\\boxed{\\gcd(" + ",".join(["10^{4000}"] * 100) + ")}",
    "\\boxed{\\begin{pmatrix}" + "1 & " * 900 + "1\\end{pmatrix}}", "\\boxed{\\{" + "x|" * 900 + "\\}}", r"\boxed{6 \text{ m}^{99999999}}",
    r"\boxed{x \equiv 1 \pmod{10^{4000}}}", r"\boxed{|x|<10^{4000}}", r"\boxed{1101_{99999}}", r"\boxed{\def\a{\a\a}\a}",
    "\\boxed{\u0667}", "\\boxed{\u0405}", "\\boxed{\ud800}", "\\boxed{\x00}", "\\boxed{\u200b}", r"\boxed{\input{/etc/passwd}}",
    "\\boxed{" * 20_000, "\\boxed{" * 9000 + "1" + "}" * 9000, "{" * LONG, "\\boxed{" + "a" * LONG + "}", "$" * LONG, "\n" * LONG, "\\" * LONG,
    "1 " * (LONG // 2), "is " * (LONG // 4), "**" * (LONG // 2), "- 1\n" * (LONG // 8), "answer is " * (LONG // 16), "<think>" * (LONG // 8),
    "$1$ and " * (LONG // 16), "one hundred " * (LONG // 32), "(," * (LONG // 4), "\\text{" * (LONG // 16), "=\\boxed{1}" * (LONG // 16),
]  # fmt: skip
"""None of them says 7, or any of the references below."""
ENDLESS = (
    r"\boxed{\sum_{n=1}^{10^{9}} n!}",
    r"\boxed{\int_0^1 x^x^x^x dx}",
    r"\boxed{\lim_{n\to\infty} \sum_{k=1}^{10^8} \frac{k!}{n}}",
)
"""What math-verify does not come to an end with."""


def test_hostile_answers_earn_nothing_and_those_after_them_are_scored_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grade, "SECONDS", 0.3)
    for number, text in enumerate(HOSTILE):
        reference = "7" if number % 2 else r"(-\infty,2)\cup(3,\infty)"
        assert not is_right(text, reference), text[:80]
        assert is_right(r"\boxed{\frac{\sqrt{8}}{2}}", r"\sqrt{2}")


def test_the_corpus_of_hostile_answers_earns_what_it_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(grade, "SECONDS", 0.3)
    problems, wrong = hostile.problems(), []
    for entry in hostile.entries():
        if entry.environment == "math":
            text = entry.completion(canary=tmp_path, port=1, bystander=1)
            worth = 0.0 if entry.expected == "zero" else entry.honest
            if float(is_right(text, problems[entry.problem]["answer"])) != worth:
                wrong.append((entry.id, worth))
    assert wrong == []
    assert list(tmp_path.iterdir()) == []


def test_math_verify_is_ended_by_its_cpu_time_and_the_next_question_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grade, "SECONDS", 0.3)
    for text in ENDLESS:
        assert not is_right(text, "7")
        monkeypatch.setattr(grade, "SECONDS", 2.0)
        assert is_right(r"\boxed{\int_0^2 x\,dx}", "2")
        monkeypatch.setattr(grade, "SECONDS", 0.3)


def test_what_takes_too_long_is_given_up_although_it_catches_every_exception() -> None:
    def stubborn() -> bool:
        while True:
            try:
                while True:
                    pass
            except Exception:  # noqa: BLE001  what sympy does
                return True

    assert deadline.within(0.05, stubborn, False) is False
    assert deadline.within(0.05, lambda: True, False) is True


def test_an_answer_that_breaks_the_grader_earns_nothing() -> None:
    def broken() -> bool:
        raise AttributeError("a mistake of ours")

    assert deadline.within(1.0, broken, False) is False


CANARIES = (
    "__import__('canary')", "canary()", r"\mathrm{canary}(1)", r"\int canary dx", r"\sum_{canary=1}^{3} canary", "1.canary",
    r"\operatorname{canary}{1}", "[canary for canary in 1]", r"\begin{cases} canary \end{cases}", r"\{canary, 1\}",
    r"\int_0^{canary} 1", r"\int_0^{7103} x dx", "Integer(canary)", "1 if canary else 2", r"\canary{1}",
)  # fmt: skip


def asked_under_a_hook(report: int) -> NoReturn:
    """In a fork: nobody takes a hook back. It says on `report` what came of it."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        source = (
            repr(arguments[0]) if event == "compile" else ""
        )  # sympy compiles functions of its own, but of no text of ours
        if "canary" in source or "7103" in source:
            os.write(report, b"COMPILED " + source.encode())
            os._exit(3)
        if event in ("os.system", "subprocess.Popen", "socket.connect"):
            os.write(report, b"STARTED ")
            os._exit(3)

    try:
        sys.addaudithook(hook)
        for text in CANARIES:
            is_right(rf"\boxed{{{text}}}", "7")
            library.same("7", text, 0.5)
        os.write(report, b"DONE")
    finally:
        os._exit(0)


def test_nothing_that_an_answer_says_is_compiled_or_evaluated() -> None:
    """An audit hook sees every text that `compile`, `eval` and `exec` are given, in forks too."""
    assert is_right(r"\boxed{\int_0^1 x dx}", "1/2")  # which loads math-verify
    reading, writing = os.pipe()
    fork = os.fork()
    if fork == 0:
        asked_under_a_hook(writing)
    os.close(writing)
    with open(reading) as report:
        said = report.read()
    os.waitpid(fork, 0)
    assert said == "DONE"


def test_sympys_reader_of_numbers_takes_numbers_and_nothing_else() -> None:
    assert library._number("Integer (12 )") == 12
    for code in ("Integer (__import__('os').getpid() )", "Symbol ('x' )", "Integer (1 )+1", "Float ('1e9' )", "x"):
        with pytest.raises(ValueError, match="not evaluated"):
            library._number(code)


# ---- the environment -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        found = tmp_path_factory.mktemp("math")
        patch.setenv("MURMUR_TASKS", str(found / "machine"))
        yield found


@pytest.fixture(scope="module")
def problems(folder: Path) -> tuple[FromFiles, list[Pair]]:
    """A task file of all references, and (reference, completion, equal) of its rows."""
    pairs = [*((pair["reference"], pair["completion"], pair["equal"]) for pair in corpus()), *rules()]
    random.Random(7).shuffle(pairs)
    source = folder / "pairs.parquet"
    taskfile.write(((f"Question {i}?", reference) for i, (reference, _, _) in enumerate(pairs)), source)
    file = taskfile.add(source)
    spec = FromFiles.model_validate(
        {
            "package": "math", "version": version_of("math"), "dataset": "pairs", "files": [file.model_dump()], "seed": 0,
            "held_out_seed": 0, "head": "0" * 64, "exact": False, "size": len(pairs), "held_out_size": 0,
        }
    )  # fmt: skip
    return spec, pairs


@pytest.fixture(scope="module")
def sandbox(problems: tuple[FromFiles, list[Pair]]) -> Iterator[EnvironmentSandbox]:
    with EnvironmentSandbox([problems[0]]) as found:
        yield found


def test_two_children_score_hundreds_of_answers_alike_in_another_order(
    problems: tuple[FromFiles, list[Pair]], sandbox: EnvironmentSandbox
) -> None:
    spec, pairs = problems
    items = [(index, completion) for index, (_, completion, _) in enumerate(pairs[:400])]
    scores = sandbox.score(items)
    with EnvironmentSandbox([spec]) as other:  # with a hash seed of its own
        assert other.score(items[::-1])[::-1] == scores
    labels = [float(equal) for _, _, equal in pairs[:400]]
    assert sum(score == label for score, label in zip(scores, labels, strict=True)) >= 388


@pytest.mark.long
@pytest.mark.timeout(1800)  # sixty thousand answers, of which many have to be read
def test_children_of_other_locales_and_hash_seeds_agree_on_twenty_thousand_answers(
    problems: tuple[FromFiles, list[Pair]], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, pairs = problems
    draw = random.Random(3)
    items = [(draw.randrange(len(pairs)), pairs[draw.randrange(len(pairs))][1]) for _ in range(20_000)]
    found = []
    for locale, order in (("C", 1), ("de_DE.UTF-8", -1), ("tr_TR.UTF-8", 1)):
        monkeypatch.setenv("LC_ALL", locale)
        with EnvironmentSandbox([spec]) as sandbox:
            scores: list[float] = []
            for start in range(0, len(items), 1000):
                scores += sandbox.score(items[::order][start : start + 1000])
        found.append(scores[::order])
    assert found[0] == found[1] == found[2]


def test_the_others_of_a_batch_are_scored_beside_hostile_answers(
    problems: tuple[FromFiles, list[Pair]], sandbox: EnvironmentSandbox
) -> None:
    _, pairs = problems
    right = next(index for index, (reference, _, _) in enumerate(pairs) if reference == "42")
    items = [(right, text) for text in (r"\boxed{42}", *HOSTILE[:12], ENDLESS[0], r"\boxed{84/2}")]
    assert sandbox.score(items) == [1.0, *[0.0] * (len(items) - 2), 1.0]
    assert sandbox.restarts == 0


def test_a_spec_cannot_call_it_exact(problems: tuple[FromFiles, list[Pair]]) -> None:
    spec, _ = problems
    with pytest.raises(ConfigError, match="does not score exactly"):
        open_environment(spec.model_copy(update={"exact": True}), held_out=False)
    assert find("math").load() is maths.Maths


def test_math_verify_is_not_imported_before_it_is_asked() -> None:
    script = (
        "import sys; from protocol.environments.math import Maths; from protocol.environments.maths.grade import is_right;"
        r"assert is_right(r'\boxed{\frac{1}{2}}', '0.5') and is_right(r'\boxed{\sqrt8}', r'2\sqrt{2}');"
        "print([name for name in ('sympy', 'math_verify', 'antlr4', 'torch') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
