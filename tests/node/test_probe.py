"""The reference probe: a machine that computes what the reference did passes in whichever honest way, a faulty one is found out."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from swarm.tiny_run import TinyRun

from node.engine import Completion, EngineSettings
from node.engine.degrade import DEGRADATIONS
from node.engine.torch_engine import TorchEngine
from node.engine.weights import stored_tensors
from node.judging import probe as judging
from protocol.errors import ConfigError, IntegrityError
from protocol.probe import Probe, packed
from trainer.evaluation.probe import make

PROMPTS, TOKENS = 16, 40


@pytest.fixture(scope="module")
def reference(tiny_run: TinyRun) -> Probe:
    return make(tiny_run.spec, tiny_run.model, EngineSettings(), prompts=PROMPTS, tokens=TOKENS)


def loaded(tiny_run: TinyRun, kind: type[TorchEngine] = TorchEngine, **settings: Any) -> TorchEngine:
    engine = kind("float32", EngineSettings(device="cpu", **settings))
    engine.load(tiny_run.model)
    return engine


def require(reference: Probe, tiny_run: TinyRun, engine: TorchEngine) -> None:
    judging.require(reference, tiny_run.spec, engine, tiny_run.tokenizer)


def test_a_probe_holds_all_that_can_be_compared(reference: Probe, tiny_run: TinyRun) -> None:
    assert len(reference.sequences) == PROMPTS
    for one in reference.sequences:
        assert len(one.top_tokens_TK) == len(one.completion) <= TOKENS
        assert (one.top_logprobs_TK[:, :-1] >= one.top_logprobs_TK[:, 1:]).all()
        chosen = one.top_tokens_TK == torch.tensor(one.completion)[:, None].numpy()
        assert one.logprobs_T[chosen.any(1)] == pytest.approx(one.top_logprobs_TK[chosen], abs=1e-4)
    assert reference.config == tiny_run.spec.model.config
    again = make(tiny_run.spec, tiny_run.model, EngineSettings(), prompts=PROMPTS, tokens=TOKENS)
    assert [one.prompt for one in again.sequences] == [one.prompt for one in reference.sequences]
    assert [one.key for one in again.sequences] == [one.key for one in reference.sequences]


@pytest.mark.parametrize(
    ("attention", "threads", "memory"),
    [("sdpa", 1, "80%"), ("eager", 1, "80%"), ("sdpa", 2, "80%"), ("sdpa", 1, "8MiB")],
    ids=["the same", "another attention", "more threads", "smaller batches"],
)
def test_every_honest_way_to_compute_passes(
    reference: Probe, tiny_run: TinyRun, attention: str, threads: int, memory: str
) -> None:
    engine = loaded(tiny_run, memory=memory)
    engine.adjust(attention=attention, threads=threads)
    if threads > 1:  # on cores that are all busy, each product of two threads waits for both
        reference = reference.model_copy(update={"sequences": reference.sequences[:2]})
    try:
        require(reference, tiny_run, engine)
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("name", ["fp8", "int4", "1 % noise", "5 % noise"])
def test_degraded_weights_are_found_out(reference: Probe, tiny_run: TinyRun, name: str) -> None:
    engine = loaded(tiny_run)
    engine.degrade(DEGRADATIONS[name])
    with pytest.raises(IntegrityError, match="otherwise than the run's reference") as found:
        require(reference, tiny_run, engine)
    assert found.value.exit_code == 8
    assert "faulty memory" in found.value.hint


def _one_wrong_weight(model: Any) -> None:
    """As a flipped bit of the exponent leaves it."""
    weights = stored_tensors(model)["model.layers.0.mlp.down_proj.weight"]
    with torch.no_grad():
        weights[0, 0] = 1e4


def _no_numbers(model: Any) -> None:
    with torch.no_grad():
        stored_tensors(model)["model.norm.weight"][0] = torch.nan


@pytest.mark.parametrize("fault", [_one_wrong_weight, _no_numbers], ids=["a flipped bit", "no numbers"])
def test_a_faulty_device_is_found_out(reference: Probe, tiny_run: TinyRun, fault: Callable[[Any], None]) -> None:
    engine = loaded(tiny_run)
    engine.degrade(fault)
    with pytest.raises(IntegrityError):
        require(reference, tiny_run, engine)


class WarmerDecoder(TorchEngine):
    """Checks rightly, and generates at another temperature."""

    def generate(self, prompts: Any, *, temperature: float, **how: Any) -> list[list[Completion]]:
        return super().generate(prompts, temperature=1.5 * temperature, **how)


class ForgetfulDecoder(TorchEngine):
    """Checks rightly, and proves other states than it draws from."""

    def generate(self, prompts: Any, **how: Any) -> list[list[Completion]]:
        made = super().generate(prompts, **how)
        for (own,), (other,) in itertools.pairwise(made):
            if len(own.proofs) == len(other.proofs):
                own.proofs = other.proofs
        return made


@pytest.mark.parametrize("kind", [WarmerDecoder, ForgetfulDecoder])
def test_what_only_generation_does_wrongly_is_found_out(
    reference: Probe, tiny_run: TinyRun, kind: type[TorchEngine]
) -> None:
    with pytest.raises(IntegrityError, match="not what it computes itself"):
        require(reference, tiny_run, loaded(tiny_run, kind))


def test_the_likeliest_tokens_tell_what_the_chosen_ones_do_not(reference: Probe, tiny_run: TinyRun) -> None:
    """One logprob of sixteen at one position, beyond the run's limit for it."""
    first = reference.sequences[0]
    tops = first.top_logprobs_TK.copy()
    tops[0, 3] += 2 * float(tiny_run.spec.verification.sampling.logprob_error.hard)
    changed = first.model_copy(update={"top_logprobs": packed(tops)})
    probe = reference.model_copy(update={"sequences": [changed, *reference.sequences[1:]]})
    with pytest.raises(IntegrityError, match="token 0, rank 3: logprob"):
        require(probe, tiny_run, tiny_run.engine)


def test_a_probe_of_another_model_is_the_runs_fault_and_not_this_machines(reference: Probe, tiny_run: TinyRun) -> None:
    other = reference.model_copy(update={"config": "0" * 64})
    with pytest.raises(ConfigError, match="of another model"):
        require(other, tiny_run, tiny_run.engine)
    beyond = reference.sequences[0].model_copy(update={"prompt": [tiny_run.tokenizer.vocabulary]})
    with pytest.raises(ConfigError, match="of another model"):
        require(reference.model_copy(update={"sequences": [beyond]}), tiny_run, tiny_run.engine)
