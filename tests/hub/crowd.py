"""Many strangers at a hub, in a process of their own: followers that poll, and connections that send nothing.

    python crowd.py PORT PATH FOLLOWERS IDLE ADDRESSES

PATH is what followers poll, with `after=N` for N where they are. A line "there" says that all have connected; when stdin closes, a line
of JSON says how they fared. Only the standard library, and no code of ours: a follower does what the wire format says.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import sys
from collections import Counter

PORT, PATH, (FOLLOWERS, IDLE, ADDRESSES) = int(sys.argv[1]), sys.argv[2], map(int, sys.argv[3:6])
counts: Counter[str] = Counter()


async def connect(number: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    number %= ADDRESSES
    source = f"127.0.{1 + number // 250}.{1 + number % 250}", 0
    return await asyncio.open_connection("127.0.0.1", PORT, local_addr=source)


async def follow(number: int) -> None:
    """Polls for ever: one connection as long as it lasts, and after a refusal not before the time that it says."""
    reader = writer = None
    after = 0
    while True:
        pause = 0.0
        try:
            if writer is None:
                reader, writer = await connect(number)
                counts["connected"] += 1
            writer.write(f"GET {PATH}&after={after} HTTP/1.1\r\nHost: hub\r\n\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
            body = await reader.readexactly(int(fields["content-length"]))
            status = int(head.split(" ", 2)[1])
            counts[f"polls {status}"] += 1
            if status == 200:
                entries = json.loads(body)["entries"]
                counts["heard"] += len(entries)
                after = max([after, *(entry["id"] for entry in entries)])
            else:
                counts["told when"] += "retry-after" in fields
                pause = int(fields.get("retry-after", "1")) * random.uniform(1, 1.5)
            if fields.get("connection") == "close":
                writer.close()
                writer = None
        except (OSError, asyncio.IncompleteReadError):
            counts["polls broken"] += 1
            writer, pause = None, 1.0
        await asyncio.sleep(pause)


async def idle(number: int) -> None:
    """Opens a connection, keeps silent, and opens another when it is cut."""
    while True:
        try:
            reader, writer = await connect(number)
            counts["idle"] += 1
            await reader.read()
            writer.close()
        except OSError:
            pass
        counts["idle cut"] += 1
        await asyncio.sleep(1.0)


async def main() -> None:
    tasks = []
    for number in range(max(FOLLOWERS, IDLE)):
        tasks += [asyncio.create_task(idle(number))] if number < IDLE else []
        tasks += [asyncio.create_task(follow(number))] if number < FOLLOWERS else []
        if number % 50 == 0:
            await asyncio.sleep(0.01)
    while counts["idle"] < IDLE or counts["connected"] < FOLLOWERS:
        await asyncio.sleep(0.05)
    print("there", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(main())
