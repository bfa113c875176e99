"""The routes of the node's page: parse, read what the keeper has, answer.

    GET /                        the page; so are submission/ID and rules
    GET /api/v1/PART             node, earnings, submissions, machine, network, log
    GET /api/v1/list             submissions: state, offset, limit
    GET /api/v1/submissions/ID   one of them
    GET /api/v1/rules            verdicts and rules in words
    GET /docs/rules.md           the rules in full

The others, which every page has, are in protocol/page/routes.py.
"""

from __future__ import annotations

import sysconfig
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from fastapi import FastAPI, Query, Request
from fastapi.responses import Response
from starlette.types import ASGIApp

from node.contributor import rule_words
from node.contributor.page.documents import ROWS, ROWS_MAX
from node.contributor.page.keeper import PARTS, NodePageKeeper
from protocol.page import routes
from protocol.page.access import PageAccess
from protocol.page.assets import read_assets
from protocol.page.document import PageDocument
from protocol.page.routes import absent, tagged

FOLDER = Path(__file__).parent / "static"
DOCUMENTS = "share/doc/murmuration"
"""Of an environment: where the wheel puts what it brings of docs/."""
_API = "/api/v1"
_REFUSAL = "this page is shown to browsers on this machine, under its address"


def create_page(keeper: NodePageKeeper) -> ASGIApp:
    app = routes.create_app(keeper.secrets.text)
    routes.add_files(app, "", read_assets(FOLDER, ""), ("/", "/submission/{a}", "/rules"))
    routes.add_news(app, _API, keeper)
    _add_submissions(app, keeper)
    _add_rules(app)
    routes.add_parts(app, _API, keeper, PARTS)
    return PageAccess(app, "local", refusal=_REFUSAL)


def _add_submissions(app: FastAPI, keeper: NodePageKeeper) -> None:
    @app.get(f"{_API}/list")
    async def rows(
        request: Request,
        state: Literal["", "made", "committed", "stored", "accepted", "soft", "hard", "lost"] = "",
        offset: Annotated[int, Query(ge=0, lt=10**7)] = 0,
        limit: Annotated[int, Query(ge=1, le=ROWS_MAX)] = ROWS,
    ) -> Response:
        keeper.want()
        read = partial(keeper.rows, state, offset, limit)
        found = await keeper.lists.ask((state, offset, limit), keeper.list_mark, read)
        return absent("list", "on this page") if found is None else tagged(request, found.body, found.tag)

    @app.get(f"{_API}/submissions/{{id}}")
    async def submission(request: Request, id: str) -> Response:
        keeper.want()
        try:
            digest = bytes.fromhex(id)
        except ValueError:
            return absent("submission", "of this node")
        found = await keeper.details.ask(digest, keeper.stretch, partial(keeper.submission, digest))
        return absent("submission", "of this node") if found is None else tagged(request, found.body, found.tag)


def _rules_file() -> Path:
    """The rules of verification: of the checkout, or what the wheel has put among the environment's documents."""
    places = (Path(__file__).parents[3], Path(sysconfig.get_path("data"), DOCUMENTS))
    return next((place / rule_words.PAGE for place in places if (place / rule_words.PAGE).is_file()), places[0])


def _add_rules(app: FastAPI) -> None:
    file = _rules_file()
    outcomes = {outcome.name.lower(): means for outcome, means in rule_words.OUTCOMES.items()}
    said = PageDocument.of(
        {"page": rule_words.PAGE, "has_page": file.is_file(), "outcomes": outcomes, "rules": rule_words.RULES}
    )

    @app.get(f"{_API}/rules")
    async def rules(request: Request) -> Response:
        return tagged(request, said.body, said.tag)

    @app.get(f"/{rule_words.PAGE}")
    async def in_full(request: Request) -> Response:
        if not file.is_file():
            return absent("file", "on this page")
        found = file.read_bytes()
        return tagged(request, found, f'"{len(found)}-{file.stat().st_mtime_ns}"', "text/plain; charset=utf-8")
