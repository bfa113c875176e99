"""`node …` (= `murmur node …`): what a contributor types. Parse, call, print; the work is done elsewhere.

join.py     join
init.py     init, config show                             operate.py   start, logs, page, notify
stake.py    stake, leave, unstake, rebond, withdraw, claim   inspect.py   status, submissions
seat.py     rotate, offer, accept                         appeal.py    appeal
hardware.py hardware                                      doctor.py    doctor
checks.py   what `node doctor` looks at                   version.py   version
context.py  what they share                             rewards.py   rewards
status_text.py, submission_text.py   what inspect.py finds, as text
"""

from __future__ import annotations

from node.contributor.commands import (
    appeal,
    doctor,
    hardware,
    init,
    inspect,
    join,
    operate,
    rewards,
    seat,
    stake,
    version,
)
from protocol.shell.cli import group

app = group("Stake, lend a GPU, and see what was earned or why not.")
join.register(app)
init.register(app)
stake.register(app)
seat.register(app)
hardware.register(app)
doctor.register(app)
operate.register(app)
inspect.register(app)
rewards.register(app)
appeal.register(app)
version.register(app)
