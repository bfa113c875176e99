"""Which hardware class of the run this machine is of, by the spec's table (protocol/runspec_hardware.py) and its own measurement.

A seat is proposed in the first class whose needs the machine reaches in full. A seat that is taken already is kept down to a part
of them: a machine that is busy, or hot, goes on in its class, and only one that has become another is refused.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from protocol.clock import SYSTEM, Clock
from protocol.errors import PreflightError
from protocol.runspec import HardwareNeeds, RunSpec

if TYPE_CHECKING:
    from node.engine.hardware import Measurement

log = logging.getLogger("node")

RATES_KEPT = 0.5
"""Of a rate that the class needs: a seat is refused below it."""
MEMORY_KEPT = 0.95
"""Of the memory: cards of one kind differ by what driver and display keep for themselves."""

_LOOKS = 5  # before a machine is refused
_PAUSE = 2.0  # seconds before the second look; each further one comes after twice as many


def shortfalls(
    needs: HardwareNeeds, found: Measurement, dtype: str, *, rates: float = 1.0, memory: float = 1.0
) -> list[str]:
    """What the machine lacks for a class, in words; `rates` and `memory` are the parts of the needs that are asked for."""
    asked = (
        ("memory", found.memory / 2**30, float(needs.memory_gib) * memory, "GiB"),
        (f"{dtype} matrix products", found.matrix[dtype] / 1e12, float(needs.matrix_tflops) * rates, "TFLOPS"),
        ("memory bandwidth", found.bandwidth / 1e9, float(needs.bandwidth_gb) * rates, "GB/s"),
    )
    return [f"{what} {has:.3g} of {least:.3g} {unit}" for what, has, least, unit in asked if has < least]


def propose(spec: RunSpec, found: Measurement) -> HardwareNeeds | None:
    """The first class of the table that the machine reaches; None where it reaches none."""
    dtype = spec.model.compute_dtype
    return next((needs for needs in spec.hardware if not shortfalls(needs, found, dtype)), None)


def require_class(spec: RunSpec, found: Measurement) -> HardwareNeeds:
    """The same. Raises PreflightError that says what is missing for the least demanding class."""
    proposed = propose(spec, found)
    if proposed is None:
        last = spec.hardware[-1]
        lacks = ", ".join(shortfalls(last, found, spec.model.compute_dtype))
        raise PreflightError(
            f"this machine is of no hardware class of the run: for {describe(last)}, the least of them, it has {lacks}",
            hint="node hardware shows all that was measured; engine.device says which device computes",
        )
    return proposed


def describe(needs: HardwareNeeds) -> str:
    return f"class {needs.number}" + (f" ({needs.name})" if needs.name else "")


class SeatClass:
    """Whether the machine still is of its seat's class; measured once for each class, when it is first asked."""

    def __init__(
        self, spec: RunSpec, measure: Callable[[], Measurement], stop: threading.Event, clock: Clock = SYSTEM
    ) -> None:
        self._spec = spec
        self._measure = measure
        self._stop = stop
        self._clock = clock
        self._reached: int | None = None

    def require(self, number: int) -> None:
        """Raises PreflightError where the machine is no longer of this class in any of several looks within half a minute."""
        if number == self._reached or not self._spec.hardware:
            return
        needs = next(needs for needs in self._spec.hardware if needs.number == number)
        found, pause = self._measure(), _PAUSE
        for _ in range(_LOOKS - 1):
            if not self._lacks(needs, found):
                break
            log.info("this machine seems to fall short of hardware %s; measuring again", describe(needs))
            if self._clock.wait(self._stop, pause):
                return
            found, pause = found.best(self._measure()), 2 * pause
        if lacks := self._lacks(needs, found):
            raise PreflightError(
                f"this machine no longer reaches hardware {describe(needs)}, in which its seat is: {', '.join(lacks)}",
                hint=f"node hardware shows which device computes and what else uses it{self._instead(found)}",
            )
        log.info("this machine reaches hardware %s", describe(needs))
        self._reached = number

    def _instead(self, found: Measurement) -> str:
        proposed = propose(self._spec, found)
        return (
            ""
            if proposed is None
            else f"; or take the seat in the class that it is of: node stake --hardware {proposed.number}"
        )

    def _lacks(self, needs: HardwareNeeds, found: Measurement) -> list[str]:
        dtype = self._spec.model.compute_dtype
        return shortfalls(needs, found, dtype, rates=RATES_KEPT, memory=MEMORY_KEPT)
