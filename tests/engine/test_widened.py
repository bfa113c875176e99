"""Widened products are those of bfloat16 but for the order of sums, and are used where this processor has none of its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from node.engine import widened


@pytest.fixture(autouse=True)
def _without(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that does not multiply bfloat16 itself."""
    torch.manual_seed(0)
    monkeypatch.setattr(widened, "is_faster", lambda: True)


def layer_of(inputs: int, outputs: int, *, bias: bool) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=bias, dtype=torch.bfloat16)


def exact(rows: Tensor, layer: nn.Linear) -> Tensor:
    bias = None if layer.bias is None else layer.bias.double()
    return functional.linear(rows.double(), layer.weight.double(), bias)


@pytest.mark.parametrize("shape", [(64, 256), (4, 16, 256), (300, 256)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("block", [1, 1 << 15, 1 << 30])
def test_products_are_the_exact_ones_rounded_once(
    shape: tuple[int, ...], bias: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(widened, "_BLOCK", block)
    layer, rows = layer_of(256, 300, bias=bias), torch.randn(*shape).bfloat16()
    with torch.inference_mode():
        expected = exact(rows, layer)
        widened.install(layer)
        made = layer(rows)
    assert made.dtype == torch.bfloat16
    assert made.shape == expected.shape
    assert (made != expected.bfloat16()).float().mean() < 2e-3  # float32 sums that lie at the middle of two numbers
    assert torch.allclose(made.double(), expected, rtol=2**-8, atol=1e-5)


def test_weights_are_widened_and_few_rows_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, kinds = layer_of(64, 96, bias=True), []
    product = functional.linear

    def watched(rows: Tensor, *rest: Tensor) -> Tensor:
        kinds.append(rows.dtype)
        return product(rows, *rest)

    monkeypatch.setattr(widened.functional, "linear", watched)
    widened.install(layer)
    with torch.inference_mode():
        for rows in (widened._ROWS, widened._ROWS - 1):
            layer(torch.randn(rows, 64).bfloat16())
    assert kinds == [torch.float32, torch.bfloat16]


def test_gradients_are_torchs_own() -> None:
    layer = layer_of(64, 96, bias=False)
    rows = torch.randn(32, 64).bfloat16()
    layer(rows).sum().backward()
    expected = layer.weight.grad
    layer.weight.grad = None
    widened.install(layer)
    layer(rows).sum().backward()
    assert layer.weight.grad is not None and torch.equal(layer.weight.grad, expected)


def test_other_types_and_processors_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [nn.Linear(8, 8), nn.Linear(8, 8, dtype=torch.float16)]
    monkeypatch.setattr(widened, "is_faster", lambda: False)
    others.append(layer_of(8, 8, bias=False))
    for layer in others:
        widened.install(layer)
        assert "forward" not in vars(layer)
