"""What a watcher of the demo sees: at moments at which little is known, and in a terminal of any size."""

from __future__ import annotations

from typing import Any

import pytest
from rich.cells import cell_len
from rich.text import Text
from swarm import display
from swarm.screen import Section, heights

from tests.swarm.watched import EVALUATIONS, NODES, SIZES, a_watch, drawn, live

HEADINGS = ("training", "nodes", "services", "what")


@pytest.mark.parametrize("metrics", [None, {}, {"reward": None}, {"reward": 0.5}])
def test_a_step_that_learnt_from_nothing_has_no_reward(metrics: dict[str, Any] | None) -> None:
    watch = a_watch(trainer={"metrics": metrics}, kinds={"sums": "math"}, rewards={})
    assert ("reward" in display._plain(watch)) == bool(metrics and metrics["reward"])
    shown = live(80, 24)
    shown.show(watch)
    assert f"reward         {'0.500' if metrics and metrics['reward'] else '–'}" in "\n".join(drawn(shown))


def test_each_kind_is_shown_with_its_last_reward_and_its_held_out_scores() -> None:
    last = {"score": 0.5, "problems": 64, "by_environment": {"sums": 0.75, "programs": 0.25}}
    watch = a_watch(trainer={"metrics": {"reward": 0.5}, "evaluations": [*EVALUATIONS, last]})
    assert "reward 0.500 (sums 0.50, programs –)" in display._plain(watch)
    shown = live(120, 40)
    shown.show(watch)
    text = "\n".join(drawn(shown))
    assert "\n  sums         math, reward 0.50  held out 0.75 ← 0.50 ← 0.50" in text, "the newest first"
    assert "\n  programs     code, reward –  held out 0.25 ← 0.25" in text


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_nothing_wraps_and_nothing_is_pushed_out(width: int, height: int) -> None:
    shown = live(width, height)
    shown.show(a_watch())
    for number in range(300):
        shown.say(f"event {number} " + "of which there is a lot to tell " * 9)
    lines = drawn(shown)
    assert len(lines) <= height
    assert max(map(cell_len, lines)) <= width
    assert "event 299"[: width - 12] in lines[-1]
    assert lines[-1].endswith("…"), "an event is a whole line, cut where the terminal ends"
    if height >= 15:
        assert [word for line in lines if (word := line.split()[0]) in HEADINGS] == list(HEADINGS)
        assert {"hub", "bootnode", "relays", "validators"} <= {line.split()[0] for line in lines}
    if width >= 40:
        assert any(line.startswith("node-0 ") and "120  110    3    0" in line for line in lines)


def test_every_service_is_in_it() -> None:
    shown = live(120, 40)
    shown.show(a_watch())
    text = "\n".join(drawn(shown))
    for part in ("hub            step 7, 5.0 MB served", "bootnode       9 peers, 4 records", "relay-0 step 7, 3.0 MB; relay-1 was killed",
                 "validators     0 verdicts", "  validator-2  0 verdicts, 0 hard; 0 challenges; generating", "node-8"):  # fmt: skip
        assert part in text


def test_an_event_makes_no_section_vanish_and_what_strangers_wrote_draws_nothing() -> None:
    shown = live(80, 40)
    shown.show(a_watch(members=lambda: list(NODES[:3])))
    before = drawn(shown)
    shown.say("validator-0 abstains: \x1b[2J\nforged line [bold]x[/bold]")
    after = drawn(shown)
    assert len(after) == len(before) + 1
    assert after[: len(before)] == before
    assert "\\x1b[2J\\nforged line [bold]x" in after[-1]


def test_a_list_that_does_not_fit_says_how_much_is_left_out() -> None:
    shown = live(80, 15)
    shown.show(a_watch())
    assert any("… and" in line and line.endswith("more") for line in drawn(shown))


def test_after_a_resize_it_fits_the_new_size() -> None:
    shown = live(120, 40)
    shown.show(a_watch())
    wide = drawn(shown)
    shown.console.size = (40, 15)
    narrow = drawn(shown)
    assert len(narrow) <= 15 < len(wide)
    assert max(map(cell_len, narrow)) <= 40


def test_sections_shrink_evenly_and_to_nothing_at_last() -> None:
    many = [Section(name, [Text("x")] * rows) for name, rows in (("a", 4), ("b", 20), ("c", 200))]
    assert heights(many, 225 + 3) == [5, 21, 201]
    assert heights(many, 23) == [5, 9, 9]
    assert heights(many, 9) == [3, 3, 3]
    assert sum(heights(many, 2)) == 2
    assert min(heights(many, 0)) == 0


def test_at_the_end_of_a_failure_the_last_events_are_left_on_the_terminal() -> None:
    shown = live(80, 24)
    with pytest.raises(ValueError), shown:
        shown.say("the last thing that happened")
        raise ValueError
    text = shown.console.file.getvalue()  # type: ignore[attr-defined]
    assert text.index("\x1b[?1049h") < text.index("\x1b[?1049l") < text.rindex("the last thing that happened")
