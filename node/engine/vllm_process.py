"""The process that vLLM runs in, as its parent sees it (process.py): jobs as JSON, and answers, some with tensors behind them.

Covers: deadlines by signs of life, and what an error at the other end means. On a CPU a process that computes is alive though it says
nothing: a slow or busy machine is no hang. What the other end does: vllm_server.py. Does not cover: starting again, which is
vllm_engine.py's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from node.engine import process
from node.engine.process import Lost, is_memory
from protocol.errors import IntegrityError

__all__ = ["NOT_NUMBERS", "Lost", "VllmProcess"]

NOT_NUMBERS = "NotNumbers"
"""Name of an error that comes out: hidden states hold NaN or infinity."""


class VllmProcess(process.Process):
    def __init__(self, environment: Mapping[str, str], silent_seconds: float, busy_seconds: float = 0) -> None:
        super().__init__("node.engine.vllm_server", environment, silent_seconds, busy_seconds)

    def ask(self, job: str, *, seconds: float | None = None, **arguments: Any) -> dict[str, Any]:
        """A job with one answer, within so many seconds where it gives no sign of life meanwhile. Raises Lost."""
        self._send(job, arguments)
        return self._answer(seconds)[0]

    def run(self, job: str, **arguments: Any) -> Iterator[tuple[dict[str, Any], bytes]]:
        """A job with many answers: each, and the bytes that come with it. Raises Lost; ValueError where the weights compute no
        numbers."""
        self._send(job, arguments)
        while True:
            answer, data = self._answer()
            if "done" in answer:
                return
            yield answer, data

    def score(self, hidden_TH: Tensor, tokens: list[int], key: int, sampling: dict[str, Any]) -> bytes:
        """Raises Lost; IntegrityError where the logits are no numbers."""
        dtype = str(hidden_TH.dtype).removeprefix("torch.")
        self._send("score", dict(shape=list(hidden_TH.shape), dtype=dtype, tokens=tokens, key=key, sampling=sampling))
        self.write(hidden_TH.view(torch.uint8).numpy().tobytes())
        self._answer()
        return self.read()

    def _send(self, job: str, arguments: dict[str, Any]) -> None:
        self.write(json.dumps({"job": job, **arguments}).encode())

    def _answer(self, seconds: float | None = None) -> tuple[dict[str, Any], bytes]:
        while True:
            answer: dict[str, Any] = json.loads(self.read(seconds))
            if "alive" in answer:
                continue
            if "error" in answer:
                raise _as_error(answer["error"], answer["message"])
            return answer, self.read(seconds) if "shape" in answer else b""


def _as_error(name: str, message: str) -> Exception:
    """What the other end says it failed of."""
    if name == IntegrityError.__name__:
        return IntegrityError(message)
    if name == NOT_NUMBERS:
        return ValueError(message)
    return Lost(f"{name}: {message}", is_memory=is_memory(f"{name}: {message}"))
