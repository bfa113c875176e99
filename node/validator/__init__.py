"""The validator: judges committed work by the rules, signs receipts, challenges what is false.

candidate.py  one work and everything its judgement needs     judge.py    the rules in order, the verdict
rules/        one module per rule                              service.py  the running validator
commands.py   `murmur validator …`                             journal.py  what it did, across restarts
"""
