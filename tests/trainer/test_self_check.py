"""The trainer compares its packed rows with the plain model before it learns, and names what differs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from protocol.errors import PreflightError
from tests.engine.models import RIGHT, make
from tests.trainer import small
from trainer.config import TrainSettings
from trainer.learning import attention, lora
from trainer.learning.learner import Learner
from trainer.learning.packing import PackedRows
from trainer.models.pretrained import make_policy


def learner(name: str, folder: Path, dtype: str = "float32", lora_rank: int = 0) -> Learner:
    make_policy(make(RIGHT[name], folder / "theirs"), folder / "policy")
    return Learner(folder / "policy", TrainSettings(steps=1, compute_dtype=dtype, lora_rank=lora_rank))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["mistral with a window", "gemma2", "cohere2", "gpt2", "qwen3"])
def test_a_trainer_that_is_right_passes(name: str, dtype: str, tmp_path: Path) -> None:
    learner(name, tmp_path, dtype).require_right()


def _no_window(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PackedRows, "within", lambda rows, window: rows.mask)


def _no_cap(patch: pytest.MonkeyPatch) -> None:
    capped = attention.capped
    patch.setattr(attention, "capped", lambda *given, scale, cap: capped(*given, scale=scale, cap=None))


def _one_row_of_positions(patch: pytest.MonkeyPatch) -> None:
    """As if all that lies in a row were one sequence: the second completion of a prompt is rotated too far."""
    move = PackedRows.to

    def moved(rows: PackedRows, device: torch.device) -> PackedRows:
        rows.positions.copy_(torch.arange(rows.ids.shape[1]).expand_as(rows.ids))
        return move(rows, device)

    patch.setattr(PackedRows, "to", moved)


def _everybody_sees_everything(patch: pytest.MonkeyPatch) -> None:
    width = lambda rows: torch.ones(rows.ids.shape[1], rows.ids.shape[1], dtype=torch.bool).tril()  # noqa: E731
    patch.setattr(PackedRows, "mask", property(lambda rows: width(rows).expand(len(rows.ids), 1, -1, -1)))


BROKEN: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], None], str]] = {
    "window": ("mistral with a window", _no_window, "packed rows lies .* as if the sliding window of 8 tokens were ignored; the trainer's rows in pieces agrees"),
    "cap": ("gemma2", _no_cap, "packed rows lies .* as if the soft cap of 2 on attention scores were ignored; the trainer's rows in pieces lies"),
    "positions": ("llama", _one_row_of_positions, "packed rows lies .* in 1 of 4 sequences, from token"),
    "mask": ("llama", _everybody_sees_everything, "packed rows lies .* in . of 4 sequences, from token .*; the trainer's rows in pieces agrees"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_what_packed_rows_compute_otherwise_is_named(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, breaks, told = BROKEN[what]
    one = learner(name, tmp_path)
    breaks(monkeypatch)
    with pytest.raises(PreflightError, match=told):
        one.require_right()


# ---- adapters ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["mistral with a window", "qwen3_moe", "llama with a tied head"])
def test_adapters_that_are_right_pass_and_are_as_they_were(name: str, dtype: str, tmp_path: Path) -> None:
    one = learner(name, tmp_path, dtype, lora_rank=4)
    before = {name: tensor.detach().clone() for name, tensor in lora.tensors(one.model).items()}
    one.require_right()
    assert small.equal(before, {name: tensor.detach() for name, tensor in lora.tensors(one.model).items()})


def _merged_otherwise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lora, "merge", lambda weight, a, b, scale: weight + b @ a * (0.5 * scale))


def _a_layer_left_out(patch: pytest.MonkeyPatch) -> None:
    merge = lora.merge
    patch.setattr(lora, "merge", lambda weight, *how: weight if weight.shape == (32, 32) else merge(weight, *how))


def _never_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lora, "without_adapters", lambda model: nullcontext())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("breaks", "told"),
    [
        (_merged_otherwise, "the trainer's adapters lies"),
        (_a_layer_left_out, "the trainer's adapters lies"),
        (_never_off, "the trainer's packed rows lies"),
    ],
)
def test_adapters_that_are_merged_otherwise_than_they_compute_are_found(
    breaks: Callable[[pytest.MonkeyPatch], None], told: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = learner("llama", tmp_path, dtype, lora_rank=4)
    breaks(monkeypatch)
    with pytest.raises(PreflightError, match=told):
        one.require_right()
