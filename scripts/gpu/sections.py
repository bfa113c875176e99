"""The sections of the report, in the order in which they run: the first ones tell most for their time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    name: str
    """Of the module, too."""
    what: str
    seconds: float
    """After which it is ended, on a GPU."""


SECTIONS = (
    Section("machine", "software, driver, and what the device can do: memory, matrix products, bandwidth", 30),
    Section("model", "writes a random model of Qwen3-0.6B's shape, its logits about a nat, for the other sections", 45),
    Section("checks", "tests/gpu: engines, draw, proofs, FSDP2 over NCCL, Liger, compile, against references on the CPU", 100),
    Section("draw", "the seeded draw in one kernel: whether it is used, and its time against softmax and multinomial", 30),
    Section("decoding", "the engine on torch, tokens per second; proofs and draw against none, and against generate", 120),
    Section("margins", "honest work in bfloat16 and float32, made and checked by GPU and CPU: how far it strays", 90),
    Section("training", "steps of Qwen3-0.6B's shape under FSDP2: tokens per second, memory against the plan, Liger, compile", 115),
    Section("vllm", "the engine on vLLM against bare vLLM, tokens per second, and against the engine on torch", 240),
    Section("calibration", "the calibration of this device in bfloat16, over the engines that are here", 150),
)  # fmt: skip
BY_NAME = {section.name: section for section in SECTIONS}
