"""The page's routes, beside the hub's own under another prefix: parse, read what the keeper has, answer.

    GET /run/N/                            the page; so are node/ADDRESS, submission/ID, case/SEAT/NUMBER, version/STEP under it
    GET /run/N/api/v1/PART                 run, charts, validators, relays, verdicts, cases, money, samples
    GET /run/N/api/v1/nodes                sort, order, find, offset, limit
    GET /run/N/api/v1/nodes/ADDRESS        … submissions/ID, cases/SEAT/NUMBER, versions/STEP

The others, which every page has, are in protocol/page/routes.py. For the hub a reader of the page is a poll like others, but the first to be refused.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from eth_utils import is_address, to_checksum_address
from fastapi import FastAPI, Query, Request
from fastapi.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from protocol.page import routes
from protocol.page.access import PageAccess
from protocol.page.assets import read_assets
from protocol.page.document import PageDocument
from protocol.page.routes import tagged
from protocol.page.settings import PageFor
from trainer.config import HubSettings
from trainer.page.keeper import PageKeeper
from trainer.page.table import COLUMNS, PAGE_MAX, page_of

FOLDER = Path(__file__).parent / "static"
PARTS = ("run", "charts", "validators", "relays", "verdicts", "cases", "money", "samples")
_PATHS = ("/", "/node/{a}", "/submission/{a}", "/case/{a}/{b}", "/version/{a}")
_REFUSAL = "this page is not shown here: see hub.page and hub.public_host in the settings of the run"


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
    app = routes.create_app()
    base, api = f"/run/{run}", f"/run/{run}/api/v1"
    routes.add_files(app, base, read_assets(FOLDER, base), _PATHS)
    routes.add_news(app, api, keeper)
    _add_root(app, base)
    _add_nodes(app, api, keeper)
    _add_details(app, api, keeper)
    routes.add_parts(app, api, keeper, PARTS)
    return PageAccess(app, shown_to, names, refusal=_REFUSAL)


def _add_root(app: FastAPI, base: str) -> None:
    @app.get("/")
    async def root() -> Response:
        return RedirectResponse(f"{base}/", 307)


def _add_nodes(app: FastAPI, base: str, keeper: PageKeeper) -> None:
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
        return tagged(request, found.body, found.tag)


def _add_details(app: FastAPI, base: str, keeper: PageKeeper) -> None:
    async def answer(request: Request, what: str, question: tuple[Any, ...], read: Callable[[], Any]) -> Response:
        keeper.want()
        if keeper.details is None:
            return routes.not_read_yet(keeper.content)
        found = await keeper.inquiries.ask((what, *question), keeper.content.mark, read)
        return _absent(what) if found is None else tagged(request, found.body, found.tag)

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


def _absent(what: str) -> Response:
    return routes.absent(what, "in this run")


def _address(text: str) -> str | None:
    return to_checksum_address(text) if len(text) == 42 and text.startswith("0x") and is_address(text) else None


def _digest(text: str) -> bytes | None:
    try:
        found = bytes.fromhex(text)
    except ValueError:
        return None
    return found if len(found) == 32 else None
