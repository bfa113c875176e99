"""The validator: judges submissions, signs receipts, challenges what is false. The judging itself: node/judging.

service.py      the running validator                    bench.py          engine, weights and files for judging
workload.py     what it may still have to judge          queue.py          in which order
receipt_log.py  what other validators have said          judgement_log.py  what it did, across restarts
findings.py     shown at the hub, found twice            court.py          what is decided goes on chain
jury.py         votes on cases that were appealed        undecided.py      takes up what a vote left undecided
impeachment.py  who accepted what was convicted          audit.py          whether others sampled as they had to
challenger.py   matrix challenges of seats               doorbell.py       whether the hub has news, where nothing waits
commands/       `murmur validator …`                     settings.py       validator.toml
fetches.py      brings weights, beside the turn          only_copy.py      whether the key works elsewhere
history.py      what receipts say of a seat together      recount.py       a juror's own look at more of it
alternatives.py  which work is prefilled again, and as what
attempt.py      one judgement, or what it waits for       opinions.py       what a juror finds
standing_by.py  appeals where others call false what it accepted
left_alone.py   what it cannot judge, since the weights are gone
"""
