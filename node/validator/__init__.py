"""The validator: judges committed work by the rules, signs receipts, challenges what is false.

candidate.py  one work and everything its judgement needs     judge.py    the rules in order, the verdict
rules/        one module per rule                              bench.py    engine, weights and files for judging
record.py     the run as the chain's events tell it            service.py  the running validator
court.py      what becomes of a judgement                      journal.py  what it did, across restarts
draws of samples: protocol/draw.py                             evidence.py what a rejection stands on, kept
replay.py     judging again from evidence, offline             calibration/ limits from honest work
commands.py   `murmur validator …`                             inspection.py those of them that look at judgements
"""
