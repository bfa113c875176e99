"""The page's JSON: what it says, to whom, how much of it, and that it is asked for again in vain where nothing is new."""

from __future__ import annotations

import json
import sqlite3
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from benches.page_run import RUN, MadeRun

from protocol.page import assets
from protocol.verdict import Outcome
from tests.page.conftest import STRANGE
from tests.page.shown import Shown, shown
from trainer.config import HubSettings
from trainer.page.app import FOLDER, PARTS
from trainer.page.keeper import PageKeeper
from trainer.page.tallies import RunTallies

LIMIT = 300 << 10


def test_the_overview_says_what_the_run_is_and_how_far(page: Shown) -> None:
    run = page.part("run")
    assert (run["run"], run["version"], run["read"]) == (RUN, page.run.steps - 1, 1)
    assert run["counts"]["submissions"] == len(page.run.submissions)
    convicted = sum(row["state"] == "convicted" for row in page.part("nodes", limit=100)["rows"])
    assert convicted and run["counts"]["nodes"] == len(page.run.nodes) - convicted
    assert run["trainer"]["state"] == "waiting for rollouts"
    assert run["trainer"]["waiting"] == {"groups": 11, "wanted": 16}


def test_money_is_told_in_wei_of_events_and_of_the_contracts(page: Shown) -> None:
    money = page.part("money")
    assert money["funded"] == str(10_000 * 10**18)
    assert (money["free"], money["reserved"]) == (str(8_000 * 10**18), str(1_500 * 10**18))
    assert money["paid"] == str(15 * 10**18)


def test_charts_hold_a_value_or_a_gap_for_each_step(page: Shown) -> None:
    charts = page.part("charts")
    assert charts["steps"] == list(range(page.run.steps))
    series = [charts["reward"], *charts["reward_by_environment"].values(), *charts["seconds"].values()]
    assert {len(each) for each in series} == {page.run.steps}
    assert charts["held_out"]["steps"] == [0, 5, 10, 15]


def test_verdicts_name_rule_measured_value_and_threshold(page: Shown) -> None:
    verdicts = page.part("verdicts")
    assert {line["outcome"] for line in verdicts["rejections"]} <= {"soft", "hard"}
    line = verdicts["rejections"][0]
    assert (line["measured"], line["threshold"]) == ("9.89068", "0.5") and line["rule"] in ("available", "sampling")


def test_what_strangers_wrote_comes_through_as_text_and_no_control_character_as_itself(page: Shown) -> None:
    answer = page.get("api/v1/samples")
    assert [sample["completion"] for sample in answer.json()][1] == STRANGE
    assert answer.content.isascii() and not set(answer.content) & set(range(32))
    assert answer.headers["content-type"] == "application/json"


def test_nodes_are_sorted_and_searched_and_come_in_pages(page: Shown) -> None:
    first = page.part("nodes", sort="tokens", order="down", limit=10)
    rest = page.part("nodes", sort="tokens", order="down", limit=100, offset=10)
    tokens = [row["tokens"] for row in first["rows"] + rest["rows"]]
    assert first["total"] == len(tokens) == len(page.run.nodes)
    assert tokens == sorted(tokens, reverse=True)
    wanted = page.run.nodes[5]
    assert [row["address"] for row in page.part("nodes", find=wanted[4:20].upper())["rows"]] == [wanted]
    amounts = page.part("nodes", sort="paid", order="up", limit=100)["rows"]
    assert [int(row["paid"]) for row in amounts] == sorted(int(row["paid"]) for row in amounts)


@pytest.mark.parametrize("query", [{"sort": "nothing"}, {"limit": 101}, {"offset": -1}, {"find": "x" * 65}])
def test_what_no_table_has_is_refused(page: Shown, query: dict[str, Any]) -> None:
    assert page.get("api/v1/nodes", **query).status_code == 422


# ---- details ---------------------------------------------------------------------------------------------------------------


def test_a_node_tells_of_its_seat_its_work_and_its_cases(page: Shown) -> None:
    seat, number = page.run.cases[0]
    node = page.part(f"nodes/{seat}")
    assert node["address"] == seat and node["row"]["state"] == "convicted"
    assert [case["number"] for case in node["cases"]] == [number]
    mine = [one for one in page.run.submissions if one.ref.node == seat]
    assert [line["submission"] for line in node["submissions"]] == [one.id.hex() for one in reversed(mine)][:50]


def test_a_submission_tells_of_its_receipts(page: Shown) -> None:
    made = next(one for one in page.run.submissions if one.outcome == Outcome.SOFT)
    told = page.part(f"submissions/{made.id.hex()}")
    assert (told["node"], told["outcome"], told["tokens"]) == (made.ref.node, "soft", made.units)
    assert told["receipts"][0]["detail"] == "row 0, token 1: margin"


def test_a_case_tells_what_happened_in_order_with_transactions(page: Shown) -> None:
    seat, number = page.run.cases[0]
    case = page.part(f"cases/{seat}/{number}")
    kinds = [event["kind"] for event in case["events"]]
    assert kinds == ["Challenged", "CoSigned", "Appealed", "Voted", "Abstained", "Settled"]
    assert all(event["transaction"].startswith("0x") for event in case["events"])
    assert case["accused"][0]["upheld"]


def test_a_version_tells_of_the_work_on_it_and_of_its_step(page: Shown) -> None:
    version = page.part("versions/3")
    assert version["work"]["submissions"] == sum(one.ref.step == 3 for one in page.run.submissions)
    assert version["record"]["step"] == 3


@pytest.mark.parametrize(
    "path", ["nodes/0x0000000000000000000000000000000000000001", "nodes/nobody", "submissions/" + "ab" * 32, "submissions/x",
             "cases/0x0000000000000000000000000000000000000001/1", "versions/999", "versions/99999999999999"],
)  # fmt: skip
def test_what_is_not_there_is_not_found(page: Shown, path: str) -> None:
    answer = page.get(f"api/v1/{path}")
    assert answer.status_code == 404 and "no such" in answer.json()["error"]


def test_details_cost_as_many_queries_in_a_large_run_as_in_a_small_one(tmp_path: Path) -> None:
    counted: list[dict[str, int]] = []
    for name, nodes in (("small", 8), ("large", 160)):
        run = MadeRun(tmp_path / name, nodes=nodes, per_node=12, steps=12)
        with shown(run) as page:
            page.ready()
            counts: dict[str, int] = {}
            assert page.keeper.details is not None
            database: sqlite3.Connection = page.keeper.details._view._db
            made = run.submissions[0]
            for path in (f"nodes/{made.ref.node}", f"submissions/{made.id.hex()}", "versions/1"):
                queries: list[str] = []
                database.set_trace_callback(queries.append)
                page.part(path)
                database.set_trace_callback(None)
                counts[path.partition("/")[0]] = len(queries)
            counted.append(counts)
        run.close()
    assert counted[0] == counted[1]
    assert all(0 < count < 30 for count in counted[0].values())


# ---- tags and events -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", "static/uPlot.iife.min.js", "api/v1/charts", "api/v1/nodes"])
def test_what_a_browser_has_is_not_sent_again(page: Shown, path: str) -> None:
    first = page.get(path)
    again = page.get(path, headers={"if-none-match": first.headers["etag"]})
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")
    assert page.get(path, headers={"if-none-match": '"another"'}).status_code == 200


def events_of(text: str) -> list[dict[str, Any]]:
    blocks = [dict(line.split(": ", 1) for line in block.split("\n")) for block in text.strip().split("\n\n")]
    return [block for block in blocks if "event" in block]


def test_an_event_comes_when_something_is_new_and_names_what(own_run: MadeRun) -> None:
    own_run.train()
    with shown(own_run) as page:
        page.ready()
        [event] = events_of(page.get("api/v1/events", wait=20).text)
        before = json.loads(event["data"])["parts"]
        own_run.train(4)  # the trainer begins anew
        changed: set[str] = set()
        while "charts" not in changed:
            told = page.get("api/v1/events", {"last-event-id": event["id"]}, wait=20)
            assert told.headers["content-type"].startswith("text/event-stream")
            [event] = events_of(told.text)
            parts = json.loads(event["data"])["parts"]
            changed = {name for name, tag in parts.items() if before[name] != tag}
        assert page.part("charts")["steps"] == [0, 1, 2, 3]


def test_without_news_an_event_stream_ends_with_nothing_but_when_to_ask_again(own_run: MadeRun) -> None:
    stands, asked = threading.Event(), list[None]()

    def is_busy() -> bool:
        if stands.is_set():
            asked.append(None)
        return stands.is_set()

    with shown(own_run, is_busy=is_busy) as page:
        page.ready()
        stands.set()
        page.wait_until(lambda: bool(asked))  # no turn is under way any more
        answer = page.get("api/v1/events", wait=0, have=page.keeper.content.mark)
        assert events_of(answer.text) == [] and answer.text.startswith("retry: ")


def test_a_page_without_book_says_why_and_fills_once_it_is_there(tmp_path: Path) -> None:
    run = MadeRun(tmp_path, nodes=3, per_node=2, steps=2)
    hidden = run.book.with_suffix(".later")
    with shown(run, book=hidden) as page:
        news = json.loads(events_of(page.get("api/v1/events", wait=20, have=page.keeper.content.mark).text)[0]["data"])
        assert "its log says why" in news["trouble"] and str(tmp_path) not in news["trouble"], (
            "its files are nobody's business"
        )
        assert page.get("api/v1/run").status_code == 503
        assert page.get(f"api/v1/nodes/{run.nodes[0]}").status_code == 503
        run.end()
        hidden.symlink_to(run.book)
        Path(f"{hidden}-wal").symlink_to(f"{run.book}-wal")
        Path(f"{hidden}-shm").symlink_to(f"{run.book}-shm")
        page.ready()
        assert page.part("parts")["trouble"] is None


def test_a_turn_that_fails_midway_counts_nothing_twice(own_run: MadeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    judge, failures = RunTallies._judge, [RuntimeError("the disk hiccups")]

    def fails_once(tallies: RunTallies, data: bytes) -> None:
        judge(tallies, data)
        if failures:
            raise failures.pop()

    monkeypatch.setattr(RunTallies, "_judge", fails_once)
    with shown(own_run) as page:
        page.ready()
        assert not failures
        counts = page.part("run")["counts"]
        assert counts["submissions"] == len(own_run.submissions)
        assert counts["judged"] == sum(one.outcome is not None for one in own_run.submissions)


def test_nothing_is_read_while_nobody_looks_and_nothing_while_the_hub_is_busy(own_run: MadeRun) -> None:
    asked: list[None] = []

    def is_busy() -> bool:
        asked.append(None)
        return True

    with shown(own_run, is_busy=is_busy) as page:
        assert not asked
        page.get("api/v1/parts")
        page.wait_until(lambda: len(asked) > 2)
        assert page.keeper.content.parts == {}


def test_the_chain_is_asked_a_few_things_a_turn_however_many_seats_there_are(own_run: MadeRun) -> None:
    from benches.page_run import QuietChain

    from trainer.page.stakes import SEATS_A_TURN, StakeLooks

    chain = QuietChain()
    looks = StakeLooks(chain, RUN)  # type: ignore[arg-type]
    seats = [f"seat {i}" for i in range(1000)]
    looks.look(seats, ["validator"])
    first = chain.asked
    looks.look(seats, ["validator"])
    assert first <= SEATS_A_TURN + 3
    assert chain.asked - first == SEATS_A_TURN
    assert len(looks.seats) + len(looks.validators) == 2 * SEATS_A_TURN, "each turn asks for others"


# ---- sizes and files -------------------------------------------------------------------------------------------------------


def test_a_page_with_all_its_parts_is_small(tmp_path: Path) -> None:
    run = MadeRun(tmp_path, nodes=200, per_node=12, steps=12)
    run.train(5_000)
    run.show_samples(*[("x" * 4000, "\u202e" * 700 + "y" * 4000)] * 40)
    with shown(run) as page:
        page.ready()
        loaded = [
            "",
            *(f"static/{name}" for name in assets.read_assets(FOLDER, "") if not name.endswith((".html", ".LICENSE"))),
        ]
        sizes = {
            path: len(page.get(path).content)
            for path in [*loaded, *(f"api/v1/{part}" for part in PARTS), "api/v1/nodes"]
        }
    run.close()
    assert sum(sizes.values()) <= LIMIT, sizes


def test_the_vendored_files_are_those_of_the_version_that_is_named() -> None:
    import hashlib

    for name, digest in assets.VENDORED.items():
        assert hashlib.sha256((assets.SHARED / name).read_bytes()).hexdigest() == digest, name
    assert "MIT License" in (assets.SHARED / "uPlot.LICENSE").read_text()
    assert "v1.6.32" in (assets.SHARED / "uPlot.iife.min.js").read_text()[:200]
    assert "1.6.32" in (assets.__doc__ or "")


def test_the_pages_own_files_name_nothing_outside() -> None:
    for path in (*assets.SHARED.iterdir(), *FOLDER.iterdir()):
        if path.name not in assets.VENDORED:
            text = path.read_text()
            assert "http://" not in text.replace("http://www.w3.org/2000/svg", "") and "https://" not in text, path.name
            assert "innerHTML" not in text and "insertAdjacentHTML" not in text and "eval(" not in text, path.name


def test_more_questions_than_two_threads_get_to_are_refused(own_run: MadeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    from protocol.page import inquiries

    monkeypatch.setattr(inquiries, "WAITING_MAX", 0)
    with shown(own_run) as page:
        page.ready()
        assert page.get(f"api/v1/nodes/{own_run.nodes[0]}").status_code == 503


def test_off_means_that_there_is_no_page(own_run: MadeRun) -> None:
    with shown(own_run, HubSettings(page="off")) as page:
        assert page.get("").status_code == 404


def test_the_hubs_address_leads_to_the_page(page: Shown) -> None:
    assert httpx.get(page.url, follow_redirects=True).url == page.page


def test_a_keeper_ends_with_its_context(own_run: MadeRun) -> None:
    with shown(own_run) as page:
        page.ready()
        keeper: PageKeeper = page.keeper
    assert not keeper._thread.is_alive()
