"""The learner: fp32 master weights, the optimizer, and one step of GRPO on a batch of rollouts.

Knows nothing of chain, hub or files; train.py feeds it. A step is `optimizer_steps` optimizer steps on shares of the batch.
Old logprobs are computed at its beginning, and only for shares that later weights will see. An optimizer step whose loss or
gradient is not finite is left out, and the rollouts to blame are named.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from node.engine.weights import build_model, load_weights, save_weights, stored_tensors
from trainer import loss
from trainer.config import TrainSettings
from trainer.logprobs import require_plain_head, token_logprobs
from trainer.packing import PackedRows, TrainingSample, pack
from trainer.recipes import RECIPES

log = logging.getLogger("trainer")

_NAMED = 8  # rollouts to blame that a message lists


@dataclass(frozen=True)
class StepMetrics:
    """Means over the completion tokens learnt from, but for `gradient_norm` (its largest), `tokens` and `skipped`.

    All are finite: optimizer steps that were left out count in `skipped` and `blamed` only.
    """

    loss: float
    """Of the policy alone, without KL and entropy, aggregated as the loss prescribes; mean over optimizer steps."""
    entropy: float
    clipped: float
    """Share of tokens without a gradient because their ratio was clipped."""
    clipped_positive: float
    clipped_negative: float
    """The same by the advantage's sign."""
    log_ratio: float
    """Mean absolute log-ratio of new to old logprobs."""
    behaviour_gap: float
    """Mean absolute difference of old and claimed logprobs: age of the weights, and engine against trainer. 0 where unknown."""
    kl: float
    """Estimated divergence from the reference; 0 where its weight is."""
    gradient_norm: float
    tokens: int
    skipped: int
    """Optimizer steps left out because their loss or gradient was not finite."""
    blamed: tuple[str, ...] = ()
    """Names of the rollouts that have no finite gradient all by themselves."""


@dataclass
class _Sums:
    """Over tokens, but for `loss`, which is over optimizer steps."""

    loss: float = 0.0
    entropy: float = 0.0
    clipped_positive: float = 0.0
    clipped_negative: float = 0.0
    log_ratio: float = 0.0
    behaviour_gap: float = 0.0
    kl: float = 0.0

    def add(self, other: _Sums) -> None:
        for name in (field.name for field in fields(self)):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def finite(self) -> bool:
        return all(math.isfinite(getattr(self, field.name)) for field in fields(self))


@dataclass(frozen=True)
class Share:
    """Rows that go through the model together, and what was computed of them at the beginning of the step, [N] each.

    `old` is None where the logprobs of the optimizer step itself are the old ones: nothing has been updated before it.
    """

    rows: PackedRows
    old: Tensor | None
    reference: Tensor | None


class Learner:
    def __init__(self, model: Path, settings: TrainSettings) -> None:
        torch.set_num_threads(settings.threads)
        self._settings = settings
        self._objective = loss.OBJECTIVES[RECIPES[settings.loss.name].objective]
        self._folder = model
        self._reference: Any = None
        self.model: Any = build_model(model, torch.float32)
        require_plain_head(self.model.config)
        load_weights(self.model, model)
        self.model.train()
        if settings.activation_checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
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
        batches = self._prepare([[sample for group in part for sample in group] for part in parts if part])
        for group in self.optimizer.param_groups:
            group["lr"] = s.optimizer.lr * min(1.0, (step + 1) / max(1, s.optimizer.warmup_steps))
        totals, largest, tokens, blamed, done = _Sums(), 0.0, 0, [], 0
        for batch in batches:
            sums, norm = self._update(batch)
            if not (sums.finite and math.isfinite(norm)):
                blamed += self._blame(batch, step)
                continue
            totals.add(sums)
            largest, done = max(largest, norm), done + 1
            tokens += sum(share.rows.tokens for share in batch)
        mean = {field.name: getattr(totals, field.name) / max(1, tokens) for field in fields(totals)}
        mean["loss"] = totals.loss / max(1, done)
        clipped = mean["clipped_positive"] + mean["clipped_negative"]
        return StepMetrics(
            **mean, clipped=clipped, gradient_norm=largest, tokens=tokens, skipped=len(batches) - done, blamed=tuple(blamed)
        )  # fmt: skip

    def _prepare(self, parts: Sequence[Sequence[TrainingSample]]) -> list[list[Share]]:
        """The shares of every optimizer step, with the logprobs that must be known before the first one."""
        s = self._settings
        batches = [pack(part, s.pack_tokens, s.rows_per_forward) for part in parts]
        reference = self._load_reference() if s.kl.weight else None
        made = [
            [
                Share(rows, self._old(rows, first=i == 0), self._frozen(rows, reference) if reference else None)
                for rows in batch
            ]
            for i, batch in enumerate(batches)
        ]
        self._reference = reference if s.kl.keep_reference else None
        return made

    def _old(self, rows: PackedRows, *, first: bool) -> Tensor | None:
        if self._settings.loss.old == "claimed":
            if rows.behaviour is None:
                raise ValueError("samples without claimed logprobs")
            return rows.behaviour
        return None if first else self._frozen(rows, self.model)

    def _load_reference(self) -> Any:
        if self._reference is None:
            reference = build_model(self._folder, torch.float32)
            load_weights(reference, self._folder)
            return reference.requires_grad_(False)
        return self._reference

    def _update(self, batch: Sequence[Share]) -> tuple[_Sums, float]:
        """One optimizer step; returns its sums and the gradient's norm. Unless all are finite, nothing was changed."""
        totals = loss.Totals(sum(s.rows.tokens for s in batch), sum(len(s.rows.samples) for s in batch))
        sums = self._backward(batch, totals)
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._settings.optimizer.gradient_clip))
        if sums.finite and math.isfinite(norm):
            self.optimizer.step()
        return sums, norm

    def _backward(self, batch: Sequence[Share], totals: loss.Totals) -> _Sums:
        self.optimizer.zero_grad(set_to_none=True)
        sums = _Sums()
        for share in batch:
            total, of_share = self._loss(share, totals)
            total.backward()
            sums.add(of_share)
        return sums

    def _loss(self, share: Share, totals: loss.Totals) -> tuple[Tensor, _Sums]:
        """What is minimised for a share of an optimizer step's batch, and its sums."""
        s, rows = self._settings.loss, share.rows
        logprobs, entropy = self._logprobs(rows, self.model)
        old = logprobs.detach() if share.old is None else share.old
        tokens = loss.Tokens(logprobs, old, rows.advantages, rows.sample, rows.lengths)
        made = self._objective(tokens, s.clip)
        per_token = made.loss
        if s.correction != "none" and rows.behaviour is not None:
            per_token = per_token * loss.importance(
                old, rows.behaviour, s.correction, s.correction_low, s.correction_high
            )
        weights = loss.token_weights(tokens, s.aggregates, totals, s.constant)
        policy = (per_token * weights).sum()
        total, divergence = policy, torch.zeros(())
        if share.reference is not None:
            per_token_kl = loss.kl(logprobs, share.reference)
            total = total + self._settings.kl.weight * (per_token_kl * weights).sum()
            divergence = per_token_kl.detach().sum()
        if s.entropy:
            total = total - s.entropy * entropy.sum() / totals.tokens
        with torch.no_grad():
            gap = loss.bounded(old - rows.behaviour).abs().sum() if rows.behaviour is not None else torch.zeros(())
            sums = (
                policy.detach(), entropy.sum(), (made.clipped & (rows.advantages > 0)).sum(),
                (made.clipped & (rows.advantages < 0)).sum(), loss.bounded(logprobs - old).abs().sum(), gap, divergence,
            )  # fmt: skip
        return total, _Sums(*(float(value) for value in sums))

    def _blame(self, batch: Sequence[Share], step: int) -> list[str]:
        """Names of the rollouts whose loss or gradient, each by itself, is not finite."""
        blamed = []
        for share in batch:
            for i, sample in enumerate(share.rows.samples):
                own = share.rows.sample == i
                (rows,) = pack([sample], len(sample), 1)
                alone = Share(rows, *(None if of is None else of[own] for of in (share.old, share.reference)))
                sums = self._backward([alone], loss.Totals(rows.tokens, 1))
                gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
                if not sums.finite or not all(bool(torch.isfinite(gradient).all()) for gradient in gradients):
                    blamed.append(sample.name or "unnamed")
        self.optimizer.zero_grad(set_to_none=True)
        named = ", ".join(blamed[:_NAMED]) + (f" and {len(blamed) - _NAMED} more" if len(blamed) > _NAMED else "")
        log.warning(
            "step %d: an optimizer step is left out, not finite: %s", step, named or "only all rollouts together"
        )
        return blamed

    def _logprobs(self, rows: PackedRows, model: Any) -> tuple[Tensor, Tensor]:
        """Logprob of each completion token and entropy of its distribution, both [N]."""
        with self._autocast():
            hidden = model.base_model(
                input_ids=rows.ids, position_ids=rows.positions, attention_mask=rows.mask, use_cache=False
            ).last_hidden_state
        head = model.get_output_embeddings()
        return token_logprobs(hidden.flatten(0, 1)[rows.source].to(head.weight.dtype), head, rows.targets)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._settings.compute_dtype == "float32":
            return nullcontext()
        return torch.autocast(self.model.device.type, getattr(torch, self._settings.compute_dtype))

    @torch.no_grad()
    def _frozen(self, rows: PackedRows, model: Any) -> Tensor:
        return self._logprobs(rows, model)[0]

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
