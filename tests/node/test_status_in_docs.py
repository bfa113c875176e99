"""What docs/contribute.md shows of `node status` is what it prints."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from node.contributor.commands import status_text

PAGE = Path(__file__).parents[2] / "docs" / "contribute.md"
TOKEN, NOW = 10**18, 1_790_000_000
EARNS = {
    "run": 1, "head": 41, "over": False, "paused": False, "now": NOW, "role": "active", "hardware": 0,
    "node": "0x71C7656EC7ab88b098defB751B7401B5f6d8976F", "operator": "0xF977814e90dA44bFA03b6295A0616a897441aceC",
    "earning": {"state": "earning", "why": "20 of the newest 20 judged submissions were accepted"},
    "seat_stake": 100 * TOKEN, "stake": 100 * TOKEN, "locked": 100 * TOKEN, "free": 0, "unlocks_at": None, "leaving_at": None,
    "open_hard": 0, "suspended_until": None, "cases": [], "doing": {
        "state": "generating", "step": 41, "sequence": 3, "tokens_per_second": 212, "page_url": "http://127.0.0.1:8480/",
    },
    "submissions": {"accepted": 96, "stored": 2}, "matrix_challenges": None, "calibration": {"digest": "9c41d07be2a85f36", "since": 0, "notice": None},
    "sums": None, "reward": TOKEN // 1000, "paid_units": 31_000, "ready_units": 8_400, "pending_units": 12_600, "held_units": 0,
    "maturing": [{"amount": str(7 * TOKEN), "at": NOW + 9_000}, {"amount": str(5600 * TOKEN // 1000), "at": NOW + 26_280}],
    "forecast": {"units": 21_000, "amount": str(21 * TOKEN), "seconds": 86_400, "is_capped": False}, "units_most": 131_000, "penalty_left": 60 * TOKEN, "penalty": 60 * TOKEN, "gas": 4_000_000_000_000_000, "next": "node claim",
}  # fmt: skip


def test_a_small_terminal_ends_with_what_counts_and_breaks_no_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    status_text.show(EARNS)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["earning: yes, 20 of the newest 20 judged submissions were accepted", "next: node claim"]
    assert max(map(len, lines)) <= 80
    assert "  seat       active, node 0x71C7656EC7ab88b098defB751B7401B5f6d8976F, hardware" in lines
    status_text.show(EARNS, begins_with_next=True)
    assert capsys.readouterr().out.startswith("earning: yes")


def test_the_contributors_page_shows_what_node_status_prints(capsys: pytest.CaptureFixture[str]) -> None:
    status_text.show(EARNS)
    assert f"```\n{capsys.readouterr().out}```\n" in PAGE.read_text()
