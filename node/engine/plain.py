"""The plain model: what transformers computes of a version, alone, in eager mode and in float32. The measure of all other ways.

It is built anew from config.json and reads its weights from the version's folder, one block of layers at a time: nothing of an engine
is in it, and it never holds more than a block and the embeddings, so that there is room for it beside a model of any size.
Attention is the model's own eager function, called for a block of queries at a time with transformers' own masks.

Rounding is measured with it: the same sequences once more, with noise of the size of a rounding in the run's type after every
operation. How far that moves a logprob is how far honest work in that type may lie.

Shapes: R rows, T tokens, P places, V vocabulary.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from node.engine.weights import meta_model
from protocol.errors import IntegrityError
from protocol.model_files import weight_files

PLAIN = "murmuration_plain"
_SCORES_MAX = 1 << 26  # of attention, that exist at once


class PlainModel:
    def __init__(
        self, folder: Path, device: torch.device, *, change: Callable[[str, Tensor], Tensor] | None = None
    ) -> None:
        """`change`: what is computed with in place of each tensor that is read, by name. Raises ConfigError for a model that may not be computed, IntegrityError for a folder that no model can be made of."""
        self.model = meta_model(folder, torch.float32)
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())
        self._device = device
        self._folder = folder
        self._files = {name: file for file, names in _names(folder) for name in names}
        self._owners = _owners(self.model)
        if missing := sorted(self._owners.keys() - self._files.keys()):
            raise IntegrityError(f"tensor {missing[0]} is missing in {folder}")
        self._change = change or (lambda _, tensor: tensor)
        self._noise = 0.0
        _make_buffers(self.model, device)
        self.model.set_attn_implementation(PLAIN if _has_eager(self.model) else "eager")
        prefixes = {
            block: f"{name}." for name, block in self.model.named_modules() if block in set(_blocks(self.model))
        }
        within = tuple(prefixes.values())
        self._fill([name for name in self._owners if not name.startswith(within)])
        for block, prefix in prefixes.items():
            names = [name for name in self._owners if name.startswith(prefix)]
            block.register_forward_pre_hook(lambda _, __, names=names: self._fill(names))
            block.register_forward_hook(lambda _, __, ___, names=names: self._leave(names))
        for module in self.model.modules():
            if not any(True for _ in module.children()):
                module.register_forward_hook(lambda _, __, made: self._rounded(made))

    @property
    def config(self) -> Any:
        return self.model.config

    @torch.inference_mode()
    def logprobs(self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]], noise: float = 0.0) -> list[Tensor]:
        """Logprobs, in float32 on the CPU, of the completion's tokens of each (prompt, completion) at temperature 1.

        `noise`: standard deviation of what is added to whatever a module computes, as a share of it.
        """
        width = max(len(prompt) + len(completion) for prompt, completion in sequences)
        ids_RT = torch.zeros(len(sequences), width, dtype=torch.long)  # padded on the right, which no token sees
        for row, (prompt, completion) in enumerate(sequences):
            ids_RT[row, : len(prompt) + len(completion)] = torch.tensor([*prompt, *completion])
        starts = [len(prompt) - 1 for prompt, _ in sequences]
        wanted = [range(start, start + len(c)) for start, (_, c) in zip(starts, sequences, strict=True)]
        places = sorted({place for places in wanted for place in places})
        self._noise = noise
        self._random = torch.Generator(self._device).manual_seed(0)
        logits_RPV = self.model(
            input_ids=ids_RT.to(self._device), use_cache=False, logits_to_keep=torch.tensor(places, device=self._device)
        ).logits
        at = {place: i for i, place in enumerate(places)}
        found = []
        for row, (_, completion) in enumerate(sequences):
            own = logits_RPV[row, [at[place] for place in wanted[row]]].float().log_softmax(-1)
            found.append(own.gather(1, torch.tensor(completion, device=self._device)[:, None])[:, 0].cpu())
        return found

    # ---- weights, as they are needed -----------------------------------------------------------------------------------

    def _fill(self, names: Sequence[str]) -> None:
        by_file: dict[Path, list[str]] = {}
        for name in names:
            by_file.setdefault(self._files[name], []).append(name)
        for path, of in by_file.items():
            with safe_open(path, "pt", device=str(self._device)) as file:
                for name in of:
                    self._put(name, self._change(name, file.get_tensor(name).to(torch.float32)))

    def _leave(self, names: Sequence[str]) -> None:
        for name in names:
            self._put(name, torch.empty(0, device="meta"))

    def _rounded(self, made: Any) -> Any:
        """What a module gives, as far off as rounding would make it."""
        if not self._noise:
            return made
        if isinstance(made, tuple):
            return tuple(self._rounded(one) for one in made)
        if not isinstance(made, Tensor) or not made.is_floating_point():
            return made
        around = torch.randn(made.shape, generator=self._random, device=made.device)
        return made * (1 + self._noise * around)

    def _put(self, name: str, tensor: Tensor) -> None:
        for module, own, is_parameter in self._owners[name]:
            if is_parameter:
                module._parameters[own] = nn.Parameter(tensor, requires_grad=False)
            else:
                module._buffers[own] = tensor


def _names(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    for name in weight_files(folder):
        with safe_open(folder / name, "pt") as file:
            yield folder / name, list(file.keys())


def _owners(model: nn.Module) -> dict[str, list[tuple[nn.Module, str, bool]]]:
    """Of each stored tensor, by name: the modules that hold it, under which names, and whether as a parameter. Tied ones have two."""
    by_id: dict[int, list[tuple[nn.Module, str, bool]]] = {}
    names: dict[int, str] = {}
    for path, module in model.named_modules():
        held = [(name, tensor, True) for name, tensor in module._parameters.items()]
        kept = module._non_persistent_buffers_set
        held += [(name, tensor, False) for name, tensor in module._buffers.items() if name not in kept]
        for name, tensor, is_parameter in held:
            if tensor is not None:
                names.setdefault(id(tensor), f"{path}.{name}".lstrip("."))
                by_id.setdefault(id(tensor), []).append((module, name, is_parameter))
    return {names[key]: owners for key, owners in by_id.items()}


def _make_buffers(model: Any, device: torch.device) -> None:
    """What no file holds (rotary frequencies, for one), as transformers makes it where it loads a model."""
    for module in model.modules():
        made = [name for name in module._non_persistent_buffers_set if module._buffers.get(name) is not None]
        for name in made:
            module._buffers[name] = torch.empty_like(module._buffers[name], device=device)
        if made:
            model._init_weights(module)


def _blocks(model: nn.Module) -> list[nn.Module]:
    """The modules that a transformers model says must not be split: its layers."""
    names: set[str] = set()
    for module in model.modules():
        names |= set(getattr(module, "_no_split_modules", None) or ())
    return [module for module in model.modules() if type(module).__name__ in names]


def _has_eager(model: nn.Module) -> bool:
    return hasattr(sys.modules[type(model).__module__], "eager_attention_forward")


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **how: Any
) -> tuple[Tensor, None]:
    eager = sys.modules[type(module).__module__].eager_attention_forward
    rows, heads, queries, _ = query.shape
    at_once = max(1, _SCORES_MAX // (rows * heads * key.shape[2]))
    pieces = []
    for first in range(0, queries, at_once):
        block = slice(first, first + at_once)
        pieces.append(eager(module, query[:, :, block], key, value, attention_mask[:, :, block], **how)[0])
    return torch.cat(pieces, 1), None


AttentionInterface.register(PLAIN, _attend)
AttentionMaskInterface.register(PLAIN, eager_mask)
