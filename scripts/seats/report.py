"""What a person reads of simulated seats: a table, and what it supports."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from protocol import history
from protocol.runspec import HistoryBudget
from seats import resample
from seats.recorded import PairWork, Recording
from seats.resample import Tally

HEAD = (
    "| made → checked by | completions | seats | soft | hard | soft at most | passed 10^2 | highest, soft and hard null |",
    "|---|---|---|---|---|---|---|---|",
)


def line(pair: PairWork, of: Tally) -> str:
    """A row of the table."""
    cells = [
        pair.name, str(len(pair.tokens)), f"{of.seats:,}", str(of.soft), str(of.hard), f"{resample.at_most(of.soft, of.seats):.2g}",
        str(of.passed[2]), f"10^{of.highest[0]:.1f}, 10^{of.highest[1]:.1f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def supported(recording: Recording) -> Iterator[str]:
    """In how far the table is about seats whose completions nobody recorded."""
    units = min(len(pair.tokens) for pair in recording.pairs() if "noisy" not in pair.made_by)
    most = max(resample.COMPLETIONS.values()) * resample.SUBMISSIONS
    confidence = f"{100 * resample.CONFIDENCE:g} %"
    yield f"`soft at most` holds with {confidence} confidence for seats of these completions, each drawn as often as it comes."
    yield f"A kind of completion that makes up more than {resample.unseen(units):.1e} is among these {units} ({confidence}); rarer ones no simulation knows."
    yield f"Without sharing, they make {units // most} seats of {most}; beyond that the budget rests on Ville's inequality, where noise is within the null."


def weigh(recording: Recording, seats: int, seed: int) -> Iterator[str]:
    """The table, a row at a time."""
    budget, draws = HistoryBudget(), np.random.default_rng(seed)
    bound = history.bounds(budget)
    yield f"A finding: soft from 10^{bound.soft / np.log(10):.1f}, hard from 10^{bound.hard / np.log(10):.1f}."
    yield from HEAD
    for pair in recording.pairs():
        yield line(pair, resample.simulate(pair, seats, budget, draws))
    yield from supported(recording)
