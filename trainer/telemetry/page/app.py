"""The routes of the trainer's page: parse, read what the keeper has, answer.

    GET /                the page
    GET /api/v1/PART     trainer, alarms, timeline, charts, checkpoints, versions, log

The others, which every page has, are in protocol/page/routes.py.
"""

from __future__ import annotations

from pathlib import Path

from starlette.types import ASGIApp

from protocol.page import routes
from protocol.page.access import PageAccess
from protocol.page.assets import read_assets
from trainer.telemetry.page.keeper import PARTS, TrainerPageKeeper

FOLDER = Path(__file__).parent / "static"
_API = "/api/v1"
_REFUSAL = "this page is shown to browsers on this machine, under its address"


def create_page(keeper: TrainerPageKeeper) -> ASGIApp:
    app = routes.create_app(keeper.secrets.text)
    routes.add_files(app, "", read_assets(FOLDER, ""), ("/",))
    routes.add_news(app, _API, keeper)
    routes.add_parts(app, _API, keeper, PARTS)
    return PageAccess(app, "local", refusal=_REFUSAL)
