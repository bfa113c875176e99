"""The contributor: generates, proves, commits, uploads, defends itself.

main.py        the console script `node`               worker.py          the loop
beacons.py     what all work on a version derives from
next_submission.py  whether there is something to do, and what
workbench.py   engine, weights, judging                 generation.py      one rollout file
delivery.py    commitment and upload                    defence.py         appeals
verdicts.py    what validators said                     failures.py        what ends the node, what is tried again
watchdog.py    ends a node that works for nothing       room.py            whether the disk has room for more work
alerts.py      what its operator is told of
submission_log.py  what was submitted and what became of it
standing.py    how the node stands in the sums over its work
case_story.py  cases against the seat, as they are told    next_step.py       what to do next
rule_words.py  verdicts and rules in plain words          submission_story.py  what the chain says of submissions
earning.py     whether it earns, and what by day
alone.py       whether another copy of this node is at work
joining.py     what a seat takes, and how it comes to the keys
survey.py      what `node hardware` shows               seat_class.py      of which hardware class the machine is
demand.py      what is asked of this node, from: wanted.py, the arithmetic, and commitments.py, who made what
prefetch.py    the next version, fetched beside the work on this one
challenged.py  answers to matrix challenges            mail.py            what the hub has to say to this node
disk_rate.py   what its disk writes and reads           settings.py        node.toml
commands/      `node …`                               page/              its page in a browser
"""
