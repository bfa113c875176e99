"""One party of the published shardcast 0.3.2, under its own Python: origin, relay or client. Speaks lines of JSON.

Covers what its own classes do, with the shortest pauses between its looks for a new version. Servers must hold a file by which
the downloader probes them (`data1.bin`).
"""

import json
import os
import resource
import sys
import time
from pathlib import Path

os.environ["SHARDCAST_LOG_LEVEL"] = "ERROR"
_PAUSE = 0.02


def main() -> None:
    asked = json.loads(sys.stdin.readline())
    root = Path(asked["root"])
    root.mkdir(parents=True, exist_ok=True)
    if asked["role"] != "client":
        (root / "data1.bin").write_bytes(os.urandom(1 << 20))
    if asked["role"] == "origin":
        from shardcast import OriginServer

        origin = OriginServer(str(root), asked["port"])
    elif asked["role"] == "relay":
        from shardcast import MiddleNode

        MiddleNode([asked["upstream"]], str(root), asked["port"], check_interval=_PAUSE)
    else:
        from shardcast import ClientNode

        client = ClientNode([asked["upstream"]], str(root))
    say({"ready": True})
    before = _cpu()
    sys.stdin.readline()
    if asked["role"] == "origin":
        origin.broadcast(asked["file"])
        say({})
    elif asked["role"] == "client":
        while "v1" not in client.list_available_versions() or not (path := client.download_version("v1")):
            time.sleep(_PAUSE)
        say({"bytes": os.path.getsize(path)})
    else:
        say({})
    sys.stdin.readline()
    say({"cpu": _cpu() - before})
    os._exit(0)


def _cpu() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def say(value: object) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main()
