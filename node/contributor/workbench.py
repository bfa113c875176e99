"""What work is made and judged with: the engine, the version of the weights that is loaded, the run's tasks and the sandbox."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from node.contributor import generation
from node.contributor.generation import Made, Place
from node.contributor.prefetch import Prefetch
from node.contributor.submission_log import LoggedSubmission
from node.engine import Engine, EngineSettings
from node.judging import probe
from node.judging.candidate import Commitment, PrefillPlan, RunContext
from node.judging.equipment import Equipment
from node.judging.judge import judge
from node.judging.rules import CHEAP, RULES, available
from node.serving import serving
from node.versions import Versions
from protocol import metrics
from protocol.calibration_notice import spec_in_force
from protocol.chain.types import Publication
from protocol.clock import SYSTEM, Clock
from protocol.errors import IntegrityError, Malformed, Unavailable
from protocol.notice_book import NoticeBook
from protocol.shardcast.settings import ServingSettings
from protocol.shell.connection import SEEDER, Connection
from protocol.verdict import Finding, Outcome

log = logging.getLogger("node")

_OF_ENVIRONMENTS = frozenset(
    {"conversation", "reward"}
)  # rules that are soft only where an environment may say something else

_UNDER_A_NOTICE = "; since the run is judged by {}, its limits may be what changed: compare with other nodes, and tell the run's owner"
_STEP = metrics.gauge("murmur_node_step", "Step of the weights that are loaded.")


class NotRepeated(Unavailable):
    """An environment said something else when it was asked again: nobody's fault here, and validators may hear a third thing."""


class Workbench:
    """For one thread. `context` is the run's, as all rules see it."""

    def __init__(
        self,
        connection: Connection,
        folder: Path,
        engine: Callable[[str], Engine] | EngineSettings,
        self_check_share: float,
        say: Callable[..., None],
        progress: Callable[[], None] = lambda: None,
        clock: Clock = SYSTEM,
    ) -> None:
        """`folder` holds the node's data, `engine` is as an Equipment's, `say` tells the node's status, `progress` is called when a
        chunk of weights has arrived."""
        self._c = connection
        self._self_check_share = self_check_share
        self._say = say
        self.rollouts = folder / "rollouts"
        self._versions = Versions(connection, folder / "weights", progress=progress, clock=clock)
        self.equipment = Equipment(
            connection.spec,
            connection.chain.domain,
            connection.run,
            engine,
            self._versions.newest,
            connection.fetch_task,
            generates=True,
        )
        self._prefetch = Prefetch(connection, self._versions, clock)
        self.engine = self.equipment.engine  # one that cannot be made is found out now
        self._is_like_the_reference = False

    @property
    def context(self) -> RunContext:
        return self.equipment.context

    def close(self) -> None:
        self._prefetch.close()
        self.equipment.close()
        self._versions.close()

    def serving(self, settings: ServingSettings) -> AbstractContextManager[object]:
        """Serves the weights that are fetched here to others, within the context."""
        return serving(self._c, self._versions, settings, SEEDER)

    def load(self, publication: Publication) -> bool:
        """Loads a version, fetched where it is not here; False where it is loaded already. Raises Unavailable while it cannot be had."""
        if self.equipment.loaded == publication.manifest:
            return False
        self._say("fetching weights", step=publication.step)
        folder = self._versions.folder(publication)
        with self._versions.store.lease(publication.step):
            self._say("loading", step=publication.step)
            try:
                self.equipment.load(folder, publication.manifest, self._versions.notice(publication))
            except IntegrityError as error:
                # The bytes are those of the chain: nobody's fault here, and the next version may be right.
                raise Unavailable(f"version {publication.step} of the weights cannot be used: {error}") from error
        _STEP.set(publication.step)
        return True

    @property
    def notices(self) -> NoticeBook:
        """What versions have said of the run's calibration."""
        return self._versions.notices

    def require_reference(self, head: Publication) -> None:
        """Once: computes the run's reference probe, where it pins one. Raises IntegrityError where this machine lies outside the
        limits that are in force for the version that work begins with, Unavailable while the probe, that version or version 0 cannot be had."""
        if self._is_like_the_reference:
            return
        reference = self._c.fetch_probe()
        if reference is not None:
            self._versions.folder(head)
            spec = spec_in_force(self._c.spec, self._versions.notice(head))
            self.load(self._c.chain.publication(self._c.run, 0))
            self._say("probing")
            probe.require(reference, spec, self.engine, self.equipment.tokenizer)
            log.info("this machine computes what the run's reference did, on %s", reference.made_on.get("device", "?"))
        self._is_like_the_reference = True

    def make(self, place: Place) -> Made:
        """Generates a submission with the loaded weights, while the next version is fetched. Raises Unavailable where they make no
        numbers."""
        with self._prefetch.beside(place.step):
            return generation.make(self.context, self.engine, self.equipment.tokenizer, place, self.rollouts)

    def require_passing(self, made: Made) -> None:
        """Judges a file as a validator would. A finding is a fault of this machine: better no work than false work. But in a mixture of
        experts it may be a token that rounding sent to another expert; such work may go unpaid, and slashes nobody. And a program may
        say something else each time.

        Raises NotRepeated for that, IntegrityError for any other finding.
        """
        finding = self._judge(made.commitment(), made.path, self._self_check_share)
        if finding is not None and finding.outcome is Outcome.SOFT and finding.rule in _OF_ENVIRONMENTS:
            raise NotRepeated(
                f"asked again, an environment said something else: {finding.measured} against {finding.threshold} ({finding.detail})"
            )
        if finding is not None and self.equipment.is_mixture and finding.outcome is Outcome.SOFT:
            log.warning("this work may not be paid, by the rule %s: %s", finding.rule, finding.detail)
        elif finding is not None:
            raise IntegrityError(
                f"this machine's own work fails the rule {finding.rule}: {finding.measured} against {finding.threshold}"
                f" ({finding.detail}); nothing was submitted",
                hint="look for faulty memory, overclocking or a modified engine before you start again"
                + (_UNDER_A_NOTICE.format(now) if (now := self.notices.of(made.ref.step)) is not None else ""),
            )

    def judge_again(self, submission: LoggedSubmission) -> Finding | None:
        """Judges work of an earlier version in full; by the rules that need no model where nobody has those weights any more."""
        ref = submission.ref
        path = generation.path_of(self.rollouts, ref.root)
        if not path.exists():
            return available.missing(self._c.spec.upload_grace_seconds)
        publication = self._c.chain.publication(self._c.run, ref.step)
        if not publication.block or not publication.is_drawn:  # it was drawn before anything of it was submitted
            raise Unavailable(f"the endpoint does not know the publication of step {ref.step}: it lags")
        try:
            hardware = self.context.sandbox.read(path).file.header.hardware  # the seat's class may have changed since
        except Malformed as error:
            return Finding("schema", Outcome.SOFT, "this node's own copy", "a rollout file", str(error))
        rules: tuple[str, ...] = tuple(RULES)
        try:
            self.load(publication)
        except Unavailable as error:
            log.info("judging step %d again without its weights: %s", ref.step, error)
            rules = CHEAP  # the rest passed before it was submitted
        commitment = Commitment(ref, submission.units, publication.beacon, hardware, block_hash=bytes(32))
        return self._judge(commitment, path, 1.0, rules)

    def _judge(
        self, commitment: Commitment, path: Path, share: float, rules: tuple[str, ...] = tuple(RULES)
    ) -> Finding | None:
        return judge(self.equipment.candidate(commitment, path, PrefillPlan(share, commitment.ref.root)), rules)
