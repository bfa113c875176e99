"""A JSON-RPC endpoint that replays the life of one run, as long as you like: `python -m benches.recorded EVENTS` serves it.

Prints its URL and the contract's address as JSON, then answers until its standard input closes. Every answer has the form that
Anvil gives it (tests/benches holds them together). NODES seats submit BATCH files a block, one version after the other; nobody
is accused. It runs in a process of its own, so that what it costs is not counted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from eth_utils import keccak

CHAIN_ID, RUN = 8453, 3
RUNS, COURT, WEIGHTS, POLICIES, BENCH = ("0x" + digits * 20 for digits in ("A1", "B2", "B3", "B4", "B5"))
NODES, BATCH = 250, 16
_QUIET = 50  # blocks at the end, in which everything settles
_START = 1_700_000_000


def _topic(signature: str) -> str:
    return "0x" + keccak(text=signature).hex()


_SUBMITTED = _topic("Submitted(uint256,address,bytes32,uint32,uint32,uint32)")
_PUBLISHED = _topic("Published(uint256,uint32,bytes32)")
_JOINED = _topic("Joined(uint256,address,address,bytes,uint8)")
_RUN = f"0x{RUN:064x}"


@dataclass(frozen=True)
class Recording:
    """Block 1 seats the nodes; then versions follow each other: a block that publishes, and one for each node."""

    events: int

    @property
    def turns(self) -> int:
        """Blocks in which somebody submits."""
        return -(-self.events // BATCH)

    @property
    def head(self) -> int:
        return 2 + self.turns + (self.turns - 1) // NODES + _QUIET

    def answer(self, method: str, params: Any) -> Any:
        match method:
            case "eth_chainId":
                return hex(CHAIN_ID)
            case "eth_getBlockByNumber":
                return self._block(self.head if params[0] == "latest" else int(params[0], 16))
            case "eth_call":
                return self._call(params[0]["data"])
        raise ValueError(method)

    def logs(self, first: int, last: int) -> Iterator[str]:
        for block in range(max(first, 1), min(last, self.head - _QUIET) + 1):
            if block == 1:
                for number in range(NODES):
                    data = "".join((f"{0x40:064x}", f"{2:064x}", f"{38:064x}", "ab" * 38, "00" * 26))
                    yield _log(block, number, _JOINED, [_node(number), _node(number)], data)
                continue
            step, turn = divmod(block - 2, NODES + 1)
            if turn == 0:
                yield _log(block, 0, _PUBLISHED, [f"0x{step:064x}"], f"{step + 1:064x}", WEIGHTS)
                continue
            done = (step * NODES + turn - 1) * BATCH
            for sequence in range(min(BATCH, self.events - done)):
                root = f"0x{(done + sequence) * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 256):064x}"
                data = f"{step:064x}{sequence:064x}{900:064x}"
                yield _log(block, sequence, _SUBMITTED, [_node(turn - 1), root], data)

    def _block(self, number: int) -> Any:
        if number > self.head:
            return None
        return {"number": hex(number), "hash": _hash(number), "timestamp": hex(_START + 2 * number)}

    def _call(self, data: str) -> str:
        selector = data[2:10]
        places = {"court": COURT, "bonds": COURT, "weights": WEIGHTS, "policies": POLICIES, "bench": BENCH}
        for name, address in places.items():
            if selector == _selector(f"{name}()"):
                return "0x" + address[2:].rjust(64, "0")
        steps, rest = divmod(self.turns, NODES)
        if selector == _selector("published(uint256)"):
            return f"0x{steps + (rest > 0):064x}"
        if selector == _selector("seats(uint256,address)"):
            number = int(data[-6:], 16)
            is_last = steps * NODES + number + 1 == self.turns
            step = steps if number < rest else steps - 1
            words = [0] * 24
            words[1], words[8] = 1, max(step, 0)
            words[9] = 0 if step < 0 else self.events - (self.turns - 1) * BATCH if is_last else BATCH
            return "0x" + "".join(f"{word:064x}" for word in words)
        raise ValueError(selector)


def _selector(signature: str) -> str:
    return keccak(text=signature).hex()[:8]


def _node(number: int) -> str:
    return f"0x{number + (0xC3 << 152):064x}"


def _hash(number: int) -> str:
    return f"0x{number + (0xD4 << 248):064x}"


def _log(block: int, index: int, topic: str, topics: list[str], data: str, address: str = RUNS) -> str:
    named = '","'.join([topic, _RUN, *topics])
    return (
        f'{{"address":"{address}","topics":["{named}"],"data":"0x{data}","blockHash":"{_hash(block)}","blockNumber":"{block:#x}",'
        f'"blockTimestamp":"{_START + 2 * block:#x}","transactionHash":"0x{block + (0xE5 << 248):064x}","transactionIndex":"0x0",'
        f'"logIndex":"{index:#x}","removed":false}}'
    )


@contextmanager
def served(events: int) -> Iterator[str]:
    """URL of a recording of so many submissions."""
    command = [sys.executable, "-m", "benches.recorded", str(events)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).resolve().parents[1]
    )
    try:
        assert process.stdout is not None
        yield str(json.loads(process.stdout.readline()))
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(10)


def main(events: int) -> None:
    recording = Recording(events)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if asked["method"] == "eth_getLogs":
                first, last = (int(asked["params"][0][name], 16) for name in ("fromBlock", "toBlock"))
                result = f"[{','.join(recording.logs(first, last))}]"
            else:
                result = json.dumps(recording.answer(asked["method"], asked["params"]))
            answer = f'{{"jsonrpc":"2.0","id":{asked["id"]},"result":{result}}}'.encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps(f"http://127.0.0.1:{server.server_port}"), flush=True)
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
