"""Routes that every page has: its files, and its parts as a keeper has them. Parse, read, answer.

    GET …/                        the page, and whatever else of its paths a page draws
    GET …/static/NAME             what it is made of
    GET …/api/v1/parts            what names each part as it is now
    GET …/api/v1/PART             one of them
    GET …/api/v1/events?wait=S    server-sent events: `news` with the parts, once they are others than Last-Event-ID names

An event ends its answer, and the browser asks again: a reader of a page is a poll like others, with the same deadlines and places. Nothing
here writes.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response

from protocol.errors import MurmurationError, Unavailable
from protocol.page.assets import Asset
from protocol.page.keeper import Keeper, PageContent

log = logging.getLogger(__name__)

WAIT_MAX = 25
"""Seconds for which an event is waited for."""
_AGAIN_MS = 1500  # before a browser asks for the next event
_TROUBLE = "This cannot be shown now; the log says why."


def create_app(shown: Callable[[str], str] = str) -> FastAPI:
    """An app without routes, whose errors are JSON. `shown`: what browsers see of what is only busy or away. Other errors name files of this machine: they are for the log."""
    app = FastAPI(title="Murmuration", docs_url=None, redoc_url=None, openapi_url=None)
    told = ""

    @app.exception_handler(MurmurationError)
    async def refuse(_: Request, error: MurmurationError) -> Response:
        nonlocal told
        if isinstance(error, Unavailable):
            return JSONResponse({"error": shown(str(error))}, 503)
        if told != (told := str(error)):
            log.warning("the page cannot show what it was asked for: %s", error)
        return JSONResponse({"error": _TROUBLE}, 500)

    @app.exception_handler(RequestValidationError)
    async def refuse_query(_: Request, error: RequestValidationError) -> Response:
        return JSONResponse({"error": "; ".join(f"{e['loc'][-1]}: {e['msg']}" for e in error.errors())}, 422)

    return app


def add_files(app: FastAPI, base: str, assets: Mapping[str, Asset], paths: Sequence[str]) -> None:
    """Under `base` (`/run/1`, or nothing) the page itself, at each of `paths`, and its files."""

    async def page(request: Request) -> Response:
        return tagged(request, assets["index.html"].body, assets["index.html"].tag, "text/html; charset=utf-8")

    for path in paths:
        app.add_api_route(base + path, page, methods=["GET", "HEAD"])

    @app.get(f"{base}/static/{{name}}")
    async def static(request: Request, name: str) -> Response:
        asset = assets.get(name)
        if asset is None:
            return absent("file", "on this page")
        return tagged(request, asset.body, asset.tag, asset.media_type)


def add_news(app: FastAPI, base: str, keeper: Keeper[Any]) -> None:
    """What is new, at `base` (`…/api/v1`)."""

    @app.get(f"{base}/parts")
    async def parts() -> Response:
        keeper.want()
        return JSONResponse(_news(keeper.content), headers={"cache-control": "no-store"})

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
        told = "" if mark == known else f"event: news\nid: {mark}\ndata: {json.dumps(_news(keeper.content))}\n\n"
        headers = {"cache-control": "no-store"}
        return Response(f"retry: {_AGAIN_MS}\n\n{told}", media_type="text/event-stream", headers=headers)


def add_parts(app: FastAPI, base: str, keeper: Keeper[Any], names: Sequence[str]) -> None:
    """The parts `names`. To be added behind other routes under `base`, for a part has any name."""

    @app.get(f"{base}/{{part}}")
    async def part(request: Request, part: str) -> Response:
        if part not in names:
            return absent("part", "of this page")
        keeper.want()
        found = keeper.content.parts.get(part)
        if found is None:
            return not_read_yet(keeper.content)
        return tagged(request, found.body, found.tag)


def not_read_yet(content: PageContent) -> Response:
    return JSONResponse({"error": content.trouble or "nothing has been read yet"}, 503)


def tagged(request: Request, body: bytes, tag: str, media_type: str = "application/json") -> Response:
    """Asked for again each time, and sent again only where it is another."""
    headers = {"etag": tag, "cache-control": "no-cache"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers)


def absent(what: str, where: str) -> Response:
    return JSONResponse({"error": f"there is no such {what} {where}"}, 404)


def _news(content: PageContent) -> dict[str, Any]:
    return {"mark": content.mark, "parts": content.tags, "trouble": content.trouble}
