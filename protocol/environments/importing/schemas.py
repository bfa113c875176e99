"""What a row of each data set is. One `Schema` each: its columns, where they are described, and how a row becomes a task.

| schema | columns | described at huggingface.co/datasets/…, unless told |
|---|---|---|
| synthetic-1 | prompt, task_type, verification_info | PrimeIntellect/SYNTHETIC-1, …/verifiable-coding-problems, …/INTELLECT-2-RL-Dataset, and the verifiers of github.com/PrimeIntellect-ai/genesys |
| numina-math | problem, solution; from 1.5 on answer, question_type, problem_is_valid, solution_is_valid | AI-MO/NuminaMath-CoT, AI-MO/NuminaMath-1.5 |
| deepscaler | problem and answer, beside solution or id | agentica-org/DeepScaleR-Preview-Dataset (one JSON array), math-ai/aime25 |
| math-500 | problem, answer, solution, subject, level, unique_id | HuggingFaceH4/MATH-500 |
| aime | problem or question and answer, in any case, beside id, url and year, or problem_idx | HuggingFaceH4/aime_2024, Maxwell-Jia/AIME_2024, MathArena/aime_2025_I |
| gpqa | Question, Correct Answer, Incorrect Answer 1 to 3 | Idavidrein/gpqa (CSV), arXiv 2311.12022 |
| livecodebench | question_content, starter_code, public_test_cases, private_test_cases, metadata | livecodebench/code_generation_lite, github.com/LiveCodeBench/LiveCodeBench |
| filtered | question, answer, package, solve_rate | `murmur trainer filter`, which writes such rows of what it tried |
| rows | any two columns that are named; of an answer that ends in a line "#### 72", as GSM8K's do, 72 | openai/gsm8k |

Read from those pages, which say names and types; no row of any of them was at hand. What they leave open (a table as JSON or as a Python
literal, a number or its text, lines as a list) is read either way.

Questions of data sets that carry no instruction get one of ours, because scorers read the last \\boxed{…} or the last block of Python.
Benchmarks are so asked in our words, not in their authors'.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from protocol.environments.importing import programs
from protocol.environments.importing.sources import Row
from protocol.environments.importing.task import LeftOut, Task
from protocol.errors import UsageError

BOXED = "\n\nReason step by step, and put your final answer within \\boxed{}."
CHOICE = "\n\nReason step by step, and put the letter of your choice within \\boxed{}."
STDIN = "\n\nWrite a program in Python 3 that reads standard input and prints the answer, in one block that begins with ```python."
STARTER = "\n\nComplete this program in Python 3, in one block that begins with ```python:\n\n```python\n{}\n```"
ANSWER_CHARS_MAX = 10_000
"""Of a reference in mathematics: no completion's answer is read that is longer."""
PACKAGES = ("math", "code", "parquet")
"""Environments that task files are imported for."""
_LETTERS = "ABCD"
_BEGINS_BOX = re.compile(r"\\(?:boxed|fbox)(?:\s*\{|\s+(-?[^\W_])(?![\w.,/^]))")
_NO_ANSWERS = ("notfound", "not found", "none", "n/a", "unknown")


@dataclass(frozen=True)
class Schema:
    name: str
    known_by: tuple[tuple[str, ...], ...]
    """A file whose columns hold all of one of these is taken to be of this schema; the first schema that fits."""
    columns: frozenset[str]
    """What is read of a row, where it is there."""
    read: Callable[[Row], Task]
    """Raises LeftOut for a row that makes no task."""
    asked: Callable[[Row], str]
    """The row's question, whatever its answer is. Raises LeftOut where it has none."""


def _synthetic(row: Row) -> Task:
    prompt, kind = _said(row, "prompt"), row.get("task_type")
    if kind not in ("verifiable_math", "verifiable_code"):
        raise LeftOut("a task that needs a judge, or another verifier", kind)
    info = programs.table(row.get("verification_info"), "verification_info")
    if kind == "verifiable_math":
        return Task("math", prompt, _reference(info.get("ground_truth")), prompt)
    tests = programs.of_synthetic(info)
    return Task("code", prompt, tests.answer, prompt, tests.no_room, tests.unusable)


def _mathematics(row: Row, instruction: str = BOXED) -> Task:
    problem = _said(row, "problem")
    if row.get("question_type") == "proof" or _lower(row.get("answer")) == "proof":
        raise LeftOut("a proof, which no answer decides", problem)
    for column in ("problem_is_valid", "solution_is_valid"):
        if _lower(row.get(column)) not in ("yes", "", "none"):
            raise LeftOut(f"{column} is not yes", row[column])
    answer = row["answer"] if "answer" in row else _boxed(_said(row, "solution"))
    return Task("math", problem + instruction, _reference(answer), problem)


def _aime(row: Row) -> Task:
    low = {name.lower(): value for name, value in row.items()}
    problem = _said(low, "problem" if "problem" in low else "question")
    answer = re.sub(r"\.0+\Z", "", _reference(low.get("answer")))
    if not re.fullmatch(r"\d{1,3}", answer, re.ASCII):
        raise LeftOut("an answer of AIME that is no integer from 0 to 999", answer)
    return Task("math", problem + BOXED, str(int(answer)), problem)


def _gpqa(row: Row) -> Task:
    """Choices in an order that is the question's own: as good as random, and the same in every import."""
    problem = _said(row, "Question")
    texts = [_said(row, name) for name in ("Correct Answer", *(f"Incorrect Answer {i}" for i in (1, 2, 3)))]
    if len(set(texts)) < len(texts):
        raise LeftOut("two choices that are the same", problem)
    order = sorted(range(4), key=lambda choice: hashlib.sha256(f"{problem}\0{texts[choice]}".encode()).digest())
    choices = "".join(f"\n{letter}) {texts[choice]}" for letter, choice in zip(_LETTERS, order, strict=True))
    return Task("math", f"{problem}\n{choices}{CHOICE}", _LETTERS[order.index(0)], problem)


def _livecodebench(row: Row) -> Task:
    problem, starter = _said(row, "question_content"), row.get("starter_code") or ""
    tests = programs.of_livecodebench(row.get("public_test_cases"), row.get("private_test_cases"), row.get("metadata"))
    asked = problem + (STARTER.format(starter) if isinstance(starter, str) and starter.strip() else STDIN)
    return Task("code", asked, tests.answer, problem, tests.no_room, tests.unusable)


def _columns(row: Row, question: str, answer: str, package: str) -> Task:
    problem = _said(row, question)
    if package != "code":
        return Task(package, problem, _reference(_after_hashes(row.get(answer))), problem)
    table = programs.table(row.get(answer), "the answer")
    if "test_cases" in table:
        tests = programs.of_synthetic(table)
    else:
        tests = programs.of_livecodebench(
            table.get("public_test_cases"), table.get("private_test_cases"), table.get("metadata")
        )
    return Task(package, problem, tests.answer, problem, tests.no_room, tests.unusable)


def _filtered(row: Row) -> Task:
    package = row.get("package")
    if package not in PACKAGES:
        raise LeftOut("a problem that another environment than those of task files asks", package)
    return _columns(row, "question", "answer", package)


def _said(row: Row, column: str) -> str:
    value = row.get(column)
    match value:
        case [{"content": str() as text, "role": "user"}]:
            value = text
    if not isinstance(value, str) or not value.strip():
        raise LeftOut(f"no {column.lower()}", value)
    return value.strip()


def _saying(*names: str) -> Callable[[Row], str]:
    """The first of these columns that a row has, in any case."""

    def asked(row: Row) -> str:
        low = {name.lower(): value for name, value in row.items()}
        return _said(low, next((name for name in names if name in low), names[0]))

    return asked


def _after_hashes(value: Any) -> Any:
    """GSM8K's answer: what stands after the last ####, where a worked solution ends in it."""
    if not isinstance(value, str):
        return value
    solution, _, answer = value.rpartition("####")
    begins_a_line = not solution or solution.endswith("\n")
    return answer.strip() if begins_a_line and len(answer.strip().splitlines()) == 1 else value


def _reference(value: Any) -> str:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise LeftOut("no answer" if value is None else "an answer that is neither text nor number", value)
    if isinstance(value, float) and not math.isfinite(value):
        raise LeftOut("no answer", value)
    text = str(value).strip()
    if not text or text.lower() in _NO_ANSWERS:
        raise LeftOut("no answer", text)
    if len(text) > ANSWER_CHARS_MAX:
        raise LeftOut(f"an answer of more than {ANSWER_CHARS_MAX} characters", text)
    return text


def _boxed(solution: str) -> str:
    """What stands in the last \\boxed{…} or \\fbox{…}, braces balanced, or the one letter or digit after \\boxed."""
    found = list(_BEGINS_BOX.finditer(solution))
    if not found:
        raise LeftOut("a solution that boxes no answer", solution)
    begin, alone, depth = found[-1].end(), found[-1][1], 1
    if alone:
        return str(alone)
    for at in range(begin, len(solution)):
        depth += {"{": 1, "}": -1}.get(solution[at], 0) if solution[at - 1] != "\\" else 0
        if not depth:
            return solution[begin:at]
    raise LeftOut("a solution that boxes no answer", solution)


def _lower(value: Any) -> str:
    return "" if value is None else str(value).strip().lower()


_MATHEMATICS = frozenset(
    ("problem", "answer", "solution", "question_type", "problem_is_valid", "solution_is_valid")
)  # fmt: skip
_TESTS = ("public_test_cases", "private_test_cases")

SCHEMAS = {
    schema.name: schema
    for schema in (
        Schema("synthetic-1", (("prompt", "task_type", "verification_info"),), frozenset(("prompt", "task_type", "verification_info")), _synthetic, _saying("prompt")),
        Schema("filtered", (("question", "answer", "package", "solve_rate"),), frozenset(("question", "answer", "package")), _filtered, _saying("question")),
        Schema("livecodebench", (("question_content", *_TESTS),), frozenset(("question_content", "starter_code", "metadata", *_TESTS)), _livecodebench, _saying("question_content")),
        Schema(
            "gpqa", (("Question", "Correct Answer", "Incorrect Answer 1"),),
            frozenset(("Question", "Correct Answer", *(f"Incorrect Answer {i}" for i in (1, 2, 3)))), _gpqa, _saying("question"),
        ),
        Schema("math-500", (("problem", "answer", "subject", "unique_id"),), frozenset(("problem", "answer")), _mathematics, _saying("problem")),
        Schema("numina-math", (("problem", "solution", "question_type"), ("problem", "solution", "messages")), _MATHEMATICS, _mathematics, _saying("problem")),
        Schema(
            "aime", (("problem", "answer", "url"), ("problem", "answer", "problem_idx"), ("Problem", "Answer", "ID"), ("ID", "Year", "Question", "Answer")),
            frozenset(("problem", "answer", "question", "Problem", "Answer", "Question")), _aime, _saying("problem", "question"),
        ),
        Schema("deepscaler", (("problem", "answer", "solution"), ("problem", "answer", "id")), frozenset(("problem", "answer")), _mathematics, _saying("problem")),
    )
}  # fmt: skip


QUESTIONS = ("question", "problem", "prompt", "Question", "Problem", "Prompt")
"""Columns that a file of questions alone may have, the first that is there."""


def of_columns(found: list[str]) -> Schema | None:
    """The schema of a file with these columns; None where none is known by them."""
    names = set(found)
    return next((one for one in SCHEMAS.values() if any(names.issuperset(some) for some in one.known_by)), None)


def named(name: str) -> Schema:
    """Raises UsageError, listing them, where none is called so."""
    if name not in SCHEMAS:
        raise UsageError(f"no schema is called {name!r}", hint=f"known: {', '.join(SCHEMAS)}")
    return SCHEMAS[name]


def rows(question: str, answer: str, package: str) -> Schema:
    """Of whatever columns, for one of the environments that read task files. Nothing is added to a question."""
    read = partial(_columns, question=question, answer=answer, package=package)
    return Schema("rows", (), frozenset((question, answer)), read, partial(_said, column=question))


def questions(column: str) -> Schema:
    """Of a file that is only to be compared with: nothing is made of its rows."""

    def read(_: Row) -> Task:
        raise LeftOut("a file of questions alone")

    return Schema("questions", (), frozenset((column,)), read, partial(_said, column=column))
