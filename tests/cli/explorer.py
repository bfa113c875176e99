"""An explorer that answers as Etherscan's API does, and verifies for real: it compiles what it is given with the project's own solc and
compares with what lies on chain, and with how it was created, constructor arguments included."""

from __future__ import annotations

import json
import subprocess
import threading
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from swarm.anvil import Anvil
from swarm.processes import ROOT

KEY = "canary-explorer-51c2"


class StandIn:
    """`queued`: how often a look at a submission says that it waits. `busy`: how many requests are one too many."""

    def __init__(self, anvil: Anvil, *, queued: int = 0, busy: int = 0) -> None:
        self._anvil, self._queued, self._busy = anvil, queued, busy
        self.asked: Counter[str] = Counter()
        self.verified: dict[str, str] = {}
        self._found: dict[str, Future[str]] = {}
        self._compiler = ThreadPoolExecutor(1)
        self._waits: Counter[str] = Counter()
        self._creations: dict[str, str] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                self._answer({})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                self._answer(parse_qs(body, keep_blank_values=True))

            def _answer(self, body: dict[str, list[str]]) -> None:
                fields = {**parse_qs(urlsplit(self.path).query), **body}
                is_yes, said = outer._answer({name: values[0] for name, values in fields.items()})
                text = json.dumps(
                    {"status": str(int(is_yes)), "message": "OK" if is_yes else "NOTOK", "result": said}
                ).encode()
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")  # in parts, as explorers behind a proxy do
                self.end_headers()
                for part in (text[:7], text[7:], b""):
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                    self.wfile.flush()

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/api"

    def close(self) -> None:
        self._compiler.shutdown(cancel_futures=True)
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, fields: dict[str, str]) -> tuple[bool, str]:
        self.asked[fields["action"]] += 1
        if self.asked.total() <= self._busy:
            return False, "Max rate limit reached"
        if fields["chainid"] != "31337" or fields["module"] != "contract":
            return False, "Missing or unsupported chainid parameter"
        if fields.get("apikey") != KEY:
            return False, "Invalid API Key"
        return self._look(fields["guid"]) if fields["action"] == "checkverifystatus" else self._take(fields)

    def _look(self, guid: str) -> tuple[bool, str]:
        self._waits[guid] += 1
        if self._waits[guid] <= self._queued:
            return False, "Pending in queue"
        found = self._found[guid].result(300) if self._found[guid].done() else "Pending in queue"
        return found.startswith("Pass"), found

    def _take(self, fields: dict[str, str]) -> tuple[bool, str]:
        address = fields["contractaddress"].lower()
        if address in self.verified:
            return False, "Contract source code already verified"
        if self._anvil.request("eth_getCode", address, "latest") == "0x":
            return False, f"Unable to locate ContractCode at {address}"
        guid = f"guid-{len(self._found)}"
        self._found[guid] = self._compiler.submit(self._verify, address, fields)
        return True, guid

    def _verify(self, address: str, fields: dict[str, str]) -> str:
        file, _, name = fields["contractname"].rpartition(":")
        source = json.loads(fields["sourceCode"])
        source["settings"]["outputSelection"] = {file: {name: ["evm.bytecode.object", "metadata"]}}
        done = subprocess.run(
            [ROOT / "contracts/solc", "--standard-json"], input=json.dumps(source), capture_output=True, text=True, check=True, timeout=300
        )  # fmt: skip
        made = json.loads(done.stdout)
        if problems := [each["formattedMessage"] for each in made.get("errors", []) if each["severity"] == "error"]:
            return f"Fail - {problems[0]}"
        contract = made["contracts"][file][name]
        if fields["compilerversion"] != "v" + json.loads(contract["metadata"])["compiler"]["version"]:
            return "Fail - another compiler"
        code = contract["evm"]["bytecode"]["object"]
        if "0x" + code + fields["constructorArguements"] != self._creation(address):
            return "Fail - Unable to verify. Bytecode does not match"
        self.verified[address] = fields["contractname"]
        return "Pass - Verified"

    def _creation(self, address: str) -> str:
        """Code and arguments that a contract was created with, by whatever did: as transactions are traced."""
        if not self._creations:
            head = int(self._anvil.request("eth_blockNumber"), 16)
            for number in range(head + 1):
                for step in self._anvil.request("trace_block", hex(number)) or []:
                    self._note(step)
        return self._creations[address]

    def _note(self, step: dict[str, Any]) -> None:
        if step["type"] == "create" and step.get("result"):
            self._creations[step["result"]["address"].lower()] = step["action"]["init"]
