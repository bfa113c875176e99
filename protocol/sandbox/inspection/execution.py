"""Hostile programs: handed to every environment, as answers and as turns, and looked at closely where the sandbox runs them.

Whether a program ran is what the parent saw, which ran it: no environment is passed for programs that nobody ran.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from protocol.environments.programs import TrialRun
from protocol.errors import MurmurationError
from protocol.rollout import ToolResult
from protocol.runspec import EnvironmentSpec
from protocol.sandbox.inspection import hostile_programs
from protocol.sandbox.inspection.assault import Assault, Attack, Verdict, brief, verdicts
from protocol.sandbox.inspection.canary import Canary
from protocol.sandbox.inspection.examinee import Examinee
from protocol.sandbox.inspection.observation import Observation, some


class Execution:
    """Of the same programs in the child under attack and in one more."""

    def __init__(self, examinee: Examinee, index: int, canary: Canary) -> None:
        """They are answers to problem `index`, and turns about it."""
        self._canary = canary
        self._reached: list[str] = []
        names, programs = zip(*canary.programs(), strict=True)
        self._count = len(names)
        answers = examinee.answers(programs)
        (nothing,) = examinee.answers([hostile_programs.NOTHING])
        self._in_python = nothing is not None
        said = [text or program for text, program in zip(answers, programs, strict=True)]
        self.attacks = [Attack(name, index, text) for name, text in zip(names, said, strict=True)]
        if examinee.converses(0):
            turns = [calls or [text] for calls, text in zip(examinee.calls(programs), said, strict=True)]
            self.attacks += [
                Attack(name, index, text, True) for name, all_of in zip(names, turns, strict=True) for text in all_of
            ]
        self._idle = Attack("a program that does nothing", index, nothing or "")

    def observed(self, spec: EnvironmentSpec, deadline: float, assault: Assault) -> Iterator[Observation]:
        """Of an environment whose programs the sandbox runs: how many ran, what they earned, and whether it is the same again."""
        before = {one: verdict for one, verdict in assault.verdicts.items() if one in self.attacks}
        if not self._in_python:
            detail = "not looked at: hostile programs are in Python, and those of this environment in another language"
            yield Observation("programs run", None, detail)
            return
        ran = {one.name for one in before if any(run.cpu > 0 for run in assault.runs.get(one, ()))}
        hint = "" if ran else ": nothing is known of them; as_answer and as_call say how a program is written"
        yield Observation("programs run", bool(ran), f"{len(ran)} of {self._count} hostile programs were run{hint}")
        try:
            with Examinee(spec, deadline, 1) as examinee, examinee.hurried():
                after = verdicts(examinee, [*before, self._idle])
                self.take_note(examinee.ran(), after.values())
        except MurmurationError as error:
            yield Observation("programs again", False, str(error))
            return
        honest = after.pop(self._idle)
        assert isinstance(honest, float)
        earn = {one.name: reward for one, reward in before.items() if isinstance(reward, float)}
        more = [f"{name} earns {reward:.3g}, and {self._idle.name} {honest:.3g}" for name, reward in earn.items() if reward > honest]  # fmt: skip
        yield Observation("programs earn", not more, some(more) or f"none more than {self._idle.name}, {honest:.3g}")
        differ = [f"{one.name}: {brief(before[one])}, then {brief(now)}" for one, now in after.items() if now != before[one]]  # fmt: skip
        yield Observation("programs again", not differ, some(differ) or "the same verdicts in another process")

    def take_note(self, runs: Iterable[TrialRun], said: Iterable[Verdict]) -> None:
        """Of who printed the mark of the canary."""
        mark = self._canary.mark
        printed = any(mark.encode() in run.output for run in runs)
        told = any(mark in one.text for one in said if isinstance(one, ToolResult))
        self._reached += ["a program said that it came through"] if printed or told else []

    def of_machine(self, assault: Assault) -> Observation:
        """Whether something was reached that no program may reach; asked last."""
        self.take_note((run for runs in assault.runs.values() for run in runs), assault.verdicts.values())
        reached = [*self._reached, *self._canary.harmed()]
        return Observation("reaches nothing", not reached, some(reached) or "no file, process or port of this machine")
