"""What `node doctor` looks at: what all roles do (protocol/shell/role_checks.py), the seat, and what `node hardware` measures."""

from __future__ import annotations

from contextlib import closing
from functools import cached_property
from typing import TYPE_CHECKING

from protocol.errors import MurmurationError, PreflightError
from protocol.resources import size
from protocol.shell.checkup import Answer, Check, NotChecked
from protocol.shell.role_checks import CHAIN, GAS, LOCAL, NETWORK, SANDBOX, look_at_programs
from protocol.shell.role_subject import RoleSubject

if TYPE_CHECKING:
    from node.contributor.settings import NodeSettings
    from node.contributor.survey import Survey
    from protocol.runspec import RunSpec


class NodeSubject(RoleSubject):
    settings: NodeSettings

    def _read(self) -> NodeSettings:
        from node.contributor.settings import NodeSettings
        from protocol.settings import load

        return load(NodeSettings, self.place.require_config()).value

    @property
    def disk_low(self) -> float:
        try:
            return self.settings.work.disk_low_gb * 10**9
        except (MurmurationError, OSError):  # another check says so
            return 0.0

    @property
    def run_spec(self) -> RunSpec | None:
        """As the survey found it, which has asked already."""
        return self.survey.spec

    @cached_property
    def survey(self) -> Survey:
        """Of this machine, and of the run where somebody can be asked for it. Raises PreflightError where the device is not there."""
        from node.contributor.survey import survey

        return survey(self.place, self.settings, spec=None, model=None, offline=not self.found_hub, say=lambda _: None)


def look_at_serving(s: NodeSubject) -> Answer:
    if not s.settings.serve.enabled:
        return NotChecked("serve.enabled is not set")
    s.settings.serve.require_ready()
    return f"serves weights at {s.settings.serve.public_url or s.settings.serve.host}"


def look_at_seat(s: NodeSubject) -> Answer:
    """By what `node status` says of it."""
    from node.contributor import submission_log
    from node.contributor.commands.inspect import collect
    from node.contributor.submission_log import SubmissionLog

    with closing(SubmissionLog(s.place.data / submission_log.FILE)) as log:
        told = collect(s.place, s.chain, s.settings.chain.run, log)
    why = told["earning"]["why"]
    if told["role"] in ("none", "banned", "left") or told["over"]:
        raise PreflightError(why, hint=_typed(s, told["next"]))
    if told["open_hard"] or told["suspended_until"] is not None:
        return why, _typed(s, told["next"])
    return f"held for operator {told['operator']}" + (f": {why}" if told["running"] else "")


def _typed(s: NodeSubject, step: str) -> str:
    from node.contributor import next_step

    return next_step.as_typed(step, s.place.command("").strip())


def look_at_device(s: NodeSubject) -> Answer:
    return s.survey.device.told()


def look_at_model(s: NodeSubject) -> Answer:
    """Whether it fits, and of which hardware class of the run this machine is."""
    found, more = s.survey, s.place.command("node hardware")
    if found.model is None:
        return NotChecked(
            found.notes[0] if found.notes else "no weights are published yet, or no source of them answers"
        )
    fit = found.model
    takes = f"weights {size(fit.weights)}, each answer {size(fit.row)}, of {size(fit.allowed)} that the engine may take"
    if not fit.rows:
        raise PreflightError(
            f"does not fit: {takes}", hint=f"take a larger device, or more of it (engine.memory); {more}"
        )
    if found.spec is not None and found.spec.hardware and found.proposed is None:
        raise PreflightError("this machine is of no hardware class of the run", hint=more)
    if found.device.free < fit.weights + fit.row:
        return f"fits, but only {size(found.device.free)} of the device are free now", "see what else uses it"
    return f"fits: {takes}" + ("" if found.proposed is None else f"; hardware class {found.proposed}")


CHECKS: tuple[Check[NodeSubject], ...] = (
    *LOCAL,
    *SANDBOX,
    Check("serving", look_at_serving, ("settings",), starts=True),
    *CHAIN,
    *GAS,
    Check("seat", look_at_seat, ("run", "keys"), seconds=30),
    *NETWORK,
    Check("device", look_at_device, ("settings",), seconds=150),
    Check("programs", look_at_programs, ("device",), seconds=40),
    Check("model", look_at_model, ("device", "network")),
)
