"""What a version of the weights consists of: its files by name, and which of them the run spec fixes.

Nothing here reads tensors: roles without torch (relays, the hub, the shell) need the names as well.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from protocol.errors import HashMismatch
from protocol.runspec import ModelSpec

CONFIG, TOKENIZER, WEIGHTS = "config.json", "tokenizer.json", "model.safetensors"
FILES = (CONFIG, TOKENIZER, WEIGHTS)
"""What every version consists of."""


def require_model_files(folder: Path, spec: ModelSpec) -> None:
    """Raises HashMismatch unless config.json and tokenizer.json are the run's."""
    for name, digest in ((CONFIG, spec.config), (TOKENIZER, spec.tokenizer)):
        path = folder / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise HashMismatch(f"{name} of the published weights is not the run spec's")
