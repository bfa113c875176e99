"""LoRA: adapters of low rank that are trained in place of a model's weights (Hu et al., arXiv 2106.09685).

    adapters.attach(model)            every linear layer but the head computes x Wᵀ + (x Aᵀ) Bᵀ · alpha / rank; only A and B are trained
    begin(model, seed)                A random, B zero: the model computes what it did
    merged(model)                     the weights that compute the same without adapters: W + B A · alpha / rank. Those are published
    with without_adapters(model): …   the model before training, which is the reference

Rank, scale and first values are those of PEFT, and so are the names. Its package is not used: it renames the tensors of the model, which
loaders here compare by name and digest, and knows nothing of shards. The mixtures of experts of transformers hold all experts
in one tensor and are no linear layers, neither are GPT-2's: they stay as they are. No dropout: old and new logprobs would differ by it.

Shapes: I and O features that go into a layer and come out of it, r the rank.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from node.engine.weights import stored_tensors
from protocol.errors import ConfigError
from trainer.config import TrainSettings
from trainer.learning.ranks import everywhere, own_rows

_TRIAL = 0.06  # deviation of what trial values add to weights, times √I: weights themselves are about 1 / √I


class LoraLinear(nn.Linear):
    """A linear layer that keeps its weight, by name and as it is, beside an adapter."""

    def __init__(self, of: nn.Linear, rank: int, scale: float) -> None:
        """Takes the parameters of `of`; its own lie where those do, in float32."""
        super().__init__(of.in_features, of.out_features, of.bias is not None, device="meta")
        self.weight, self.bias = of.weight, of.bias
        where = of.weight.device
        self.lora_A = nn.Linear(of.in_features, rank, bias=False, device=where, dtype=torch.float32)
        self.lora_B = nn.Linear(rank, of.out_features, bias=False, device=where, dtype=torch.float32)
        self.scale = scale
        self.adapted = True
        """False: it computes what it did before."""

    def product(self, x: Tensor) -> Tensor:
        """What it computed before."""
        return super().forward(x)

    def forward(self, x: Tensor) -> Tensor:
        """[…, I] → […, O]"""
        made = self.product(x)
        if self.adapted:
            made = made + self.lora_B(self.lora_A(x) * self.scale)
        return made

    @torch.no_grad()
    def merged(self) -> Tensor:
        """[O, I] in float32, sharded as the weight is; every rank has to ask."""
        return merge(self.weight.float(), everywhere(self.lora_A.weight), self.lora_B.weight, self.scale)


def merge(weight_OI: Tensor, a_rI: Tensor, b_Or: Tensor, scale: float) -> Tensor:
    """The weight that computes what `weight` and its adapter do; all float32."""
    return weight_OI + b_Or @ a_rI * scale


@dataclass(frozen=True)
class Adapters:
    """What decides, with a base and trained values, on what adapters compute."""

    rank: int
    alpha: float

    @classmethod
    def of(cls, settings: TrainSettings) -> Adapters | None:
        """None where all weights are trained."""
        rank = settings.lora_rank
        return cls(rank, settings.lora_alpha or 2.0 * rank) if rank else None

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def attach(self, model: Any) -> None:
        """Freezes a transformers model, and gives each of its linear layers but the head an adapter.

        Raises ConfigError where there is no such layer, and where no adapter would be smaller than its layer.
        """
        head = model.get_output_embeddings()
        layers = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear) and m is not head}
        if not layers:
            raise ConfigError(
                f"models of the type {model.config.model_type} have no linear layers to adapt",
                hint="set trainer.lora_rank = 0",
            )
        most = max(min(layer.in_features, layer.out_features) for layer in layers.values())
        if self.rank >= most:
            raise ConfigError(f"trainer.lora_rank is {self.rank}, and no layer has more than {most} features")
        model.requires_grad_(False)
        for name, layer in layers.items():
            model.set_submodule(name, LoraLinear(layer, self.rank, self.scale))


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """The adapters' own tensors by name, in the model's order; none where nothing was attached."""
    return {
        f"{name}.{part}.weight": getattr(layer, part).weight for name, layer in _layers(model) for part in ("lora_A", "lora_B")
    }  # fmt: skip


def base_tensors(model: nn.Module) -> dict[str, Tensor]:
    """All others that a version stores: those of the model's folder."""
    own = tensors(model).keys()
    return {name: tensor for name, tensor in stored_tensors(model).items() if name not in own}


@torch.no_grad()
def merged(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a version, by name, one at a time and sharded as the model is: merged ones in float32, all others as they are."""
    adapted = {f"{name}.weight": layer for name, layer in _layers(model)}
    for name, tensor in base_tensors(model).items():
        yield name, adapted[name].merged() if name in adapted else tensor.detach()


@torch.no_grad()
def begin(model: nn.Module, seed: int) -> None:
    """A as PEFT draws it, uniform within 1 / √I, from a seed of its own for each layer; B zero. The same for any number of ranks."""
    for name, layer in _layers(model):
        bound = 1 / math.sqrt(layer.in_features)
        drawn = torch.empty(layer.lora_A.weight.shape).uniform_(-bound, bound, generator=_random(f"{seed}/{name}"))
        _set(layer.lora_A.weight, drawn)
        _set(layer.lora_B.weight, torch.zeros(layer.lora_B.weight.shape))


@contextmanager
def tried(model: nn.Module) -> Iterator[None]:
    """With adapters that move each weight by a few per cent, whatever they are; afterwards they are as they were."""
    before = []
    with torch.no_grad():
        for name, layer in _layers(model):
            b_Or = layer.lora_B.weight
            before.append((b_Or, own_rows(b_Or)[0].clone()))
            size = _TRIAL * math.sqrt(3 / b_Or.shape[1]) / layer.scale  # A is uniform within 1 / √I
            _set(b_Or, size * torch.randn(b_Or.shape, generator=_random(f"trial/{name}")))
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, own in before:
                own_rows(tensor)[0].copy_(own)


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """The model computes what it did before training."""
    layers = [layer for _, layer in _layers(model)]
    for layer in layers:
        layer.adapted = False
    try:
        yield
    finally:
        for layer in layers:
            layer.adapted = True


def identity(settings: TrainSettings) -> dict[str, Any] | None:
    """What a checkpoint says of its adapters, beside their values and their base (base.py); None where all weights are trained."""
    adapters = Adapters.of(settings)
    return None if adapters is None else asdict(adapters)


def require_same(saved: dict[str, Any] | None, ours: dict[str, Any] | None, folder: Path) -> None:
    """Raises ConfigError for a checkpoint of other adapters than the settings ask for."""
    for name in ("rank", "alpha"):
        setting = f"lora_{name}"
        was, asked = (0 if of is None else of[name] for of in (saved, ours))
        if was != asked:
            raise ConfigError(
                f"{folder} was trained with {setting} = {was:g}, and trainer.{setting} is {asked:g}",
                hint=f"set trainer.{setting} = {was:g}, or begin another training",
            )


def _layers(model: nn.Module) -> list[tuple[str, LoraLinear]]:
    return [(name, module) for name, module in model.named_modules() if isinstance(module, LoraLinear)]


def _set(into: Tensor, whole: Tensor) -> None:
    """This rank's rows of a tensor that is the same on all."""
    local, first = own_rows(into)
    local.copy_(whole[first : first + len(local)])


def _random(name: str) -> torch.Generator:
    return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(f"lora/{name}".encode()).digest()[:8], "little"))
