"""The bench at which a validator judges: engine, weights of the step in question, files, and the rules' context."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from node.engine import EngineSettings, make_engine
from node.judging.candidate import Candidate, Commitment, PrefillPlan, RunContext
from node.judging.judge import details, judge
from node.judging.rules import CHEAP
from node.validator.judgement_log import JudgementLog
from node.versions import Versions
from protocol import prefill_sampling
from protocol.chain.view import Submission, View
from protocol.environments import TaskSet
from protocol.errors import IntegrityError, ProtocolViolation, Unavailable
from protocol.retry import Backoff
from protocol.sandbox import Sandbox
from protocol.shell.connection import Connection
from protocol.submission import SubmissionRef
from protocol.tokenizer import Tokenizer
from protocol.verdict import Details, Finding

log = logging.getLogger("validator")

_PASSED_MOST = 4096  # submissions that wait for their weights, which are not judged again without them
_UNHELD_SECONDS = 60.0  # until a version that could not be had is asked for again, to be kept


class Bench:
    def __init__(self, connection: Connection, folder: Path, journal: JudgementLog, engine: EngineSettings) -> None:
        spec = connection.spec
        self._versions = Versions(connection, folder / "weights")
        sandbox = Sandbox(spec)
        connection.fetch_tasks(sandbox)
        tasks = TaskSet(spec.environments, sandbox)
        tasks.require_same_problems()
        self.context = RunContext(spec, connection.chain.domain, connection.run, tasks, sandbox)
        self.context.sandbox.warm_up()
        self._connection = connection
        self._files = folder / "rollouts"
        self._files.mkdir(parents=True, exist_ok=True)
        self._engine = make_engine(engine, spec.model.compute_dtype)
        self._loaded: bytes | None = None
        self._tokenizer: Tokenizer | None = None
        self._passed: OrderedDict[SubmissionRef, None] = OrderedDict()  # the newest few
        self._unheld = Backoff(_UNHELD_SECONDS)
        self._master = journal.secret("prefill", secrets.token_bytes(32))

    def close(self) -> None:
        self.context.sandbox.close()
        self._versions.close()

    def commitment(self, submission: Submission, view: View) -> Commitment:
        """What the chain says of a submission, as things stood when it was committed."""
        chain, run = self._connection.chain, self._connection.run
        published, hardware = view.publication(submission.step), view.hardware(submission)
        if published is None:
            raise Unavailable(f"the publication of step {submission.step} is not in the book yet")
        return Commitment(
            submission.ref,
            submission.units,
            published.data.beacon,
            chain.seat(run, submission.node).hardware if hardware is None else hardware,
            submission.block_hash,
            view.repeats(submission),
        )

    def fetch(self, root: bytes) -> Path | None:
        """The rollout file of a root, from disk or the hub; None when nobody has it yet."""
        path = self._files / f"{root.hex()}.parquet"
        if path.exists() and _sha256(path) == root:  # what this disk has spoiled is no fault of the node
            return path
        return path if self._connection.hub.download(root, path, cap=self.context.spec.file_bytes_max) else None

    def hold(self, steps: Iterable[int], *, fetch: bool) -> None:
        """Keeps those versions of these steps that are here, until they are not named any more; `fetch` brings the others.

        Whoever waits for a file until the end of its grace time, or for an appeal, would find its version retired everywhere.
        """
        wanted = sorted(steps)
        self._versions.store.want(wanted)
        for step in wanted if fetch else ():
            if step not in self._unheld and not self._versions.store.holds(step):
                try:
                    self._versions.fetch(self._connection.chain.publication(self._connection.run, step))
                except (Unavailable, ProtocolViolation) as error:
                    log.debug("version %d cannot be held: %s", step, error)
                    self._unheld.failed(step)

    def judge(self, commitment: Commitment, path: Path, *, in_full: bool, time: int) -> Details:
        """Judges a submission; `in_full` gives all its samples the prefill. Raises whatever keeps a rule from running.

        Without the weights, what the other rules find is found all the same; but nothing is accepted that not all have passed.
        """
        plan = self.plan(in_full=in_full, time=time)
        try:
            self._load(commitment.ref.step)
        except (Unavailable, ProtocolViolation, IntegrityError):
            finding = self._found_without_weights(commitment, path, plan)
            if finding is None:
                raise
            return details(self.context, commitment, finding, time, secret=plan.secret)
        candidate = self._candidate(commitment, path, plan)
        finding = judge(candidate)
        return details(self.context, commitment, finding, time, candidate.checked, plan.secret)

    def _found_without_weights(self, commitment: Commitment, path: Path, plan: PrefillPlan) -> Finding | None:
        """The finding of the rules that need no model. They are asked once: what passes them waits for its weights."""
        if commitment.ref in self._passed:
            return None
        finding = judge(self._candidate(commitment, path, plan), CHEAP)
        if finding is None:
            self._passed[commitment.ref] = None
            if len(self._passed) > _PASSED_MOST:
                self._passed.popitem(last=False)
        return finding

    def _candidate(self, commitment: Commitment, path: Path, plan: PrefillPlan) -> Candidate:
        if self._tokenizer is None:
            self._tokenizer = Tokenizer(self._versions.newest())
        return Candidate(self.context, commitment, path, self._engine, self._tokenizer, plan)

    def plan(self, *, in_full: bool, time: int) -> PrefillPlan:
        """Which samples a judgement at this block time gives the prefill."""
        share = 1.0 if in_full else float(self.context.spec.verification.prefill_share)
        return PrefillPlan(share, self.secret(time))

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

    def _load(self, step: int) -> None:
        publication = self._connection.chain.publication(self._connection.run, step)
        if self._loaded == publication.manifest:
            return
        folder = self._versions.folder(publication)
        with self._versions.store.lease(step):
            self._engine.load(folder)
            self._tokenizer = self._tokenizer or Tokenizer(folder)
        self._loaded = publication.manifest


def _sha256(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
