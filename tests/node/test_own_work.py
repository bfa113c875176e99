"""A node judges its work before it submits it: a finding is a fault of its machine, but where rounding decides more than numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from node.contributor.workbench import NotRepeated, Workbench
from node.contributor.worker import Worker
from protocol.errors import IntegrityError
from protocol.notice_book import NoticeBook
from protocol.verdict import Finding, Outcome

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("is_mixture", [False, True])
@pytest.mark.parametrize("outcome", [None, Outcome.SOFT, Outcome.HARD])
def test_only_a_soft_finding_in_a_mixture_of_experts_is_handed_in(
    is_mixture: bool, outcome: Outcome | None, tmp_path: Path
) -> None:
    bench: Any = Workbench.__new__(Workbench)
    bench.equipment, bench._self_check_share = SimpleNamespace(is_mixture=is_mixture), 1.0
    bench._versions = SimpleNamespace(notices=NoticeBook(tmp_path / "calibrations.json"))
    bench._judge = lambda *_: outcome and Finding("sampling", outcome, "0.13", "0.125", "row 3")
    made: Any = SimpleNamespace(commitment=lambda: None, path=None, ref=SimpleNamespace(step=3))
    if outcome is None or (is_mixture and outcome is Outcome.SOFT):
        bench.require_passing(made)
    else:
        with pytest.raises(IntegrityError, match="own work fails the rule sampling"):
            bench.require_passing(made)


def test_what_an_environment_never_repeats_is_handed_in_at_last() -> None:
    """Else a run that waits for this node would wait for ever."""
    worker: Any = Worker.__new__(Worker)
    worker._not_repeated, asked = 0, []

    def require_passing(made: object) -> None:
        asked.append(made)
        raise NotRepeated("asked again, an environment said something else")

    worker._workbench = SimpleNamespace(require_passing=require_passing)
    for _ in range(2):
        for _ in range(2):
            with pytest.raises(NotRepeated):
                worker._check(None)
        worker._check(None)
    assert len(asked) == 6


@pytest.mark.parametrize("is_mixture", [False, True])
@pytest.mark.parametrize("rule", ["conversation", "reward"])
def test_what_an_environment_does_not_repeat_is_no_fault_of_the_machine(
    rule: str, is_mixture: bool, tmp_path: Path
) -> None:
    bench: Any = Workbench.__new__(Workbench)
    bench.equipment, bench._self_check_share = SimpleNamespace(is_mixture=is_mixture), 1.0
    bench._versions = SimpleNamespace(notices=NoticeBook(tmp_path / "calibrations.json"))
    made: Any = SimpleNamespace(commitment=lambda: None, path=None, ref=SimpleNamespace(step=3))
    bench._judge = lambda *_: Finding(rule, Outcome.SOFT, "9 tokens", "8 tokens", "row 3")
    with pytest.raises(NotRepeated, match=r"an environment said something else.*row 3"):
        bench.require_passing(made)
    bench._judge = lambda *_: Finding(rule, Outcome.HARD, "9 tokens", "8 tokens", "row 3")
    with pytest.raises(IntegrityError, match=f"own work fails the rule {rule}"):
        bench.require_passing(made)
