"""The bench at which a validator judges: engine, weights of the step in question, files, and the rules' context."""

from __future__ import annotations

import hashlib
import logging
import secrets
import shutil
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from node.engine import EngineSettings
from node.judging.candidate import Checked, Commitment, PrefillPlan
from node.judging.equipment import Equipment
from node.judging.history import History
from node.judging.judge import details, judge
from node.judging.rules import CHEAP, EARLY
from node.validator.alternatives import AlternativePlan
from node.validator.fetches import Fetches
from node.validator.judgement_log import JudgementLog
from node.versions import Version, Versions
from protocol import prefill_sampling
from protocol.calibration_notice import CalibrationNotice
from protocol.chain.events import Published
from protocol.chain.sync import Book
from protocol.chain.types import Role
from protocol.chain.view import Submission
from protocol.clock import SYSTEM, Clock
from protocol.errors import IntegrityError, PreflightError, ProtocolViolation, Retired, Unavailable
from protocol.retry import Backoff
from protocol.shell.connection import Connection
from protocol.submission import SubmissionRef
from protocol.verdict import Details, Finding

log = logging.getLogger("validator")

_PASSED_MOST = 4096  # submissions that wait for their weights, which are not judged again without them
_MOMENT = 5.0  # seconds: within them most versions arrive, and a turn may well take so long
_UNHELD_SECONDS = 60.0  # until a version that could not be had is asked for again, to be kept


class Bench:
    def __init__(
        self,
        connection: Connection,
        book: Book,
        folder: Path,
        journal: JudgementLog,
        engine: EngineSettings,
        *,
        patience: float = _MOMENT,
        clock: Clock = SYSTEM,
    ) -> None:
        """`book`: where everything that changes on chain is looked up; `patience`: seconds for which a fetch of weights is waited for, after which it goes on beside everything else."""
        spec = connection.spec
        self._book = book
        self._versions = Versions(connection, folder / "weights", head=self._head)
        self._fetches = Fetches(self._versions, patience, clock)
        self._equipment = Equipment(
            spec, connection.chain.domain, connection.run, engine, self._versions.newest, connection.fetch_task
        )
        self.context = self._equipment.context
        self._connection = connection
        self._files = folder / "rollouts"
        self._files.mkdir(parents=True, exist_ok=True)
        self._engine = self._equipment.engine  # one that cannot be made is found out now
        self._passed: OrderedDict[tuple[SubmissionRef, tuple[str, ...]], None] = OrderedDict()  # the newest few
        self._unheld = Backoff(_UNHELD_SECONDS, clock=clock)
        self._master = journal.secret("prefill", secrets.token_bytes(32))
        budget = spec.verification.history
        self._alternatives = None if budget is None else AlternativePlan(budget, spec.model.compute_dtype, self.holds)

    def close(self) -> None:
        self._fetches.close()
        self._equipment.close()
        self._versions.close()

    def commitment(self, submission: Submission) -> Commitment:
        """What the chain says of a submission, as things stood when it was committed."""
        return Commitment(
            submission.ref,
            submission.units,
            self._beacon(submission.step),
            self._hardware(submission),
            submission.block_hash,
            self._book.repeats(submission),
        )

    def _hardware(self, submission: Submission) -> int:
        """The class of the seat when it committed. A seat that is older than the book is asked about: as of the block before the
        commitment where it was taken again since, and as of the book's head otherwise, which every endpoint has.

        Raises Unavailable or RpcUnavailable where that state is not to be had: another class could convict an honest node.
        """
        known = self._book.hardware(submission)
        if known is not None:
            return known
        run, name = self._connection.run, self._book.seat(submission.node)
        at = submission.block - 1 if self._book.rejoined(submission) else None
        seat = self._book.ask(lambda one, block: one.seat(run, name, at=block), f"the seat {name}", at)
        if seat.role == Role.NONE:
            raise Unavailable(f"the seat of {submission.node} is not known where it was asked about")
        return seat.hardware

    def _published(self, step: int) -> Published:
        found = self._book.publication(step)
        if found is None:
            raise Unavailable(f"the publication of step {step} is not in the book yet")
        published: Published = found.data
        return published

    def _beacon(self, step: int) -> bytes:
        found = self._book.beacon(step)
        if found is None:
            raise Unavailable(f"the beacon of step {step} is not in the book yet")
        return found

    def _head(self) -> Version | None:
        newest = self._book.newest_publication()
        return None if newest is None else newest.data

    def holds(self, step: int) -> bool:
        """Whether a version is on this machine."""
        return self._versions.store.holds(step)

    def room(self) -> int:
        """Versions that a quarter of the free disk holds; 0 while none is here to tell how large they are."""
        steps = self._versions.store.steps()
        try:
            size = sum(file.stat().st_size for file in self._versions.store.folder(steps[-1]).iterdir()) if steps else 0
        except (OSError, PreflightError):  # just retired
            return 0
        return shutil.disk_usage(self._files).free // (4 * size) if size else 0

    def fetch(self, root: bytes) -> Path | None:
        """The rollout file of a root, from disk or the hub; None when nobody has it yet."""
        path = self._files / f"{root.hex()}.parquet"
        if path.exists() and _sha256(path) == root:  # what this disk has spoiled is no fault of the node
            return path
        return path if self._connection.hub.download(root, path, cap=self.context.spec.file_bytes_max) else None

    def hold(self, steps: Iterable[int], *, fetch: bool) -> None:
        """Keeps those versions of these steps that are here, until they are not named any more; `fetch` brings the others, one
        after another beside everything else.

        Whoever waits for a file until the end of its grace time, or for an appeal, would find its version retired everywhere.
        """
        wanted = sorted(steps)
        self._versions.store.want(wanted)
        for step in wanted if fetch else ():
            if not self._fetches.is_idle:
                return
            if step not in self._unheld and not self._versions.store.holds(step):
                try:
                    self._fetches.require(self._published(step))
                except (Unavailable, ProtocolViolation) as error:
                    log.debug("version %d cannot be held: %s", step, error)
                    self._unheld.failed(step)

    def judge(
        self,
        commitment: Commitment,
        path: Path,
        plan: PrefillPlan,
        time: int,
        checked: Checked | None = None,
        before: Callable[[CalibrationNotice | None], History] | None = None,
    ) -> Details | None:
        """Judges a submission at this block time, by the limits of the version it was made with. `before` gives what its seat did before under the same calibration, where the run judges by
        that. None while its weights are on their way. Raises whatever keeps a rule from running, Retired where that
        are weights that nobody keeps any more and all other rules were asked. `checked` notes which rows got the prefill, in a judgement that fails too, and that history.

        Without the weights, what the other rules find is found all the same; but nothing is accepted that not all have passed, and
        while they may still come nothing is decided that could be worse by then.
        """
        trouble, checked = None, checked or Checked()
        try:
            is_loaded = self._load(commitment.ref.step)
        except (Unavailable, ProtocolViolation, IntegrityError) as error:
            is_loaded, trouble = False, error
        if is_loaded:
            history = None if before is None else before(self._equipment.notice)
            checked.history = history
            again = self._alternatives_to(commitment, history, time)
            plan = replace(plan, alternatives=tuple(dict.fromkeys((*plan.alternatives, *again))))
            candidate = self._equipment.candidate(
                commitment, path, plan, checked, history, lambda back: self._before(commitment.ref.step, back)
            )
            finding = judge(candidate)
            if self._alternatives:
                self._alternatives.count(candidate.checked.tokens, candidate.checked.again)
            return details(self.context, commitment, finding, time, candidate.checked, plan.secret, history)
        finding = self._found_without_weights(
            commitment, path, plan, rules=CHEAP if self._is_past(commitment.ref.step) else EARLY
        )
        if finding is not None:
            return details(self.context, commitment, finding, time, secret=plan.secret)
        if trouble is None or (isinstance(trouble, Retired) and not self._equipment.has_tokenizer):
            return None  # the rules that need no weights are still to be asked
        raise trouble

    def _is_past(self, step: int) -> bool:
        """Whether nobody need keep this version any more."""
        head, spec = self._head(), self.context.spec
        return head is not None and step <= head.step - spec.versions_kept and step not in spec.versions_pinned

    def _found_without_weights(
        self, commitment: Commitment, path: Path, plan: PrefillPlan, *, rules: tuple[str, ...]
    ) -> Finding | None:
        """The finding of rules that need no model. They are asked once: what passes them waits for its weights."""
        asked = (commitment.ref, rules)
        if asked in self._passed or not self._has_tokenizer():
            return None
        finding = judge(self._equipment.candidate(commitment, path, plan), rules)
        if finding is None:
            self._passed[asked] = None
            if len(self._passed) > _PASSED_MOST:
                self._passed.popitem(last=False)
        return finding

    def _has_tokenizer(self) -> bool:
        """Whether the tokenizer is here, which all versions share; that of the head where none was loaded yet."""
        if not self._equipment.has_tokenizer:
            head = self._head()
            if head is None or not self._fetches.require(head):
                return False
            self._equipment.read_tokenizer(self._versions.held(head))
        return True

    def plan(self, *, in_full: bool, time: int, alternatives: tuple[str, ...] = ()) -> PrefillPlan:
        """Which samples a judgement at this block time gives the prefill; `in_full`: all of them; and as which `alternatives` once more."""
        share = 1.0 if in_full else float(self.context.spec.verification.prefill_share)
        return PrefillPlan(share, self.secret(time), alternatives=alternatives)

    def _alternatives_to(self, commitment: Commitment, history: History | None, time: int) -> tuple[str, ...]:
        """What a judgement of a submission at this block time prefills it with again, given what its seat did before."""
        if self._alternatives is None or history is None:
            return ()
        id, step = commitment.ref.submission_id(self._connection.run), commitment.ref.step
        return self._alternatives.names(id, step, history, self.secret(time))

    def notice(self, step: int) -> CalibrationNotice | None:
        """What a version says of the calibration; it is fetched where it is not here. Raises Unavailable while it is on its way, and as `judge`."""
        if self.context.spec.verification.recalibration is None:
            return None
        publication = self._published(step)
        if not self._fetches.require(publication):
            raise Unavailable(f"version {step} of the weights is on its way, and with it what work is judged by")
        return self._versions.notice(publication)

    def _before(self, step: int, back: int) -> Path | None:
        """The folder of an earlier version, where it is here."""
        publication = self._book.publication(step - back) if step >= back else None
        if publication is None or not self._versions.holds(publication.data):
            return None
        return self._versions.held(publication.data)

    def manifest(self, step: int) -> bytes | None:
        """The signed manifest of a version; None where it is not here."""
        return self._versions.store.manifest(step) if self._versions.store.holds(step) else None

    def secret(self, time: int) -> bytes:
        """What samples are drawn with by a judgement at this block time."""
        return prefill_sampling.secret(self._master, prefill_sampling.period(time, self._connection.policy.window))

    def judged(self, root: bytes) -> Path | None:
        """The file as it was judged, until it is discarded; None where there was none."""
        path = self._files / f"{root.hex()}.parquet"
        return path if path.exists() else None

    def discard(self, root: bytes) -> None:
        """Forgets a file that is not needed any more."""
        (self._files / f"{root.hex()}.parquet").unlink(missing_ok=True)

    def sweep(self, awaited: Callable[[], set[bytes]]) -> None:
        """Discards files that nothing waits for any more: others have judged, a case has ended, or a window. `awaited` gives
        the roots to keep, and is asked only where a file is left."""
        left = list(self._files.iterdir())
        kept = {root.hex() for root in awaited()} if left else set()
        for path in left:
            if path.stem not in kept:
                path.unlink(missing_ok=True)

    def _load(self, step: int) -> bool:
        """Whether the engine has the weights of a step now; not while they are on their way."""
        publication = self._published(step)
        if self._equipment.loaded == publication.manifest:
            return True
        if not self._fetches.require(publication):
            return False
        folder = self._versions.held(publication)
        with self._versions.store.lease(step):
            self._equipment.load(folder, publication.manifest, self._versions.notice(publication))
        return True


def _sha256(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
