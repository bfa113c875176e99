"""The trainer's page as its researcher sees it, in headless Chromium: in every state, width and colour, and with strangers' words."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benches.chromium import WHY_NOT, Chromium, Tab, program

from protocol.page.log_tail import LogTail
from tests.page.conftest import STRANGE
from tests.page.made_trainer import BASE, CLOCK, MadeTrainer, ShownTrainer, shown_trainer

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(program() is None or shutil.which("bash") is None, reason=WHY_NOT),
]
SECTIONS = ("timeline", "learning", "alarms", "checkpoints", "versions", "log")
DRAWN = "document.querySelector('#live').className === 'on' && !document.body.innerText.includes('loading') && document.querySelector('#log .log, #log .empty')"


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as made:
        yield made


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShownTrainer]:
    made, tail = MadeTrainer(tmp_path_factory.mktemp("run")).work(), LogTail()
    made.say(40, alarms=[{"step": 39, "signal": "clipped", "value": 0.4, "limit": 0.1}])
    tail.emit(logging.LogRecord("trainer", logging.INFO, "", 0, "step 39: reward 0.720", (), None))
    with shown_trainer(made, tail) as page:
        yield page.ready()


@pytest.fixture
def tab(browser: Chromium, shown: ShownTrainer) -> Iterator[Tab]:
    with browser.tab() as made:
        made.before_scripts(CLOCK)
        made.open(shown.url)
        made.wait(DRAWN)
        yield made


def test_it_says_first_what_the_trainer_does_and_draws_every_section(tab: Tab, shown: ShownTrainer) -> None:
    assert tab.text("h1") == "Waiting for rollouts" and "11 of 16 groups are here" in tab.text(".headline")
    assert "it may take 60 min" in tab.text(".headline") and "Beside it: evaluating" in tab.text(".headline")
    tiles = " ".join(tab.text(".tiles").split())
    assert "40 of 100" in tiles and "base 0.250 (+0.390)" in tiles
    for name in SECTIONS:
        assert len(tab.text(f"#{name}")) > 20, name
    assert "step 39: clipped 0.400, limit 0.100" in tab.text("#alarms .alarm")
    assert tab.ask("document.querySelectorAll('#learning figure:not([hidden]) canvas').length") == 12
    assert "base model: 0.25." in tab.ask("document.querySelectorAll('#learning figure p.hidden')[1].textContent")
    assert tab.troubles() == []
    assert {url for url in tab.requests() if not url.startswith(shown.url)} == set()


def test_each_step_of_the_timeline_is_drawn_to_one_scale_and_told_in_words(tab: Tab) -> None:
    rows = tab.ask("[...document.querySelectorAll('.steps li')].map(li => li.firstChild.textContent)")
    assert rows == [f"step {step}" for step in range(40, 28, -1)]
    told = tab.ask("[...document.querySelectorAll('.lanes')].map(lanes => lanes.getAttribute('aria-label'))")
    assert told[0].startswith("step 40: ") and "waiting for rollouts goes on" in told[0]
    assert "training 6 s" in told[1] and "saving 0.9 s" in told[1] and told[1].endswith(" in all.")
    places = "[...document.querySelectorAll('.lanes')].every(l => [...l.children].every(i => i.offsetLeft + i.offsetWidth <= l.clientWidth + 1))"
    assert tab.ask(places)


@pytest.mark.parametrize("width", [360, 768, 1440])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_every_width_in_either_colour(browser: Chromium, shown: ShownTrainer, width: int, dark: bool) -> None:
    with browser.tab(width, 800, dark=dark) as tab:
        tab.before_scripts(CLOCK)
        tab.open(shown.url)
        tab.wait(DRAWN)
        assert tab.ask("document.documentElement.scrollWidth") <= width
        wide = "[...document.querySelectorAll('section, figure, .tile, .log, .steps li')].filter(e => e.getBoundingClientRect().right > innerWidth)"
        assert tab.ask(f"{wide}.length") == 0
        ground = tab.ask("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, ground.removeprefix("rgb(").removesuffix(")").split(","))) < 200) == dark
        assert tab.troubles() == []


def test_what_strangers_wrote_is_shown_and_does_nothing(browser: Chromium, tmp_path: Path) -> None:
    made, tail = MadeTrainer(tmp_path), LogTail()
    made.work(steps=2)
    phase = {"name": STRANGE, "since": 1.79e9, "seconds": 1.0, "deadline": 9e9, "step": 2, "beside": False}
    alarm = {"step": 1, "signal": STRANGE, "value": 1.0, "limit": 0.1}
    by_environment = {STRANGE: 0.5, "sums": 0.1}
    made.say(
        2,
        STRANGE,
        phases=[phase],
        alarms=[alarm],
        waiting={STRANGE: STRANGE},
        evaluations=[{**BASE, "by_environment": by_environment}],
    )
    with made.layout.metrics.open("a") as file:
        file.write(json.dumps({"step": 2, "reward": 0.5, "reward_by_environment": by_environment}) + "\n")
    tail._lines.append(STRANGE)
    with shown_trainer(made, tail) as page, browser.tab() as tab:
        page.ready()
        tab.before_scripts("window.alert = () => { window.attacked = true; };")
        tab.open(page.url)
        tab.wait(DRAWN)
        for part in (".headline", "#timeline", "#alarms", "#log"):
            text = tab.text(part)
            assert "<script>" in text and "U+202E" in text and "ESC" in text, part
            assert not set(text) & set("\x1b\u202e\u202c\u200b\x00"), part
        assert "<script>" in tab.text("#learning")
        assert tab.ask("document.title") != "owned" and not tab.ask("Boolean(window.attacked)")
        assert tab.ask("document.querySelectorAll('main script').length") == 0
        assert tab.troubles() == []


ENDS: list[tuple[str, dict[str, Any] | None, list[str]]] = [
    ("new", None, ["Not started", "has not said anything yet", "murmur trainer run @", "Nothing yet: the timeline", "None yet: the first is saved"]),
    ("stopped", {"state": "stopped"}, ["Stopped", "It was stopped after 3 of 100 steps.", "The newest checkpoint is of step 0.", "murmur trainer run @"]),
    ("hung", {"state": "ended: training took longer than its 600 s"}, ["Ended", "Training took longer than its 600 s", "Next: murmur trainer run"]),
    ("killed", {"state": "training"}, ["Ended without a word", "It said last: training", "No alarm so far"]),
    ("finished", {"state": "finished", "step": 100}, ["Finished", "All 100 steps are trained.", "murmur trainer export", "step_0 my-model"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "said", "shows"), ENDS, ids=[name for name, *_ in ENDS])
def test_where_nothing_runs_it_says_why_and_what_comes_next(
    browser: Chromium, tmp_path: Path, name: str, said: dict[str, Any] | None, shows: list[str]
) -> None:
    made = MadeTrainer(tmp_path)
    if said is not None:
        (made.layout.checkpoints / "step_0").mkdir(parents=True)
        (made.layout.checkpoints / "step_0" / "digests.json").write_text("{}")
        made.say(**{"step": 3, "alive": False, "phases": [], **said})
    with shown_trainer(made, runs=False) as page, browser.tab(360, 800) as tab:
        page.ready()
        tab.open(page.url)
        tab.wait(DRAWN)
        text = tab.text("main")
        for part in shows:
            assert part in text, text
        assert tab.ask("document.documentElement.scrollWidth") <= 360
        assert tab.troubles() == []


def test_a_phase_near_its_deadline_is_warned_of(browser: Chromium, tmp_path: Path) -> None:
    made = MadeTrainer(tmp_path)
    phase = {"name": "training", "since": 1.79e9, "seconds": 1.0, "deadline": 600.0, "step": 3, "beside": False}
    made.say(3, "training", phases=[phase])
    with shown_trainer(made) as page, browser.tab() as tab:
        page.ready()
        tab.open(page.url)
        tab.wait(DRAWN)
        assert "Training takes long: after 10 min the trainer ends itself." in tab.text(".headline .warn")


def test_it_keeps_up_and_a_trainer_that_ends_is_told_of(browser: Chromium, tmp_path: Path) -> None:
    made = MadeTrainer(tmp_path)
    made.say(3)
    with browser.tab() as tab:
        with shown_trainer(made) as page:
            page.ready()
            tab.open(page.url)
            tab.wait(DRAWN)
            made.say(4, "training")
            tab.wait(
                "document.querySelector('h1').textContent === 'Training' && document.querySelector('.tiles').innerText.includes('4 of 100')"
            )
        tab.wait("document.querySelector('#live').className === 'off'")
        assert "not live" in tab.text("#live") and "4 of 100" in tab.text(".tiles")


def test_keyboard_and_screen_readers_find_their_way(tab: Tab) -> None:
    nameless = """[...document.querySelectorAll('button, a, input, select, [role=img]')].filter(e =>
        !(e.getAttribute('aria-label') || e.textContent.trim() || e.title))"""
    assert tab.ask(f"{nameless}.length") == 0
    assert tab.ask("document.querySelectorAll('section:not([aria-labelledby]):not([aria-label])').length") == 0
    assert tab.ask("document.querySelectorAll('table:not(:has(caption))').length") == 0
    assert tab.ask(
        "[...document.querySelectorAll('figure')].every(f => f.querySelector('p.hidden').textContent.length > 10)"
    )
    assert tab.ask("document.querySelectorAll('h1').length") == 1
    assert tab.ask('document.querySelectorAll(\'[tabindex]:not([tabindex="0"]):not([tabindex="-1"])\').length') == 0
    tab.ask("document.querySelector('.skip').focus()")
    assert tab.ask("document.activeElement.getAttribute('href')") == "#main"
