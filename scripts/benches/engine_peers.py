"""What the engine bench compares with: ways to do the same work with transformers. Each gives back the tokens that were made."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benches.engine_work import Work

_END, _FORCED = 1, 1e4


class _ForcedEnds:
    """A logits processor under which row i ends with its lengths[i]-th token."""

    def __init__(self, lengths: list[int]) -> None:
        self._lengths, self._position = torch.tensor(lengths), 0

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        self._position += 1
        scores[:, _END] = torch.where(self._lengths == self._position, _FORCED, -_FORCED)
        return scores


def _left_padded(prompts: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Ids and mask [N, T]."""
    width = max(map(len, prompts))
    ids, mask = (torch.zeros(len(prompts), width, dtype=torch.long) for _ in range(2))
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    return ids, mask


@torch.inference_mode()
def by_generate(model: Any, rows: int, asked: Work) -> int:
    """`generate` with its cache, so many rows at a time; a row that ended is padded until the longest has."""
    made = 0
    for part in asked.batches(rows):
        ids, mask = _left_padded(part.prompts)
        out = model.generate(
            ids, attention_mask=mask, do_sample=True, top_k=0, num_return_sequences=part.samples, use_cache=True,
            max_new_tokens=max(part.lengths), logits_processor=[_ForcedEnds(part.lengths)], eos_token_id=_END, pad_token_id=0,
        )[:, ids.shape[1] :]  # fmt: skip
        ends = (out == _END).int()
        made += int((ends.cumsum(1) - ends == 0).sum())
    return made


def by_continuous_batching(model: Any, rows: int, asked: Work) -> int:
    """transformers' continuous batching, of so many requests at once, in a cache that just holds them: its own choice is 90 % of the
    memory, which it fills with zeros, and which its attention on a CPU looks through at every step."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    longest = max(map(len, asked.prompts)) + max(asked.lengths)
    page = 32
    settings = GenerationConfig(
        do_sample=True, top_k=0, max_new_tokens=max(asked.lengths), eos_token_id=-1, pad_token_id=0
    )
    batching = ContinuousBatchingConfig(
        page_size=page, num_blocks=rows * -(-longest // page), max_batch_tokens=1024, max_requests_per_batch=rows
    )
    prompts = [prompt for prompt in asked.prompts for _ in range(asked.samples)]
    made = 0
    with model.continuous_batching_context_manager(
        generation_config=settings, continuous_batching_config=batching, block=True, timeout=60
    ) as manager:
        for prompt, length in zip(prompts, asked.lengths, strict=True):
            manager.add_request(prompt, max_new_tokens=length, eos_token_id=-1)
        left = len(prompts)
        while left:
            result = manager.get_result(timeout=1)
            if result is None and not manager.is_running():
                raise RuntimeError("continuous batching stopped before it was done")
            if result is not None and result.is_finished():
                made += len(result.generated_tokens)
                left -= 1
    return made


@torch.inference_mode()
def as_before(model: Any, asked: Work) -> int:
    """A loop over transformers' growing cache with its masks, one prefill for each prompt, and a draw by softmax."""
    from transformers import DynamicCache

    ids, mask = _left_padded(asked.prompts)
    at = (mask.cumsum(-1) - 1).clamp(min=0)
    cache = DynamicCache(config=model.config)
    out = model.base_model(input_ids=ids, attention_mask=mask, position_ids=at, past_key_values=cache, use_cache=True)
    cache.batch_repeat_interleave(asked.samples)
    mask, position = (part.repeat_interleave(asked.samples, 0) for part in (mask, at[:, -1]))
    hidden = out.last_hidden_state[:, -1].repeat_interleave(asked.samples, 0)
    made = 0
    for _ in range(max(asked.lengths)):
        tokens = torch.multinomial(model.lm_head(hidden).softmax(-1), 1)
        made += len(tokens)
        mask, position = torch.cat([mask, mask.new_ones(len(mask), 1)], 1), position + 1
        hidden = model.base_model(
            input_ids=tokens, attention_mask=mask, position_ids=position[:, None], past_key_values=cache, use_cache=True
        ).last_hidden_state[:, -1]
    return made
