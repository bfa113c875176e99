"""An engine of NumPy alone, of a model that is one table: the least that an engine has to do, and a pattern for new ones.

A row of the table is a token's embedding and its output weights. A hidden state is half the one before plus the newest token's row.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from torch import Tensor

from node.engine import memory
from node.engine.interface import Completion, Prompt, no_version
from node.engine.memory import Footprint, MemoryBudget
from node.engine.settings import EngineSettings
from protocol import resources, sampling, toploc
from protocol.errors import IntegrityError
from protocol.sampling import TokenScores
from tests.engine.contract import Setting

WEIGHTS, TABLE = "model.safetensors", "table"
Table = NDArray[np.float32]


class NumpyEngine:
    def __init__(self, compute_dtype: str, settings: EngineSettings) -> None:
        if compute_dtype != "float32":
            raise ValueError("NumPy knows no bfloat16")
        self._most = memory.parse(settings.memory, resources.memory_bytes())
        self._table: Table | None = None

    def load(self, folder: Path) -> None:
        before, self._table = self._table, None
        try:
            tensors = load_file(folder / WEIGHTS)
        except (SafetensorError, OSError) as error:
            raise IntegrityError(f"cannot read {folder / WEIGHTS}: {error}") from error
        table = tensors.get(TABLE)
        if table is None or (before is not None and table.shape != before.shape):
            raise IntegrityError(f"{folder / WEIGHTS} holds no such table")
        if not np.isfinite(table).all():
            raise IntegrityError(f"the table in {folder / WEIGHTS} holds NaN or infinity")
        self._table = table

    @property
    def hidden_size(self) -> int:
        return self._loaded.shape[1]

    def generate(
        self, prompts: Sequence[Prompt], *, temperature: float, max_new_tokens: int, end_tokens: frozenset[int],
        top_k: int = 0, top_p: float = 1.0, prove: bool = True,
    ) -> list[list[Completion]]:  # fmt: skip
        self._budget.plan(
            prompts, max_new_tokens, rows=1, prefill_tokens=1
        )  # it decodes row by row: one must fit, and one does
        cut = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        return [
            [self._complete(p.tokens, key, p.first, max_new_tokens, end_tokens, prove, cut) for key in p.keys]
            for p in prompts
        ]

    def _complete(
        self, prompt: list[int], key: int, first: int, most: int, ends: frozenset[int], prove: bool,
        distribution: dict[str, Any],
    ) -> Completion:  # fmt: skip
        made, state, states = Completion(), self._states(prompt)[-1], []
        while first + len(made.tokens) < most and not (made.tokens and made.tokens[-1] in ends):
            states.append(state)
            logits = (state @ self._loaded.T)[None]
            drawn = sampling.draw(logits, key=key, first=first + len(made.tokens), **distribution)
            scores = sampling.score(logits, drawn, key=key, first=first + len(made.tokens), **distribution)
            made.tokens.append(int(drawn[0]))
            made.logprobs.append(float(scores.logprobs[0]))
            state = state / 2 + self._loaded[drawn[0]]
        if prove:
            made.proofs = toploc.prove([toploc.bf16_bits(np.array(states))])[0]
        return made

    def require_room(self, tokens: int, *, prompt: int | None = None) -> None:
        self._budget.prefill_batches([tokens], tokens)
        if prompt is not None:
            self._budget.require_row(prompt, tokens - prompt)

    def prefill_in_batches(self, sequences: Sequence[tuple[Any, Any]]) -> Iterator[dict[int, Tensor]]:
        for batch in self._budget.prefill_batches([len(p) + len(c) for p, c in sequences], most_tokens=1 << 14):
            found = {}
            for i in batch:
                prompt, completion = sequences[i]
                states = self._states([*prompt, *completion])
                found[i] = torch.from_numpy(states[len(prompt) - 1 : -1].copy())
            yield found

    def score(self, hidden_TH: Tensor, tokens_T: Any, *, key: int, **distribution: Any) -> TokenScores:
        with np.errstate(invalid="ignore"):
            logits = hidden_TH.numpy() @ self._loaded.T
        if not np.isfinite(logits).all():
            raise IntegrityError("this machine's own logits hold NaN or infinity")
        return sampling.score(logits, np.asarray(tokens_T, np.int64), key=key, **distribution)

    @property
    def _loaded(self) -> Table:
        if self._table is None:
            raise no_version()
        return self._table

    @property
    def _budget(self) -> MemoryBudget:
        vocabulary, hidden = self._loaded.shape
        states = 4 * hidden  # of one token
        of = Footprint(self._loaded.nbytes, cache_token=states, row=8 * vocabulary, prefill_token=states, pair=0)
        return MemoryBudget(self._most, of)

    def _states(self, tokens: Sequence[int]) -> Table:
        """[len(tokens), H]"""
        states = self._loaded[np.asarray(tokens)].copy()
        for before, state in itertools.pairwise(states):
            state += before / 2
        return states


def write_version(folder: Path, table: Table) -> Path:
    folder.mkdir(parents=True)
    save_file({TABLE: table}, folder / WEIGHTS)
    return folder


def reference(folder: Path, tokens: Sequence[int]) -> tuple[Table, Table]:
    """Hidden states [T, H] and logits [T, V], each state as the sum that it is."""
    table = load_file(folder / WEIGHTS)[TABLE].astype(np.float64)
    age = np.subtract.outer(np.arange(len(tokens)), np.arange(len(tokens)))
    states = np.where(age >= 0, 0.5 ** np.maximum(age, 0), 0) @ table[np.asarray(tokens)]
    return states.astype(np.float32), (states @ table.T).astype(np.float32)


def numpy_setting(folder: Path, kind: type[NumpyEngine] = NumpyEngine) -> Setting:
    """What such an engine is tried with."""
    rng = np.random.default_rng(0)
    tables = [(0.3 * rng.normal(size=(64, 16))).astype(np.float32) for _ in range(2)]
    version, another = (write_version(folder / str(i), table) for i, table in enumerate(tables))
    broken = [write_version(folder / "broken", np.full((64, 16), np.nan, np.float32))]

    def make(memory: str) -> NumpyEngine:
        return kind("float32", EngineSettings(memory=memory))

    return Setting(make, reference, version, another, broken, 64, little="0.02MiB", too_little="0.005MiB")
