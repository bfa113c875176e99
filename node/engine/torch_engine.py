"""The engine on transformers and torch: batched decoding with a KV cache, seeded sampling, proofs as rows appear.

Covers: the models of protocol/architectures.py, one device. One prefill serves all samples of a prompt; finished rows leave the
batch; proofs.py folds proofs chunk by chunk; memory.py says how many rows are computed at once. Does not cover: continuous
refill, many GPUs.

Shapes: B rows of a batch, T tokens, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from node.engine import device, footprint, memory, noise, sampler
from node.engine.interface import Completion, Prompt
from node.engine.memory import MemoryBudget
from node.engine.proofs import ProofFolder
from node.engine.settings import EngineSettings
from node.engine.weights import build_model, load_weights
from protocol import architectures
from protocol.errors import ConfigError, IntegrityError
from protocol.sampling import TokenScores

TokenIds = Sequence[int] | NDArray[np.integer[Any]]

_PREFILL_TOKENS = 1 << 14  # tokens of one prefill batch at most, padding included: more is no faster
_SCORED_TOKENS = 128  # tokens whose logits are held at once: as many rows as make a product with `lm_head` efficient


class TorchEngine:
    def __init__(self, compute_dtype: str, settings: EngineSettings | None = None) -> None:
        """`compute_dtype` as the run spec names it. Raises PreflightError where the device is not there."""
        settings = settings or EngineSettings()
        torch.set_num_threads(settings.threads)
        self._dtype: torch.dtype = getattr(torch, compute_dtype)
        self._device = device.named(settings.device)
        self._most = memory.parse(settings.memory, device.memory_bytes(self._device))
        self._model: Any = None
        self._budget: MemoryBudget | None = None

    def load(self, folder: Path) -> None:
        """Loads a version; the first call builds the model from its config.json. Raises ConfigError for a model that is not computed
        rightly, IntegrityError for weights that are not the model's, and then the engine holds what it held before."""
        model = build_model(folder, self._dtype) if self._model is None else self._model
        load_weights(model, folder)
        self._model = model.to(self._device)

    @property
    def hidden_size(self) -> int:
        return int(self._model.config.hidden_size)

    @property
    def vocabulary(self) -> int:
        return int(self._model.config.vocab_size)

    @property
    def device(self) -> str:
        return device.describe(self._device)

    def adjust(self, *, attention: str, threads: int) -> None:
        """Computes with another attention implementation of transformers, and so many threads."""
        torch.set_num_threads(threads)
        self._model.set_attn_implementation(attention)

    def degrade(self, change: Callable[[Any], None]) -> None:
        """Changes the loaded model in place (degrade.py); the next `load` undoes it."""
        change(self._model)

    # ---- generation ----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        temperature: float,
        max_new_tokens: int,
        end_tokens: frozenset[int],
        top_k: int = 0,
        top_p: float = 1.0,
        prove: bool = True,
    ) -> list[list[Completion]]:
        """Completions per prompt and key, in order (node/engine/interface.py). What is sampled from, protocol/sampling.py defines."""
        self._require_positions(prompts, max_new_tokens)
        made: list[Completion] = []
        for batch in self._fits.decode_batches(prompts, max_new_tokens):
            made += self._decode(batch, temperature, max_new_tokens, end_tokens, top_k, top_p, prove=prove)
        flat = iter(made)
        return [list(islice(flat, len(prompt.keys))) for prompt in prompts]

    def _decode(
        self, prompts: Sequence[Prompt], temperature: float, max_new_tokens: int, end_tokens: frozenset[int],
        top_k: int, top_p: float, *, prove: bool,
    ) -> list[Completion]:  # fmt: skip
        """The completions of one batch, prompt after prompt."""
        state = self._prefill_prompts(prompts)
        done = [Completion() for prompt in prompts for _ in prompt.keys]
        proofs = ProofFolder([c.proofs for c in done], state.hidden.shape[1], self._device) if prove else None
        keys = torch.tensor([noise.as_signed(key) for prompt in prompts for key in prompt.keys], device=self._device)
        rows = torch.arange(len(done))  # which completion each living row belongs to
        for position in range(max_new_tokens):
            tokens, logprobs = self._sample(state.hidden, keys, position, temperature, top_k, top_p)
            if proofs:
                proofs.add(rows, state.hidden)
            for row, token, logprob in zip(rows.tolist(), tokens.tolist(), logprobs.tolist(), strict=True):
                done[row].tokens.append(token)
                done[row].logprobs.append(logprob)
            living = torch.tensor([token not in end_tokens for token in tokens.tolist()])
            if proofs:
                proofs.close(rows[~living].tolist())
            if position + 1 == max_new_tokens or not living.any():
                break
            if not living.all():
                kept = living.nonzero().squeeze(1)
                rows, kept = rows[kept], kept.to(self._device)
                state.select(kept)
                keys, tokens = keys[kept], tokens[kept]
            self._step(state, tokens)
        if proofs:
            proofs.finish()
        return done

    def _prefill_prompts(self, prompts: Sequence[Prompt]) -> _Decoding:
        """One row per prompt through the model, left-padded, then repeated for its samples."""
        from transformers import DynamicCache

        width = max(len(prompt.tokens) for prompt in prompts)
        ids = torch.zeros(len(prompts), width, dtype=torch.long)
        mask = torch.zeros(len(prompts), width, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt.tokens) :] = torch.tensor(prompt.tokens)
            mask[row, width - len(prompt.tokens) :] = 1
        ids, mask = ids.to(self._device), mask.to(self._device)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        cache = DynamicCache(config=self._model.config)
        out = self._model.base_model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        )
        samples = torch.tensor([len(prompt.keys) for prompt in prompts], device=self._device)
        cache.batch_repeat_interleave(samples)  # one number for each prompt
        return _Decoding(
            cache=cache,
            mask=mask.repeat_interleave(samples, 0),
            position=positions[:, -1].repeat_interleave(samples, 0),
            hidden=out.last_hidden_state[:, -1].repeat_interleave(samples, 0),
        )

    def _step(self, state: _Decoding, tokens: Tensor) -> None:
        state.mask = torch.cat([state.mask, state.mask.new_ones(len(tokens), 1)], 1)
        state.position = state.position + 1
        out = self._model.base_model(
            input_ids=tokens[:, None], attention_mask=state.mask, position_ids=state.position[:, None],
            past_key_values=state.cache, use_cache=True,
        )  # fmt: skip
        state.hidden = out.last_hidden_state[:, -1]

    def _sample(
        self, hidden: Tensor, keys: Tensor, position: int, temperature: float, top_k: int, top_p: float
    ) -> tuple[Tensor, Tensor]:
        """The seeded draw per row, and the logprob of the chosen token."""
        logits = self._model.lm_head(hidden)
        at = torch.full_like(keys, position)
        drawn = sampler.draw(logits, keys, at, temperature=temperature, top_k=top_k, top_p=top_p)
        chosen = logits.gather(1, drawn.tokens[:, None]).squeeze(1).float()
        return drawn.tokens, chosen - drawn.normalisers

    # ---- checking ------------------------------------------------------------------------------------------------------

    def prefill(self, sequences: Sequence[tuple[TokenIds, TokenIds]]) -> list[Tensor]:
        """Final hidden states [T, H] that produced each completion token, of (prompt, completion) pairs."""
        found = {i: hidden for batch in self.prefill_in_batches(sequences) for i, hidden in batch.items()}
        return [found[i] for i in range(len(sequences))]

    @torch.inference_mode()
    def prefill_in_batches(self, sequences: Sequence[tuple[TokenIds, TokenIds]]) -> Iterator[dict[int, Tensor]]:
        """As `prefill`, a batch at a time and by index, of which nothing is kept here: memory does not grow with the work."""
        lengths = [len(prompt) + len(completion) for prompt, completion in sequences]
        for batch in self._fits.prefill_batches(lengths, _PREFILL_TOKENS):
            width = max(lengths[i] for i in batch)
            ids = torch.zeros(len(batch), width, dtype=torch.long)
            mask = torch.zeros(len(batch), width, dtype=torch.long)
            for row, i in enumerate(batch):
                ids[row, : lengths[i]] = torch.as_tensor(np.concatenate(sequences[i]), dtype=torch.long)
                mask[row, : lengths[i]] = 1
            hidden = self._model.base_model(
                input_ids=ids.to(self._device), attention_mask=mask.to(self._device), use_cache=False
            ).last_hidden_state
            starts = [len(sequences[i][0]) - 1 for i in batch]
            ends = [start + len(sequences[i][1]) for start, i in zip(starts, batch, strict=True)]
            yield {i: hidden[row, starts[row] : ends[row]] for row, i in enumerate(batch)}
            del hidden

    @torch.inference_mode()
    def score(
        self, hidden_TH: Tensor, tokens_T: Sequence[int] | NDArray[np.integer[Any]], *,
        key: int, temperature: float, top_k: int = 0, top_p: float = 1.0,
    ) -> TokenScores:  # fmt: skip
        """Scores a completion's tokens against the logits of its hidden states, without ever holding all of them.

        Raises IntegrityError where the logits are no numbers: that is this machine's trouble, never the claim's.
        """
        tokens = torch.as_tensor(np.asarray(tokens_T, np.int64), device=hidden_TH.device)
        parts = []
        for first in range(0, len(tokens), _SCORED_TOKENS):
            logits = self._model.lm_head(hidden_TH[first : first + _SCORED_TOKENS])
            if not (logits.amax().isfinite() and logits.amin().isfinite()):
                raise IntegrityError("this machine's own logits hold NaN or infinity")
            part = tokens[first : first + _SCORED_TOKENS]
            parts.append(sampler.score(logits, part, key, first, temperature=temperature, top_k=top_k, top_p=top_p))
        return TokenScores(
            np.concatenate([part.margins for part in parts]), np.concatenate([part.logprobs for part in parts])
        )

    @torch.inference_mode()
    def logits(self, hidden_TH: Tensor) -> NDArray[np.float32]:
        """Logits [T, V] of hidden states."""
        return self._model.lm_head(hidden_TH).float().cpu().numpy()

    # ---- limits --------------------------------------------------------------------------------------------------------

    @property
    def _fits(self) -> MemoryBudget:
        """What may be computed at once; measured of the model when it is first asked for."""
        if self._budget is None:
            self._budget = MemoryBudget(self._most, footprint.of(self._model, self._device))
        return self._budget

    def _require_positions(self, prompts: Sequence[Prompt], max_new_tokens: int) -> None:
        config = self._model.config
        facts = {"model_type": config.model_type, "max_position_embeddings": config.max_position_embeddings}
        most = architectures.most_tokens(facts)
        longest = max(len(prompt.tokens) for prompt in prompts) + max_new_tokens
        if most is not None and longest > most:
            raise ConfigError(
                f"a prompt and its completion may take {longest} tokens, and the model has {most} positions"
            )


@dataclass
class _Decoding:
    """What a step of decoding needs: the cache, which positions count, and the newest hidden states [B, H]."""

    cache: Any
    mask: Tensor
    position: Tensor
    hidden: Tensor

    def select(self, rows: Tensor) -> None:
        """Keeps these rows only."""
        self.cache.batch_select_indices(rows)
        self.mask, self.position, self.hidden = self.mask[rows], self.position[rows], self.hidden[rows]
