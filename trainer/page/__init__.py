"""The run's page: what people see of a run in a browser, served by the hub beside its own routes. It reads and never writes.

What it has in common with other pages is in protocol/page.

sources.py   what it is made of            tallies.py   counts that follow book and receipts
training.py  the trainer's files           stakes.py    a few looks at the chain
documents.py the parts as JSON             details.py   one node, submission, case or version
rates.py     how fast counters grow        table.py     the nodes, sorted and in pages
keeper.py    the thread that makes it      app.py       the routes
static/      what it draws itself with
"""
