"""A page of a made-up run on a real socket, as the hub serves it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from benches.page_run import RUN, MadeRun
from fastapi import FastAPI

from tests.clock import eventually
from trainer.config import HubSettings
from trainer.hub.server import HubServer
from trainer.page.app import beside
from trainer.page.keeper import PageKeeper


@dataclass
class Shown:
    run: MadeRun
    keeper: PageKeeper
    url: str
    """Of the hub."""

    @property
    def page(self) -> str:
        return f"{self.url}/run/{RUN}/"

    def get(self, path: str, headers: dict[str, str] | None = None, **query: Any) -> httpx.Response:
        return httpx.get(f"{self.page}{path}", params=query, headers=headers, timeout=30)

    def part(self, name: str, **query: Any) -> Any:
        answer = self.get(f"api/v1/{name}", **query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def wait_for(self, name: str, is_so: Any) -> Any:
        """A part of the page once it is as wanted."""

        def look() -> bool:
            self.keeper.want()
            return name in self.keeper.content.parts and bool(is_so(self.part(name)))

        eventually(look, what=f"the part {name} is as it should be")
        return self.part(name)

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        def look() -> bool:
            self.keeper.want()
            return is_so()

        eventually(look, what="what is waited for")

    def ready(self) -> Shown:
        self.wait_for("run", lambda run: run["read"] == 1)
        return self


@contextmanager
def shown(run: MadeRun, settings: HubSettings | None = None, **sources: Any) -> Iterator[Shown]:
    keeper = PageKeeper(run.sources(**sources), turn_seconds=0.02)
    app = beside(FastAPI(openapi_url=None), keeper, RUN, settings or HubSettings())
    with keeper, HubServer(app, "127.0.0.1", 0) as server:
        yield Shown(run, keeper, f"http://127.0.0.1:{server.port}")
