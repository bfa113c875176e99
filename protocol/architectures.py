"""Which models are computed rightly: an allow-list of architectures, and of what a config.json may ask of each.

A run computes one model in three ways: alone and cached (a node generates), batched (a validator's prefill) and packed (the trainer).
An architecture, or a feature of it, that one of them computes differently pays nodes for noise and trains on it, and nothing else
would tell. So what is listed here was compared with the model alone, in all three (tests/engine/test_architectures.py), and all else
is refused by name: by `murmur trainer import`, by `murmur run create` and by every engine that loads.

A model that is not listed may be let in by `murmur trainer import --unlisted`, where its self-check passes: the key UNLISTED of its
config.json says so to every role, the run spec repeats it, and verdicts on such a model are soft only.

It looks at config.json alone and imports no torch. A key that nobody has compared is refused as well, if it says anything: what
transformers makes of a stray `sliding_window` depends on the place that reads it. Does not cover whether the weights fit
(node/engine/weights.py), nor kernels (the setting `trainer.kernels`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from protocol import config_bounds
from protocol.config_bounds import shown
from protocol.config_features import Complaint, complaints, hint, unsteady
from protocol.config_keys import DROPOUTS, FEATURES, NEVER, REFUSED
from protocol.errors import ConfigError, Malformed, Oversized
from protocol.listed_architectures import ARCHITECTURES, MIXTURE, Architecture, Config
from protocol.model_files import read_json

__all__ = [
    "ARCHITECTURES",
    "UNLISTED",
    "Architecture",
    "is_unlisted",
    "positions",
    "put_right",
    "require_file",
    "require_positions",
    "require_right",
    "require_soft",
    "routes",
]  # fmt: skip

_NAMED = 16
"""Refused keys that one sentence names."""
UNLISTED = "murmuration_unlisted"
"""Key of config.json: true where the model is none of the list, and its self-check passed when it was imported."""


def require_right(config: Config, where: str = "config.json") -> None:
    """Raises ConfigError that names everything of a model's config.json that has not been shown to be computed rightly.

    Of a model that was let in unlisted it names only what is never computed.
    """
    kind = config.get("model_type")
    known = ARCHITECTURES.get(kind) if isinstance(kind, str) else None
    if len(config) > config_bounds.KEYS_MAX:
        raise _refused(where, [Complaint(f"it has {len(config)} keys", f"at most {config_bounds.KEYS_MAX}")])
    found = [Complaint(f"{key} is set", FEATURES[key], hint(key)) for key in NEVER if config.get(key)]
    found += [Complaint(what, expected) for what, expected in config_bounds.unbounded(config)]
    if is_unlisted(config):
        found += unsteady(config)
    elif known is None:
        reason = REFUSED.get(str(kind), "nobody has shown that it is computed rightly")
        way = "these are: " + ", ".join(sorted(ARCHITECTURES))
        found.append(Complaint(f"models of type {shown(kind)} are refused", reason, way))
    else:
        told = {one.what for one in found}
        found += [one for one in complaints(config, str(kind), known) if one.what not in told]
        if positions(config) is None:
            way = "write what the model was trained for"
            found.append(Complaint("max_position_embeddings is missing", "it is where all parties stop", way))
    if found:
        raise _refused(where, found)


def routes(config: Config) -> bool:
    """Whether the model is a mixture of experts, in which rounding may send a token to other experts."""
    known = ARCHITECTURES.get(str(config.get("model_type")))
    return (known is not None and known.sizes >= MIXTURE) or any(config.get(key) for key in config_bounds.EXPERTS)


def require_soft(config: Config, calibrated: Sequence[int]) -> None:
    """Raises ConfigError for a mixture of experts under which seats could be slashed: where two honest machines round otherwise a token goes
    to other experts, and its states have nothing in common any more. In float32 that is rare, some decisions in a million: too rare for a
    calibration to have seen it, and not for a run."""
    if routes(config) and calibrated:
        raise ConfigError(
            "the model is a mixture of experts: rounding sends tokens to other experts, so that honest work"
            " may lie beyond any limit, and nobody may be slashed for it",
            hint=f"set spec.verification.calibrated = [] and uncalibrated = {list(calibrated)}",
        )


def is_unlisted(config: Config) -> bool:
    """Whether a model was let in that is not in the list."""
    return config.get(UNLISTED) is True


def require_file(path: Path) -> dict[str, Any]:
    """What a config.json holds, if it is right. Raises ConfigError for what is no JSON object, too."""
    try:
        config = read_json(path)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", hint="name the folder of a model") from error
    except (Oversized, Malformed) as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path} holds no JSON object")
    require_right(config, str(path))
    return config


def put_right(config: Config) -> dict[str, Any]:
    """The same config.json with every chance of leaving something out at 0, and for a type in the list without the names of a stranger's
    code. That code is never run, here or elsewhere: with or without its name transformers' own class computes the model, which
    `model_type` and `architectures` name and which the tensors have to fit. What is published names it no more, so that nobody who
    loads a version with `trust_remote_code` runs it either."""
    known = ARCHITECTURES.get(str(config.get("model_type")))
    defaults = known.defaults if known else dict[str, Any]()
    right = dict(config) | {key: 0.0 for key in DROPOUTS if config.get(key, defaults.get(key))}
    if known and config.get("architectures") in (None, [known.name]):
        right.pop("auto_map", None)
    return right


def positions(config: Config) -> int | None:
    """Tokens of the longest sequence, prompt and completion, where config.json or the architecture says so. Rotary positions would go on
    beyond it; that all parties stop at the same place is worth more."""
    known = ARCHITECTURES.get(str(config.get("model_type")))
    learnt = known.positions if known else None
    keys = (*([learnt] if learnt else []), "max_position_embeddings", "n_positions")
    said = next((config[key] for key in keys if isinstance(config.get(key), int)), None)
    return 1024 if said is None and learnt else said  # as transformers has it where GPT-2's leaves it out


def require_positions(config: Config, tokens: int) -> None:
    """Raises ConfigError where a prompt and its completion, so many tokens together, are longer than the model has positions."""
    most = positions(config)
    if most is not None and tokens > most:
        raise ConfigError(
            f"a prompt and its completion may take {tokens} tokens, and the model has {most} positions",
            hint="lower spec.sampling.max_new_tokens, or choose another model",
        )


def _refused(where: str, found: Sequence[Complaint]) -> ConfigError:
    said = list(dict.fromkeys(f"{one.what}: {one.why}" for one in found))
    more = f"; and {len(said) - _NAMED} more" if len(said) > _NAMED else ""
    ways = dict.fromkeys(one.hint for one in found if one.hint)
    return ConfigError(f"{where}: {'; '.join(said[:_NAMED])}{more}", hint="; ".join([*ways][:_NAMED]))
