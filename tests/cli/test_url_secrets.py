"""An RPC URL holds its owner's secrets: whatever a command or a log says, none of them is in it."""

from __future__ import annotations

import json
import logging
import threading
import traceback
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from protocol.chain.transport import Failed, RpcTransport, one
from protocol.http_url import secrets_of, shown_setting, without_secrets
from protocol.logs import JsonFormatter
from tests.cli.conftest import Contributor

SECRETS = ("canary-user", "canary-word", "canary-path-key", "canary-query-key")


def secret_url(host: str) -> str:
    return "http://{}:{}@{}/v3/{}?apikey={}".format(*SECRETS[:2], host, *SECRETS[2:])


def leaks(*texts: str) -> list[str]:
    return [secret for secret in SECRETS for text in texts if secret in text]


@pytest.fixture
def gossip() -> Iterator[str]:
    """An endpoint that refuses everything, and repeats in its words what it was asked at; its host and port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            said = [
                {
                    "jsonrpc": "2.0",
                    "id": each["id"],
                    "error": {"code": -32000, "message": f"no such project: {self.path}", "data": self.path},
                }
                for each in (asked if isinstance(asked, list) else [asked])
            ]
            body = json.dumps(said if isinstance(asked, list) else said[0]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


COMMANDS = (
    ["status"], ["status", "--json"], ["submissions"], ["claim"], ["stake", "--yes"], ["withdraw"], ["config", "show", "--origin"],
    ["config", "show", "--json"], ["start"],
)  # fmt: skip


@pytest.mark.parametrize("talks", [False, True])
def test_no_command_of_a_node_shows_them(contributor: Contributor, gossip: str, talks: bool) -> None:
    config, url = contributor.home.config, secret_url(gossip if talks else "127.0.0.1:9")
    config.write_text(config.read_text().replace(contributor.world.anvil.rpc, url))
    assert url in config.read_text()
    for command in COMMANDS:
        done = contributor.run(*command)
        assert done.code in (0, 4), done.err
        assert not leaks(done.out, done.err), command
    shown = contributor.run("config", "show", "--json").json["chain.rpc"]["value"]
    assert shown == f"http://{gossip if talks else '127.0.0.1:9'}/…"


def test_no_other_command_shows_them(contributor: Contributor, gossip: str, tmp_path: Path) -> None:
    console, url = contributor.console, secret_url(gossip)
    for command in (
        ["chain", "info", "--rpc", url, "--contract", contributor.world.chain.runs.address], ["chain", "doctor", "--rpc", url],
        ["wallet", "balance", contributor.node, "--rpc", url], ["node", "init", "--rpc", url, "--home", tmp_path / "other"],
    ):  # fmt: skip
        done = console.murmur(*command)
        assert done.code, command
        assert not leaks(done.out, done.err), command


def test_a_traceback_in_a_log_does_not_hold_them() -> None:
    """What the HTTP library raises has the whole URL in it."""
    with pytest.raises(Failed) as raised:
        RpcTransport().post(secret_url("127.0.0.1:9"), one("eth_chainId", ()), seconds=1, cap=1000, now=0)
    error = raised.value
    record = logging.LogRecord("node", logging.ERROR, "", 0, "failed", (), (type(error), error, error.__traceback__))
    assert not leaks("".join(traceback.format_exception(error)), JsonFormatter().format(record))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:8545", "http://127.0.0.1:8545"),
        ("https://mainnet.base.org/", "https://mainnet.base.org"),
        ("https://base.example/v2/KEY", "https://base.example/…"),
        ("wss://user:word@base.example", "wss://base.example/…"),
        ("https://base.example?key=1", "https://base.example/…"),
    ],
)
def test_a_url_is_shown_by_its_host(url: str, shown: str) -> None:
    assert without_secrets(url) == shown
    assert shown_setting({"chain": {"rpc": (url, "x")}, "run": 1}) == {"chain": {"rpc": [shown, "x"]}, "run": 1}


def test_secrets_are_the_long_words_of_a_url() -> None:
    assert set(secrets_of(secret_url("base.example"))) == set(SECRETS)
    assert secrets_of("http://127.0.0.1:8545/rpc") == []
    assert set(secrets_of("http://x/a%2Fb%2Fc%2Fd")) == {"a%2Fb%2Fc%2Fd", "a/b/c/d"}
