"""What `scripts/bench cheats --part submissions` promises holds: some of it in every run, most of it in `--long`, each by fewer completions than the bench's own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from benches.cheats_submissions import Deed, Detection, Stand
from swarm.tiny_run import TinyRun

QUICK = ("honest", "one row of ten by a smaller model")
MISSED = ("fp8", "int8", "kv_int8")
"""Whose goals no test of these sums can reach with this noise (docs/measurements.md)."""
LOOKED_FOR = ("honest, looked for as before_1", "honest, looked for as int4", "honest, looked for as colder")
LUCK = 2.0
"""By which a goal may be missed here: how many mismatched tokens a policy's few completions have is luck, and each kind of processor trains it a little otherwise."""


LUCK_OF_ONE_TOKEN = 20.0
"""The same where a single value finds a cheat softly: a token in some thousands tells, so that 8,000 hold one or none that does at the goal's own rate."""
BY_SUMS = {"drafts within 0.1": 20.0}
"""The same of what a single value finds or, where no token of the pool tells, only the sums, after 7 submissions and not within the goal's 3."""
MISSED_BY_SUMS = ("drafts within 0.05",)
"""Found by a single value of one pool of 200 completions; by nothing, within the 60 submissions that are waited for, of another pool of 200 and of these."""


def check(rows: list[Detection]) -> None:
    for row in rows:
        if row.honest:
            assert row.found == row.tenth_found == 0, row
        elif row.goal is not None:
            assert row.found > 0.5, row
            by_one = row.found_by.get("a single value", 0) > 0.5 and row.goal > 1 and row.name.endswith(": soft")
            luck = LUCK_OF_ONE_TOKEN if by_one else BY_SUMS.get(row.name.removesuffix(": soft"), LUCK)
            assert row.ours <= (luck * row.goal if row.goal > 1 else row.goal), row


def test_honest_work_is_found_by_nothing_and_a_tenth_of_cheap_rows_at_once(tiny_run: TinyRun, tmp_path: Path) -> None:
    def shared(_: Path, folder: Path, **how: object) -> None:
        shutil.copytree(tiny_run.model, folder)

    wanted, rows = list(QUICK), list[Detection]()
    with Stand.made(tmp_path, 24, make=shared, ages=()) as stand:
        deeds = stand.deeds()
        while wanted:
            if (deed := next(deeds)).name in wanted:
                wanted.remove(deed.name)
                rows += stand.rows(deed)
    assert len(rows) == len(QUICK)
    check(rows)


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_the_table_holds_but_for_what_tokens_cannot_tell(tmp_path: Path) -> None:
    def wanted(deed: Deed) -> bool:
        is_promised = (deed.soft or deed.hard) and deed.name not in (*MISSED, *MISSED_BY_SUMS)
        return bool(is_promised) or deed.name in ("honest", *LOOKED_FOR)

    with Stand.made(tmp_path, 80) as stand:
        rows = [row for deed in stand.deeds() if wanted(deed) for row in stand.rows(deed)]
    assert len(rows) >= 24
    check(rows)
