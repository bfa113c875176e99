"""Calibration: how far honest work strays from a validator's own computation on this machine, and the limits that follow.

measure.py  the matrix: honest variants, and cheats beside them     tail.py    from measured values to limits
noise.py    how far two honest devices' logits differ, which sums are compared with
fit.py      the calibration's content (protocol/calibration.py)     report.py  what a person reads: report.md and plots
"""

from node.judging.calibration.fit import calibration
from node.judging.calibration.measure import Matrix, every_variant, measure

__all__ = ["Matrix", "calibration", "every_variant", "measure"]
