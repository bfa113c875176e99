"""Problems of task files with a corpus to search in: a turn that ends in <search>who wrote Solaris</search> is told what was found.

    [[spec.environments]]
    package = "retrieval"
    files = ["questions.parquet"]
    corpus = ["documents.parquet"]

A search finds the same documents in the same order everywhere (bm25.py): the corpus is pinned as task files are, and what the first
questions find is part of the spec's digest, so that a machine that finds something else stops before it starts. The text of the last
turn is compared with the answer as task files compare it (answer.py). The form of a call is Search-R1's (arXiv 2503.09516).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from pydantic import Field

from protocol.environments.bm25 import DOCUMENTS_MAX, Index
from protocol.environments.environment import Config
from protocol.environments.taskfile import Rows, TaskFiles
from protocol.errors import ConfigError
from protocol.rollout import ToolCall, ToolResult
from protocol.runspec import FromFiles, TaskFile

TOOL = "search"
QUERY_CHARS_MAX = 200
_TITLE_CHARS_MAX = 200
_BEGIN, _END = "<search>", "</search>"


class RetrievalConfig(Config):
    results: int = Field(default=3, ge=1, le=8)
    """Documents that a search shows at most."""
    letters: int = Field(default=600, ge=16, le=1500)
    """Of each document's text; the rest is cut off."""


class Retrieval(TaskFiles):
    """Rows of task files; each turn that ends in a search is a call."""

    name = "retrieval"
    version = "1"
    exact = True
    searches = True
    Config = RetrievalConfig

    def __init__(self, spec: FromFiles, *, held_out: bool) -> None:
        super().__init__(spec, held_out=held_out)
        self._documents = Rows(spec.corpus)
        if len(self._documents) > DOCUMENTS_MAX:
            raise ConfigError(
                f"a corpus may have {DOCUMENTS_MAX} documents, and that of {spec.dataset} has {len(self._documents)}"
            )

    def reply(self, entry: dict[str, Any], turns: Sequence[str]) -> ToolResult | None:
        query = query_of(turns[-1])
        if query is None:
            return None
        found = self._search(query)
        text = "\n\n".join(self._shown(place, number) for place, number in enumerate(found, 1)) or "Nothing was found."
        return ToolResult(text, (ToolCall(len(turns) - 1, TOOL, query, " ".join(map(str, found))),))

    def as_call(self, text: str) -> str:
        return f"{_BEGIN}{text}{_END}"

    def fingerprint(self, entry: dict[str, Any]) -> list[str]:
        return [*super().fingerprint(entry), *map(str, self._search(entry["question"]))]

    def _search(self, query: str) -> list[int]:
        return _index(tuple(self.spec.corpus)).search(query, self.config.results)

    def _shown(self, place: int, number: int) -> str:
        document = self._documents[number]
        text = document["answer"]
        cut = text if len(text) <= self.config.letters else f"{text[: self.config.letters]} (cut)"
        return f"[{place}] {document['question'][:_TITLE_CHARS_MAX]}\n{cut}"


@lru_cache(maxsize=2)
def _index(files: tuple[TaskFile, ...]) -> Index:
    """Of these files, whose digests were checked: the same for problems to train on and held-out ones."""
    rows = Rows(files)
    documents = (rows[number] for number in range(len(rows)))
    return Index(f"{document['question']}\n{document['answer']}" for document in documents)


def query_of(turn: str) -> str | None:
    """What a turn ends in a search for; None: it ends in none, or in one that is empty, too long or no text."""
    said = turn.rstrip(" \t\r\n")
    start = said.rfind(_BEGIN)
    if start < 0 or not said.endswith(_END):
        return None
    query = said[start + len(_BEGIN) : -len(_END)].strip(" \t\r\n")
    is_text = not any("\ud800" <= letter <= "\udfff" for letter in query[: QUERY_CHARS_MAX + 1])
    return query if 0 < len(query) <= QUERY_CHARS_MAX and is_text else None
