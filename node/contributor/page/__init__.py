"""The node's page: what a contributor sees of the own node in a browser on the same machine. It reads and never writes.

What it has in common with other pages is in protocol/page.

documents.py the parts as JSON               machine.py   device, memory, weights, peers
keeper.py    the thread that makes it        app.py       the routes
service.py   a page that is served           chain_side.py  what it asks of the chain
static/      what it draws itself with
"""
