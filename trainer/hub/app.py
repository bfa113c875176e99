"""The hub's HTTP routes: parse, call hub.py, answer. protocol/hub/wire.py lists them with their meaning."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from math import ceil
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, PlainTextResponse, Response
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protocol import metrics
from protocol.constants import RECEIPT_BYTES_MAX
from protocol.deadline import plain_address
from protocol.errors import (
    BadSignature,
    ChainError,
    IntegrityError,
    Malformed,
    MurmurationError,
    Oversized,
    PreflightError,
    ProtocolViolation,
    RpcUnavailable,
    Unavailable,
)
from protocol.hub.challenges import MESSAGE_BYTES_MAX
from protocol.hub.wire import EARLIER_KEYS_MAX, NEED_TAG_LENGTH, WAIT_MAX, Refused, TryAgain
from trainer.hub.hub import Hub, Signed, address, bytes32

log = logging.getLogger("hub")

Cursor = Annotated[int, Query(ge=0, lt=2**62)]
Digest = Annotated[str, Query(pattern="^([0-9a-f]{64})?$")]
Tag = Annotated[str, Query(pattern=f"^([0-9a-f]{{{NEED_TAG_LENGTH}}})?$")]
Also = Annotated[str, Query(max_length=EARLIER_KEYS_MAX * 43)]
Wait = Annotated[int, Query(ge=0, le=WAIT_MAX)]
_STATUS: list[tuple[type[MurmurationError], int]] = [
    (BadSignature, 401), (Oversized, 413), (ProtocolViolation, 422), (PreflightError, 507), (Unavailable, 503),
    (RpcUnavailable, 503),
]  # fmt: skip
_BODY_SECONDS_MAX = 20
_REQUESTS = metrics.counter("murmur_hub_requests_total", "Requests, by route and HTTP status.", "route", "status")
_SECONDS = metrics.histogram(
    "murmur_hub_request_seconds", "Duration of requests, waits that were asked for included.", "route"
)
_REFUSALS = metrics.counter("murmur_hub_refusals_total", "Refused requests, by the error's class.", "reason")


def create_app(hub: Hub, status: Path, need_file: Path) -> FastAPI:
    """`status` is the file in which the trainer says what it does, `need_file` that in which it says what it needs."""
    app = FastAPI(title="Murmuration hub", docs_url=None, redoc_url=None, openapi_url=None)
    base = f"/v1/runs/{hub.run}"
    app.add_middleware(Counted, base=base)

    @app.exception_handler(MurmurationError)
    async def refuse(_: Request, error: MurmurationError) -> Response:
        hub.refused[type(error).__name__] += 1
        _REFUSALS.add(reason=type(error).__name__)
        if isinstance(error, Refused):
            return PlainTextResponse(str(error), error.status)
        headers = {"Retry-After": str(ceil(error.seconds))} if isinstance(error, TryAgain) else None
        # What this machine's endpoints and disks said of it is for its own log, not for strangers.
        text = "the hub cannot reach the chain; try again" if isinstance(error, ChainError) else str(error)
        if isinstance(error, IntegrityError):
            log.error("%s", error)
            text = "what the hub has stored is damaged"
        status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
        return PlainTextResponse(text, status, headers)

    @app.exception_handler(RequestValidationError)
    async def refuse_query(request: Request, error: RequestValidationError) -> Response:
        return await refuse(request, Malformed("; ".join(f"{e['loc'][-1]}: {e['msg']}" for e in error.errors())))

    @app.get(f"{base}/spec")
    async def spec() -> Response:
        return Response(hub.spec.canonical(), media_type="application/json")

    @app.get(f"{base}/status")
    async def trainer_status() -> dict[str, Any]:
        shown = json.loads(status.read_bytes()) if status.exists() else {}
        return {**shown, "hub": {"refused": dict(hub.refused), "matrix_challenges": hub.challenges.results}}

    @app.put(f"{base}/submissions/{{submission}}")
    async def upload(submission: str, request: Request) -> dict[str, Any]:
        return await hub.upload(bytes32(submission), _signed(request), _parts(request))

    @app.get(f"{base}/submissions/{{submission}}")
    async def stored(submission: str) -> dict[str, Any]:
        return hub.stored(bytes32(submission))

    @app.get(f"{base}/files/{{root}}")
    async def file(request: Request, root: str, wait: Wait = 0, direct: bool = False) -> Response:
        link = await hub.link(bytes32(root), wait, near=_is_near(request)) if direct else None
        if link is not None:
            return Response(status_code=307, headers={"Location": link, "Cache-Control": "no-store"})
        return FileResponse(await hub.file(bytes32(root), wait), media_type="application/vnd.apache.parquet")

    @app.get(f"{base}/tasks/{{digest}}")
    async def pinned_file(digest: str) -> Response:
        return FileResponse(hub.pinned_file(bytes32(digest)), media_type="application/octet-stream")

    @app.post(f"{base}/receipts")
    async def add_receipt(request: Request) -> Response:
        await hub.add_receipt(await _body(request), _signed(request))
        return Response(status_code=204)

    @app.get(f"{base}/receipts")
    async def receipts(after: Cursor = 0, wait: Wait = 0, mark: Digest = "") -> Response:
        return Response(await hub.page("receipts", after, bytes.fromhex(mark), wait), media_type="application/json")

    @app.get(f"{base}/need")
    async def needed() -> dict[str, Any]:
        return hub.need(need_file)

    @app.get(f"{base}/vouchers/{{validator}}")
    async def voucher(validator: str) -> dict[str, Any]:
        return hub.voucher(address(validator))

    @app.post(f"{base}/opinions")
    async def add_opinion(request: Request) -> Response:
        await hub.add_opinion(await _body(request), _signed(request))
        return Response(status_code=204)

    @app.get(f"{base}/opinions")
    async def opinions(after: Cursor = 0, wait: Wait = 0, mark: Digest = "") -> Response:
        return Response(await hub.page("opinions", after, bytes.fromhex(mark), wait), media_type="application/json")

    @app.get(f"{base}/listings")
    async def listings(
        receipts: Cursor = 0,
        receipts_mark: Digest = "",
        opinions: Cursor = 0,
        opinions_mark: Digest = "",
        wait: Wait = 0,
    ) -> Response:
        marks = {
            "receipts": (receipts, bytes.fromhex(receipts_mark)), "opinions": (opinions, bytes.fromhex(opinions_mark)),
        }  # fmt: skip
        return Response(await hub.pages(marks, wait), media_type="application/json")

    @app.get(f"{base}/nodes/{{node}}")
    async def news(
        node: str, after: Cursor = 0, wait: Wait = 0, mark: Digest = "", challenge: Digest = "", need: Tag = "",
        also: Also = "",
    ) -> Response:  # fmt: skip
        nodes = [address(text) for text in [node, *also.split()]]
        told = await hub.news(nodes, after, bytes.fromhex(mark), challenge, need, wait, need_file)
        return Response(told, media_type="application/json")

    @app.post(f"{base}/challenges/{{node}}")
    async def add_message(node: str, request: Request) -> Response:
        await hub.add_message(address(node), await _body(request, MESSAGE_BYTES_MAX), _signed(request))
        return Response(status_code=204)

    @app.get(f"{base}/challenges/{{node}}")
    async def messages(node: str, after: Cursor = 0, wait: Wait = 0) -> dict[str, Any]:
        said = await hub.messages(address(node), after, wait)
        return {"messages": [message.as_json() for message in said]}

    return app


class Counted:
    """Counts requests by what they are about and how they ended, and the time until the last byte of the answer."""

    def __init__(self, app: ASGIApp, base: str) -> None:
        self._app = app
        self._base = base

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = 500

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        with ExitStack() as stack:
            if scope["type"] == "http":
                stack.callback(self._count, scope, time.monotonic(), lambda: status)
            await self._app(scope, receive, noting)

    def _count(self, scope: Scope, began: float, status: Callable[[], int]) -> None:
        route = getattr(scope.get("route"), "path", "unknown").removeprefix(self._base)
        _REQUESTS.add(route=route, status=status())
        _SECONDS.observe(time.monotonic() - began, route=route)


def _signed(request: Request) -> Signed:
    return Signed(request.method, request.url.path, request.headers)


def _is_near(request: Request) -> bool:
    """Whether who asks is in this machine's own network."""
    try:
        return request.client is not None and not plain_address(request.client.host).is_global
    except ValueError:
        return False


async def _parts(request: Request) -> AsyncIterator[bytes]:
    try:
        async for part in request.stream():
            yield part
    except ClientDisconnect as error:
        raise Unavailable("the sender went away") from error


async def _body(request: Request, cap: int = RECEIPT_BYTES_MAX) -> bytes:
    parts, size = [], 0
    try:
        async with asyncio.timeout(_BODY_SECONDS_MAX):
            async for part in _parts(request):
                size += len(part)
                if size > cap:
                    raise Oversized(f"more than {cap} bytes")
                parts.append(part)
    except TimeoutError as error:
        raise Unavailable(f"the request took longer than {_BODY_SECONDS_MAX} s") from error
    return b"".join(parts)
