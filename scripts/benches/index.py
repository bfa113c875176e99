"""The book of the chain: CPU of a cold sync and of a warm start, memory, and one look-up, at growing numbers of submissions.

A recorded endpoint answers (recorded.py), so that only the book's own work is counted: parsing, decoding, SQLite, and the second
reading of everything that has settled. Each figure comes from a process of its own. Beside it, events are decoded by web3's
process_log, as the book's decoder does it without. At 1,000 submissions the same is done against Anvil, and the book compared
with what the client decodes by the ABI in the same blocks. `--long` goes to a million submissions.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

from swarm.anvil import Anvil
from swarm.world import World
from web3 import Web3

from benches import Bench, Cost, Row, in_turns
from benches.recorded import BATCH, COURT, RUN, RUNS, Recording, served
from protocol.chain import Chain, artifacts
from protocol.chain.calls import Call
from protocol.chain.decoding import Decoder
from protocol.chain.events import Event, Submitted
from protocol.chain.sync import Book
from protocol.identity import Key
from protocol.submission import SubmissionRef

SIZES, LONG = (1_000, 10_000, 100_000), 1_000_000
_DECODED = 500
_SEATS = 21
_LOOKED_UP = 200
_SECONDS_MAX = 3_600


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--long", action="store_true", help="a million submissions as well")


def run(*, long: bool = False) -> Bench:
    bench = Bench("index")
    found = {size: _measure(size) for size in (*SIZES, *([LONG] if long else []))}
    for size, measured in found.items():
        if size > SIZES[0]:
            bench.rows.append(Cost(f"cold sync of {size:,}", "µs CPU an event", measured["cold"], None, None, 100))
    for size, measured in found.items():
        bench.rows.append(Cost(f"warm start at {size:,}", "ms CPU", measured["warm"], None, None, None))
    last = max(found)
    growth = found[last]["warm"] / found[SIZES[0]]["warm"]
    bench.rows.append(Cost(f"warm start, {last:,} to {SIZES[0]:,}", "times", growth, None, None, 1.5))
    for size, measured in found.items():
        bench.rows.append(Cost(f"look-up of one submission at {size:,}", "µs CPU", measured["lookup"], None, None, 300))
    memory = found[last]["memory"] - found[SIZES[1]]["memory"]
    bench.rows.append(Cost(f"memory, {last:,} more than {SIZES[1]:,}", "MiB", memory, None, None, 30))
    bench.rows.append(Row("disk", "bytes a submission", found[last]["disk"] / last, None, None, None))
    bench.rows.append(Cost("cold sync of 1,000 from Anvil", "µs CPU an event", _against_anvil(), None, None, None))
    ours, peer = in_turns(*_decoding())
    bench.rows.append(Row("decoding against web3", "events a CPU second", ours, peer, ours / peer, 10))
    return bench


def _measure(size: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder, served(size) as url:
        path = Path(folder) / "chain.sqlite"
        cold, warm = (_in_a_process(doing, url, path) for doing in ("cold", "warm"))
        assert cold["submissions"] == size, cold
        return {
            "cold": cold["cpu"] / cold["events"] * 1e6,
            "memory": cold["memory"],
            "warm": warm["cpu"] * 1e3,
            "lookup": warm["lookup"] * 1e6,
            "disk": path.stat().st_size,
        }


def _in_a_process(doing: str, url: str, path: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benches.index", doing, url, str(path)]
    here = Path(__file__).resolve().parents[1]
    done = subprocess.run(command, cwd=here, timeout=_SECONDS_MAX, check=True, stdout=subprocess.PIPE)
    return dict(json.loads(done.stdout))


def _work(doing: str, url: str, path: Path) -> dict[str, float]:
    """One figure's work. A warm start reads on from what was read, and asks what is new."""
    started = time.process_time()
    book = Book(Chain(url, RUNS), RUN, path)
    book.poll()
    cursor = book.changes_since((1 << 62) if doing == "warm" else 0).cursor
    cpu = time.process_time() - started
    found = {"cpu": cpu, "cursor": cursor}
    if doing == "cold":
        found["submissions"] = book.count_submissions()
        found["events"] = book.row("SELECT count(*) FROM events")[0] + found["submissions"]
    else:
        found["lookup"] = _lookup(book)
    book.close()
    found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found


def _lookup(book: Any) -> float:
    """CPU seconds of finding one submission by its id."""
    ids = [row[0] for row in book.rows("SELECT id FROM submissions LIMIT ?", (_LOOKED_UP,))]
    started = time.process_time()
    for id in ids:
        assert book.submission(id) is not None
    return (time.process_time() - started) / len(ids)


def _against_anvil() -> float:
    """CPU seconds of an event, in millionths; the book holds exactly what the client decodes by the ABI in the same blocks."""
    with tempfile.TemporaryDirectory() as folder:
        anvil = Anvil(Path(folder))
        try:
            world = World.fresh(anvil, max_per_step=BATCH)
            for step in range(-(-SIZES[0] // (BATCH * _SEATS))):
                nodes = [Key.generate() for _ in range(_SEATS)]
                for node in nodes:
                    world.seat_node(Key.generate(), node)
                beacon = world.publish(step)
                for node in nodes:
                    items = [(sha256(b"%d" % number + node.peer).digest(), 10) for number in range(BATCH)]
                    world.sender(node).send(
                        Call("submitting", world.chain.runs.functions.submitMany(world.run, step, 0, beacon, items))
                    )
            anvil.request("anvil_mine", "0x40")
            book = Book(Chain(anvil.rpc, world.chain.runs.address), world.run, Path(folder) / "chain.sqlite")
            started = time.process_time()
            head = book.poll()
            cpu = time.process_time() - started
            assert book.settled > 0
            count, learned = _require_same(book, [e for e in world.logs(0, head.number) if hasattr(e.data, "run")])
            assert count >= SIZES[0], count
            return cpu / (count + learned) * 1e6
        finally:
            anvil.stop()


def _require_same(book: Book, expected: list[Event]) -> tuple[int, int]:
    """Numbers of submissions and of other events, which are these."""
    submissions, others, cursor, more = [], [], 0, True
    while more:
        changes = book.changes_since(cursor)
        submissions += [(s.place, s.block_hash, s.transaction, s.ref, s.units) for s in changes.submissions]
        others += [(e.block, e.log_index, e.block_hash, e.transaction, type(e.data)) for e in changes.events]
        cursor, more = changes.cursor, changes.more
    assert submissions == [
        ((e.block, e.log_index), e.block_hash, e.transaction,
         SubmissionRef(e.data.node, e.data.step, e.data.sequence, e.data.root), e.data.units)
        for e in expected if isinstance(e.data, Submitted)
    ]  # fmt: skip
    assert others == [
        (e.block, e.log_index, e.block_hash, e.transaction, type(e.data))
        for e in expected
        if not isinstance(e.data, Submitted)
    ]
    return len(submissions), len(others)


def _decoding() -> Any:
    recording = Recording(_DECODED)
    logs = [log for log in map(json.loads, recording.logs(2, recording.head)) if len(log["topics"]) == 4]
    decoder = Decoder(RUN, {Web3.to_checksum_address(RUNS): "Runs", Web3.to_checksum_address(COURT): "Court"})
    event = (
        Web3().eth.contract(address=Web3.to_checksum_address(RUNS), abi=artifacts.load("Runs").abi).events.Submitted()
    )
    formatted = [
        {**log, "topics": [bytes.fromhex(t[2:]) for t in log["topics"]], "data": bytes.fromhex(log["data"][2:])}
        for log in logs
    ]

    def ours() -> float:
        return len(decoder.decode(logs, 0, recording.head))

    def web3() -> float:
        return len([event.process_log(log) for log in formatted])

    return ours, web3


if __name__ == "__main__":
    print(json.dumps(_work(sys.argv[1], sys.argv[2], Path(sys.argv[3]))))
