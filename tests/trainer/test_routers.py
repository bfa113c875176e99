"""What chooses experts is computed by the trainer as by the engines that answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.engine.models import RIGHT, make
from tests.trainer import small
from trainer.learning.learner import Learner
from trainer.models.pretrained import make_policy


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_float32_router_multiplies_in_float32_under_autocast(checkpointing: bool, tmp_path: Path) -> None:
    make_policy(make(RIGHT["deepseek_v3"], tmp_path / "theirs"), tmp_path / "policy")
    how = small.settings(compute_dtype="bfloat16", activation_checkpointing=checkpointing)
    learner = Learner(tmp_path / "policy", how)
    routers = [module for module in learner.model.modules() if type(module).__name__.endswith("TopkRouter")]
    before = [router.weight.clone() for router in routers]
    seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def note(module: nn.Module, given: tuple[Tensor, ...], made: Any) -> None:
        seen.append((given[0].detach(), module.weight.detach().clone(), made[0].detach()))  # type: ignore[operator, union-attr]

    for router in routers:
        router.register_forward_hook(note)
    learner.learn(small.groups(2), 0)
    assert len(seen) >= len(routers) > 0
    for hidden, weight, logits in seen:
        assert logits.dtype == torch.float32
        expected = hidden.reshape(-1, weight.shape[1]).bfloat16().float() @ weight.bfloat16().float().T
        assert torch.allclose(logits, expected, rtol=1e-6, atol=1e-6)
    assert all(not torch.equal(router.weight, old) for router, old in zip(routers, before, strict=True))
