"""The node's page as its contributor sees it, in headless Chromium: in every state, width and colour, and with strangers' words."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from benches.chromium import WHY_NOT, Chromium, Tab, program

from node.contributor import submission_log
from node.contributor.submission_log import SubmissionLog
from protocol.page.log_tail import LogTail
from tests.page.conftest import STRANGE
from tests.page.made_node import DAY, NOW, VALIDATOR, MadeNode, ShownNode, shown_node

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(program() is None or shutil.which("bash") is None, reason=WHY_NOT),
]
SECTIONS = ("earnings", "submissions", "seat", "machine", "network", "log")
DRAWN = "document.querySelector('#log .log, #log .empty:not(:empty)') && document.querySelector('#network .facts, #network .empty') && document.querySelector('#submissions .pages') && !document.body.innerText.includes('loading') && document.querySelector('#live').className === 'on'"


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as made:
        yield made


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShownNode]:
    node, tail = MadeNode(tmp_path_factory.mktemp("home")).work().run().network(), LogTail()
    tail.emit(logging.LogRecord("node", logging.INFO, "", 0, "step 13, sequence 1 committed", (), None))
    with shown_node(node, node.told(), tail) as page:
        yield page.ready()


@pytest.fixture
def tab(browser: Chromium, shown: ShownNode) -> Iterator[Tab]:
    with browser.tab() as made:
        made.open(shown.url)
        made.wait(DRAWN)
        yield made


def test_it_says_first_whether_the_node_earns_and_what_comes_next(tab: Tab, shown: ShownNode) -> None:
    assert tab.text("h1") == "Earning" and "of the newest 20 judged submissions" in tab.text(".headline")
    assert "node claim" in tab.text(".headline .next code")
    assert "104 MUR" in " ".join(tab.text(".tiles").split()) and "413 tokens/s" in " ".join(tab.text(".tiles").split())
    for name in SECTIONS:
        assert len(tab.text(f"#{name}")) > 20, name
    assert tab.ask("document.querySelectorAll('#earnings canvas').length") == 1
    assert tab.troubles() == []
    assert {url for url in tab.requests() if not url.startswith(shown.url)} == set()


@pytest.mark.parametrize("width", [360, 768, 1440])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_every_width_in_either_colour(browser: Chromium, shown: ShownNode, width: int, dark: bool) -> None:
    with browser.tab(width, 800, dark=dark) as tab:
        tab.open(shown.url)
        tab.wait(DRAWN)
        assert tab.ask("document.documentElement.scrollWidth") <= width
        wide = "[...document.querySelectorAll('section, figure, .tile, .log')].filter(e => e.getBoundingClientRect().right > innerWidth)"
        assert tab.ask(f"{wide}.length") == 0
        ground = tab.ask("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, ground.removeprefix("rgb(").removesuffix(")").split(","))) < 200) == dark
        assert tab.troubles() == []


def test_a_submission_leads_to_its_receipt_and_the_receipt_to_its_rule(tab: Tab) -> None:
    tab.ask(
        "{ const s = document.querySelector('#submissions select'); s.value = 'soft'; s.dispatchEvent(new Event('change')); }"
    )
    tab.wait("document.querySelectorAll('#submissions tbody tr').length === 3")
    tab.press("#submissions tbody a")
    tab.wait("document.querySelector('#verdict .facts')")
    assert "earns nothing" in tab.text("#verdict") and "0–1, 3" in tab.text("#verdict")
    tab.ask("[...document.querySelectorAll('#verdict a')].find(a => a.textContent === 'reward').click()")
    tab.wait("document.querySelector('#rule-reward')")
    assert tab.ask("document.querySelector('#rules a').getAttribute('href')") == "/docs/rules.md"
    assert tab.troubles() == []


def test_what_strangers_wrote_is_shown_and_does_nothing(browser: Chromium, tmp_path: Path) -> None:
    node, tail = MadeNode(tmp_path), LogTail()
    with closing(SubmissionLog(node.place.data / submission_log.FILE)) as log:
        id = node.submit(log, 1, NOW - 500, submission_log.SOFT, detail=STRANGE, measured=STRANGE, threshold=STRANGE)
    peer = {"peer": STRANGE, "addresses": [STRANGE], "seen": 1.79e9}
    node.run(reason=STRANGE, state="waiting").network(peers=[peer], reason=STRANGE, listen=STRANGE, joined=False)
    tail._lines.append(STRANGE)
    told = node.told(running=True, doing={"state": "waiting", "reason": STRANGE})
    told["cases"] = [{"number": 1, "stage": "open", "kind": "soft", "told": STRANGE}]
    with shown_node(node, told, tail) as page:
        page.ready()
        for path, drawn in (("", DRAWN), (f"submission/{id.hex()}", "document.querySelector('#verdict .control')")):
            with browser.tab() as tab:
                tab.before_scripts("window.alert = () => { window.attacked = true; };")
                tab.open(page.url + path)
                tab.wait(drawn)
                text = tab.text("main")
                assert "<script>" in text and "U+202E" in text and "ESC" in text
                assert not set(text) & set("\x1b\u202e\u202c\u200b\x00")
                assert tab.ask("document.title") != "owned" and not tab.ask("Boolean(window.attacked)")
                assert tab.ask("document.querySelectorAll('main script').length") == 0
                assert tab.troubles() == []


CASE = {
    "number": 1,
    "stage": "upheld",
    "kind": "hard",
    "told": f"hard, by {VALIDATOR}: convicted, and the seat banned, by the vote",
}
ENDS: list[tuple[str, dict[str, Any] | None, list[str]]] = [
    ("new", {"role": "none", "head": None, "sums": None, "calibration": None, "maturing": [], "next": "node stake"},
        ["Not earning", "holds no seat", "node stake", "none yet", "Nothing waits."]),
    ("away", None, ["The chain has not answered yet", "The chain does not answer.", "connection refused"]),
    ("banned", {"role": "banned", "cases": [CASE], "unlocks_at": NOW + 3 * DAY, "next": "nothing before then"},
        ["Not earning", "banned", "Cases against this seat", "by the vote", "locked until"]),
    ("over", {"over": True, "next": "node leave: the run is over"}, ["Not earning", "The run is over.", "node leave"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "said"), ENDS, ids=[name for name, *_ in ENDS])
def test_where_nothing_is_earned_it_says_why_and_what_is_left(
    browser: Chromium, tmp_path: Path, name: str, changes: dict[str, Any] | None, said: list[str]
) -> None:
    node = MadeNode(tmp_path)
    if name == "over":
        node.work(days=1).run(over=True)
    with shown_node(node, None if changes is None else node.told(**changes)) as page, browser.tab(360, 800) as tab:
        page.ready()
        tab.open(page.url)
        tab.wait(DRAWN)
        text = tab.text("main")
        for part in said:
            assert part in text, text
        assert tab.ask("document.documentElement.scrollWidth") <= 360
        assert tab.troubles() == []


def test_it_keeps_up_and_a_node_that_ends_is_told_of(browser: Chromium, tmp_path: Path) -> None:
    node = MadeNode(tmp_path).work(days=1).run()
    with browser.tab() as tab:
        with shown_node(node, node.told()) as page:
            page.ready()
            tab.open(page.url)
            tab.wait(DRAWN)
            node.run(tokens_per_second=77.0)
            tab.wait("document.querySelector('.tiles').innerText.includes('77')")
        tab.wait("document.querySelector('#live').className === 'off'")
        assert "not live" in tab.text("#live") and "77" in tab.text(".tiles")


def test_keyboard_and_screen_readers_find_their_way(tab: Tab) -> None:
    nameless = """[...document.querySelectorAll('button, a, input, select')].filter(e =>
        !(e.getAttribute('aria-label') || e.textContent.trim() || e.title))"""
    assert tab.ask(f"{nameless}.length") == 0
    assert tab.ask("document.querySelectorAll('section:not([aria-labelledby]):not([aria-label])').length") == 0
    assert tab.ask(
        "[...document.querySelectorAll('[aria-labelledby]')].every(e => document.getElementById(e.getAttribute('aria-labelledby')))"
    )
    assert tab.ask("document.querySelectorAll('table:not(:has(caption))').length") == 0
    assert tab.ask(
        "[...document.querySelectorAll('figure')].every(f => f.querySelector('p.hidden').textContent.length > 10)"
    )
    assert tab.ask("document.querySelectorAll('h1').length") == 1
    tab.ask("document.querySelector('.skip').focus()")
    assert tab.ask("document.activeElement.getAttribute('href')") == "#main"
