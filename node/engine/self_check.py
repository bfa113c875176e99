"""The self-check at start: whoever computes a model compares itself with the plain model (plain.py) before its work counts.

A few sequences of random tokens of the actual model, some longer than its sliding window: a node and a validator compare their
engine's decoding and prefill, the trainer its packed rows (trainer/learning/self_check.py). Logprobs may lie as far apart as
rounding in the run's type explains, which is measured on the model itself; beyond that is an error. It says which way differs, and tries
what explains it: each feature that the model has is switched off in the plain model, until that agrees with the way.

Bounded: some hundred tokens, and two sequences as long as the window where that is no work of minutes; where it is, sequences of a copy
whose window is short (lengths.py), and where that is too much as well a warning says what was not tried. Does not cover: what
hides within rounding. A measure that is no number is no pass.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from node.engine import lengths
from node.engine.factory import make_engine
from node.engine.features import features, window_of
from node.engine.interface import Engine, Prompt, Verifier
from node.engine.lengths import Lengths
from node.engine.settings import EngineSettings
from protocol.errors import IntegrityError, PreflightError, Unavailable
from protocol.model_files import CONFIG

if TYPE_CHECKING:
    import torch

    from node.engine.plain import PlainModel

log = logging.getLogger(__name__)

Sequences = Sequence[tuple[Sequence[int], Sequence[int]]]
"""Token ids of prompt and completion."""
Logprobs = Sequence[NDArray[np.floating]]
"""Of each sequence's completion, at temperature 1."""

_PROMPTS, NEW_TOKENS = (7, 29, 45), 24
# Tokens by which the longest prompts are longer than the window: the completion of one crosses its end, the other begins beyond it.
_AROUND = (-8, 9)
_LONGEST = 1 << 13  # tokens: the plain model's masks take the square of it
_WORK_MAX = {"cpu": 4e12}  # operations that the sequences of a window may take; a minute or two on one core
_WORK_MAX_ELSEWHERE = 4e15
_DRAWS = 3  # of noise: of a mixture of experts one draw may move no token to another expert
_ROUNDINGS = 5.0  # times the mean error that rounding explains; measured ratios: 0.5 to 2.7
_FLOOR = 1e-4  # nats: mean error that is none, whatever rounding explains


class SelfCheck:
    """What a role asks of its engine with each version, and is answered with the first."""

    _passed: ClassVar[set[tuple[object, ...]]] = set()  # what has passed in this process

    def __init__(self, settings: EngineSettings, compute_dtype: str) -> None:
        self._settings = settings
        self._dtype = compute_dtype
        self._done = False

    def __call__(self, engine: Engine, folder: Path) -> None:
        """Raises PreflightError where the engine computes another model than the one in `folder`, Unavailable where that makes no
        numbers: the next version may."""
        if self._done:
            return
        case = ((folder / CONFIG).read_bytes(), self._dtype, *self._settings.model_dump().items())
        if case not in self._passed:
            self.again(engine, folder)
            self._passed.add(case)
        self._done = True

    def again(self, engine: Engine, folder: Path) -> None:
        """The same whatever has passed before: it may be another process that computes."""
        left, parameters = self._compare(engine, folder)
        if left and not self._done:
            self._try_copy(folder, left, parameters)
        self._done = True

    def _compare(self, engine: Engine, folder: Path) -> tuple[Lengths, int]:
        """What of the model the sequences were too short to show, and how many parameters it has."""
        from node.engine import device, memory

        where = device.named(self._settings.device)
        try:
            return compare(engine, folder, self._dtype, where)
        except (RuntimeError, MemoryError) as error:
            said = memory.exhausted(error)
            if said is None or where.type == "cpu":
                raise
            log.warning("self-check: %s; the plain model is computed on the CPU", said)
        device.release(where)
        return compare(engine, folder, self._dtype, device.named("cpu"))

    def _try_copy(self, folder: Path, left: Lengths, parameters: int) -> None:
        """With a second engine, where that is a small one in this process."""
        if parameters > lengths.COPIED_MAX or self._settings.name != "torch":
            untried(left)
            return
        with lengths.shortened(folder, left) as copy:
            engine = make_engine(self._settings, self._dtype)
            engine.load(copy)
            self._compare(engine, copy)


def untried(left: Lengths) -> None:
    """Says it."""
    log.warning("self-check: passed, and not tried was what begins beyond %s", lengths.told(left))


def compare(engine: Engine, folder: Path, dtype: str, where: torch.device) -> tuple[Lengths, int]:
    """What of the model in `folder` the sequences were too short to show, and how many parameters it has. The plain model is computed on
    `where`. Raises as SelfCheck does, ConfigError for a model that changes with the length of a batch."""
    from node.engine.plain import PlainModel

    plain = PlainModel(folder, where)
    lengths.require_steady(plain.model)
    asked = prompts(plain.config, plain.parameters, where.type)
    try:
        sequences, ways = _asked(engine, asked)
    except (ValueError, IntegrityError) as error:
        raise Unavailable(f"this version of the weights computes no numbers here: {error}") from error
    Measure(plain, sequences, dtype).require(ways)
    return lengths.beyond(plain.config, longest(asked)), plain.parameters


def longest(asked: Sequence[Sequence[int]]) -> int:
    """Tokens of the longest sequence that comes of these prompts."""
    return max(map(len, asked)) + NEW_TOKENS


def _asked(engine: Engine, asked: Sequence[Sequence[int]]) -> tuple[Sequences, dict[str, Logprobs]]:
    """What the engine makes of prompts, and the logprobs that it claims and scores."""
    made = engine.generate(
        [Prompt(list(prompt), (number,)) for number, prompt in enumerate(asked)], temperature=1.0, max_new_tokens=NEW_TOKENS,
        end_tokens=frozenset(), prove=False,
    )  # fmt: skip
    sequences = [(prompt, one.tokens) for prompt, (one,) in zip(asked, made, strict=True)]
    claimed = [np.array(one.logprobs) for (one,) in made]
    return sequences, {"the engine's decoding": claimed, "the engine's prefill": _prefilled(engine, sequences)}


def _prefilled(engine: Verifier, sequences: Sequences) -> Logprobs:
    found: dict[int, NDArray[np.floating]] = {}
    for batch in engine.prefill_in_batches([(list(prompt), list(tokens)) for prompt, tokens in sequences]):
        for i, hidden in batch.items():
            found[i] = engine.score(hidden, list(sequences[i][1]), key=0, temperature=1.0).logprobs
    return [found[i] for i in range(len(sequences))]


def prompts(config: Any, parameters: int, device: str) -> list[list[int]]:
    """Random prompts for a model of this transformers configuration; all fit its positions with a completion."""
    room = lengths.positions(config) - NEW_TOKENS
    sizes = [min(size, max(1, room)) for size in _PROMPTS]
    window = window_of(config)
    if window is not None and max(sizes) < window + _AROUND[0] < room:
        around = [min(window + more, room) for more in _AROUND]
        attention = 4.0 * config.num_hidden_layers * config.hidden_size * sum(size**2 for size in around)
        work = 2.0 * parameters * sum(around) + attention
        if max(around) <= _LONGEST and work <= _WORK_MAX.get(device, _WORK_MAX_ELSEWHERE):
            sizes += around
    rng = np.random.default_rng(0)
    return [rng.integers(2, int(config.vocab_size), size).tolist() for size in sizes]


@dataclass(frozen=True)
class Measure:
    """What ways of computing a model are held against: the plain model's logprobs of these sequences."""

    plain: PlainModel
    sequences: Sequences
    dtype: str
    """What the ways compute in."""

    @cached_property
    def _exact(self) -> Logprobs:
        return self._computed()

    @cached_property
    def limit(self) -> float:
        """Mean error, in nats, that rounding explains. Raises Unavailable where that is no number."""
        import torch

        few = [i for i, (prompt, _) in enumerate(self.sequences) if len(prompt) <= max(_PROMPTS)]
        chosen = [self.sequences[i] for i in few]
        noise = torch.finfo(getattr(torch, self.dtype)).eps / 4
        moved = [one.numpy() for one in self.plain.logprobs(chosen * _DRAWS, noise=noise)]
        exact, count = [self._exact[i] for i in few], len(few)
        explained = max(_mean_error(exact, moved[at : at + count]) for at in range(0, len(moved), count))
        if not math.isfinite(explained):
            raise Unavailable("the plain model of this version of the weights computes no numbers")
        return max(_FLOOR, _ROUNDINGS * explained)

    @property
    def _tokens(self) -> int:
        return sum(len(completion) for _, completion in self.sequences)

    def _computed(self) -> Logprobs:
        """By the plain model as it is now; sequences of like length at a time."""
        order = sorted(range(len(self.sequences)), key=lambda i: len(self.sequences[i][0]))
        found: dict[int, NDArray[np.floating]] = {}
        for part in (
            [i for i in order if len(self.sequences[i][0]) <= max(_PROMPTS)],
            [i for i in order if len(self.sequences[i][0]) > max(_PROMPTS)],
        ):
            if part:
                made = self.plain.logprobs([self.sequences[i] for i in part])
                found |= {i: one.numpy() for i, one in zip(part, made, strict=True)}
        return [found[i] for i in range(len(self.sequences))]

    def require(self, ways: Mapping[str, Logprobs]) -> None:
        """Raises PreflightError that names the ways which differ, and what explains it."""
        errors = {way: _mean_error(self._exact, found) for way, found in ways.items()}
        wrong = [
            way for way, error in errors.items() if not error <= _FLOOR and not error <= self.limit
        ]  # NaN is wrong
        if not wrong:
            said = ", ".join(f"{way} {error:.2g} nats" for way, error in errors.items())
            log.info("self-check passed; mean distance to the plain model, of %d tokens: %s", self._tokens, said)
            return
        right = [way for way in ways if way not in wrong]
        told = "; ".join(self._told(way, ways[way], errors[way]) for way in wrong)
        beside = f"; {' and '.join(right)} agree{'s' if len(right) == 1 else ''} with it" if right else ""
        raise PreflightError(
            f"the model is not computed here as it is alone, and nothing was made with it: {told}{beside}",
            hint="look for a modified engine or faulty memory; else this model cannot be used with this version of the software",
        )

    def _told(self, way: str, found: Logprobs, error: float) -> str:
        far = f"{way} lies {error:.3g} nats on average from the plain model, and {self.dtype} explains {self.limit:.2g}"
        return f"{far}: {self._explained(found) or self._placed(found)}"

    def _explained(self, found: Logprobs) -> str | None:
        """What the plain model has to leave out to agree with what was found."""
        known = features(self.plain.model)
        for count in (1, 2):
            for chosen in combinations(known, count):
                for feature in chosen:
                    feature.off()
                try:
                    error = _mean_error(self._computed(), found)
                finally:
                    for feature in chosen:
                        feature.on()
                if error <= self.limit:
                    return f"as if {' and '.join(feature.name for feature in chosen)} were ignored"
        return None

    def _placed(self, found: Logprobs) -> str:
        """From which token of a sequence on the logprobs lie apart."""
        beyond = max(10 * self.limit, 1e-3)
        places = [
            len(prompt) + int(at)
            for (prompt, _), one, exact in zip(self.sequences, found, self._exact, strict=True)
            for at in np.flatnonzero(~(np.abs(one - exact) <= beyond))[:1]
        ]
        which = f"{len(places)} of {len(self.sequences)} sequences"
        return f"in {which}, from token {min(places)} on" if places else "everywhere a little"


def _mean_error(exact: Logprobs, found: Logprobs) -> float:
    """Mean |difference| of logprobs, in nats; infinite for what is no number."""
    error = np.abs(np.concatenate([np.asarray(one, np.float64) for one in exact]) - np.concatenate(found))
    return float(error.mean()) if np.isfinite(error).all() else math.inf
