"""The hub: collects rollout files of committed works and the validators' receipts, and hands them out.

store.py     files by content        database.py  the SQLite index over them, which `rebuild` recreates
hub.py       what may be written, by whom, how much        app.py  the HTTP routes (protocol/hub.py lists them)
service.py   the running hub: chain index, HTTP server, SHARDCAST origin, discovery
"""
