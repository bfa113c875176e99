"""What pages of roles have in common: a page that a role serves of itself to browsers, which reads and never writes.

access.py    who may see one             assets.py    the files of its static folders
document.py  a part of it as JSON        routes.py    how its files and parts are asked for
keeper.py    the thread that makes it    news.py      who waits for a newer one
server.py    a server that sleeps        log_tail.py  the last lines of a log
redaction.py what no page shows
inquiries.py questions about details     settings.py  to whom a page is shown
static/      what pages draw themselves with
"""
