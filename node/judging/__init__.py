"""Judging: whether a submission is what its node had to make. A library; worker, validator and benches import it.

candidate.py  one submission and everything its judgement needs   judge.py     the rules in order, the verdict
rules/        one module per rule                                  evidence.py  what a rejection stands on, kept
calibration/  limits from honest work                              replay.py    judging again from evidence, offline
equipment.py  context, engine and weights that one judges with
probe.py      the run's reference probe, on this machine
bitwise.py    comparison bit by bit within a build
sums.py       what a completion adds to the sums over its seat's work
alternatives.py  work as seen by what a cheat may have computed with
history.py    a seat's sums up to a submission, and what follows from them
Which samples get the prefill: protocol/prefill_sampling.py.
"""
