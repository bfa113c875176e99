"""Decoding: our engine (seeded sampling and proofs included) against transformers' `generate()` with plain sampling.

Same model, prompts, number of samples and length; the end token is ignored, so that both make equally many tokens.
"""

from __future__ import annotations

import secrets
import tempfile
from pathlib import Path

import torch

from benches import Bench, Row, in_turns
from node.engine import Prompt
from node.engine.torch_engine import TorchEngine
from node.engine.weights import build_model, save_weights
from protocol.model_files import WEIGHTS

_VOCABULARY, _PROMPT, _NEW = 96, 12, 32


def run() -> Bench:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        engine = TorchEngine("float32")
        _make_model(Path(folder))
        engine.load(Path(folder))
        model = build_model(Path(folder), torch.float32)  # as transformers computes it, attention included
    bench = Bench("decode")
    for prompts, samples in ((1, 16), (16, 16)):
        ids = torch.randint(3, _VOCABULARY, (prompts, _PROMPT))

        def ours(ids: torch.Tensor = ids, samples: int = samples) -> float:
            asked = [Prompt(row, tuple(secrets.randbits(64) for _ in range(samples))) for row in ids.tolist()]
            made = engine.generate(asked, temperature=1.0, max_new_tokens=_NEW, end_tokens=frozenset())
            return sum(len(c.tokens) for group in made for c in group)

        def peer(ids: torch.Tensor = ids, samples: int = samples) -> float:
            with torch.inference_mode():
                made = model.generate(
                    ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, num_return_sequences=samples,
                    max_new_tokens=_NEW, min_new_tokens=_NEW, eos_token_id=None, pad_token_id=0,
                )  # fmt: skip
            return float(made.shape[0] * (made.shape[1] - _PROMPT))

        a, b = in_turns(ours, peer)
        bench.rows.append(
            Row(f"{prompts} prompts × {samples} samples × {_NEW} tokens", "tokens/CPU s", a, b, a / b, 0.8)
        )
    return bench


def _make_model(folder: Path) -> None:
    from trainer.models.tiny import _model

    torch.manual_seed(0)
    model = _model(_VOCABULARY)
    model.config.save_pretrained(folder)
    save_weights(model, folder / WEIGHTS, torch.bfloat16)
