"""The hardware classes of a run spec: what a machine must reach to be of each.

The table is in order, the most demanding class first: a machine is of the first one whose needs it reaches. It is an agreement about
honest machines, which keeps a contributor out of a class with budgets too long for it. It proves nothing to anybody: who measures is
the machine itself, and what a class may cost a cheat is decided by the rules of verification.

How a machine is measured: node/engine/hardware.py. What follows from it: node/contributor/seat_class.py.
"""

from __future__ import annotations

from pydantic import Field

from protocol.runspec_part import DecimalText, Part
from protocol.runspec_verification import HardwareClass


class HardwareNeeds(Part):
    """What a machine must reach to be of a hardware class, the most demanding class first: its seat is proposed in the first one
    that it reaches. With this table, every class that verification lists is in it; without, a seat chooses freely."""

    number: HardwareClass
    """The class."""
    name: str = Field(default="", max_length=64)
    """What people call it."""
    memory_gib: DecimalText = "0"
    """Memory of the device that computes, free or not, in GiB (2^30 bytes)."""
    matrix_tflops: DecimalText = "0"
    """Matrix products in the run's compute dtype, in 10^12 floating-point operations per second."""
    bandwidth_gb: DecimalText = "0"
    """What the device's memory reads and writes together, in 10^9 bytes per second; of a CPU what one core moves."""
