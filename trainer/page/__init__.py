"""The run's page: what people see of a run in a browser, served by the hub beside its own routes. It reads and never writes.

sources.py   what it is made of            tallies.py   counts that follow book and receipts
training.py  the trainer's files           stakes.py    a few looks at the chain
documents.py the parts as JSON             details.py   one node, submission, case or version
rates.py     how fast counters grow        table.py     the nodes, sorted and in pages
keeper.py    the thread that makes it      news.py      who waits for a newer one
inquiries.py questions about details       access.py    who may see it
app.py       the routes                    assets.py    the files of static/
"""
