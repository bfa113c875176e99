"""The learner: fp32 master weights, the optimizer, and one step of GRPO on a batch of rollouts.

Knows nothing of chain, hub or files; train.py feeds it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from node.engine.weights import build_model, load_weights, save_weights, stored_tensors
from trainer import loss
from trainer.config import TrainSettings
from trainer.packing import PackedRows, TrainingSample, pack


@dataclass(frozen=True)
class StepMetrics:
    """Means over the completion tokens learnt from, but for `gradient_norm` (its largest) and `tokens` (their number).

    All are finite: optimizer steps that were left out count in `skipped` only.
    """

    loss: float
    entropy: float
    clipped: float
    log_ratio: float
    gradient_norm: float
    tokens: int
    skipped: int
    """Optimizer steps left out because their gradient was not finite."""


class Learner:
    def __init__(self, model: Path, settings: TrainSettings) -> None:
        torch.set_num_threads(settings.threads)
        self._settings = settings
        self.model: Any = build_model(model, torch.float32)
        load_weights(self.model, model)
        self.model.train()
        o = settings.optimizer
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=o.lr, betas=(o.beta1, o.beta2), weight_decay=o.weight_decay
        )

    def learn(self, groups: Sequence[Sequence[TrainingSample]], step: int) -> StepMetrics:
        """One rollout step: `optimizer_steps` optimizer steps over the groups, which are dealt out at random."""
        s = self._settings
        dealt = list(groups)
        random.Random(f"{s.seed}/{step}").shuffle(dealt)
        parts = [dealt[i :: s.optimizer_steps] for i in range(s.optimizer_steps)]
        batches = [
            pack([sample for group in part for sample in group], s.pack_tokens, s.rows_per_forward)
            for part in parts
            if part
        ]
        # The first part's own logprobs are its old ones: nothing has been updated yet.
        old: list[list[Tensor | None]] = [
            [None] * len(batches[0]),
            *([self._frozen(rows) for rows in b] for b in batches[1:]),
        ]
        for group in self.optimizer.param_groups:
            group["lr"] = s.optimizer.lr * min(1.0, (step + 1) / max(1, s.optimizer.warmup_steps))
        totals, largest, tokens, skipped = torch.zeros(4, dtype=torch.float64), 0.0, 0, 0
        for batch, frozen in zip(batches, old, strict=True):
            part, norm = self._update(batch, frozen)
            if not math.isfinite(norm):
                skipped += 1
                continue
            totals += part
            largest = max(largest, norm)
            tokens += sum(rows.tokens for rows in batch)
        policy, entropy, clipped, log_ratio = (totals / max(1, tokens)).tolist()
        return StepMetrics(policy, entropy, clipped, log_ratio, largest, tokens, skipped)

    def _update(self, batch: Sequence[PackedRows], frozen: Sequence[Tensor | None]) -> tuple[Tensor, float]:
        """One optimizer step; returns sums of (loss, entropy, clipped, |log-ratio|) and the gradient's norm."""
        s, tokens = self._settings, sum(rows.tokens for rows in batch)
        sums = torch.zeros(4, dtype=torch.float64)
        self.optimizer.zero_grad(set_to_none=True)
        for rows, old in zip(batch, frozen, strict=True):
            logprobs, entropy = self._logprobs(rows)
            reference = logprobs.detach() if old is None else old
            parts = loss.two_sided(
                logprobs, reference, rows.advantages[rows.predicts], clip=s.loss.clip, delta=s.loss.delta
            )
            ((parts.loss - s.loss.entropy * entropy.sum()) / tokens).backward()
            sums += torch.stack([parts.loss.detach(), entropy.detach().sum(), parts.clipped, parts.log_ratio]).double()
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), s.optimizer.gradient_clip))
        if math.isfinite(norm):
            self.optimizer.step()
        return sums, norm

    def _logprobs(self, rows: PackedRows) -> tuple[Tensor, Tensor]:
        """Logprob of each completion token and entropy of its distribution, both [N]."""
        hidden = self.model.base_model(
            input_ids=rows.ids, position_ids=rows.positions, attention_mask=rows.mask, use_cache=False
        ).last_hidden_state
        logits = self.model.lm_head(hidden[rows.predicts]).float()
        normaliser = logits.logsumexp(-1)
        chosen = logits.gather(-1, rows.targets[rows.predicts][:, None]).squeeze(-1)
        entropy = normaliser - (logits.softmax(-1) * logits).sum(-1)
        return chosen - normaliser, entropy

    @torch.no_grad()
    def _frozen(self, rows: PackedRows) -> Tensor:
        return self._logprobs(rows)[0]

    # ---- state ---------------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Model and optimizer as safetensors, in full precision."""
        from safetensors.torch import save_file

        save_weights(self.model, folder / "model.safetensors", torch.float32)
        tensors = {}
        for name, parameter in stored_tensors(self.model).items():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"{name}/{key}"] = value.detach().clone().contiguous()
        save_file(tensors, folder / "optimizer.safetensors")

    def restore(self, folder: Path) -> None:
        """Exactly what `save` wrote."""
        from safetensors.torch import load_file

        load_weights(self.model, folder)
        stored = load_file(folder / "optimizer.safetensors")
        for name, parameter in stored_tensors(self.model).items():
            state = {key.rsplit("/", 1)[1]: value for key, value in stored.items() if key.rsplit("/", 1)[0] == name}
            if state:
                self.optimizer.state[parameter] = state
