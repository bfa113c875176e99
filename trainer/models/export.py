"""Checkpoints as plain Hugging Face folders, which AutoModelForCausalLM.from_pretrained loads."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocol.errors import IntegrityError, UsageError
from protocol.model_files import INDEX, weight_files
from protocol.whole_folder import whole
from trainer.learning import base
from trainer.learning.checkpoint import STATE, TENSORS, verify

if TYPE_CHECKING:
    import torch

DTYPES = ("bfloat16", "float32")
BESIDE = ("*.json", "*.txt", "*.model", "*.jinja")  # config, tokenizer, chat template: whatever the model came with


def export(
    checkpoint: Path, model: Path, target: Path, *, dtype: str = "bfloat16", shard_bytes: int | None = None
) -> Path:
    """Writes the weights of `checkpoint` and the other files of `model` into `target`, which must not be there yet.

    bfloat16 is what was published, with what that keeps in float32. Where adapters were trained, they are merged into the weights of `model`. Weights of more than
    `shard_bytes`, else 4 GiB, go into many files, one in memory at a time. Raises UsageError, IntegrityError for a damaged checkpoint or
    adapters of another model, PreflightError.
    """
    import torch

    from node.engine.weights import SHARD_BYTES, meta_model, stored_type, write_tensors

    require_target(target, dtype)
    state = verify(checkpoint)
    shapes, tensor = _merged(checkpoint, model, state) if state.get("lora") else _trained(checkpoint)
    with whole(target, f"the model {target}") as partial:
        for pattern in BESIDE:
            for path in model.glob(pattern):
                if path.name != INDEX:  # of the model's own files of weights
                    shutil.copyfile(path, partial / path.name)
        kind: torch.dtype = getattr(torch, dtype)
        made = meta_model(model, kind)
        types = {name: stored_type(made, name, kind) for name in shapes}
        sizes = {name: math.prod(shape) * types[name].itemsize for name, shape in shapes.items()}
        write_tensors(partial, sizes, lambda name: tensor(name).to(types[name]), shard_bytes or SHARD_BYTES)
    return target


def require_target(target: Path, dtype: str) -> None:
    """Makes the folder above it. Raises UsageError."""
    if target.exists():
        raise UsageError(f"{target} exists already", hint="name a folder that does not")
    if dtype not in DTYPES:
        raise UsageError(f"{dtype} is no dtype to export", hint=" or ".join(DTYPES))
    target.parent.mkdir(parents=True, exist_ok=True)


def require_base(checkpoint: Path, model: Path, state: Mapping[str, Any]) -> None:
    """Raises IntegrityError where the adapters of a checkpoint were trained on other weights than those in `model`."""
    if base.digest_of(model) != state["base"]:
        raise IntegrityError(f"{checkpoint} holds adapters of other weights than those in {model}")


Tensors = tuple[Mapping[str, Sequence[int]], Callable[[str], "torch.Tensor"]]
"""Shapes by name, and what reads one in float32."""


def _trained(checkpoint: Path) -> Tensors:
    """Of a checkpoint of all weights."""
    from trainer.learning import tensors
    from trainer.learning.learner import MODEL

    shapes = tensors.shapes(checkpoint / TENSORS)
    held = {name.removeprefix(MODEL): shape for name, shape in shapes.items() if name.startswith(MODEL)}
    if not held:
        raise IntegrityError(f"{checkpoint} holds no weights")
    return held, lambda name: tensors.read_one(checkpoint / TENSORS, f"{MODEL}{name}", held[name])


def _merged(checkpoint: Path, model: Path, state: Mapping[str, Any]) -> Tensors:
    """Of a checkpoint of adapters and the weights they were trained on."""
    from safetensors import safe_open

    from trainer.learning import lora, tensors
    from trainer.learning.learner import ADAPTERS

    adapters = lora.Adapters(int(state["lora"]["rank"]), float(state["lora"]["alpha"]))
    require_base(checkpoint, model, state)
    held = tensors.shapes(checkpoint / TENSORS)
    places: dict[str, tuple[Path, list[int]]] = {}
    for file in weight_files(model):
        with safe_open(model / file, "pt") as opened:
            places |= {name: (model / file, opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118

    def of_adapter(layer: str, part: str) -> torch.Tensor:
        name = f"{ADAPTERS}{layer}.{part}.weight"
        return tensors.read_one(checkpoint / TENSORS, name, held[name])

    def tensor(name: str) -> torch.Tensor:
        with safe_open(places[name][0], "pt") as opened:
            weight: torch.Tensor = opened.get_tensor(name).float()
        layer = name.removesuffix(".weight")
        if f"{ADAPTERS}{layer}.lora_A.weight" not in held:
            return weight
        return lora.merge(weight, of_adapter(layer, "lora_A"), of_adapter(layer, "lora_B"), adapters.scale)

    return {name: shape for name, (_, shape) in places.items()}, tensor


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder is a checkpoint of the trainer, and not a model's."""
    return (folder / STATE).is_file()


@contextmanager
def as_model(folder: Path, model: Path) -> Iterator[Path]:
    """A model's folder: `folder` itself, or where that is a checkpoint what it would be published as, for a while."""
    if not is_checkpoint(folder):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="murmur-model-") as temporary:
        yield export(folder, model, Path(temporary) / "model")
