"""The page's routes, beside the hub's own under another prefix: parse, read what the keeper has, answer.

    GET /run/N/                            the page; so are node/ADDRESS, submission/ID, case/SEAT/NUMBER, version/STEP under it
    GET /run/N/static/NAME                 what it is made of
    GET /run/N/api/v1/parts                what names each part as it is now
    GET /run/N/api/v1/PART                 run, charts, validators, relays, verdicts, cases, money, samples
    GET /run/N/api/v1/nodes                sort, order, find, offset, limit
    GET /run/N/api/v1/nodes/ADDRESS        … submissions/ID, cases/SEAT/NUMBER, versions/STEP
    GET /run/N/api/v1/events?wait=S        server-sent events: `news` with the parts, once they are others than Last-Event-ID names

An event ends its answer, and the browser asks again: for the hub a reader of the page is a poll like others, with the same deadlines and
places, but the first to be refused. Nothing here writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from eth_utils import is_address, to_checksum_address
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from protocol.errors import MurmurationError, Unavailable
from trainer.config import HubSettings, PageFor
from trainer.page.access import PageAccess
from trainer.page.assets import Asset, read_assets
from trainer.page.documents import PageDocument
from trainer.page.inquiries import PageInquiries
from trainer.page.keeper import PageKeeper
from trainer.page.table import COLUMNS, PAGE_MAX, page_of

PARTS = ("run", "charts", "validators", "relays", "verdicts", "cases", "money", "samples")
WAIT_MAX = 25
"""Seconds for which an event is waited for."""
_AGAIN_MS = 1500  # before a browser asks for the next event
Part = Literal["run", "charts", "validators", "relays", "verdicts", "cases", "money", "samples"]


def beside(hub: ASGIApp, keeper: PageKeeper, run: int, settings: HubSettings) -> ASGIApp:
    """The page's paths are the page's, all others the hub's; the hub alone where the settings want no page."""
    if settings.page == "off":
        return hub
    page = create_page(keeper, run, settings.page, tuple(filter(None, (settings.public_host, settings.host))))

    async def either(scope: Scope, receive: Receive, send: Send) -> None:
        is_page = scope["type"] == "http" and (scope["path"] == "/" or scope["path"].startswith("/run/"))
        await (page if is_page else hub)(scope, receive, send)

    return either


def create_page(keeper: PageKeeper, run: int, shown_to: PageFor, names: tuple[str, ...] = ()) -> ASGIApp:
    """`names`: hosts under which others may ask for it, where it is shown to them."""
    app = FastAPI(title="Murmuration", docs_url=None, redoc_url=None, openapi_url=None)
    base = f"/run/{run}"
    assets = read_assets(base)
    _add_errors(app)
    _add_page(app, base, assets)
    _add_parts(app, f"{base}/api/v1", keeper)
    _add_details(app, f"{base}/api/v1", keeper, PageInquiries())
    return PageAccess(app, shown_to, names)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(MurmurationError)
    async def refuse(_: Request, error: MurmurationError) -> Response:
        return JSONResponse({"error": str(error)}, 503 if isinstance(error, Unavailable) else 500)

    @app.exception_handler(RequestValidationError)
    async def refuse_query(_: Request, error: RequestValidationError) -> Response:
        return JSONResponse({"error": "; ".join(f"{e['loc'][-1]}: {e['msg']}" for e in error.errors())}, 422)


def _add_page(app: FastAPI, base: str, assets: Mapping[str, Asset]) -> None:
    async def page(request: Request) -> Response:
        return _tagged(request, assets["index.html"].body, assets["index.html"].tag, "text/html; charset=utf-8")

    for path in ("/", "/node/{a}", "/submission/{a}", "/case/{a}/{b}", "/version/{a}"):
        app.add_api_route(base + path, page, methods=["GET", "HEAD"])

    @app.get("/")
    async def root() -> Response:
        return RedirectResponse(f"{base}/", 307)

    @app.get(f"{base}/static/{{name}}")
    async def static(request: Request, name: str) -> Response:
        asset = assets.get(name)
        if asset is None:
            return _absent("file")
        return _tagged(request, asset.body, asset.tag, asset.media_type)


def _add_parts(app: FastAPI, base: str, keeper: PageKeeper) -> None:
    @app.get(f"{base}/parts")
    async def parts() -> Response:
        keeper.want()
        return JSONResponse(_news(keeper), headers={"cache-control": "no-store"})

    @app.get(f"{base}/events")
    async def events(
        request: Request, wait: Annotated[int, Query(ge=0, le=WAIT_MAX)] = 0,
        have: Annotated[str, Query(max_length=40)] = "",
    ) -> Response:  # fmt: skip
        known = request.headers.get("last-event-id", have)
        keeper.want()
        await keeper.news.wait(lambda: keeper.content.mark != known, wait)
        keeper.want()
        mark = keeper.content.mark
        told = "" if mark == known else f"event: news\nid: {mark}\ndata: {json.dumps(_news(keeper))}\n\n"
        headers = {"cache-control": "no-store"}
        return Response(f"retry: {_AGAIN_MS}\n\n{told}", media_type="text/event-stream", headers=headers)

    @app.get(f"{base}/nodes")
    async def nodes(
        request: Request,
        sort: Literal[COLUMNS] = "last",  # type: ignore[valid-type]
        order: Literal["up", "down"] = "down",
        find: Annotated[str, Query(max_length=64)] = "",
        offset: Annotated[int, Query(ge=0, lt=10**6)] = 0,
        limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 25,
    ) -> Response:
        keeper.want()
        rows = list(keeper.content.nodes.values())
        found = PageDocument.of(page_of(rows, sort, order == "down", find, offset, limit))
        return _tagged(request, found.body, found.tag)

    @app.get(f"{base}/{{part}}")
    async def part(request: Request, part: Part) -> Response:
        keeper.want()
        found = keeper.content.parts.get(part)
        if found is None:
            return JSONResponse({"error": keeper.content.trouble or "nothing has been read yet"}, 503)
        return _tagged(request, found.body, found.tag)


def _add_details(app: FastAPI, base: str, keeper: PageKeeper, inquiries: PageInquiries) -> None:
    async def answer(request: Request, what: str, question: tuple[Any, ...], read: Callable[[], Any]) -> Response:
        keeper.want()
        if keeper.details is None:
            return JSONResponse({"error": keeper.content.trouble or "nothing has been read yet"}, 503)
        found = await inquiries.ask((what, *question), keeper.content.mark, read)
        return _absent(what) if found is None else _tagged(request, found.body, found.tag)

    @app.get(f"{base}/nodes/{{address}}")
    async def node(request: Request, address: str) -> Response:
        name = _address(address)
        content, details = keeper.content, keeper.details
        if name is None:
            return _absent("node")
        return await answer(request, "node", (name,), lambda: details and details.node(name, content.nodes))

    @app.get(f"{base}/submissions/{{id}}")
    async def submission(request: Request, id: str) -> Response:
        details, digest = keeper.details, _digest(id)
        if digest is None:
            return _absent("submission")
        return await answer(request, "submission", (digest,), lambda: details and details.submission(digest))

    @app.get(f"{base}/cases/{{seat}}/{{number}}")
    async def case(request: Request, seat: str, number: int) -> Response:
        details, name = keeper.details, _address(seat)
        if name is None or not 0 < number < 2**32:
            return _absent("case")
        return await answer(request, "case", (name, number), lambda: details and details.case(name, number))

    @app.get(f"{base}/versions/{{step}}")
    async def version(request: Request, step: int) -> Response:
        content, details = keeper.content, keeper.details
        if not 0 <= step < 2**32:
            return _absent("version")
        return await answer(
            request, "version", (step,), lambda: details and details.version(step, content.versions.get(step))
        )


def _news(keeper: PageKeeper) -> dict[str, Any]:
    content = keeper.content
    return {"mark": content.mark, "parts": content.tags, "trouble": content.trouble}


def _tagged(request: Request, body: bytes, tag: str, media_type: str = "application/json") -> Response:
    """Asked for again each time, and sent again only where it is another."""
    headers = {"etag": tag, "cache-control": "no-cache"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers)


def _absent(what: str) -> Response:
    return JSONResponse({"error": f"there is no such {what} in this run"}, 404)


def _address(text: str) -> str | None:
    return to_checksum_address(text) if len(text) == 42 and text.startswith("0x") and is_address(text) else None


def _digest(text: str) -> bytes | None:
    try:
        found = bytes.fromhex(text)
    except ValueError:
        return None
    return found if len(found) == 32 else None
