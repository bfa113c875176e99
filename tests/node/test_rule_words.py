"""Words and dates that contributors read: samples in ranges, rules, and when what waits can be claimed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from node.contributor import rule_words
from protocol.chain import ring
from protocol.verdict import ALL_SAMPLES, RULES, Outcome

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("mask", "words"),
    [(0, "none"), (1, "0"), (2**64 - 1, "0–63"), (0b1101, "0, 2–3"), (1 << 255, "255"), (ALL_SAMPLES, "all")],
)
def test_samples_are_shown_in_ranges(mask: int, words: str) -> None:
    assert rule_words.ranges(mask) == words


def test_every_rule_and_outcome_has_words_and_every_rule_a_place_in_the_docs() -> None:
    assert set(rule_words.RULES) == set(RULES)
    assert set(rule_words.OUTCOMES) == set(Outcome)
    anchors = set(re.findall(r'<a id="([a-z-]+)">', (DOCS / "rules.md").read_text()))
    for rule in RULES:
        page, anchor = rule_words.link(rule).split("#")
        assert (page, anchor in anchors) == ("docs/rules.md", True), rule


def test_units_mature_at_the_start_of_the_sixth_epoch_after_theirs() -> None:
    window, epoch = 100, 20
    word = 9 | 7 << (64 + 32 * (9 % 6)) | 5 << (64 + 32 * (4 % 6))
    assert ring.waiting(word, 185, window) == [((4 + 6) * epoch, 5), ((9 + 6) * epoch, 7)]
    assert ring.waiting(word, 200, window) == [(300, 7)], "what has matured waits no more"
    assert ring.matures_at(199, window) == 300
