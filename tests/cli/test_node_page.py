"""`node page`, and that page and `node status` say the same of a real seat."""

from __future__ import annotations

import httpx

from node.contributor.commands.context import open_chain, settings
from node.contributor.page.service import served
from protocol.identity import Key
from protocol.verdict import Outcome
from tests.cli.conftest import Contributor
from tests.cli.test_node import submitted, told
from tests.clock import eventually


def test_the_page_says_what_status_says(contributor: Contributor) -> None:
    world = contributor.world
    contributor.seat()
    world.publish(0)
    world.seat_validator(Key.generate())
    accepted = told(contributor, submitted(contributor), Outcome.ACCEPT)
    told(contributor, submitted(contributor, 1), Outcome.SOFT)
    node = settings(contributor.home).value
    with served(contributor.home, node, lambda: open_chain(node)) as url:
        assert url is not None
        api = httpx.Client(base_url=f"{url}api/v1/", timeout=30)
        eventually(lambda: api.get("node").status_code == 200, what="the page is made")
        page, status = api.get("node").json()["told"], contributor.status()
        story = api.get(f"submissions/{accepted}").json()
        earned = api.get("earnings").json()
    assert page | {"now": 0} == status | {"now": 0}
    assert earned["maturing"] == status["maturing"] and earned["days"][0]["accepted"] > 0
    (row,) = contributor.run("submissions", accepted, "--json").json["submissions"]
    for name in ("chain", "next", "state"):
        assert story[name] == row[name], name


def test_the_page_of_a_running_node_is_named_and_not_served_twice(contributor: Contributor) -> None:
    contributor.works(state="waiting", page_url="http://127.0.0.1:8480/")
    done = contributor.run("page")
    assert (done.code, done.out.strip()) == (0, "http://127.0.0.1:8480/")
