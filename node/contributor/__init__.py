"""The contributor: generates, proves, commits, uploads, defends itself.

main.py        the console script `node`               worker.py          the loop
generation.py  one rollout file                         submission_log.py  what was submitted and what became of it
defence.py     appeals                                  settings.py        node.toml
alone.py       whether another copy of this node is at work
verdicts.py    what validators said of the submissions
commands/      `node …`
"""
