"""The validator: judges committed work by the rules, signs receipts, challenges what is false.

candidate.py  one work and everything its judgement needs     judge.py    the rules in order, the verdict
rules/        one module per rule                              bench.py    engine, weights and files for judging
record.py     the run as the chain's events tell it            service.py  the running validator
court.py      what becomes of a judgement                      journal.py  what it did, across restarts
jury.py       votes on cases that were appealed               impeachment.py  who accepted what was convicted
evidence.py   what a rejection stands on, kept                replay.py   judging again from it, offline
calibration/  limits from honest work                          context.py  what the commands share
commands.py   `murmur validator …`                             pay.py, inspection.py  those about pay and judgements
Which samples are drawn: protocol/draw.py.
"""
