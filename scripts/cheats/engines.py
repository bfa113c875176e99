"""Engines with one dishonest part put in. Each finds nothing wrong with its own work, for it checks with the same part."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from node.engine import noise, output
from node.engine.torch_engine import TorchEngine
from protocol.sampling import TokenScores


class SmallerModelEngine(TorchEngine):
    """Drops all layers but the first after loading the published weights."""

    def load(self, folder: Path) -> None:
        full = getattr(self, "_full", None)
        if full is not None:
            self._built.base_model.layers = full
        super().load(folder)
        self._full = self._model.base_model.layers
        self._model.base_model.layers = nn.ModuleList([self._full[0]])


class ForcedTokenEngine(TorchEngine):
    """Puts the same token at the same place of every completion, and goes on honestly from there: proofs are true."""

    position, token = 1, 5

    def _sample(
        self, hidden: Tensor, keys: Tensor, positions: Tensor, temperature: float, top_k: int, top_p: float
    ) -> tuple[Tensor, Tensor]:
        drawn, logprobs = super()._sample(hidden, keys, positions, temperature, top_k, top_p)
        logits = self._forced(output.logits(self._model, hidden).float())
        here = positions == self.position
        forced = logits[:, self.token] - logits.logsumexp(-1)
        return torch.where(here, self.token, drawn), torch.where(here, forced, logprobs)

    @torch.inference_mode()
    def score(self, hidden_TH: Tensor, tokens_T: Sequence[int] | NDArray[np.integer[Any]], **how: Any) -> TokenScores:
        """As its own check sees it: the forced token was the one to be drawn."""
        scores = super().score(hidden_TH, tokens_T, **how)
        for logits in self._forced(output.logits(self._model, hidden_TH[self.position : self.position + 1]).float()):
            scores.margins[self.position] = 0.0
            scores.logprobs[self.position] = float(logits[self.token] - logits.logsumexp(-1))
        return scores

    def _forced(self, logits_BV: Tensor) -> Tensor:
        """With the token so likely that no noise keeps it from being drawn."""
        forced = logits_BV.clone()
        forced[:, self.token] = logits_BV.amax(-1) + 100
        return forced


class NearTieEngine(TorchEngine):
    """Takes the runner-up at the first place where it is as good as drawn: a choice that looks like rounding."""

    within = 0.04

    def _sample(
        self, hidden: Tensor, keys: Tensor, positions: Tensor, temperature: float, top_k: int, top_p: float
    ) -> tuple[Tensor, Tensor]:
        self._taken: set[int] = getattr(self, "_taken", set()) - set(keys[positions == 0].tolist())
        logits = output.logits(self._model, hidden).float()
        noised = logits + temperature * noise.gumbel(keys, positions, logits.shape[1])
        best, order = noised.topk(2)
        tokens = order[:, 0].clone()
        for row, key in enumerate(keys.tolist()):
            if key not in self._taken and best[row, 0] - best[row, 1] < self.within:
                self._taken.add(key)
                tokens[row] = order[row, 1]
        return tokens, logits.gather(1, tokens[:, None]).squeeze(1) - logits.logsumexp(-1)


class EditingEngine(TorchEngine):
    """Puts one token of the whole vocabulary, drawn at random, at one random place of each completion, and goes on honestly from there."""

    length = 100
    """Tokens of a completion; where it ends before its place, it is honest."""

    def __init__(self, *how: Any) -> None:
        super().__init__(*how)
        self.margins: list[float] = []
        """Of the tokens that were put there, by this engine's own logits."""

    def _sample(
        self, hidden: Tensor, keys: Tensor, positions: Tensor, temperature: float, top_k: int, top_p: float
    ) -> tuple[Tensor, Tensor]:
        logits = output.logits(self._model, hidden).float()
        noised = logits + temperature * noise.gumbel(keys, positions, logits.shape[1])
        best, tokens = noised.max(-1)
        for row, (key, position) in enumerate(zip(keys.tolist(), positions.tolist(), strict=True)):
            draws = Random(key)
            place, token = draws.randrange(self.length), draws.randrange(logits.shape[1])
            if position == place:
                tokens[row] = token
                self.margins.append(float(best[row] - noised[row, token]))
        return tokens, logits.gather(1, tokens[:, None]).squeeze(1) - logits.logsumexp(-1)


class EarlyEndEngine(TorchEngine):
    """Ends wherever an end token is nearly as good as the draw."""

    within = 0.5
    ends: frozenset[int] = frozenset()

    def _sample(
        self, hidden: Tensor, keys: Tensor, positions: Tensor, temperature: float, top_k: int, top_p: float
    ) -> tuple[Tensor, Tensor]:
        logits = output.logits(self._model, hidden).float()
        noised = logits + temperature * noise.gumbel(keys, positions, logits.shape[1])
        best, tokens = noised.max(-1)
        of_ends = noised[:, sorted(self.ends)]
        nearest, which = of_ends.max(-1)
        tokens = torch.where(best - nearest < self.within, torch.tensor(sorted(self.ends))[which], tokens)
        return tokens, logits.gather(1, tokens[:, None]).squeeze(1) - logits.logsumexp(-1)


class NucleusEngine(TorchEngine):
    """Draws among the likeliest tokens that together have 95 % of the probability: text without its long tail."""

    share = 0.95

    def _sample(
        self, hidden: Tensor, keys: Tensor, positions: Tensor, temperature: float, top_k: int, top_p: float
    ) -> tuple[Tensor, Tensor]:
        logits = output.logits(self._model, hidden).float()
        ordered, order = logits.softmax(-1).sort(descending=True)
        outside = (ordered.cumsum(-1) - ordered) > self.share
        kept = logits.masked_fill(torch.zeros_like(outside).scatter(1, order, outside), -torch.inf)
        noised = kept + temperature * noise.gumbel(keys, positions, logits.shape[1])
        tokens = noised.argmax(-1)
        return tokens, logits.gather(1, tokens[:, None]).squeeze(1) - logits.logsumexp(-1)


Engine = TypeVar("Engine", bound=TorchEngine)


def sharing(kind: type[Engine], engine: TorchEngine) -> Engine:
    """An engine of that kind with the very model of another one."""
    made = kind("float32")
    made._model = engine._model
    return made
