"""A run that goes on for as long as a bench wants it to: recorded.py's, with validators, at an endpoint and a hub on real sockets.

Both are served by threads of this process: whoever measures counts the CPU time of its own thread.
"""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from eth_utils import keccak, to_checksum_address

from benches.recorded import BATCH, BENCH, CHAIN_ID, NODES, RUN, RUNS, Recording, _log
from protocol import rendezvous
from protocol.constants import PROTOCOL_VERSION
from protocol.hub.wire import PAGE
from protocol.identity import Key
from protocol.runspec import RunSpec
from protocol.signing import Domain
from protocol.submission import SubmissionRef
from protocol.verdict import Details, Outcome, Receipt

DOMAIN = Domain(CHAIN_ID, to_checksum_address(RUNS))
_SEATED = "0x" + keccak(text="ValidatorSeated(uint256,address,bool,uint256)").hex()


class Life:
    """`validators` hold a seat from the first block on; on every submission the one whose turn it is speaks, but for `silent`."""

    def __init__(self, events: int, validators: list[Key], spec: RunSpec) -> None:
        self._past = Recording(events)
        self._validators = {key.address: key for key in validators}
        self.silent = ""
        """Address of a validator that speaks by itself."""
        self._spec = spec.digest.hex()
        self.receipts: list[bytes] = []

    @property
    def events(self) -> int:
        return self._past.events

    @property
    def head(self) -> int:
        """Number of the newest block, in which somebody has submitted."""
        return 1 + self._past.turns + 1 + (self._past.turns - 1) // NODES

    def go_on(self) -> None:
        """One more node submits, and validators speak on that."""
        at = self.events
        self._past = replace(self._past, events=at + BATCH)
        for number in range(at, at + BATCH):
            ref = self.ref(number)
            submission = ref.submission_id(RUN)
            block = bytes.fromhex(self._past.answer("eth_getBlockByNumber", [hex(self.head)])["hash"][2:])
            first = rendezvous.order(submission, block, self._validators)[0]
            if first != self.silent:
                self.receipts.append(self.receipt(self._validators[first], ref))

    def ref(self, number: int) -> SubmissionRef:
        """The submission with this number."""
        turn, sequence = divmod(number, BATCH)
        step, node = divmod(turn, NODES)
        root = number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 256)
        return SubmissionRef(
            to_checksum_address(f"0x{node + (0xC3 << 152):040x}"), step, sequence, root.to_bytes(32, "big")
        )

    def receipt(self, key: Key, ref: SubmissionRef) -> bytes:
        """An accepting one."""
        details = Details(
            PROTOCOL_VERSION, CHAIN_ID, DOMAIN.contract, RUN, ref.submission_id(RUN).hex(), ref.node, ref.step, ref.sequence,
            ref.root.hex(), 900, self._spec, int(Outcome.ACCEPT), "", "", "", "", "f" * 64, 8, 8, 8, self.time,
        )  # fmt: skip
        return Receipt.issue(details, key, DOMAIN).encode()

    @property
    def time(self) -> int:
        """Of the newest block."""
        return int(self._past.answer("eth_getBlockByNumber", [hex(self.head)])["timestamp"], 16)

    # ---- what is asked -------------------------------------------------------------------------------------------------

    def rpc(self, method: str, params: Any) -> str:
        if method == "eth_getLogs":
            first, last = (int(params[0][name], 16) for name in ("fromBlock", "toBlock"))
            return f"[{','.join([*self._seats(first), *self._past.logs(first, min(last, self.head))])}]"
        if method == "eth_getBlockByNumber":
            number = self.head if params[0] == "latest" else int(params[0], 16)
            return json.dumps(self._past.answer(method, [hex(number)]) if number <= self.head else None)
        if method == "eth_call":
            return json.dumps(self._as_of(params[1]).answer(method, params))
        return json.dumps(self._past.answer(method, params))

    def _as_of(self, block: str) -> Recording:
        """What had happened by a block."""
        number = self.head if block == "latest" else min(int(block, 16), self.head)
        step, turn = divmod(number - 2, NODES + 1)
        return replace(self._past, events=min(self.events, max(0, step * NODES + turn) * BATCH))

    def _seats(self, first: int) -> list[str]:
        if first > 1:
            return []
        return [
            _log(1, NODES + at, _SEATED, [f"0x{int(address, 16):064x}"], f"{1:064x}{0:064x}", BENCH)
            for at, address in enumerate(self._validators)
        ]

    def listing(self, what: str, after: int) -> str:
        entries = self.receipts[after : after + PAGE] if what == "receipts" else []
        listed = ",".join(f'{{"id":{after + 1 + at},"value":{entry.decode()}}}' for at, entry in enumerate(entries))
        return f'{{"entries":[{listed}],"from":{after}}}'


class Served:
    """Endpoint and hub of a life, at `url`."""

    def __init__(self, life: Life) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                asked = urlsplit(self.path)
                what, named = asked.path.rsplit("/", 1)[1], parse_qs(asked.query)
                if what == "listings":
                    both = (f'"{of}":{life.listing(of, int(named[of][0]))}' for of in ("receipts", "opinions"))
                    self._answer(f"{{{','.join(both)}}}")
                else:
                    self._answer(life.listing(what, int(named["after"][0])))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path.startswith("/v1/"):  # a receipt
                    self._answer("{}")
                    return
                asked = json.loads(body)
                result = life.rpc(asked["method"], asked["params"])
                self._answer(f'{{"jsonrpc":"2.0","id":{asked["id"]},"result":{result}}}')

            def _answer(self, text: str) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
