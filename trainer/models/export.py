"""Checkpoints as plain Hugging Face folders, which AutoModelForCausalLM.from_pretrained loads."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from protocol.errors import UsageError
from protocol.model_files import INDEX
from trainer.folder import whole
from trainer.learning.checkpoint import STATE, TENSORS, verify

DTYPES = ("bfloat16", "float32")
BESIDE = ("*.json", "*.txt", "*.model", "*.jinja")  # config, tokenizer, chat template: whatever the model came with


def export(
    checkpoint: Path, model: Path, target: Path, *, dtype: str = "bfloat16", shard_bytes: int | None = None
) -> Path:
    """Writes the weights of `checkpoint` and the other files of `model` into `target`, which must not be there yet.

    bfloat16 is what was published. Weights of more than `shard_bytes`, else 4 GiB, go into many files, one in memory at a time. Raises UsageError, IntegrityError for a damaged checkpoint, PreflightError.
    """
    import torch

    from node.engine.weights import SHARD_BYTES, write_tensors
    from trainer.learning import tensors
    from trainer.learning.learner import MODEL

    if target.exists():
        raise UsageError(f"{target} exists already", hint="name a folder that does not")
    if dtype not in DTYPES:
        raise UsageError(f"{dtype} is no dtype to export", hint=" or ".join(DTYPES))
    verify(checkpoint)
    target.parent.mkdir(parents=True, exist_ok=True)
    with whole(target, f"the model {target}") as partial:
        for pattern in BESIDE:
            for path in model.glob(pattern):
                if path.name != INDEX:  # of the model's own files of weights
                    shutil.copyfile(path, partial / path.name)
        kind: torch.dtype = getattr(torch, dtype)
        held = {
            name.removeprefix(MODEL): shape
            for name, shape in tensors.shapes(checkpoint / TENSORS).items()
            if name.startswith(MODEL)
        }
        sizes = {name: shape.numel() * kind.itemsize for name, shape in held.items()}

        def stored(name: str) -> torch.Tensor:
            tensor = torch.empty(held[name])
            tensors.read_into(checkpoint / TENSORS, {f"{MODEL}{name}": tensor})
            return tensor.to(kind)

        write_tensors(partial, sizes, stored, shard_bytes or SHARD_BYTES)
    return target


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
