"""Hostile answers and turns, one by one: what each cost the child, what the child did, and what it said of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.environments.programs import TrialRun
from protocol.errors import Malformed, Unavailable
from protocol.replies import Asked
from protocol.rollout import ToolResult
from protocol.sandbox.inspection import observation
from protocol.sandbox.inspection.examinee import Examinee

ANSWER_S = 2.0  # CPU time that no answer may take

Verdict = float | ToolResult | None
"""A reward, or what a turn is told."""


@dataclass(frozen=True)
class Attack:
    """An answer to a problem, or a turn of a conversation about it."""

    name: str
    index: int
    text: str
    is_turn: bool = False


def verdicts(examinee: Examinee, attacks: Sequence[Attack]) -> dict[Attack, Verdict]:
    """In two requests. Raises Unavailable, or Malformed for a reply that is none."""
    answers = [one for one in attacks if not one.is_turn]
    turns = [one for one in attacks if one.is_turn]
    found: dict[Attack, Verdict] = {}
    if answers:
        found |= dict(zip(answers, examinee.score([(one.index, one.text) for one in answers]), strict=True))
    if turns:
        replies = examinee.replies([Asked(one.index, [one.text]) for one in turns])
        found |= {one: reply[0] if reply else None for one, reply in zip(turns, replies, strict=True)}
    return found


def brief(verdict: Verdict) -> str:
    if isinstance(verdict, float):
        return f"{verdict:.6g}"
    return "no reply" if verdict is None else observation.shown(verdict.text)


class Assault:
    """On one child, in which whatever is imported late is there already."""

    def __init__(self, examinee: Examinee) -> None:
        self._subject = examinee
        self.peak = examinee.told().peak
        self.slow: list[str] = []
        self.acts: list[str] = []
        self.strayed: list[str] = []
        self.count = 0
        self.verdicts: dict[Attack, Verdict] = {}
        self.runs: dict[Attack, list[TrialRun]] = {}
        """How programs ended, of those attacks for which the sandbox ran one."""

    @property
    def without_programs(self) -> list[Attack]:
        """Those for which the sandbox ran no program."""
        return [one for one in self.verdicts if one not in self.runs]

    def launch(self, attacks: Sequence[Attack]) -> None:
        """All of them, unless enough were too slow by then: each may cost a child."""
        for attack in attacks:
            if len(self.slow) >= observation.SHOWN:
                return
            self.count += 1
            try:
                self._launch(attack)
            except (Unavailable, Malformed) as error:
                self.slow.append(f"{attack.name}: {error}")

    def _launch(self, attack: Attack) -> None:
        before = self._subject.told()
        self._subject.ran()
        self.verdicts |= verdicts(self._subject, [attack])
        if runs := self._subject.ran():
            self.runs[attack] = runs
        after = self._subject.told()
        self.peak = max(self.peak, after.peak)
        self.acts += [f"{attack.name}: {act}" for act in after.acts]
        self.strayed += [f"{attack.name}: {after.strayed}"] if after.strayed else []
        if after.seconds - before.seconds > ANSWER_S:
            self.slow.append(f"{attack.name}: {after.seconds - before.seconds:.1f} s of CPU time")
