"""The run's page at 1,000 nodes and 100,000 submissions: how long its JSON takes to come, what the thread that makes it costs, how large
a page is, and what Chromium, where there is one, does at once for longest.

A made-up run (page_run.py) is served over a real socket by the hub's server. Every part is asked for in turn, and details of nodes,
submissions, cases and versions drawn at random, while the page is kept up to date; the figure is the 95th percentile of all answers.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
from fastapi import FastAPI
from swarm.processes import wait_until

from benches import Bench, Cost
from benches.chromium import Chromium, program
from benches.page_run import RUN, MadeRun
from protocol.page.assets import read_assets
from trainer.config import HubSettings
from trainer.hub.server import HubServer
from trainer.page.app import FOLDER, PARTS, beside
from trainer.page.keeper import PageKeeper

NODES, SUBMISSIONS = 1_000, 100_000
_ASKED = 1_000
_LONG_TASKS = """
window.longest = 0;
new PerformanceObserver(list => { for (const e of list.getEntries()) window.longest = Math.max(window.longest, e.duration); })
    .observe({ type: 'longtask', buffered: true });
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--submissions", type=int, default=SUBMISSIONS)


def run(*, nodes: int = NODES, submissions: int = SUBMISSIONS) -> Bench:
    bench = Bench("page")
    with tempfile.TemporaryDirectory() as folder:
        made = MadeRun(Path(folder), nodes=nodes, per_node=submissions // nodes, steps=min(100, submissions // nodes))
        made.train(1_000, wall=time.time())
        made.show_samples(*[("What is it?", "It is this. " * 100)] * 8)
        keeper = PageKeeper(made.sources())
        app = beside(FastAPI(openapi_url=None), keeper, RUN, HubSettings())
        with keeper, HubServer(app, "127.0.0.1", 0) as server:
            _measure(bench, made, keeper, f"http://127.0.0.1:{server.port}/run/{RUN}/")
        made.close()
    return bench


def _measure(bench: Bench, made: MadeRun, keeper: PageKeeper, url: str) -> None:
    api = httpx.Client(base_url=f"{url}api/v1/", timeout=30)

    def is_read() -> bool:
        answer = api.get("run")
        return answer.status_code == 200 and answer.json()["read"] == 1

    began = time.monotonic()
    wait_until(is_read, deadline=300, what="the run is read")
    bench.rows.append(Cost("reading the past", "s", time.monotonic() - began, None, None, None))
    took = []
    for path in _questions(made):
        began = time.monotonic()
        assert api.get(path).status_code == 200, path
        took.append(1000 * (time.monotonic() - began))
    bench.rows.append(Cost("an answer, median", "ms", statistics.median(took), None, None, None))
    bench.rows.append(Cost("an answer, 95th percentile", "ms", statistics.quantiles(took, n=20)[-1], None, None, 200))
    files = [name for name in read_assets(FOLDER, "") if not name.endswith((".html", ".LICENSE"))]
    loaded = [url, *(f"{url}static/{name}" for name in files), *(f"{url}api/v1/{part}" for part in (*PARTS, "nodes"))]
    size = sum(len(api.get(path).content) for path in loaded)
    bench.rows.append(Cost("a page with all its parts", "kB", size / 1000, None, None, 300 * 1.024))
    api.close()
    if program() is not None:
        bench.rows.append(
            Cost("longest task of Chromium's main thread", "ms", _longest_task(made, keeper, url), None, None, 200)
        )


def _questions(made: MadeRun) -> Iterator[str]:
    dice = random.Random(0)
    for i in range(_ASKED):
        submission = dice.choice(made.submissions)
        seat, number = dice.choice(made.cases)
        yield from (
            (*PARTS, "nodes")[i % (len(PARTS) + 1)],
            f"nodes?sort=tokens&offset={dice.randrange(len(made.nodes))}&find={dice.choice('0123456789abcdef')}",
            (
                f"nodes/{submission.ref.node}", f"submissions/{submission.id.hex()}", f"cases/{seat}/{number}",
                f"versions/{dice.randrange(made.steps)}",
            )[i % 4],
        )  # fmt: skip


def _longest_task(made: MadeRun, keeper: PageKeeper, url: str) -> float:
    """While the page is opened, all of it is drawn anew a few times, and a table is sorted."""
    with Chromium() as browser, browser.tab(1440, 900) as tab:
        tab.before_scripts(_LONG_TASKS)
        tab.open(url)
        tab.wait("document.querySelector('#nodes td') && document.querySelector('#samples .sample')")
        for turn in range(3):
            before = keeper.content.mark
            made.train(1_001 + turn, wall=time.time())
            wait_until(lambda before=before: keeper.content.mark != before, deadline=60, what="the page is made anew")
            tab.wait(f"document.querySelector('.tiles').innerText.includes('{1_001 + turn:,} of')")
            tab.ask("document.querySelectorAll('#nodes th button')[8].click()")
        return float(tab.ask("window.longest"))
