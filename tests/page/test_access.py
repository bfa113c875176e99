"""Who may see a page: this machine by default, under names of this machine alone; and nobody may write or embed it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Scope

from protocol.page.access import PageAccess
from tests.page.shown import Shown
from trainer.hub.load import REFUSED_FROM, RequestKind, kind_of


def status_of(
    shown_to: Any, host: str, client: str = "127.0.0.1", method: str = "GET", path: str = "/run/1/", **fields: str
) -> int:
    answered: list[int] = []

    async def inner(scope: Scope, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answered.append(message["status"])

    async def receive() -> Message:
        return {"type": "http.request"}

    headers = [
        (b"host", host.encode()),
        *((name.replace("_", "-").encode(), value.encode()) for name, value in fields.items()),
    ]
    scope = {"type": "http", "method": method, "path": path, "headers": headers, "client": (client, 1234)}
    asyncio.run(PageAccess(inner, shown_to, ("Hub.example", "[2001:db8::1]"), refusal="not here")(scope, receive, send))
    return answered[0]


@pytest.mark.parametrize("host", ["127.0.0.1:8450", "localhost", "LOCALHOST:1", "[::1]:8450", "127.0.0.9"])
def test_this_machine_sees_it(host: str) -> None:
    assert status_of("local", host) == 200


@pytest.mark.parametrize(
    "host", ["evil.example:8450", "", "hub.example", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1", "[::1].evil.example", "[::1"],
)  # fmt: skip
def test_a_name_that_somebody_else_chose_leads_to_nothing(host: str) -> None:
    assert status_of("local", host) == 403


@pytest.mark.parametrize("client", ["10.0.0.7", "192.168.1.1", "2001:db8::7", "::ffff:10.0.0.7"])
def test_nobody_elsewhere_sees_it_whatever_host_they_name(client: str) -> None:
    assert status_of("local", "127.0.0.1:8450", client) == 403


@pytest.mark.parametrize("field", ["x_forwarded_for", "forwarded", "via", "x_real_ip"])
def test_what_comes_through_a_proxy_comes_from_elsewhere(field: str) -> None:
    assert status_of("local", "127.0.0.1:8450", **{field: "1.2.3.4"}) == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_from_elsewhere_may_lead_to_a_local_page_and_ask_it_nothing(site: str) -> None:
    for path in ("/api/v1/node", "/run/1/api/v1/run"):
        for mode in ("no-cors", "cors", "navigate"):
            assert status_of("local", "localhost", path=path, sec_fetch_site=site, sec_fetch_mode=mode) == 403
    assert status_of("local", "localhost", sec_fetch_site=site, sec_fetch_mode="no-cors") == 403
    link = {"sec_fetch_site": site, "sec_fetch_mode": "navigate"}
    assert (
        status_of("local", "localhost", **link)
        == status_of("local", "localhost", **link, sec_fetch_dest="document")
        == 200
    )
    assert status_of("local", "localhost", **link, sec_fetch_dest="iframe") == 403, (
        "it is not drawn there, and would be woken"
    )


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_a_local_page_may_ask_for_its_own_parts(site: str) -> None:
    assert status_of("local", "localhost", path="/api/v1/node", sec_fetch_site=site, sec_fetch_mode="cors") == 200


def test_what_is_public_may_be_asked_for_from_anywhere() -> None:
    path, host = "/run/1/api/v1/run", "203.0.113.5"
    assert (
        status_of("public", host, "198.51.100.1", path=path, sec_fetch_site="cross-site", sec_fetch_mode="cors") == 200
    )


@pytest.mark.parametrize(
    "host", ["hub.example", "HUB.example:443", "203.0.113.5:8450", "[2001:db8::1]:8450", "localhost"]
)
def test_a_public_page_is_seen_under_its_name_and_addresses(host: str) -> None:
    assert status_of("public", host, "198.51.100.1") == 200


@pytest.mark.parametrize("host", ["evil.example", "hub.example.evil.example", ""])
def test_a_public_page_is_not_seen_under_other_names(host: str) -> None:
    assert status_of("public", host, "198.51.100.1") == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_written(method: str) -> None:
    assert status_of("local", "localhost", method=method) == 405


@pytest.mark.parametrize("path", ["", "api/v1/run", "api/v1/nodes/nobody", "static/page.js"])
def test_every_answer_forbids_what_a_page_does_not_need(page: Shown, path: str) -> None:
    headers = page.get(path, headers={"origin": "https://evil.example"}).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert (
        policy["default-src"] == "'none'" and policy["script-src"] == "'self'" and policy["frame-ancestors"] == "'none'"
    )
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff" and headers["cross-origin-resource-policy"] == "same-origin"
    assert not [name for name in headers if name.startswith("access-control-")]


def scope_of(path: str, query: bytes = b"", method: str = "GET") -> Scope:
    return {"type": "http", "method": method, "path": path, "query_string": query}


def test_a_page_is_refused_before_anything_that_the_run_needs() -> None:
    assert kind_of(scope_of("/run/1/")) == kind_of(scope_of("/")) == RequestKind.PAGE
    assert kind_of(scope_of("/run/1/api/v1/events", b"wait=25")) == RequestKind.WATCH
    assert kind_of(scope_of("/v1/runs/1/receipts", b"wait=25")) == RequestKind.POLL
    assert kind_of(scope_of("/v1/runs/1/spec")) == RequestKind.LISTING
    least = min(level for kind, level in REFUSED_FROM.items() if kind > RequestKind.PAGE)
    assert max(REFUSED_FROM[RequestKind.WATCH], REFUSED_FROM[RequestKind.PAGE]) < least
