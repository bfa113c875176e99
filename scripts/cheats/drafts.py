"""Generating with a cheap draft whose tokens are kept where they are nearly as good as the draw: what a cheat saves by rounding "in its favour".

The draft stands for any: the published model's logits with Gaussian noise of `spread` logits added, which draws with the same keys. A real one saves the passes of the
published model wherever its token is kept; here only what is kept matters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from node.engine import noise, output
from node.engine.torch_engine import TorchEngine


class DraftingEngine(TorchEngine):
    """Keeps the draft's token where its margin is within `budget` logits, or where its probability is above `likely`; else draws honestly."""

    budget = 0.0
    likely = 1.0
    spread = 1.0
    drafted = 0
    kept = 0
    as_drawn = 0
    """Of the drafted tokens, those that are the draw anyway: what an honest use of drafts keeps."""

    def _sample(
        self, hidden: Tensor, keys: Tensor, positions: Tensor, temperature: float, top_k: int, top_p: float
    ) -> tuple[Tensor, Tensor]:
        logits = output.logits(self._model, hidden).float()
        random = temperature * noise.gumbel(keys, positions, logits.shape[1])
        wanderer = torch.Generator().manual_seed(int(keys[0]) ^ int(positions.sum()))
        proposed = (logits + self.spread * torch.randn(logits.shape, generator=wanderer) + random).argmax(-1)
        drawn = (logits + random).argmax(-1)
        rows = torch.arange(len(logits))
        margins = (logits + random)[rows, drawn] - (logits + random)[rows, proposed]
        probabilities = logits.softmax(-1)[rows, proposed]
        kept = (margins <= self.budget) | (probabilities > self.likely)
        tokens = torch.where(kept, proposed, drawn)
        self.drafted += len(rows)
        self.kept += int(kept.sum())
        self.as_drawn += int((proposed == drawn).sum())
        return tokens, logits.gather(1, tokens[:, None]).squeeze(1) - logits.logsumexp(-1)
