"""The page as people see it, in headless Chromium: that it draws itself, keeps up, finds its way, and that strangers' words do nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from benches.chromium import WHY_NOT, Chromium, Tab, program
from benches.page_run import MadeRun

from protocol.verdict import Outcome
from tests.page.conftest import STRANGE
from tests.page.shown import Shown, shown

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(program() is None or shutil.which("bash") is None, reason=WHY_NOT),
]

SECTIONS = ("learning", "nodes", "validators", "relays", "verdicts", "cases", "money", "samples")
DRAWN = "document.querySelector('#live').className === 'on' && document.querySelector('#samples .sample') && document.querySelector('#nodes td')"


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as made:
        yield made


@pytest.fixture
def tab(browser: Chromium, page: Shown) -> Iterator[Tab]:
    with browser.tab() as made:
        made.open(page.page)
        made.wait(DRAWN)
        yield made


def test_it_draws_every_section_without_trouble_and_asks_nobody_else(tab: Tab, page: Shown) -> None:
    for name in SECTIONS:
        assert "loading" not in tab.text(f"#{name}") and len(tab.text(f"#{name}")) > 20, name
    assert tab.ask("document.querySelectorAll('.plot canvas').length") == 9
    assert tab.troubles() == []
    assert {url for url in tab.requests() if not url.startswith(page.url)} == set()


def test_numbers_on_it_are_those_of_the_run(tab: Tab, page: Shown) -> None:
    run = page.part("run")
    assert "20 of 100" in tab.text(".tiles") and "waiting for rollouts" in tab.text("#main section")
    assert f"of {run['counts']['nodes']} seats" in tab.text(".tiles")
    assert "10,000 MUR" in tab.text("#money")


@pytest.mark.parametrize("width", [360, 768, 1440])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_every_width_in_either_colour(browser: Chromium, page: Shown, width: int, dark: bool) -> None:
    with browser.tab(width, 800, dark=dark) as tab:
        tab.open(page.page)
        tab.wait(DRAWN)
        assert tab.ask("document.documentElement.scrollWidth") <= width
        wide = "[...document.querySelectorAll('section, figure, .tile')].filter(e => e.getBoundingClientRect().right > innerWidth)"
        assert tab.ask(f"{wide}.length") == 0
        ground = tab.ask("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, ground.removeprefix("rgb(").removesuffix(")").split(","))) < 200) == dark
        assert tab.troubles() == []


def test_what_strangers_wrote_is_shown_and_does_nothing(browser: Chromium, page: Shown) -> None:
    seat, number = page.run.cases[0]
    for path, where in (("", "#samples"), (f"case/{seat}/{number}", "main")):
        with browser.tab() as tab:
            tab.before_scripts("window.alert = () => { window.attacked = true; };")
            tab.open(page.page + path)
            tab.wait(f"document.querySelector('{where} .control')")
            text = tab.text(where)
            assert "<script>" in text and "U+202E" in text and "ESC" in text
            assert not set(text) & set("\x1b\u202e\u202c\u200b\x00")
            assert tab.ask("document.title") != "owned" and not tab.ask("Boolean(window.attacked)")
            assert tab.ask(f"document.querySelectorAll('{where} script').length") == 0
            assert tab.troubles() == []
    assert "\u202e" in STRANGE


def test_amounts_times_and_hidden_characters_are_written_as_people_read_them(tab: Tab, page: Shown) -> None:
    module = f"import('{page.page}static/text.js')"
    assert tab.ask(f"{module}.then(m => ['512340000000000', '1500000000000000000', '43090000000000000000000', '0', null].map(wei => m.tokens(wei)))") == [
        "0.00051", "1.5", "43,090", "0", "–",
    ]  # fmt: skip
    assert tab.ask(f"{module}.then(m => m.exact('1'))") == "0.000000000000000001 MUR"
    assert tab.ask(f"{module}.then(m => [3, 90, 150, 7300, 200000].map(m.seconds))") == [
        "3 s",
        "90 s",
        "2 min",
        "2 h",
        "2 d",
    ]
    assert tab.ask(f"{module}.then(m => [0, 999, 25700000].map(m.bytes))") == ["0 B", "999 B", "25.7 MB"]
    assert tab.ask(f"{module}.then(m => [0, 0.5, 9999, 67400, 1234567].map(m.short))") == [
        "0",
        "0.5",
        "9,999",
        "67.4 k",
        "1.23 M",
    ]
    strange = json.dumps("a\u202eb\x00\n\tשλ😀")
    pieces = tab.ask(f"{module}.then(m => m.harmless({strange}))")
    assert pieces == ["a", {"control": "U+202E"}, "b", {"control": "U+0000"}, "\n\tשλ😀"]


def test_the_content_policy_lets_no_other_script_in(tab: Tab) -> None:
    tab.ask("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.attacked = true\">')")
    tab.ask(
        "{ const s = document.createElement('script'); s.textContent = 'window.attacked = true'; document.body.append(s); }"
    )
    tab.wait("document.querySelector('img[src=x]').complete")
    assert not tab.ask("Boolean(window.attacked)")


def test_a_validator_that_makes_up_a_time_spoils_nothing(browser: Chromium, own_run: MadeRun) -> None:
    made = own_run.submissions[0]
    own_run.add_receipt(made, own_run.validators[0], Outcome.SOFT, rule="available", time=2**53 - 1)
    own_run.show_samples(("a", "b"))
    with shown(own_run) as page, browser.tab() as tab:
        page.ready()
        tab.open(page.page)
        tab.wait(DRAWN)
        tab.wait("document.querySelector('#verdicts td') && document.querySelector('#validators td')")
        tab.open(f"{page.page}submission/{made.id.hex()}")
        tab.wait("document.querySelector('.facts') && document.querySelectorAll('table').length > 0")
        assert tab.troubles() == []


def test_a_column_sorts_and_says_so(tab: Tab) -> None:
    header = "[...document.querySelectorAll('#nodes th')].find(th => th.textContent === 'tokens')"
    tab.ask(f"{header}.querySelector('button').click()")
    tab.wait(f"{header}.getAttribute('aria-sort') === 'descending'")
    first = "document.querySelector('#nodes tbody td').textContent"
    high = tab.ask(first)
    tab.ask(f"{header}.querySelector('button').click()")
    tab.wait(f"{header}.getAttribute('aria-sort') === 'ascending' && {first} !== {high!r}")


def test_a_node_is_found_by_a_piece_of_its_address_and_leads_to_its_own_page(tab: Tab, page: Shown) -> None:
    node = page.run.nodes[4]
    tab.ask(
        f"{{ const i = document.querySelector('#nodes input'); i.value = '{node[6:20]}'; i.dispatchEvent(new Event('input')); }}"
    )
    tab.wait("document.querySelectorAll('#nodes tbody tr').length === 1")
    tab.press("#nodes tbody a")
    tab.wait(f"location.pathname.endsWith('/node/{node}') && document.querySelector('h1 code')")
    assert node in tab.text("h1") and "Last 20 submissions" in tab.text("main")


@pytest.mark.parametrize("kind", ["submission", "case", "version"])
def test_deep_links_open_by_themselves(browser: Chromium, page: Shown, kind: str) -> None:
    seat, number = page.run.cases[0]
    name = {"submission": page.run.submissions[0].id.hex(), "case": f"{seat}/{number}", "version": "3"}[kind]
    with browser.tab() as tab:
        tab.open(f"{page.page}{kind}/{name}")
        tab.wait("document.querySelector('.facts')")
        assert kind in tab.text("h1").lower()
        assert tab.troubles() == []


def test_what_is_not_there_is_said_to_be_not_there(browser: Chromium, page: Shown) -> None:
    with browser.tab() as tab:
        tab.open(f"{page.page}version/99999")
        tab.wait(
            "document.querySelector('.empty') && document.querySelector('.empty').textContent.includes('no such version')"
        )


def test_an_empty_run_says_what_is_missing_in_each_section(browser: Chromium, tmp_path: Path) -> None:
    run = MadeRun(tmp_path, nodes=0, per_node=1, validators=2, steps=0)
    with shown(run) as page, browser.tab() as tab:
        page.ready()
        tab.open(page.page)
        tab.wait("document.querySelector('#live').className === 'on'")
        tab.wait("![...document.querySelectorAll('.empty')].some(e => e.textContent === 'loading')")
        text = tab.text()
        for said in (
            "The trainer has not said anything yet",
            "No node has taken a seat yet",
            "No verdict yet",
            "No samples yet",
        ):
            assert said in text
        assert tab.troubles() == []
    run.close()


def test_it_keeps_up_with_the_run_without_being_asked(browser: Chromium, own_run: MadeRun) -> None:
    own_run.train(4)
    with shown(own_run) as page, browser.tab() as tab:
        page.ready()
        tab.open(page.page)
        tab.wait("document.querySelector('.tiles').innerText.includes('4 of 100')")
        own_run.train(5)
        tab.wait("document.querySelector('.tiles').innerText.includes('5 of 100')")


def test_a_hub_that_goes_away_is_told_of_and_its_numbers_stay(browser: Chromium, own_run: MadeRun) -> None:
    own_run.train(4)
    with browser.tab() as tab:
        with shown(own_run) as page:
            page.ready()
            tab.open(page.page)
            tab.wait(
                "document.querySelector('#live').className === 'on' && document.querySelector('.tiles').innerText.includes('4 of 100')"
            )
        tab.wait("document.querySelector('#live').className === 'off'")
        assert "not live" in tab.text("#live") and "4 of 100" in tab.text(".tiles")


def test_keyboard_and_screen_readers_find_their_way(tab: Tab) -> None:
    nameless = """[...document.querySelectorAll('button, a, input')].filter(e =>
        !(e.getAttribute('aria-label') || e.textContent.trim() || e.title || e.getAttribute('placeholder')))"""
    assert tab.ask(f"{nameless}.length") == 0
    assert tab.ask("document.querySelectorAll('section:not([aria-labelledby])').length") == 0
    assert tab.ask("document.querySelectorAll('table:not(:has(caption))').length") == 0
    assert tab.ask(
        "[...document.querySelectorAll('figure')].every(f => f.querySelector('p.hidden').textContent.length > 10)"
    )
    assert tab.ask("document.documentElement.lang") == "en"
    assert tab.ask('document.querySelectorAll(\'[tabindex]:not([tabindex="0"]):not([tabindex="-1"])\').length') == 0
    tab.ask("document.querySelector('.skip').focus()")
    assert tab.ask("document.activeElement.getAttribute('href')") == "#main"
