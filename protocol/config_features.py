"""What a config.json asks of an architecture in the list that nobody has compared, key by key.

A key is let through only if what it says is what transformers' own class of the architecture computes: it may hold any value because each
was compared or because the class reads it nowhere (NOTES), or one of certain values, or the same as another key. Everything else is
complained of, all of it at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from protocol.config_bounds import CHOSEN, EXPERTS, shown
from protocol.config_keys import (
    DROPOUTS,
    FEATURES,
    FIXED,
    NEVER,
    NOTES,
    OWN,
    PATTERNS,
    ROPE_KEY_REASONS,
    ROPE_KEYS,
    ROPE_REASONS,
    SAME,
    SIZES,
)
from protocol.listed_architectures import MIXTURE, Architecture

Config = Mapping[str, Any]

_FULL, _SLIDING = "full_attention", "sliding_attention"
_ELSEWHERE = ("layer_types", "rope_scaling", "rope_parameters", *PATTERNS, *NEVER)
"""Keys that have checks of their own."""
_WHOLE = 8
"""Numbers of 16 bytes in bfloat16: torch multiplies no groups of matrices whose rows are of other lengths, in transformers alone either."""


class Complaint(NamedTuple):
    what: str
    """As in `attention_dropout is 0.1`."""
    why: str
    hint: str = "choose another model"


def complaints(config: Config, kind: str, known: Architecture) -> Iterator[Complaint]:
    """Everything that config.json asks of this architecture and that nobody has compared."""
    named = config.get("architectures") or [known.name]
    if named != [known.name]:
        yield Complaint(f"architectures is {shown(named)}", f"of type {kind!r} only {known.name} is computed")
    yield from _layers(config, known)
    yield from _patterns(config, known)
    yield from _amounts(config, known)
    yield from _experts(config, kind, known)
    yield from _ropes(config, known)
    yield from _keys(config, kind, known)


def _keys(config: Config, kind: str, known: Architecture) -> Iterator[Complaint]:
    allowed = {**FIXED, **OWN.get(kind, {})}
    same = SAME.get(kind, {})
    for key, value in {**known.defaults, **config}.items():
        said = f"{key} is {shown(value)}" + ("" if key in config else " where config.json leaves it out")
        if key in _ELSEWHERE:
            continue
        if key in OWN.get(kind, {}) or (key in FIXED and key not in known.sizes):
            if value is not None and value not in allowed[key]:
                yield Complaint(said, f"only {' or '.join(repr(one) for one in allowed[key])} is computed")
        elif key in same:
            if value is not None and value != config.get(same[key]):
                yield Complaint(said, f"{same[key]} is {shown(config.get(same[key]))}, and that is computed")
        elif _is_free(key, known):
            continue
        elif key in FEATURES:
            if value:
                yield Complaint(said, FEATURES[key], hint(key))
        elif value is not None:
            yield Complaint(
                said, "nobody has compared what it changes", "remove the key, if the model is the same without it"
            )


def _is_free(key: str, known: Architecture) -> bool:
    if key == "use_sliding_window":
        return known.switched
    if key == "sliding_window":
        return known.windows != "none"
    return (key in SIZES and key not in known.unread) or key in NOTES or key in known.sizes


def _layers(config: Config, known: Architecture) -> Iterator[Complaint]:
    """Layers of which each attends to everything or, where the architecture has them, to a window."""
    types = config.get("layer_types") or []
    if not isinstance(types, list):
        yield Complaint(f"layer_types holds {shown(types)}", "expected a list")
        return
    if odd := [kind for kind in types if kind not in _kinds(config, known)]:
        known_kind = odd[0] in (_FULL, _SLIDING)
        reason = "layers of this architecture are all alike" if known_kind else "nobody has compared such layers"
        yield Complaint(f"layer_types holds {shown(odd[0])}", reason)
    for key in ("layer_types", "no_rope_layers"):
        listed, layers = config.get(key), config.get("num_hidden_layers")
        if isinstance(listed, list) and type(layers) is int and listed and len(listed) != layers:
            yield Complaint(f"{key} has {len(listed)} entries", f"there are {layers} layers")
    if known.windows == "none" or known.switched:
        return
    if config.get("use_sliding_window") is not None and config.get("sliding_window"):
        yield Complaint("use_sliding_window stands beside sliding_window", FEATURES["use_sliding_window"], "remove it")
    if known.windows == "listed" and not config.get("sliding_window", True) and not types:
        way = f"list every layer as {_FULL!r} in layer_types, if the model has no windows"
        yield Complaint(f"sliding_window is {shown(config['sliding_window'])}", "some layers have it by default", way)


def _kinds(config: Config, known: Architecture) -> tuple[str, ...]:
    """What `layer_types` may hold."""
    if known.windows == "none":
        return (_FULL,)
    if known.windows == "every":  # whatever the list says, transformers gives the window to all layers
        return ((_SLIDING,) if config["sliding_window"] else (_FULL,)) if "sliding_window" in config else ()
    is_on = config.get("use_sliding_window") if known.switched else True
    return (_FULL, _SLIDING) if is_on and config.get("sliding_window", True) else (_FULL,)


def _patterns(config: Config, known: Architecture) -> Iterator[Complaint]:
    """Every how many layers one has no window. transformers reads the first of these keys alone, and none where layers are listed."""
    there = {key: config[key] for key in PATTERNS if config.get(key) is not None}
    if there and not known.pattern:
        key = next(iter(there))
        yield Complaint(
            f"{key} is {shown(there[key])}",
            "nobody has compared what it changes",
            "remove the key, if the model is the same without it",
        )
        return
    taken = config.get(PATTERNS[0], known.pattern)
    for key, value in there.items():
        if type(value) is not int or value < 1:
            yield Complaint(f"{key} is {shown(value)}", "expected a whole number above 0")
        elif not config.get("layer_types") and value != taken:
            way = f"write it as {PATTERNS[0]}" if PATTERNS[0] not in config else ""
            yield Complaint(f"{key} is {value}", f"one layer in {shown(taken)} is computed without a window", way)


def _amounts(config: Config, known: Architecture) -> Iterator[Complaint]:
    """Of windows, caps and scales, where the model has them, that they are numbers above 0: places that read another differ."""
    for key in sorted(config.keys() & known.sizes & FEATURES.keys()):
        value = config[key]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 < value < math.inf):
            yield Complaint(f"{key} is {shown(value)}", "expected a number above 0")
    window = config.get("sliding_window")
    if known.windows != "none" and window is not None and (type(window) is not int or window < 1):
        yield Complaint(f"sliding_window is {shown(window)}", "expected a number of tokens")


def _experts(config: Config, kind: str, known: Architecture) -> Iterator[Complaint]:
    """A mixture has experts, of widths that their grouped products take; what fits together of them config_bounds.py says."""
    if not known.sizes >= MIXTURE:
        return
    for key in (*EXPERTS, CHOSEN):
        if key in config and config[key] in (0, None):
            yield Complaint(f"{key} is {config[key]!r}", "models of this type have experts")
    for key in ("hidden_size", "intermediate_size" if kind == "mixtral" else "moe_intermediate_size"):
        if type(config.get(key)) is int and config[key] % _WHOLE:
            yield Complaint(f"{key} is {config[key]}", f"widths of experts have to be multiples of {_WHOLE}")


def _ropes(config: Config, known: Architecture) -> Iterator[Complaint]:
    """Of rotary positions those whose frequencies never change."""
    old, new = config.get("rope_scaling"), config.get("rope_parameters")
    if (old or new) and "rope_theta" in known.unread:
        yield Complaint(
            f"{'rope_parameters' if new else 'rope_scaling'} is set", "models of this type have no rotary positions"
        )
        return
    if isinstance(new, dict):
        yield from _twice_said(config, new)
    if old and new and old != new:
        yield Complaint(
            "rope_scaling stands beside rope_parameters", "who reads them takes one or the other", "remove one"
        )
    for key in ("rope_scaling", "rope_parameters"):
        rope = config.get(key)
        if not rope:
            continue
        if not isinstance(rope, dict):
            yield Complaint(f"{key} is {shown(rope)}", "expected an object")
            continue
        by_layer = known.ropes and set(rope) <= {_FULL, _SLIDING}
        if known.ropes and by_layer is (key == "rope_scaling"):
            form = "by the layer's type" if key == "rope_parameters" else "without the layer's type"
            yield Complaint(f"{key} is {shown(rope)}", f"transformers reads it {form} alone")
            continue
        for name, one in rope.items() if by_layer else [("", rope)]:
            if one:
                yield from _one_rope(one, f"{key}.{name}" if name else key, known)


def _twice_said(config: Config, parameters: Config) -> Iterator[Complaint]:
    """Of rotary positions what the config itself says otherwise than `rope_parameters`, which transformers reads."""
    whole = parameters.get(_FULL, parameters)
    for key, (of, name) in {
        "rope_theta": (whole, "rope_theta"),
        "rotary_emb_base": (whole, "rope_theta"),
        "partial_rotary_factor": (whole, "partial_rotary_factor"),
        "rotary_pct": (whole, "partial_rotary_factor"),
        "rope_local_base_freq": (parameters.get(_SLIDING), "rope_theta"),
    }.items():
        value, read = config.get(key), of.get(name) if isinstance(of, dict) else None
        if value is not None and read is not None and value != read:
            yield Complaint(f"{key} is {shown(value)}", f"rope_parameters says {shown(read)}, and that is computed")


def _one_rope(rope: Any, key: str, known: Architecture) -> Iterator[Complaint]:
    if not isinstance(rope, dict):
        yield Complaint(f"{key} is {shown(rope)}", "expected an object")
        return
    for name in ("rope_type", "type"):
        kind = rope.get(name)
        if kind is not None and (not isinstance(kind, str) or kind not in known.rope_types):
            reason = ROPE_REASONS.get(str(kind), "nobody has shown that it is computed rightly")
            yield Complaint(f"{key}.{name} is {shown(kind)}", reason)
            return  # what else it holds is its own
    if len({rope[name] for name in ("rope_type", "type") if rope.get(name) is not None}) > 1:
        yield Complaint(f"{key}.type is {shown(rope['type'])}", "rope_type says another, and that is computed")
    partial = {"partial_rotary_factor"} if known.partial else set()
    for odd in sorted(rope.keys() - ROPE_KEYS - partial):
        yield Complaint(f"{key} holds {shown(odd)}", ROPE_KEY_REASONS.get(odd, "nobody has compared what it changes"))


def unsteady(config: Config) -> Iterator[Complaint]:
    """Of a model that is not listed: nothing by chance, and no rotary frequencies that change, which the sequences of a self-check may
    be too short or too long to show."""
    for key in sorted(DROPOUTS & config.keys()):
        if config[key]:
            yield Complaint(f"{key} is {shown(config[key])}", FEATURES[key], hint(key))
    for key in ("rope_scaling", "rope_parameters"):
        rope = config.get(key)
        ropes = [rope, *rope.values()] if isinstance(rope, dict) else []
        for one in (one for one in ropes if isinstance(one, dict)):
            for kind in (str(one.get("rope_type")), str(one.get("type"))):
                if kind in ROPE_REASONS:
                    yield Complaint(f"{key} is of type {kind!r}", ROPE_REASONS[kind])


def hint(key: str) -> str:
    if "sliding_window" in key:
        return f"remove {key}: the model is the same without it"
    if key in DROPOUTS:
        return f"set {key} to 0; `murmur trainer import` does"
    if key == "auto_map":
        return (
            "remove it where transformers' own class is the same model; `murmur trainer import` does for listed types"
        )
    if key == "dual_chunk_attention_config":
        return "remove it, and lower max_position_embeddings to what the model attends to without it"
    return "choose another model"
