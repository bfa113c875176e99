"""The node's page: who may see it, what it tells of a real home, what it never tells, and what it costs while nobody looks."""

from __future__ import annotations

import logging
import os
import resource
import socket
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest
from starlette.responses import PlainTextResponse

from node.contributor import earning, submission_log
from node.contributor.page import app, service
from node.contributor.page.keeper import PARTS, NodePageKeeper
from node.contributor.submission_log import SubmissionLog
from protocol.chain.types import Settlement, Stage
from protocol.errors import IntegrityError, Unavailable
from protocol.page import assets, keeper, server
from protocol.page.log_tail import LogTail, last_of
from tests.clock import eventually
from tests.page.made_node import DAY, KEY, NODE, NOW, RPC, WINDOW, MadeChain, MadeNode, ShownNode, shown_node

LIMIT = 300_000


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShownNode]:
    node = MadeNode(tmp_path_factory.mktemp("home")).work().run().network()
    with shown_node(node, node.told()) as page:
        yield page.ready()


# ---- who may see it --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8480", "10.0.0.1", "127.0.0.1.evil.example"])
def test_a_name_that_somebody_else_chose_leads_to_nothing(shown: ShownNode, host: str) -> None:
    for path in ("", "api/v1/node", "api/v1/list", "static/page.js", "docs/rules.md"):
        assert shown.get(path, {"host": host}).status_code == 403, path


def test_what_comes_through_a_proxy_is_refused(shown: ShownNode) -> None:
    assert shown.get("api/v1/node", {"x-forwarded-for": "1.2.3.4"}).status_code == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_written(shown: ShownNode, method: str) -> None:
    assert httpx.request(method, f"{shown.url}api/v1/node", timeout=30).status_code == 405


@pytest.mark.parametrize(
    "path", ["", "submission/abc", "rules", "api/v1/node", "api/v1/submissions/zz", "static/page.css"]
)
def test_every_answer_forbids_what_a_page_does_not_need(shown: ShownNode, path: str) -> None:
    headers = shown.get(path, {"origin": "https://evil.example"}).headers
    assert (
        "default-src 'none'" in headers["content-security-policy"]
        and "unsafe" not in headers["content-security-policy"]
    )
    assert headers["cross-origin-resource-policy"] == "same-origin" and "server" not in headers
    assert not [name for name in headers if name.startswith("access-control-")]


def test_it_listens_on_the_loopback_alone(shown: ShownNode) -> None:
    assert shown.server._listener.getsockname()[0] == "127.0.0.1"


# ---- what it tells -----------------------------------------------------------------------------------------------------------


def test_each_part_is_there_and_is_sent_again_only_when_it_is_another(shown: ShownNode) -> None:
    for name in PARTS:
        answer = shown.get(f"api/v1/{name}")
        assert answer.status_code == 200, name
        tag = answer.headers["etag"]
        assert shown.get(f"api/v1/{name}", {"if-none-match": tag}).status_code == 304 or name in ("machine", "log")
    assert shown.get("api/v1/secrets").status_code == 404


def test_submissions_are_listed_newest_first_in_pages_and_by_state(shown: ShownNode) -> None:
    first, second = shown.part("list", limit=25), shown.part("list", limit=25, offset=25)
    assert first["total"] == 54 and len(first["rows"]) == 25
    times = [row["made_at"] for row in first["rows"] + second["rows"]]
    assert times == sorted(times, reverse=True)
    soft = shown.part("list", state="soft")
    assert soft["total"] == first["counts"]["soft"] == len(soft["rows"]) == 3
    assert {row["rule"] for row in soft["rows"]} == {"reward"}
    assert all(row["unlocks"] >= row["made_at"] + WINDOW for row in soft["rows"])
    assert shown.get("api/v1/list", state="nonsense").status_code == 422


def test_a_submission_shows_its_receipt_in_words_and_the_rule_leads_to_its_description(shown: ShownNode) -> None:
    id = shown.part("list", state="soft")["rows"][0]["submission"]
    verdict = shown.part(f"submissions/{id}")["verdict"]
    assert (verdict["outcome"], verdict["rule"], verdict["samples"]) == ("soft", "reward", "0–1, 3")
    assert "earns nothing" in verdict["means"] and "environment" in verdict["rule_means"]
    rules = shown.part("rules")
    assert verdict["rule"] in rules["rules"] and rules["has_page"]
    assert f"`{verdict['rule']}`" in shown.get(rules["page"]).text


@pytest.mark.parametrize("id", ["00" * 32, "zz", "ab" * 200])
def test_a_submission_that_is_none_of_this_node_is_said_to_be_none(shown: ShownNode, id: str) -> None:
    assert shown.get(f"api/v1/submissions/{id}").status_code == 404


def test_a_day_says_what_it_earned_and_from_when_on_all_of_it_can_be_claimed(tmp_path: Path) -> None:
    node, day = MadeNode(tmp_path), NOW - NOW % DAY
    with closing(SubmissionLog(node.place.data / submission_log.FILE)) as log:
        node.submit(log, 0, day - 10, submission_log.ACCEPTED)
        node.submit(log, 1, day + 10, submission_log.ACCEPTED)
        node.submit(log, 2, day + 20, submission_log.SOFT)
        node.submit(log, 3, day + 30, submission_log.STORED)
        today, yesterday = earning.by_day(log, WINDOW)
    assert (today["day"], yesterday["day"]) == (day, day - DAY)
    assert (today["accepted"], today["rejected"], today["unjudged"]) == (9_037, 9_074, 9_111)
    assert yesterday["accepted"] == 9_000
    assert day + 30 + WINDOW <= today["unlocks"] <= day + 30 + WINDOW * 6 // 5 + 1


LOST_ITS_SEAT = {"role": "banned", "cases": [{"told": "hard, by 0x3c: convicted"}]}
STATES = [
    ({"recent": {"accepted": 19, "soft": 1}}, "earning", "19 of the newest 20 judged submissions were accepted"),
    ({"recent": {"accepted": 3}, "doing": {"state": "waiting", "reason": "done for this version; waiting"}}, "earning", "done for this version"),
    ({"recent": {"accepted": 3}, "doing": {"state": "waiting", "reason": "the run's budget cannot pay"}}, "waiting", "budget"),
    ({"recent": {"soft": 4}}, "not earning", "all rejected"),
    ({"submissions": {"stored": 2}}, "waiting", "no validator has judged"),
    ({}, "waiting", "handed in nothing"),
    ({"head": None}, "waiting", "no weights"),
    ({"paused": True}, "waiting", "paused"),
    ({"running": False, "recent": {"accepted": 9}}, "not earning", "does not run"),
    ({"role": "none"}, "not earning", "no seat"),
    (LOST_ITS_SEAT, "not earning", "banned: hard"),
    ({"over": True, "recent": {"accepted": 9}}, "not earning", "over"),
    ({"suspended_until": NOW + 60, "strikes": 5}, "not earning", "suspended until"),
    ({"open_hard": 1}, "not earning", "hard case"),
    ({"gas": "0"}, "not earning", "no ETH"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "state", "why"), STATES, ids=[why for *_, why in STATES])
def test_it_says_whether_the_node_earns_and_why_not(
    tmp_path: Path, changes: dict[str, Any], state: str, why: str
) -> None:
    found = MadeNode(tmp_path).told(**changes)["earning"]
    assert found["state"] == state and why in found["why"]


def test_while_the_chain_is_away_it_tells_what_this_machine_knows(tmp_path: Path) -> None:
    node = MadeNode(tmp_path).work().run()
    with shown_node(node, node.told()) as page:
        page.ready()
        page.chain.told = None
        page.keeper._next_look = 0.0
        eventually(lambda: bool(page.part("node")["away"]), what="the page says that the chain is away")
        said = page.part("node")
        assert said["told"]["stake"] == node.told()["stake"] and said["told_at"]
        node.place.write_status(state="checking", step=13)
        eventually(lambda: page.part("node")["told"]["doing"]["state"] == "checking", what="the page goes on")


def test_what_the_node_does_shows_without_another_look_at_the_chain(shown: ShownNode) -> None:
    asked = shown.chain.asked
    shown.node.run(state="submitting")
    eventually(lambda: shown.part("node")["told"]["doing"]["state"] == "submitting", what="the page is new")
    assert shown.chain.asked <= asked + 1


def test_the_chain_is_asked_about_a_submission_once_by_all_who_look_and_keeps_nobody_waiting_for_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, goes_on, asked = MadeNode(tmp_path).work(days=2).run(), threading.Event(), []
    monkeypatch.setattr(MadeChain, "add_story", lambda *_: asked.append(goes_on.wait(20)))
    monkeypatch.setattr(NodePageKeeper, "stretch", "now")
    with shown_node(node, node.told()) as page, ThreadPoolExecutor(45) as readers:
        page.ready()
        answers = [readers.submit(page.get, f"api/v1/submissions/{node.made[0].hex()}") for _ in range(45)]
        try:
            eventually(lambda: len(page.connections) > 40, what="they wait")
            assert page.get("api/v1/list").status_code == page.get("api/v1/node").status_code == 200
        finally:
            goes_on.set()
        assert {answer.result().status_code for answer in answers} == {200}
        assert page.get(f"api/v1/submissions/{node.made[0].hex()}").status_code == 200
        assert len(asked) == 1
        monkeypatch.setattr(NodePageKeeper, "stretch", "later")
        assert page.get(f"api/v1/submissions/{node.made[0].hex()}").status_code == 200
        assert len(asked) == 2


def test_a_page_of_the_list_shows_a_new_submission_before_the_next_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that nobody looked at for an hour answered the first who came with the list of an hour ago."""
    node = MadeNode(tmp_path).work(days=1)
    with shown_node(node, node.told()) as page:
        page.ready()
        monkeypatch.setattr(NodePageKeeper, "_is_busy", lambda self: True)  # no more turns
        before = [page.part("list", limit=5) for _ in range(2)]
        assert before[0] == before[1]
        with closing(SubmissionLog(node.place.data / submission_log.FILE)) as log:
            id = node.submit(log, 999, NOW, submission_log.MADE)
            after = page.part("list", limit=5)
            assert (after["total"], after["rows"][0]["submission"]) == (before[0]["total"] + 1, id.hex())
            log.advance(id, submission_log.COMMITTED)
            assert page.part("list", limit=5)["rows"][0]["state"] == "committed"
        assert page.part("list", limit=5, state="committed")["rows"][0]["submission"] == id.hex()


def test_it_writes_nothing_also_where_a_case_has_ended(tmp_path: Path) -> None:
    node, noted, end = MadeNode(tmp_path).work(days=1), {}, Settlement(Stage.UPHELD, 9, 5, True, b"t" * 32, 7)
    path = node.place.data / submission_log.FILE
    with closing(SubmissionLog(path, noted)) as log:
        log.keep_settlements(NODE, 1, [end])
        assert log.settlements(NODE, 1) == [end] and noted == {(NODE, 1): [end]}
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            log.adopt(1, 2)
    with closing(SubmissionLog(path)) as log:
        assert log.settlements(NODE, 1) is None
    with pytest.raises(IntegrityError, match="cannot be read"):
        SubmissionLog(tmp_path / "nothing", noted)


@pytest.mark.parametrize("state", ["", "accepted"])
def test_a_late_page_of_many_submissions_is_found_in_an_index(tmp_path: Path, state: str) -> None:
    node, asked = MadeNode(tmp_path).work(), []
    with closing(SubmissionLog(node.place.data / submission_log.FILE)) as log:
        log._db.set_trace_callback(asked.append)
        rows = log.slice(state or None, 20, 10)
        log._db.set_trace_callback(None)
        plan = [line for *_, line in log._db.execute(f"EXPLAIN QUERY PLAN {asked[0]}")]
        assert rows == [one for one in log.all() if state in ("", one.state)][20:30]
    inner = plan[plan.index(next(line for line in plan if "SUBQUERY" in line)) + 1 :]
    assert "USING COVERING INDEX" in inner[0] and not inner[0].startswith("USE TEMP"), plan


# ---- what it never tells -----------------------------------------------------------------------------------------------------


def test_no_secret_of_an_endpoint_and_no_place_of_a_key_is_on_it(tmp_path: Path) -> None:
    node, tail = MadeNode(tmp_path).work().run(reason=f"{RPC} answered 429"), LogTail()
    log = logging.getLogger("a node")
    log.addHandler(tail)
    log.warning("%s does not answer; opened %s", RPC, node.place.keystore("node"))
    with shown_node(node, None, tail) as page:
        page.ready()
        id = page.part("list")["rows"][0]["submission"]
        texts = {path: page.get(f"api/v1/{path}").text for path in (*PARTS, "list", f"submissions/{id}", "parts")}
    assert "rpc.example" in texts["node"] and "rpc.example" in texts["log"]
    for path, text in texts.items():
        for secret in (KEY, "hunter2secret", "user:", "t0kenOfTheirs", str(node.place.path / "keys")):
            assert secret not in text, (path, secret)


def test_an_error_of_the_page_is_for_the_log_and_not_for_browsers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = MadeNode(tmp_path).work()
    with shown_node(node, None) as page:
        page.ready()
        file = node.place.data / submission_log.FILE
        for each in (file, file.with_name(f"{file.name}-wal"), file.with_name(f"{file.name}-shm")):
            each.unlink(missing_ok=True)
        for _ in range(3):
            answer = page.get("api/v1/list?offset=7")
            assert answer.status_code == 500
            assert str(tmp_path) not in answer.text
            assert "the log says why" in answer.json()["error"]
    assert caplog.text.count(f"{file} cannot be read") == 1


def test_what_is_only_busy_is_said_without_secrets(tmp_path: Path) -> None:
    with shown_node(MadeNode(tmp_path).work(), None) as page:
        page.ready()

        def fail(*_: object) -> None:
            raise Unavailable(f"{RPC} has too much to do")

        page.keeper.rows = fail  # type: ignore[method-assign]
        answer = page.get("api/v1/list?offset=7")
    assert answer.status_code == 503 and "rpc.example" in answer.text
    assert KEY not in answer.text


def test_a_secret_across_the_end_of_a_long_line_is_hidden_before_the_line_is_cut(tmp_path: Path) -> None:
    node, tail = MadeNode(tmp_path).work(), LogTail()
    log = logging.getLogger("a node that talks")
    log.addHandler(tail)
    before = len(tail.format(log.makeRecord("a node that talks", logging.WARNING, "", 0, "", (), None)))
    log.warning("%s", "x" * (2000 - before - len(RPC) // 2 - 1) + " " + RPC + " says no")
    with shown_node(node, None, tail) as page:
        page.ready()
        text = page.get("api/v1/log").text
    assert "xxx https://\\u2026@rpc.example/v2/\\u2026?token=\\u2026 " in text


@pytest.mark.parametrize("from_file", [False, True])
def test_a_secret_with_a_space_across_the_end_of_a_long_line_is_hidden_before_the_line_is_cut(
    tmp_path: Path, from_file: bool
) -> None:
    """A cut between two of its words left the first, which alone is not known for a part of it."""
    node, tail = MadeNode(tmp_path / "with a space").work(), LogTail()
    logger, keys = logging.getLogger("a node with a space"), str(node.place.path / "keys")
    empty = logger.makeRecord(logger.name, logging.WARNING, "", 0, "", (), None)
    line = "x" * (1_990 - keys.index(" ") - (0 if from_file else len(tail.format(empty)))) + f" {keys}/node.json"
    if from_file:
        (tmp_path / "node.log").write_text(f"{line}\n")
        logging_settings = node.settings.logging.model_copy(update={"file": str(tmp_path / "node.log")})
        node.settings = node.settings.model_copy(update={"logging": logging_settings})
    else:
        logger.addHandler(tail)
        logger.warning("%s", line)
    with shown_node(node, None, None if from_file else tail) as page:
        if from_file:
            page.keeper._tail = None
        lines = page.ready().part("log")["lines"]
    assert any("xxx" in one for one in lines)
    assert str(tmp_path) not in str(lines)


# ---- what it costs -----------------------------------------------------------------------------------------------------------


def test_nothing_is_read_nor_served_before_somebody_looks_and_after_they_have_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = MadeNode(tmp_path).work(days=1)
    monkeypatch.setattr(keeper, "WATCHED_SECONDS", 0.2)
    with shown_node(node, node.told(), quiet_seconds=0.2) as page:
        assert not page.server.is_awake and page.chain.asked == 0 and not page.keeper.content.parts
        assert page.get("").status_code == 200 and page.server.is_awake
        page.ready()
        eventually(lambda: not page.server.is_awake, what="the server sleeps again")
        eventually(lambda: not page.keeper.is_watched, what="nobody looks any more")
        asked = page.chain.asked
        assert page.get("api/v1/node").status_code == 200, "whoever comes later is answered too"
        assert page.chain.asked == asked


def test_a_page_with_all_its_parts_is_small(tmp_path: Path) -> None:
    node, tail = MadeNode(tmp_path).work(days=30, per_day=20).run().network(), LogTail()
    for _ in range(200):
        tail.emit(logging.LogRecord("node", logging.INFO, "", 0, "x" * 200, (), None))
    with shown_node(node, node.told(), tail) as page:
        page.ready()
        names = [name for name in assets.read_assets(app.FOLDER, "") if not name.endswith((".html", ".LICENSE"))]
        paths = ["", *(f"static/{name}" for name in names), *(f"api/v1/{part}" for part in (*PARTS, "list", "rules"))]
        sizes = {path: len(page.get(path).content) for path in paths}
    assert sum(sizes.values()) <= LIMIT, sizes


def test_it_ends_at_once_also_while_somebody_waits_for_news(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = MadeNode(tmp_path)
    with ThreadPoolExecutor(1) as reader:
        with shown_node(node, node.told()) as page:
            mark = page.ready().part("parts")["mark"]
            waiting = reader.submit(page.get, "api/v1/events", wait=25, have=mark)
            eventually(lambda: len(page.keeper.news) > 0 or waiting.done(), what="somebody waits")
        assert waiting.result(1).status_code == 200
    assert "uvicorn" not in caplog.text


def test_it_ends_without_a_word_also_while_somebody_waits_for_the_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node, goes_on, asked = MadeNode(tmp_path).work(days=1), threading.Event(), threading.Event()
    monkeypatch.setattr(MadeChain, "add_story", lambda *_: asked.set() or goes_on.wait(20))
    with ExitStack() as afterwards:
        afterwards.callback(goes_on.set)
        with shown_node(node, node.told()) as page:
            afterwards.enter_context(_asking(page, b"/api/v1/submissions/" + node.made[0].hex().encode()))
            assert asked.wait(20)
        assert not page.server._thread.is_alive()
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]


# ---- other programs of the machine -----------------------------------------------------------------------------------------


def test_connections_that_say_nothing_take_few_files_and_their_owner_gets_in(tmp_path: Path) -> None:
    node = MadeNode(tmp_path).run()
    with shown_node(node, node.told()) as page, ExitStack() as stack:
        page.ready()
        assert page.get("").status_code == 200
        for _ in range(4 * server.CONNECTIONS_MAX):
            stack.enter_context(socket.create_connection(page.address))
        eventually(lambda: _gets_in(page), what="the owner gets in", within=5)
        assert len(page.connections) <= server.CONNECTIONS_MAX + server._LEAVING_MAX


def test_those_who_wait_for_news_keep_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = MadeNode(tmp_path).run()
    with shown_node(node, node.told()) as page, ExitStack() as stack:
        page.ready()
        monkeypatch.setattr(page.keeper, "_replace", lambda content: None)  # no news come
        path = b"/api/v1/events?wait=25&have=" + page.keeper.content.mark.encode()
        for _ in range(2 * server.CONNECTIONS_MAX):
            stack.enter_context(_asking(page, path))
        eventually(lambda: _gets_in(page), what="the owner gets in", within=5)


def test_a_connection_that_never_asks_is_ended_and_the_server_sleeps_again(tmp_path: Path) -> None:
    node = MadeNode(tmp_path)
    with shown_node(node, node.told(), quiet_seconds=0.1, head_seconds=0.3) as page, ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(page.address)) for _ in range(3)]
        silent[0].send(b"GET / HT")
        eventually(lambda: page.server.is_awake, what="it wakes")
        eventually(lambda: not page.server.is_awake, what="it sleeps again", within=5)


def test_without_a_file_left_it_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    listener = server.listen(0)
    assert listener is not None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with server.SleepingServer(listener, lambda: PlainTextResponse("ok")) as page, ExitStack() as stack:
        assert httpx.get(page.url).status_code == 200
        waiting = [stack.enter_context(socket.socket()) for _ in range(3)]
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
            for one in waiting:
                one.connect(listener.getsockname())
            eventually(lambda: "cannot open files" in caplog.text, what="it says so")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        eventually(lambda: httpx.get(page.url).status_code == 200, what="it answers again")
    told = [record for record in caplog.records if record.name in ("asyncio", "protocol.page.server")]
    assert len(told) == 1 and len(told[0].getMessage()) < 200


def _gets_in(page: ShownNode) -> bool:
    with suppress(httpx.TransportError):
        return page.get("api/v1/node").status_code == 200
    return False


def _asking(page: ShownNode, path: bytes) -> socket.socket:
    made = socket.create_connection(page.address)
    made.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    return made


def test_its_log_says_nothing_of_its_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    node = MadeNode(tmp_path)
    with shown_node(node, node.told(), quiet_seconds=0.1) as page:
        assert page.get("").status_code == 200
        with socket.create_connection(page.address) as one:
            one.sendall(b"nonsense\r\n\r\n")
            assert b"400" in one.recv(100)
        eventually(lambda: not page.server.is_awake, what="it sleeps again")
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]


def test_a_page_that_cannot_be_made_lets_nobody_wait(caplog: pytest.LogCaptureFixture) -> None:
    listener = server.listen(0)
    assert listener is not None
    with server.SleepingServer(listener, _no_app) as page:
        with pytest.raises(httpx.TransportError):
            httpx.get(page.url, timeout=60)
        with pytest.raises(httpx.ConnectError):
            httpx.get(page.url, timeout=60)
    assert "not served any more" in caplog.text


def _no_app() -> NoReturn:
    raise RuntimeError("no app")


def test_it_is_served_by_a_process_with_many_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2_000 if hard == resource.RLIM_INFINITY else min(hard, 2_000), hard))
    try:
        with ExitStack() as stack:
            for _ in range(1_024):
                stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
            listener = server.listen(0)
            assert listener is not None and listener.fileno() >= 1_024
            with server.SleepingServer(listener, lambda: PlainTextResponse("ok")) as page:
                assert httpx.get(page.url, timeout=60).status_code == 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_line_that_cannot_be_written_stops_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    tail = LogTail()
    tail.handle(logging.LogRecord("node", logging.INFO, "", 0, "%d", ("one",), None))
    assert tail.lines(str) == [] and "Logging error" in capsys.readouterr().err


# ---- ports -------------------------------------------------------------------------------------------------------------------


def test_a_second_node_takes_the_next_port(tmp_path: Path) -> None:
    with closing(server.listen(0)) as first:  # type: ignore[type-var]
        taken = first.getsockname()[1]
        second = server.listen(taken)
        assert second is not None
        with closing(second):
            assert taken < second.getsockname()[1] < taken + server.PORTS


def test_a_node_runs_without_its_page_where_every_port_is_taken_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = MadeNode(tmp_path)
    monkeypatch.setattr(server, "PORTS", 1)
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        settings = node.settings.model_copy(
            update={"page": node.settings.page.model_copy(update={"port": taken.getsockname()[1]})}
        )
        with service.page_of_running_node(node.place, settings, None):  # type: ignore[arg-type]
            assert node.place.page_url is None
    assert "has no page" in caplog.text


def test_off_means_that_nothing_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = MadeNode(tmp_path)
    monkeypatch.setattr(service, "listen", lambda port: pytest.fail("it listens"))
    settings = node.settings.model_copy(update={"page": node.settings.page.model_copy(update={"show": "off"})})
    with service.page_of_running_node(node.place, settings, None):  # type: ignore[arg-type]
        assert node.place.page_url is None


def test_a_running_node_names_its_page_in_its_status(tmp_path: Path) -> None:
    node = MadeNode(tmp_path)
    with service.page_of_running_node(node.place, node.settings, None):  # type: ignore[arg-type]
        node.run()
        assert (node.place.read_status() or {})["page_url"].startswith("http://127.0.0.1:")
    node.place.write_status(state="stopped")
    assert "page_url" not in (node.place.read_status() or {})


def test_the_end_of_a_log_file_is_shown_from_a_whole_line_on(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    assert last_of(path, str) == []
    path.write_text("".join(f"line {number} {'x' * 500}\n" for number in range(1_000)))
    lines = last_of(path, str)
    assert (
        100 < len(lines) <= 200
        and lines[-1].startswith("line 999 ")
        and all(line.startswith("line ") for line in lines)
    )
    assert NODE  # the home's own
