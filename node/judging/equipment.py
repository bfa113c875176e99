"""What submissions of a run are judged with: the run's context, an engine, and the version of the weights that it holds.

Worker, validator and replay have one each, so that a rule finds the same things at hand wherever it runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from node.engine import Engine, EngineSettings
from node.engine.checked_engine import CheckedEngine
from node.engine.interface import build_of
from node.judging.alternatives import Alternatives, VersionBefore
from node.judging.candidate import Candidate, Checked, Commitment, PrefillPlan, RunContext
from node.judging.history import History
from protocol import architectures
from protocol.calibration_notice import CalibrationNotice
from protocol.constants import HEAD_PROBLEMS
from protocol.environments import TaskSet
from protocol.errors import ConfigError, PreflightError
from protocol.model_files import CONFIG, require_nothing_else
from protocol.runspec import RunSpec, TaskFile
from protocol.sandbox import Sandbox
from protocol.signing import Domain
from protocol.tokenizer import Tokenizer

log = logging.getLogger(__name__)


class Unfit(PreflightError):
    """This machine cannot work for the run with these settings: no next try will help."""


class Equipment:
    def __init__(
        self,
        spec: RunSpec,
        domain: Domain,
        run: int,
        engine: Callable[[str], Engine] | EngineSettings,
        any_version: Callable[[], Path],
        fetch_task: Callable[[TaskFile, Sandbox], None] = lambda _, __: None,
        *,
        generates: bool = False,
    ) -> None:
        """`engine`: settings of the one to make, which is compared with the plain model when it holds its first version
        (node/engine/self_check.py); or what makes one for a compute dtype, whose maker answers for it. It is made when it is first
        needed. `any_version` is a folder of weights, for what all versions share; `fetch_task` brings a task file that is not here: at
        the start those that everybody needs, each other one before the first of its problems. `generates`: the engine makes work as well.

        Starts the sandbox's child. Raises what keeps the run's problems from being drawn here as everywhere.
        """
        self._asked = engine
        self._any_version = any_version
        self._generates = generates
        self._tokenizer: Tokenizer | None = None
        self._has_room = False
        self._version: Path | None = None  # of the weights that were loaded last
        self.loaded: bytes | None = None
        """Digest of the manifest of the version that the engine holds."""
        self.is_mixture = False
        """Whether the loaded model is one of experts: then a finding may be a token that rounding sent elsewhere."""
        settings = engine if isinstance(engine, EngineSettings) else EngineSettings()
        self._alternatives = Alternatives(settings, spec.model.compute_dtype)
        sandbox = Sandbox(spec)
        try:
            tasks = TaskSet(spec.environments, sandbox, lambda file: fetch_task(file, sandbox))
            tasks.require_same_problems()
            sandbox.warm_up()
        except BaseException:
            sandbox.close()
            raise
        self.context = RunContext(spec, domain, run, tasks, sandbox)
        self._judging = self.context  # as of the version that is loaded

    def __enter__(self) -> Equipment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.context.sandbox.close()

    @cached_property
    def _made(self) -> CheckedEngine | Engine:
        model = self.context.spec.model
        if isinstance(self._asked, EngineSettings):
            return CheckedEngine.of_run(self._asked, model)
        return self._asked(model.compute_dtype)

    @property
    def engine(self) -> Engine:
        return self._made.engine if isinstance(self._made, CheckedEngine) else self._made

    @property
    def tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            self._tokenizer = Tokenizer(self._any_version())
        return self._tokenizer

    @property
    def has_tokenizer(self) -> bool:
        """Whether it is here already, and `any_version` will not be asked for."""
        return self._tokenizer is not None

    def read_tokenizer(self, folder: Path) -> None:
        """From the version in `folder`, where it is not here already."""
        self._tokenizer = self._tokenizer or Tokenizer(folder)

    @property
    def notice(self) -> CalibrationNotice | None:
        """What the loaded version says of the calibration."""
        return self._judging.notice

    def load(self, folder: Path, manifest: bytes | None = None, notice: CalibrationNotice | None = None) -> None:
        """Has the engine hold the version in `folder`, of this manifest, which says this of the calibration. Raises IntegrityError where it cannot be used, ConfigError
        where the run spec does not say that its model is unlisted, Unfit where this machine computes another model than that, or has too
        little memory for the run's longest sequence: what it could not judge would be paid unjudged, and what it could not generate would
        be found out while it works."""
        self.loaded = self._version = None  # an engine that fails half-way holds neither
        self._judging = replace(self.context, notice=notice)
        self.is_mixture = _require_said(self.context.spec, folder)
        require_nothing_else(folder)
        try:
            self._made.load(folder)
            self.read_tokenizer(folder)
            if not self._has_room:
                self._require_room()
                self._require_build()
                self._has_room = True
        except PreflightError as error:
            raise Unfit(str(error), hint=error.hint) from error
        self.loaded, self._version = manifest, folder

    def _require_room(self) -> None:
        """For the longest sequence, as far as the first problems tell."""
        spec = self.context.spec
        longest = self.tokenizer.longest(spec, self.context.tasks.first(HEAD_PROBLEMS))
        self.engine.require_room(longest, prompt=longest - spec.sampling.longest if self._generates else None)

    def _require_build(self) -> None:
        """Where the run compares bits: says which build this is. Raises PreflightError where the engine makes work and the run lists others."""
        bitwise, build = self.context.spec.verification.bitwise, build_of(self.engine)
        if bitwise is None:
            return
        log.info("the build of this engine is %r", build)
        if not bitwise.builds or build in bitwise.builds:
            return
        if self._generates:
            raise PreflightError(
                f"this engine's build is {build or 'none'!r}, and the run takes work of {'; '.join(map(repr, bitwise.builds))} alone",
                hint="install the same versions on a machine of the same kind, or join another run",
            )
        log.warning(
            "the run takes work of other builds alone: no bits can be compared here, and the run's other limits hold"
        )

    def candidate(
        self,
        commitment: Commitment,
        path: Path,
        plan: PrefillPlan,
        checked: Checked | None = None,
        history: History | None = None,
        before: VersionBefore = lambda _: None,
    ) -> Candidate:
        """A submission as the rules look at it; `before` gives earlier versions than the one that is loaded, of which some are alternatives to it."""
        version = self._version
        alternative = None if version is None else lambda name: self._alternatives.engine(name, version, before)
        return Candidate(
            self._judging,
            commitment,
            path,
            self.engine,
            self.tokenizer,
            plan,
            checked or Checked(),
            history,
            alternative,
        )


def _require_said(spec: RunSpec, folder: Path) -> bool:
    """Whether the model is a mixture of experts. Raises ConfigError for one that was let in unlisted where the run spec does not say so,
    and for a mixture in a run that slashes: rounding decides its routes, and hard verdicts would be wrong."""
    path = folder / CONFIG
    if not path.is_file():
        return False
    config = architectures.require_file(path)
    if not spec.model.unlisted and architectures.is_unlisted(config):
        raise ConfigError(
            f"{path}: the model is not in the list of those that are computed rightly, and the run spec does not say so",
            hint="join another run, or have its owner create it anew",
        )
    architectures.require_soft(config, spec.verification.calibrated)
    return architectures.routes(config)
