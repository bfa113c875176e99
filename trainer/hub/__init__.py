"""The hub: collects rollout files of committed submissions and the validators' receipts, and hands them out.

store.py     files by content                          database.py  the SQLite index over them, which `rebuild` recreates
archive.py   the same with a bucket behind it          bucket.py    an S3-compatible bucket
packs.py     many small ones of past steps in one      catalogue.py where in them each lies
hub.py       what may be written, by whom, how much    app.py       the HTTP routes (protocol/hub/wire.py lists them)
looks.py     at the chain: the few that requests cause    challenges.py  on their way between validators and seats
server.py    uvicorn, with deadlines and refusals      publisher.py outgoing weights, onto the chain
load.py      what is refused first
recalibration.py  another calibration for versions to come
bells.py     who waits for news of what          relays.py    what the origin sent to each relay
outbox.py    versions on their way from the trainer      vouchers.py  what validators are owed
service.py   the running hub: all of these, SHARDCAST origin, discovery         process.py   it as the trainer's child
"""
