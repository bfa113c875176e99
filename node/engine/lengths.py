"""What a model does otherwise beyond a length: it has windows, chunks, a number of keys that attention keeps, or scales of far places.

A self-check compares sequences of some hundred tokens (self_check.py), and what begins after thousands would pass it unseen. It is
tried on a copy instead: the same weights and layers, and a config.json with these lengths so short that all of the sequences
are longer. Does not know lengths that a config.json calls by other names.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from node.engine.features import window_of
from protocol import architectures
from protocol.config_keys import ROPE_REASONS
from protocol.errors import ConfigError, PreflightError
from protocol.model_files import CONFIG

SHORT = 16
"""Tokens: fewer than any sequence of a self-check has."""
COPIED_MAX = 10**9
"""Parameters of the largest model that a role computes once more at its start, from a copy."""

Lengths = Mapping[str, int]
"""Tokens, by the key of config.json."""


def _attribute(key: str) -> Callable[[Any], Any]:
    return lambda config: getattr(config, key, None)


def _far_scale(config: Any) -> Any:
    """Where queries of far places begin to be scaled (Ministral 3)."""
    rope = getattr(config, "rope_parameters", None) or {}
    return rope.get(_ORIGINAL) if "llama_4_scaling_beta" in rope else None


def _blocks(config: Any) -> Any:
    """Tokens of the blocks that are kept (MiniMax M3)."""
    kept = getattr(config, "index_topk_blocks", None)
    return kept and kept * config.index_block_size


_ORIGINAL, _BLOCK = "original_max_position_embeddings", "index_block_size"
_KNOWN: dict[str, Callable[[Any], Any]] = {
    "sliding_window": window_of, _ORIGINAL: _far_scale, _BLOCK: _blocks,
    **{key: _attribute(key) for key in (
        "sliding_window_size", "window_size", "attention_window_size", "local_attention", "keep_window_size",  # windows by other names
        "attention_chunk_size", "index_topk", "floor_scale", "log_scaling_n_floor",
    )},
}  # fmt: skip


def positions(config: Any) -> int:
    """Tokens of the longest sequence of a model of this transformers configuration; where none is said, more than any sequence has."""
    return architectures.positions(config.to_dict()) or 1 << 30


def beyond(config: Any, longest: int) -> dict[str, int]:
    """What a model of this transformers configuration does otherwise beyond more than `longest` tokens, and within its positions."""
    most = positions(config)
    found = {key: of(config) for key, of in _KNOWN.items()}
    return {key: value for key, value in found.items() if isinstance(value, int) and longest <= value < most}


def told(lengths: Lengths) -> str:
    return ", ".join(f"{key} of {value} tokens" for key, value in lengths.items())


@contextmanager
def shortened(folder: Path, lengths: Lengths) -> Iterator[Path]:
    """A folder of the same weights, with SHORT in place of these lengths; for a while. What does not pass with it is told so."""
    config = json.loads((folder / CONFIG).read_bytes())
    for key in lengths:
        if key == _BLOCK:
            config[key] = 1  # as many blocks as before
        elif key == _ORIGINAL:
            config["rope_parameters"][key] = SHORT
        else:
            config[key] = SHORT
    with tempfile.TemporaryDirectory(prefix="murmur-short-") as temporary:
        made = Path(temporary)
        for path in folder.iterdir():
            if path.name != CONFIG:
                (made / path.name).symlink_to(path.resolve())
        (made / CONFIG).write_text(json.dumps(config))
        try:
            yield made
        except PreflightError as error:
            raise PreflightError(f"on a copy with {told(lengths)} cut to {SHORT}: {error}", hint=error.hint) from error


def require_steady(model: Any) -> None:
    """Raises ConfigError for a model whose rotary frequencies change with the length of what is computed, which no copy can show: what a
    batch holds would decide. Its config.json may not say so by itself."""
    for module in model.modules():
        of = getattr(module, "rope_type", None)
        for kind in of.values() if isinstance(of, dict) else [of]:
            if kind in ROPE_REASONS:
                raise ConfigError(
                    f"the rotary positions of this model are of type {kind!r}: {ROPE_REASONS[kind]}",
                    hint="choose another model",
                )
