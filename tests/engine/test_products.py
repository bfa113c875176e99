"""Products by oneDNN are torch's own but for rounding, wherever they are used."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from node.engine import products
from trainer.learning.lora import LoraLinear

amd = pytest.mark.skipif(not products.is_faster(), reason="oneDNN's products are used on AMD's processors alone")


@amd
@pytest.mark.parametrize("shape", [(64, 256), (4, 16, 256), (1, 256), (0, 256), (300, 256)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_products_are_torchs_own(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(256, 8192, bias=bias)
    rows = torch.randn(*shape)
    with torch.inference_mode():
        expected = functional.linear(rows.double(), layer.weight.double(), layer.bias.double() if bias else None)
        products.install(layer)
        made = layer(rows)
    assert made.dtype == torch.float32
    assert made.shape == expected.shape
    assert made.is_contiguous()
    assert torch.allclose(made.double(), expected, rtol=0, atol=1e-5)


@amd
def test_rows_may_lie_anywhere() -> None:
    layer, rows = nn.Linear(128, 512), torch.randn(512, 300)[:, 7:135].t().t()
    with torch.inference_mode():
        expected = layer(rows)
        products.install(layer)
        assert torch.allclose(layer(rows), expected, rtol=0, atol=1e-5)
        weight = torch.randn(128, 512).t()
        assert torch.allclose(products.linear(rows, weight, None), rows @ weight.t(), rtol=0, atol=1e-4)


@amd
def test_weights_and_biases_may_be_parts_of_others() -> None:
    rows, weights, biases = torch.randn(64, 256), torch.randn(512, 512), torch.randn(512)
    plain = torch.randn(256, 256)
    parts = (
        (plain, biases[::2]),
        (plain, torch.ones(1).expand(256)),
        (weights[::2, :256], biases[:256]),
        (weights[:, ::2], None),
    )
    for weight, bias in parts:
        expected = functional.linear(rows.double(), weight.double(), None if bias is None else bias.double())
        assert torch.allclose(products.linear(rows, weight, bias).double(), expected, rtol=0, atol=1e-3)


@amd
@pytest.mark.parametrize("shape", [(256,), (0, 256), (64, 256)], ids=str)
def test_gradients_of_few_rows_are_torchs_own(shape: tuple[int, ...]) -> None:
    rows, weight = torch.randn(*shape, requires_grad=True), torch.randn(8192, 256, requires_grad=True)
    products.linear(rows, weight).sum().backward()
    assert rows.grad is not None and torch.allclose(rows.grad, weight.sum(0).expand_as(rows), atol=1e-3)


@amd
def test_adapted_layers_multiply_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = LoraLinear(nn.Linear(256, 1024), 4, 1.0)
    rows = torch.randn(64, 256)
    expected = layer(rows)
    products.install(layer)
    taken: list[Tensor] = []
    product = products._product
    monkeypatch.setattr(products, "_product", lambda *given: taken.append(given[1]) or product(*given))
    assert torch.allclose(layer(rows), expected, rtol=0, atol=1e-4)
    assert any(weight is layer.weight for weight in taken)


@amd
def test_a_layer_multiplies_with_the_weights_it_has_now() -> None:
    """Engines copy the next version's into the same tensors."""
    layer, rows = nn.Linear(256, 256, bias=False), torch.randn(64, 256)
    products.install(layer)
    with torch.inference_mode():
        before = layer(rows)
        layer.weight.mul_(2)
        assert torch.allclose(layer(rows), 2 * before)


@amd
@pytest.mark.parametrize("wanted", [("rows", "weight", "bias"), ("weight",), ("rows",)], ids=" ".join)
def test_gradients_are_torchs_own(wanted: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    values = {"rows": torch.randn(2, 32, 256), "weight": torch.randn(300, 256), "bias": torch.randn(300)}
    found = []
    for of, dtype in ((products.linear, torch.float32), (functional.linear, torch.float64)):
        given = {name: value.to(dtype, copy=True).requires_grad_(name in wanted) for name, value in values.items()}
        of(*given.values()).sin().sum().backward()
        found.append({name: value.grad for name, value in given.items()})
    ours, exact = found
    assert {name for name, gradient in ours.items() if gradient is not None} == set(wanted)
    for name in wanted:
        assert ours[name].is_contiguous()
        assert torch.allclose(ours[name].double(), exact[name], rtol=0, atol=2e-3), name


@amd
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_are_left_to_torch(dtype: torch.dtype) -> None:
    rows, weight = torch.randn(64, 256, dtype=dtype), torch.randn(256, 256, dtype=dtype)
    assert torch.equal(products.linear(rows, weight), functional.linear(rows, weight))


def test_a_machine_of_another_maker_keeps_torchs_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    products.is_faster.cache_clear()
    for text in ("vendor_id\t: GenuineIntel\n", None):
        file = tmp_path / "cpuinfo"
        file.unlink(missing_ok=True)
        if text:
            file.write_text(text)
        monkeypatch.setattr(products, "_CPUINFO", file)
        assert not products.is_faster()
        products.is_faster.cache_clear()
    monkeypatch.undo()


@amd
def test_products_that_are_wrong_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    products.is_faster.cache_clear()
    monkeypatch.setattr(products, "_product", lambda rows, weight, bias: functional.linear(rows, weight) * 1.01)
    assert not products.is_faster()
    products.is_faster.cache_clear()
