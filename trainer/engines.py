"""The engines of a training, as run.toml says: [engine], and what of it is otherwise for evaluation and filter. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, field_validator

from node.engine.memory import parse
from node.engine.settings import Device, EngineSettings
from protocol.settings import Settings


class TrainerEngine(EngineSettings):
    """[engine] of run.toml: what evaluates and filters, but for what [evaluation.engine] says, and generates for `murmur trainer solo`.
    `threads` are those of the training as well."""

    memory: str = "25%"
    """What model and batches may take of the device's memory, beside the training: a share ("25%") or an amount ("24GiB")."""


class EvaluationEngine(Settings):
    """Where evaluation and offline filter compute. What is not set is as in [engine]."""

    name: str | None = None
    """Engine that computes."""
    device: Device | None = None
    """A GPU that does not train ("cuda:7") leaves the training all of its own; "cpu" all GPUs, and is many times slower."""
    dtype: Literal["auto", "float32", "bfloat16"] | None = None
    """What is computed in: the run spec's type, and no other."""
    memory: str | None = None
    """What model and batches may take of that device's memory: a share ("80%") or an amount ("24GiB")."""
    tensor_parallel: int | None = Field(default=None, ge=1, le=64)
    """GPUs that one model is split over ("vllm" only)."""
    batch_invariant: bool | None = None
    """Results do not depend on what else is in the batch ("torch" on a CPU, "vllm" on some NVIDIA GPUs)."""
    threads: Literal["auto"] | Annotated[int, Field(ge=1)] | None = None
    """Torch threads on the CPU. Where the training computes on the same CPU, leave it some: both together should be no more than its
    cores."""

    @field_validator("memory")
    @classmethod
    def _is_an_amount(cls, text: str | None) -> str | None:
        if text is not None:
            parse(text, 1)
        return text

    def over(self, engine: EngineSettings) -> EngineSettings:
        """`engine`, but for what is set here."""
        return engine.model_copy(update=self.model_dump(exclude_none=True))


class EvaluationSettings(Settings):
    engine: EvaluationEngine = EvaluationEngine()


def require_engines(
    engine: EngineSettings, evaluation: EvaluationSettings, compute_dtype: str, *, batch_invariant: bool = False
) -> None:
    """Raises ConfigError or PreflightError for engines that a training on this machine could not make."""
    from node.engine.factory import require

    for asked in (engine, evaluation.engine.over(engine)):
        require(asked.model_copy(update={"batch_invariant": True}) if batch_invariant else asked, compute_dtype)


@dataclass(frozen=True)
class Engines:
    """That compute beside a training."""

    evaluates: EngineSettings
    generates: EngineSettings | None = None
    """Of a training on one machine, which makes its own rollouts."""
