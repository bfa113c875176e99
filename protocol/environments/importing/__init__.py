"""From data sets as they are published to task files that a run spec pins: `murmur env import`.

    importer.py   the passes over all rows: what is kept, what is left out and why, the folder that is written
    sources.py    rows of JSONL, JSON, CSV and Parquet files, one at a time
    schemas.py    what a row of each data set is: a question, an answer, and what scores it
    programs.py   tests of programs; those that LiveCodeBench packs: private.py
    reference.py  whether a reference can be right at all
    overlap.py    whether a question is one of those that are held out
    sieve.py      duplicates and solve rates, row by row, with a count of each reason why a row is left out
    task.py       a problem on its way, or why it has no place

A data set is a stranger's: whatever a row holds, it is imported, or left out and counted. Nothing of it is run or built.
"""
