"""Retrieval: what a query finds is the same on every machine, and no query or corpus takes it long."""

from __future__ import annotations

import hashlib
import json
import math
import random
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from swarm.tiny_run import TinyRun, run_tables

from protocol import runspec
from protocol.environments import bm25, retrieval, taskfile
from protocol.environments.bm25 import Index, log2, terms
from protocol.environments.retrieval import query_of
from protocol.errors import ConfigError, VersionMismatch
from protocol.folders import TASKS_VARIABLE
from protocol.replies import Asked
from protocol.rollout import ToolCall
from protocol.runspec import FromFiles, RunSpec, TaskFile
from protocol.sandbox import EnvironmentSandbox
from protocol.sandbox.inspection import examine
from protocol.settings import write_toml
from protocol.shell import runfile
from tests.tasks_in_process import task_set

CORPORA = Path(__file__).parent.parent / "corpora"
DOCUMENTS = [json.loads(line) for line in (CORPORA / "documents.jsonl").read_text().splitlines()]
TEXTS = [f"{document['title']}\n{document['text']}" for document in DOCUMENTS]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(TASKS_VARIABLE, str(tmp_path / "machine"))
    return tmp_path / "machine"


def made(path: Path, columns: tuple[str, str]) -> TaskFile:
    taskfile.convert([CORPORA / f"{path.stem}.jsonl"], path, *columns)
    return taskfile.add(path)


@pytest.fixture
def spec(tmp_path: Path) -> FromFiles:
    files = [made(tmp_path / "questions.parquet", ("question", "answer"))]
    corpus = [made(tmp_path / "documents.parquet", ("title", "text"))]
    return environment(files, corpus)


def environment(files: list[TaskFile], corpus: list[TaskFile], **changes: Any) -> FromFiles:
    values = {
        "package": "retrieval", "version": "1", "dataset": "tamside", "config": {"letters": 60}, "size": 16, "held_out_size": 4,
        "files": [file.model_dump() for file in files], "corpus": [file.model_dump() for file in corpus],
        "head": "0" * 64, "exact": True,
    }  # fmt: skip
    return FromFiles.model_validate(values | changes)


def call(query: str) -> str:
    return f"Let me look.\n<search>{query}</search>\n"


# ---- what is found -----------------------------------------------------------------------------------------------------


def fractions(texts: list[str], query: str) -> list[int]:
    """The same by the formula, in fractions; but for the idf, which has no finite form."""
    of = [terms(text) for text in texts]
    mean = Fraction(sum(map(len, of)), len(of))
    scores = []
    for number, own in enumerate(of):
        score = 0
        for term in set(terms(query)) & set(own):
            holds = sum(term in other for other in of)
            tf = min(own.count(term), bm25.TF_MAX)
            idf = log2(2 * len(of) + 2, 2 * holds + 1)
            share = tf + Fraction(6, 5) * (Fraction(1, 4) + Fraction(3, 4) * len(own) / mean)
            score += max(1, math.floor(idf * Fraction(11, 5) * tf / share))
        if score:
            scores.append((-score, number))
    return [number for _, number in sorted(scores)]


def test_a_search_finds_what_the_formula_says_in_that_order() -> None:
    rng = random.Random(5)
    words = ["a", "b", "c", "d", "ab", "é", "zu"]
    texts = [" ".join(rng.choices(words, weights=[9, 5, 3, 2, 1, 1, 1], k=rng.randint(0, 12))) for _ in range(60)]
    texts[7] = "a " * 700
    for corpus in (texts, TEXTS):
        index = Index(corpus)
        vocabulary = sorted({term.decode() for text in corpus for term in terms(text)})
        for _ in range(60):
            query = " ".join(rng.choices([*vocabulary, "unknown"], k=rng.randint(0, 6)))
            assert index.search(query, 5) == fractions(corpus, query)[:5]


def test_the_logarithm_is_rounded_down() -> None:
    for numerator, denominator in [(1, 1), (4, 3), (7, 2), (2**19 + 2, 1), (2**19 + 2, 2**19 + 1), (3 * 2**40, 2**40)]:
        exact = math.log2(numerator / denominator) * 65536
        assert log2(numerator, denominator) == math.floor(exact)
    assert log2(1 << 17, 1) == 17 << 16


def test_equal_documents_come_in_their_order_however_many_are_asked_for() -> None:
    index = Index(["x y", "y x", "z", "x y", "x, y!"] * 40)
    assert [number % 5 for number in index.search("x y", 8)] == [0, 1, 3, 4] * 2
    assert index.search("x y", 8) == sorted(index.search("x y", 8))
    assert index.search("y X x y", 3) == index.search("x y", 160)[:3]


def test_what_is_found_never_changes() -> None:
    """Across versions of Python and numpy: whoever finds something else accuses everybody."""
    index = Index(TEXTS)
    queries = [json.loads(line)["question"] for line in (CORPORA / "questions.jsonl").read_text().splitlines()]
    queries += [
        "café ærø",
        "CAFÉ",
        "Слепой",
        "слепой",
        "塔",
        "塔 is",
        "\u0130 \u2167 ﬁ",
        "the",
        "THE OF",
        "1926",
        "18,400",
        "\ud800 salmon",
    ]
    found = json.dumps([index.search(query, 8) for query in queries])
    assert (
        hashlib.sha256(found.encode()).hexdigest() == "5d527d1a34f9b6bf3a58d3a403e5644d70795b43fce9bbeac869069fae540fa5"
    )


def test_a_term_is_told_by_its_bytes() -> None:
    assert terms("Don't stop: x_y 3.14 ÆRØ-塔塔 İ") == [
        b"don", b"t", b"stop", b"x", b"y", b"3", b"14", "ÆRØ".encode().replace(b"R", b"r"), "塔塔".encode(), "İ".encode(),
    ]  # fmt: skip
    assert terms("a\ud800b") == [b"ab"]
    assert terms("") == terms(" !?\0") == []


def test_a_question_of_the_small_corpus_finds_its_answer() -> None:
    index = Index(TEXTS)
    for line in (CORPORA / "questions.jsonl").read_text().splitlines():
        problem = json.loads(line)
        assert any(problem["answer"] in TEXTS[number] for number in index.search(problem["question"], 3)), problem


# ---- hostile queries and corpora ---------------------------------------------------------------------------------------


HOSTILE = {
    "nothing": "<search></search>", "white space": "<search> \n </search>", "too long": call("a " * 101), "very long": call("a" * 131_072),
    "never closed": "<search>" * 20_000, "never opened": "</search>" * 20_000, "goes on": call("x") + "and so on", "no text": call("\ud800"),
    "in white space": "x" + " " * 131_072, "tags alone": "<search>" * 20_000 + "</search>",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_query_ends_the_sample(name: str) -> None:
    assert query_of(HOSTILE[name]) is None


@pytest.mark.parametrize(
    ("turn", "query"),
    [
        (call("river Tam"), "river Tam"), ("<search>a</search><search> b\n</search> \r\n", "b"), (call("x" * 200), "x" * 200),
        ("</search><search>a</search>", "a"), (call("<search>deep"), "deep"), (call("(a+)+$ OR 1=1; \0"), "(a+)+$ OR 1=1; \0"),
    ],
)  # fmt: skip
def test_the_last_search_is_the_query(turn: str, query: str) -> None:
    assert query_of(turn) == query


def test_hostile_queries_are_answered_in_time_and_memory(spec: FromFiles) -> None:
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    queries = [
        " ".join(letters)[:200], ",".join(f"{a}{b}" for a in letters for b in letters)[:200], "\x01" * 200, "\u202e塔" * 100, "9" * 200,
        "*?[a-z]{99}", "' OR 1=1 --", "../../etc/passwd", "é" * 200, "$(reboot)", "</document>", "the " * 50,
    ]  # fmt: skip
    with EnvironmentSandbox([spec]) as sandbox:
        asked = [Asked(0, [call(query) for query in queries] * 20)] * 4
        first, *others = sandbox.replies(asked)
        assert all(len(reply.text) <= 16_384 for reply in first)
        assert all(other == first for other in others)
        assert len(first) == 20 * len(queries)
        assert first[2].text == "Nothing was found."
        assert first[2].calls == (ToolCall(2, "search", queries[2], ""),)
        assert sandbox.replies([Asked(0, [turn]) for turn in HOSTILE.values() if "\ud800" not in turn]) == [[]] * 9


def test_the_widest_corpus_is_searched_in_little_time() -> None:
    """Each document holds each term of the query: nothing costs more. CPU time is far below what a request may take."""
    letters = " ".join("abcdefghijklmnopqrstuvwxyz0123456789")
    index = Index([letters] * 20_000)
    before = time.process_time()
    assert index.search(letters, 3) == [0, 1, 2]
    assert time.process_time() - before < 10


def test_a_corpus_above_the_limits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, what in (
        ("DOCUMENTS_MAX", "documents"),
        ("CORPUS_BYTES_MAX", "bytes"),
        ("TERMS_MAX", "different terms"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(bm25, limit, 4)
            with pytest.raises(ConfigError, match=f"at most|may have 4 {what}"):
                Index(["a b", "c d", "e", "f", "g"])


def test_a_corpus_of_nothing_finds_nothing() -> None:
    assert Index(["", "!?"]).search("a", 3) == []
    assert Index([]).search("a", 3) == []


# ---- the environment ---------------------------------------------------------------------------------------------------


def test_a_search_is_replied_to_and_anything_else_is_the_end(spec: FromFiles) -> None:
    with EnvironmentSandbox([spec]) as sandbox:
        assert sandbox.converses(0)
        (problem,) = sandbox.problems([0])
        turns = [call("Orlo lighthouse"), call("nothing-of-the-kind"), f"So it is\n{problem.answer}"]
        (replies,) = sandbox.replies([Asked(0, turns)])
        assert [one.calls[0].result for one in replies] == ["0 29 33", "5 27 18"]
        assert replies[0].text.startswith(
            "[1] The Orlo Lighthouse\nThe Orlo Lighthouse stands on the island of Vesk. It was bui (cut)\n\n[2] "
        )
        assert replies[0].calls == (ToolCall(0, "search", "Orlo lighthouse", "0 29 33"),)
        assert sandbox.score([(0, turns[2]), (0, turns[0])]) == [1.0, 0.0]
        assert sandbox.replies([Asked(0, [call("Korn")])], held_out=True)[0][0].text.startswith("[1] The Korn")


@pytest.mark.usefixtures("quick_inspection")
def test_it_keeps_what_every_environment_must(spec: FromFiles) -> None:
    seen = list(examine(spec, problems=4))
    assert [one.name for one in seen if one.holds is False] == []
    assert "replies the same" in [one.name for one in seen if one.holds]


def test_a_corpus_is_pinned_and_needed_before_any_problem(
    tmp_path: Path, tiny_run: TinyRun, folder: Path, spec: FromFiles
) -> None:
    run = of_run(tmp_path, tiny_run)
    assert [file.sha256 for file in run.task_files] == [file.sha256 for file in (*spec.files, *spec.corpus)]
    assert runspec.from_bytes(run.canonical(), run.digest) == run
    fetched: list[str] = []
    with EnvironmentSandbox(run.environments) as sandbox:
        tasks = task_set(run.environments)
        tasks._fetch, tasks._source = lambda file: fetched.append(file.sha256), sandbox
        tasks.require_same_problems()
    assert sorted(fetched) == sorted(file.sha256 for file in run.task_files)


def test_a_machine_that_finds_something_else_stops_before_it_starts(
    tmp_path: Path, tiny_run: TinyRun, spec: FromFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = task_set(of_run(tmp_path, tiny_run).environments)
    tasks.require_same_problems()
    monkeypatch.setattr(retrieval, "_index", lambda _: Index([*TEXTS[1:], TEXTS[0]]))
    with pytest.raises(VersionMismatch, match="draws other problems"):
        tasks.require_same_problems()


def of_run(tmp_path: Path, tiny_run: TinyRun) -> RunSpec:
    tables = run_tables()
    tables["spec"]["environments"] = [{
        "package": "retrieval", "dataset": "tamside", "files": ["questions.parquet"], "corpus": ["documents.parquet"], "size": 16, "held_out_size": 4,
    }]  # fmt: skip
    (tmp_path / "run.toml").unlink(missing_ok=True)
    write_toml(tmp_path / "run.toml", tables, "x")
    return runfile.complete(tmp_path / "run.toml", tiny_run.model)


def test_a_corpus_is_named_by_those_who_search_and_no_others(spec: FromFiles) -> None:
    for changes, complaint in (
        ({"corpus": []}, "needs a corpus"),
        ({"package": "parquet", "config": {}}, "takes no corpus"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            task_set([spec.model_copy(update=changes)])
