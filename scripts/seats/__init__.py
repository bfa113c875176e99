"""Seats put together of recorded honest work: whether sums over a seat's work wrong anybody, by resampling (docs/measurements.md).

`scripts/record-sums OUT` has tiny policies make completions with several backends and compute them again with others (backends.py, policies.py,
record.py), and writes what each adds to the sums over a seat's work: OUT.npz, and OUT.json, which says of what. recorded.py reads both,
resample.py draws whole completions from it into seats and weighs them as validators do.
"""
