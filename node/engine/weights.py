"""Loads a published version of the weights into a model, and refuses whatever is not exactly that.

The folder's bytes were checked against the chain before (protocol/shardcast); here names, shapes and types are checked
against the model's own, and that every number is one, so that a mistaken version is an error and never a machine that seems
broken. safetensors only.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_state_dict_into_shards_factory
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from protocol import architectures
from protocol.errors import IntegrityError
from protocol.model_files import CONFIG, INDEX, weight_files

SHARD_BYTES = 4 << 30
"""Of one file of weights: what is written at once, and fetched anew after a fault that no chunk explains."""

_LOOKED_AT = 1 << 18  # numbers of a tensor whose copies are held at once, in the processor's cache
_MAPPED = 64 << 20
"""Bytes that are read of a file before it is opened anew: what was read of a mapped file counts as this process's memory."""

_FLOATING = ("F", "BF")
"""How safetensors' names of floating-point types begin."""

_CPU = torch.device("cpu")
_UNMADE = (
    StrictDataclassError, OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, AssertionError, ArithmeticError, MemoryError,
)  # fmt: skip
"""What transformers raises for a config.json that it cannot make a model of."""
_building = threading.Lock()
"""transformers builds a model under switches of the whole process: of two built at once, one comes out with its tied head untied."""


def build_model(folder: Path, dtype: torch.dtype, device: torch.device = _CPU) -> Any:
    """The transformers model of a folder on `device`. Its memory is made there and each tensor goes from the files into it, checked, one
    at a time: the host never holds the model, and no file is read twice.

    Raises ConfigError for a model that is not computed rightly, IntegrityError when transformers cannot make a model of it, or when the
    weights are not exactly its own.
    """
    model = meta_model(folder, dtype)
    _require_headers(folder, stored_tensors(model))  # first: a buffer too is as large as config.json likes
    _compute_buffers(model, folder)
    materialise(model, device)
    model.config.use_cache = True  # a model configured without decodes without a cache, silently and slowly
    _fill(stored_tensors(model), folder)
    return model


def read_model(folder: Path, dtype: torch.dtype) -> tuple[Any, list[str]]:
    """The model of any folder as transformers itself reads it, on the CPU, and what there is to say of its tensors: which are missing, and
    which unknown. Raises IntegrityError when transformers cannot make a model of it."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with _building:
            model, loading = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=dtype,
                attn_implementation="sdpa",
                trust_remote_code=False,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
            )
    except (*_UNMADE, SafetensorError, ImportError) as error:
        raise _unmade(folder, error) from error
    odd = [f"tensor {name} is missing" for name in sorted(loading["missing_keys"])]
    odd += [f"tensor {name} is unknown" for name in sorted(loading["unexpected_keys"])]
    return model.eval(), odd


def meta_model(folder: Path, dtype: torch.dtype) -> Any:
    """The transformers model of a folder without weights or buffers: names, shapes, types and how it computes, for whoever has no memory
    to spare. Raises ConfigError for a model that is not computed rightly, IntegrityError when transformers cannot make a model of it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    architectures.require_file(folder / CONFIG)
    try:
        with _building:
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
            model.tie_weights()
    except _UNMADE as error:
        raise _unmade(folder, error) from error
    for name, tensor in model.state_dict(keep_vars=True).items():
        tensor.data = tensor.data.to(stored_type(model, name, tensor.dtype))
    return model.eval()


def stored_type(model: Any, name: str, others: torch.dtype) -> torch.dtype:
    """What a transformers model's tensor of this name is held and published in, where its weights are of the type `others`."""
    exact = model._keep_in_fp32_modules_strict or ()
    return torch.float32 if any(kept in name for kept in exact) else others


def unfilled(folder: Path, dtype: torch.dtype) -> Any:
    """The same with what no file holds, such as rotary frequencies, computed on the CPU as where transformers reads a model; it lacks only
    what files hold. Raises as `meta_model`, and IntegrityError where the model does not say what a buffer holds."""
    model = meta_model(folder, dtype)
    _compute_buffers(model, folder)
    return model


def _compute_buffers(model: Any, folder: Path) -> None:
    """What no file holds, in place of nothing. Raises IntegrityError where the model does not say what a buffer holds."""
    try:
        with _building:
            unsaid = [f"{path}.{name}" for path, module in model.named_modules() for name in _unsaid(model, module)]
    except _UNMADE as error:
        raise _unmade(folder, error) from error
    if unsaid:
        raise IntegrityError(f"{folder}: the model does not say what the buffer {unsaid[0]} holds")


def _unsaid(model: Any, module: nn.Module) -> list[str]:
    """Computes what of the module's buffers no file holds; returns the names of those of which the model says nothing."""
    own = sorted(name for name in module._non_persistent_buffers_set if module._buffers.get(name) is not None)
    if not own:
        return []
    zeros, ones = (_computed(model, module, own, over) for over in (0, 1))
    return [name for name, *values in zip(own, zeros, ones, strict=True) if not torch.equal(*values)]


def _computed(model: Any, module: nn.Module, names: list[str], over: int) -> list[torch.Tensor]:
    """The module's buffers of these names, computed into memory that is full of `over`, which shows where the model says nothing."""
    for name in names:
        module._buffers[name] = torch.full_like(module.get_buffer(name), over, device="cpu")
    model._init_weights(module)
    return [module.get_buffer(name) for name in names]


def materialise(model: nn.Module, device: torch.device) -> None:
    """Memory on `device` for every parameter of an `unfilled` model, sharded or not, and for every buffer that a file holds; what is one
    parameter in two places stays one.

    As `to_empty` does it, which would make a tied parameter twice, and forget what buffers hold.
    """
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in made:
                empty = torch.empty_like(parameter.detach(), device=device)
                made[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
            module._parameters[name] = made[id(parameter)]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty_like(buffer, device=device) if buffer.is_meta else buffer.to(device)


def _unmade(folder: Path, error: Exception) -> IntegrityError:
    """In one line, however many the library takes."""
    return IntegrityError(f"no model can be made of {folder}: {' '.join(str(error).split())[:300]}")


def require_weights(folder: Path, expected: dict[str, torch.Tensor]) -> None:
    """Raises IntegrityError unless the folder holds exactly these tensors, by name and shape, all of numbers in their types. Holds one
    of them at a time: a version may be larger than the memory."""
    for _, tensor in _tensors(folder, expected):
        del tensor  # or its file stays open beside the next one


def load_weights(model: Any, folder: Path) -> None:
    """Copies the folder's tensors into the model, from the files to its device one at a time.

    Raises IntegrityError: before anything is changed where a name, a shape or a type is wrong; for a value that is no number half-way, for
    looking at all of them beforehand would read everything twice. Then the model is a mixture of two versions, and must not compute.
    """
    _fill(stored_tensors(model), folder)


@torch.no_grad()
def _fill(into: dict[str, torch.Tensor], folder: Path) -> None:
    for name, tensor in _tensors(folder, into):
        into[name].copy_(tensor)
        del tensor


def _tensors(folder: Path, expected: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a version by name, from one file or many, each read once and checked. Raises IntegrityError before the first for
    what `_require_headers` refuses, and at one that holds no numbers."""
    places = {str(tensor.device) for tensor in expected.values()}
    device = places.pop() if len(places) == 1 else "cpu"
    for name, keys in _require_headers(folder, expected).items():
        try:
            for batch in _batches(keys, expected):
                with safe_open(folder / name, "pt", device="cpu" if device == "meta" else device) as file:
                    for key in batch:
                        tensor = file.get_tensor(key)
                        _require_tensor(key, tensor, expected[key], folder)
                        yield key, tensor
                        del tensor  # or the mapping lives on
        except (SafetensorError, OSError) as error:
            raise IntegrityError(f"cannot read {folder / name}: {error}") from error


def _require_headers(folder: Path, expected: dict[str, torch.Tensor]) -> dict[str, list[str]]:
    """The names of the tensors in each file of a version, of the files' headers alone: a config.json may want any amount of memory that a
    few bytes of weights never fill. Raises IntegrityError for a tensor that is unknown, missing, of another shape, of no type of
    weights, or in another file than the index says."""
    found: dict[str, list[str]] = {}
    for name, held in weight_files(folder).items():
        try:
            with safe_open(folder / name, "pt", device="cpu") as file:
                keys = set(file.keys())
                if held is not None and keys != held:
                    odd = sorted(keys ^ held)[0]
                    problem = "not to be" if odd in keys else "missing"
                    raise IntegrityError(f"tensor {odd} is {problem} in {folder / name}")
                if unknown := sorted(keys - expected.keys()):
                    raise IntegrityError(f"tensor {unknown[0]} is unknown in {folder}")
                found[name] = sorted(keys)
                for key in found[name]:
                    header = file.get_slice(key)
                    _require_shape(key, tuple(header.get_shape()), expected[key])
                    if not header.get_dtype().startswith(_FLOATING):
                        raise IntegrityError(f"tensor {key} is of {header.get_dtype()}, which is no type of weights")
        except (SafetensorError, OSError) as error:
            raise IntegrityError(f"cannot read {folder / name}: {error}") from error
    if missing := sorted(expected.keys() - {key for keys in found.values() for key in keys}):
        raise IntegrityError(f"tensor {missing[0]} is missing in {folder}")
    return found


def _require_shape(name: str, shape: tuple[int, ...], expected: torch.Tensor) -> None:
    if shape != expected.shape:
        raise IntegrityError(f"tensor {name} is {shape}, not {tuple(expected.shape)}")


def _batches(names: list[str], tensors: Mapping[str, torch.Tensor]) -> Iterator[list[str]]:
    """Names of tensors that take about `_MAPPED` bytes together."""
    batch: list[str] = []
    held = 0
    for name in names:
        batch.append(name)
        held += tensors[name].nbytes
        if held >= _MAPPED:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


def _require_tensor(name: str, tensor: torch.Tensor, expected: torch.Tensor, folder: Path) -> None:
    _require_shape(name, tuple(tensor.shape), expected)  # once more: the file may be another since its header was read
    if not tensor.is_floating_point():
        raise IntegrityError(f"tensor {name} is of {tensor.dtype}, which is no type of weights")
    # As the model will hold it: a number may be too large for a narrower type. Part by part, for it takes copies.
    if not all(torch.isfinite(part.to(expected.dtype)).all() for part in tensor.flatten().split(_LOOKED_AT)):
        raise IntegrityError(f"tensor {name} in {folder} holds NaN or infinity")


def stored_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """The tensors a version stores, by name; one that shares its memory with another (a tied `lm_head`) is left out."""
    seen: set[int] = set()
    kept = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            kept[name] = tensor
    return kept


def write_tensors(
    folder: Path, sizes: Mapping[str, int], tensor: Callable[[str], torch.Tensor], most: int = SHARD_BYTES
) -> None:
    """Writes tensors of these `sizes` in bytes: into model.safetensors, or where one file of `most` bytes does not hold them into many,
    with an index, as `shards` names them. `tensor` is asked for one file's tensors at a time. The same tensors make the same bytes."""
    files, index = shards(sizes, most)
    for file, names in files.items():
        save_file({name: tensor(name).contiguous() for name in names}, folder / file, metadata={"format": "pt"})
    if index is not None:
        (folder / INDEX).write_bytes(index)


def shards(sizes: Mapping[str, int], most: int) -> tuple[dict[str, list[str]], bytes | None]:
    """The files, by name, that hold tensors of these `sizes` in bytes, and their index where one file of `most` bytes does not hold
    them all; as Hugging Face names them."""
    split = split_state_dict_into_shards_factory(
        dict(sizes),
        get_storage_size=lambda size: size,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=most,
    )
    if not split.is_sharded:
        return split.filename_to_tensors, None
    index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": split.tensor_to_filename}
    return split.filename_to_tensors, (json.dumps(index, indent=2, sort_keys=True) + "\n").encode()


def save_weights(model: nn.Module, path: Path, dtype: torch.dtype) -> None:
    """Writes the model's stored tensors, rounded to `dtype`."""
    tensors = {name: tensor.detach().to(dtype).contiguous() for name, tensor in stored_tensors(model).items()}
    save_file(tensors, path, metadata={"format": "pt"})
