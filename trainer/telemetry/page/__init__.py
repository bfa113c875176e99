"""The trainer's page: what a researcher sees of the own trainer in a browser on the same machine. It reads files and never writes.

What it has in common with other pages is in protocol/page.

documents.py the parts as JSON               timeline.py  phases of the last steps
keeper.py    the thread that makes it        disk.py      checkpoints and versions
service.py   a page that is served           app.py       the routes
static/      what it draws itself with
"""
