"""What a person reads of a calibration: report.md and a plot per quantity, honest work against every cheat.

Plots need matplotlib (the extra `report`; reasoning-gym brings it too). The report states what was measured and nothing
about devices, models and cheats that were not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from node.judging import sums
from node.judging.calibration import noise
from node.judging.calibration.fit import HARD_BUDGET, MARGIN, SOFT_BUDGET, FittedLimits, completions_of, limits
from node.judging.calibration.measure import PER_CHUNK, PER_SEQUENCE, CheckedCompletion, Matrix, Measurements
from node.judging.calibration.tail import DISTINCT, FEWEST
from protocol import eprocess, extras, statistics
from protocol.calibration import Calibration
from protocol.constants import SPREAD_MAX, SUM_UNIT
from protocol.eprocess import Sums
from protocol.errors import PreflightError
from protocol.runspec import Limit

BOUNDS = {"exponents": 1.0, "signs": 1.0, "mantissa_mean": 128.0, "mantissa_median": 128.0, "chunk_mismatches": 32.0}
"""The most some quantities can be: a limit above judges nothing."""


_COUNTED = 0.95  # confidence of what counts alone show


def write(folder: Path, content: dict[str, Any], matrix: Matrix, measured: Measurements) -> Path:
    """Writes report.md and its plots; returns the report's path. Raises PreflightError without matplotlib."""
    found = limits(matrix, measured)
    folder.mkdir(parents=True, exist_ok=True)
    for name, of in found.items():
        _plot(folder / f"{name}.svg", name, of, measured)
    path = folder / "report.md"
    path.write_text("\n".join(_lines(content, found, matrix, measured)) + "\n")
    return path


def _lines(
    content: dict[str, Any], found: dict[str, FittedLimits], matrix: Matrix, measured: Measurements
) -> Iterator[str]:
    work, submission = content["work"], content["submission"]
    yield "# Calibration"
    yield ""
    yield f"Digest `{Calibration(content).digest}`. Models: {', '.join(model.name for model in matrix.models)}, computed in"
    yield f"{matrix.dtype} by {_words(content['engines'])}. Devices: {', '.join(content['devices'])}, hardware class {_words(content['hardware'])}."
    yield f"Honest work: {work['completions']} distinct completions, which are the independent units; {work['sequences']} checks of them,"
    yield f"{work['tokens']} tokens, {work['proofs']} proofs, each of {len(matrix.variants)} variants against each. A submission is {submission['samples']} completions of at most"
    yield f"{submission['max_new_tokens']} tokens at temperature {submission['temperature']}."
    yield ""
    yield f"Budget for an honest submission, over all quantities together: {SOFT_BUDGET:g} to be found soft, {HARD_BUDGET:g} hard."
    yield ""
    yield from _limit_lines(found, matrix, measured)
    yield from _noise_lines(content, measured, float(matrix.sampling.temperature))
    yield from _engine_lines(found, measured)
    yield from _cheat_lines(found, measured)
    yield "## Plots"
    for name in (*PER_CHUNK, *PER_SEQUENCE):
        yield f"\n![{name}]({name}.svg)"


def _limit_lines(found: dict[str, FittedLimits], matrix: Matrix, measured: Measurements) -> Iterator[str]:
    yield "## Limits"
    yield ""
    yield "| quantity | completions | above 0 | largest | tail for soft | tail for hard | soft | hard | decided by |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for name, of in found.items():
        values = measured.worst(name)
        above = sum(value > 0 for value in values)
        tails = [_shown(of.soft_quantile), _shown(of.hard_quantile)]
        yield (
            f"| {name} | {len(values)} | {above} | {of.largest:.4g} | {tails[0]} | {tails[1]} | {of.soft:.4g} | "
            f"{of.hard:.4g} | {of.source} |"
        )
    yield ""
    flat = [name for name, of in found.items() if of.tail is None]
    if flat:
        yield f"No tail could be fitted to {_words(flat)}: fewer than {FEWEST} values, or fewer than {DISTINCT} different ones, lie"
        yield "above the rest. How rarely honest work exceeds the floors is then a judgement and no measurement."
        yield ""
    yield from _count_lines(matrix, measured)
    beyond = [name for name, most in BOUNDS.items() if found[name].hard >= most]
    if beyond:
        yield f"**The hard limit of {_words(beyond)} is beyond what the quantity can be: it convicts nobody.**"
        yield ""
    yield f"Other devices were not measured: hence the factor {MARGIN} above the largest value, and the floors."
    yield ""


def _count_lines(matrix: Matrix, measured: Measurements) -> Iterator[str]:
    """What the number of completions shows by itself: Clopper and Pearson's bound for none of them."""
    samples, distinct = completions_of(matrix), max(1, measured.distinct)
    supported = samples * (1 - (1 - _COUNTED) ** (1 / distinct))
    needed = samples * math.log(1 / (1 - _COUNTED)) / HARD_BUDGET
    yield f"Counting alone, without a tail: none of {distinct} distinct completions is beyond a limit, which shows with {100 * _COUNTED:g} %"
    yield f"confidence that at most {min(100.0, 100 * supported):.2g} % of submissions by devices like these would be. To show the budget of {HARD_BUDGET:g} so"
    yield f"would take {needed:.2g} distinct completions. What lies between rests on the tails, on the factor {MARGIN} above the largest value, and"
    yield "on the second validator and the jury that a hard verdict needs."
    yield ""


def _noise_lines(content: dict[str, Any], measured: Measurements, temperature: float) -> Iterator[str]:
    limit = content["limits"].get("noise")
    yield "## Noise"
    yield ""
    yield "How far the difference of two tokens' logits lies apart between the machine that made a completion and the one that checked it: its"
    yield "standard deviation in shares of the range of a position's logits (highest less lowest), by what margins there were and what margins each position"
    yield f"makes one expect. Units are distinct completions; upper bounds hold with {100 * noise.CONFIDENCE:g} % confidence each, for work like this on devices like these."
    yield ""
    yield "| made by | checked by | model | completions | tokens | mismatched | range | noise | at most |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for pair in content["noise"]["pairs"]:
        cells = [str(pair[name]) for name in ("made_by", "checked_by", "model", "completions", "tokens")]
        measures = [float(pair[name]) for name in ("mismatches", "range", "estimate", "upper")]
        yield f"| {' | '.join([*cells, *(f'{value:.3g}' for value in measures)])} |"
    yield ""
    if limit is None:
        yield "No sums are kept in a run with this calibration: tokens are cut off before the draw, or the noise is more than margins can be"
        yield f"compared with ({SPREAD_MAX / noise.HARD:.2g} logits)."
        yield ""
        return
    yield f"Sums are compared with {float(limit['soft']):.3g} (soft: {noise.SOFT:g} times the largest bound) and {float(limit['hard']):.3g} (hard:"
    yield f"{noise.HARD:g} times). A seat whose noise is below the first is found soft with no more than the probability that the run states, however"
    yield "long it works; below the second, hard. Tokens of each cheat until its sums say so, by e-values of 1e6 and 1e9, every token prefilled:"
    yield ""
    yield "| cheat | tokens measured | soft | hard | higher logit at a mismatch |"
    yield "|---|---|---|---|---|"
    for cheat, checked in measured.cheats.items():
        yield _sums_row(cheat, checked, Limit.model_validate(limit), temperature)
    yield ""
    yield from _side_lines(measured)


def _side_lines(measured: Measurements) -> Iterator[str]:
    """Nothing, where there is no alternative."""
    if not measured.sides:
        return
    yield "Weights and types that a validator can compute with as well: where they draw another token than the run's model, whose token has the"
    yield "work? Honest work, made by another backend than it is checked by, sides with the alternative in at most half of these places. Tokens until"
    yield "an e-value of 1e6 says otherwise, every token prefilled twice."
    yield ""
    yield "| alternative | honest work sides with it | its own work does | tokens |"
    yield "|---|---|---|---|"
    for name, of in measured.sides.items():
        cells = [
            _share(of.honest),
            _share(of.cheated),
            _tokens_until(of.cheated, of.cheated_tokens, math.log(1e6), _with_it),
        ]
        yield f"| {name} | {' | '.join(cells)} |"
    yield ""


def _share(of: Sums) -> str:
    return f"{of.total // SUM_UNIT} of {of.count // SUM_UNIT}"


def _with_it(of: Sums) -> float:
    return eprocess.share(of, 0.5)


def _sums_row(cheat: str, checked: Sequence[CheckedCompletion], limit: Limit, temperature: float) -> str:
    found = statistics.total(sums.of_completion(c.scores, limit, temperature) for c in checked if c.scores is not None)
    tokens = sum(c.tokens for c in checked)
    until = [
        _tokens_until(found.get(name, Sums()), tokens, math.log(odds))
        for name, odds in ((statistics.MARGINS_SOFT, 1e6), (statistics.MARGINS_HARD, 1e9))
    ]
    sides = found.get(statistics.TEMPERATURE, Sums())
    higher = _share(sides)
    return f"| {cheat} | {tokens} | {' | '.join(until)} | {higher} |"


def _tokens_until(of: Sums, tokens: int, needed: float, evidence: Callable[[Sums], float] = eprocess.excess) -> str:
    """How much more, or less, of the same work makes that much evidence; at most a thousand times as much is looked at."""
    for hundredths in np.unique(np.geomspace(1, 100_000, 400).astype(int)):
        times = int(hundredths)
        part = Sums(of.total * times // 100, -(-of.squares * times // 100), -(-of.count * times // 100))
        if evidence(part) >= needed:
            return str(tokens * times // 100)
    return f"more than {1000 * tokens}"


def _engine_lines(found: dict[str, FittedLimits], measured: Measurements) -> Iterator[str]:
    """Nothing, where there is one engine."""
    pairs = sorted({checked.engines for checked in measured.honest})
    if len(pairs) < 2:
        return
    yield "## Between engines"
    yield ""
    yield "The largest value of each quantity in honest work, by the engine that made it and the one that checked it."
    yield ""
    yield f"| made by | checked by | checks | {' | '.join(found)} |"
    yield "|---" * (len(found) + 3) + "|"
    for pair in pairs:
        checked = [c for c in measured.honest if c.engines == pair]
        cells = [f"{max(_largest(checked, name)):.3g}" for name in found]
        yield f"| {' | '.join([*pair, str(len(checked)), *cells])} |"
    yield ""


def _cheat_lines(found: dict[str, FittedLimits], measured: Measurements) -> Iterator[str]:
    yield "## Cheats"
    yield ""
    yield "None took part in the limits. *Found*: share of completions with a finding of `computation` or `sampling`. *Tokens*: how"
    yield "many a cheat generates, on average, until one of its completions is found. *Quantity*: the one furthest beyond its hard"
    yield "limit, in multiples of the limits, at the median completion."
    yield ""
    yield "| cheat | completions | tokens each | found soft | tokens | found hard | tokens | quantity | × soft | × hard |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for cheat, checked in measured.cheats.items():
        yield _cheat_row(cheat, checked, found)
    yield ""
    yield "Multiples of the soft limit at the median completion, for every quantity (1 and less: not found by it):"
    yield ""
    yield f"| cheat | {' | '.join(found)} |"
    yield "|---" * (len(found) + 1) + "|"
    for cheat, checked in measured.cheats.items():
        cells = [f"{float(np.median(_largest(checked, name))) / of.soft:.3g}" for name, of in found.items()]
        yield f"| {cheat} | {' | '.join(cells)} |"
    yield ""


def _cheat_row(cheat: str, checked: Sequence[CheckedCompletion], found: dict[str, FittedLimits]) -> str:
    tokens = sum(c.tokens for c in checked)
    excess = {name: float(np.median(_largest(checked, name))) / of.hard for name, of in found.items()}
    furthest = max(excess, key=lambda name: excess[name])
    cells = [cheat, str(len(checked)), f"{tokens / len(checked):.1f}"]
    for limit in ("soft", "hard"):
        count = sum(any(max(c.values[n]) > getattr(of, limit) for n, of in found.items()) for c in checked)
        cells += [f"{100 * count / len(checked):.0f} %", f"{tokens / count:.0f}" if count else "never"]
    of = found[furthest]
    cells += [furthest, f"{excess[furthest] * of.hard / of.soft:.3g}", f"{excess[furthest]:.3g}"]
    return f"| {' | '.join(cells)} |"


def _plot(path: Path, name: str, of: FittedLimits, measured: Measurements) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PreflightError("the report needs matplotlib", hint=extras.how_to_install("report")) from error
    rows = {"honest": measured.honest, **measured.cheats}
    smallest = of.soft / 1e4
    most = max(of.hard, *(max(_largest(checked, name)) for checked in rows.values()))
    edges = np.concatenate([[0.0], np.geomspace(smallest, 1.05 * most, 60)])
    figure = Figure(figsize=(7, 0.5 + 0.42 * len(rows)))
    axes = figure.subplots(len(rows), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (label, checked) in zip(axes, rows.items(), strict=True):
        values = [value for c in checked for value in c.values[name]]
        share = np.histogram(values, edges)[0] / len(values)
        axis.stairs(share, edges, fill=True, color="C0" if label == "honest" else "C1")
        axis.axvline(of.soft, color="0.4", linestyle="--", linewidth=1)
        axis.axvline(of.hard, color="0.1", linewidth=1)
        axis.set_ylabel(label, rotation=0, ha="right", va="center", fontsize=8)
        axis.set_yticks([])
    axes[-1].set_xscale("symlog", linthresh=smallest)
    axes[-1].set_xlim(0, 1.1 * most)
    axes[0].set_title(f"{name}: soft limit {of.soft:.3g} (dashed), hard {of.hard:.3g}", fontsize=9)
    figure.subplots_adjust(
        left=0.22, right=0.98, top=1 - 0.3 / figure.get_figheight(), bottom=0.35 / figure.get_figheight()
    )
    figure.savefig(path, metadata={"Date": None})


def _largest(checked: Sequence[CheckedCompletion], name: str) -> list[float]:
    return [max(c.values[name]) for c in checked]


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def _words(items: Sequence[object]) -> str:
    return ", ".join(map(str, items))
