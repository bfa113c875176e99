"""[engine] of every role that computes: which engine, where, and how much memory it may take. Imports nothing heavy."""

from __future__ import annotations

import os
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from node.engine.memory import parse
from protocol import resources
from protocol.runspec import ModelSpec
from protocol.settings import Settings


def _called(device: str) -> str:
    if not re.fullmatch("auto|cpu|cuda(:[0-9]{1,3})?|mps", device):
        raise ValueError('a device is called "auto", "cpu", "cuda", "cuda:N" or "mps"')
    return device


Device = Annotated[str, AfterValidator(_called)]


class EngineSettings(Settings):
    name: str = "torch"
    """Engine that computes: "torch", "vllm" where vllm 0.32.0 is installed, or one that an installed package adds."""
    device: Device = "auto"
    """"auto" (the first NVIDIA GPU, or else the CPU), "cpu", "cuda", "cuda:N" or, as far as it goes, "mps"."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """What is computed in: the run spec's type. Named here, it must be the same, or the role does not start."""
    memory: str = "80%"
    """What model and batches may take of the device's memory: a share of what is free at the start ("80%"), or an amount ("24GiB", "500MiB")."""
    tensor_parallel: int = Field(default=1, ge=1, le=64)
    """GPUs that one model is split over ("vllm" only)."""
    batch_invariant: bool = False
    """Results do not depend on what else is in the batch ("torch" on a CPU, on one thread and several times slower; "vllm" on an NVIDIA GPU of capability
    8.0 or above)."""
    attention: Literal["auto", "sdpa", "eager"] = "auto"
    """How attention is computed ("torch" only): by torch's fused kernels ("sdpa", which "auto" takes), or by products and a softmax ("eager"). They round
    differently; calibrations measure both."""
    threads: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    """Torch threads on the CPU: a number, or "auto", the cores that nobody uses at the start (or OMP_NUM_THREADS, where it is set)."""

    def of_run(self, model: ModelSpec) -> EngineSettings:
        """These, with what the run asks of all parties beside its dtype."""
        return self.model_copy(update={"batch_invariant": True}) if model.batch_invariant else self

    @field_validator("memory")
    @classmethod
    def _is_an_amount(cls, text: str) -> str:
        parse(text, 1)
        return text

    @property
    def thread_count(self) -> int:
        """`threads` as a number. Cores in use are left to who uses them: threads that share a core wait for each other at every
        product, which costs ten times what a second one would gain."""
        if self.threads != "auto":
            return self.threads
        said = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
        if said.isdecimal() and int(said):
            return int(said)
        return resources.idle_cores()
