"""From a finished file to the hub: the commitment on chain, then the upload within the grace time.

What is committed is owed: it is noted before it is sent, brought to the hub also by a later life of the node, and tried once more
before a node ends for another reason.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from node.contributor import submission_log
from node.contributor.generation import Made, path_of
from node.contributor.submission_log import LoggedSubmission, SubmissionLog
from protocol.chain import Sender
from protocol.chain.calls import Call
from protocol.chain.ethereum import newest_block
from protocol.chain.types import Publication, SubmissionState
from protocol.errors import InsufficientFunds, MurmurationError, TransactionReverted
from protocol.hub.wire import Refused
from protocol.logs import about
from protocol.shell.connection import Connection
from protocol.shell.money import duration
from protocol.submission import SubmissionRef

log = logging.getLogger("node")


class Delivery:
    def __init__(
        self,
        connection: Connection,
        submissions: SubmissionLog,
        sender: Sender,
        rollouts: Path,
        say: Callable[..., None],
    ) -> None:
        """`rollouts` holds the files by root; `say` tells the node's status."""
        self._c = connection
        self._submissions = submissions
        self._sender = sender
        self._rollouts = rollouts
        self._say = say

    def ahead(self, files: Sequence[Made], beacon: bytes) -> AbstractContextManager[None]:
        """Asks together what `note` and `commit` are going to ask for these files; within, they take those answers."""
        return self._sender.ahead(self._call(files, beacon))

    def note(self, files: Sequence[Made]) -> None:
        """Puts files into the log, as made; whatever ends the node after that, they are delivered if they are committed to."""
        run, now = self._c.run, self._c.block_time()
        for made in files:
            self._submissions.add(made.ref, made.ref.submission_id(run), made.units, now)

    def commit(self, files: Sequence[Made], beacon: bytes) -> MurmurationError | None:
        """Commits to noted files of one version on chain, whose sequence numbers follow each other, in one transaction. Returns the refusal where
        they were not taken; then they are given up, or for want of gas money kept for as long as the transaction may land.

        Raises what leaves open whether they will be: they stay noted, and `deliver_all` finds out.
        """
        run = self._c.run
        ids = [made.ref.submission_id(run) for made in files]
        name = f"submit/{ids[0].hex()}" + (f"/{len(ids)}" if len(ids) > 1 else "")
        try:
            self._sender.send(self._call(files, beacon), name=name)
        except (TransactionReverted, InsufficientFunds) as error:
            if self._c.chain.submission(run, files[0].ref).time:  # an earlier attempt was taken after all
                return None
            if isinstance(
                error, TransactionReverted
            ):  # else an endpoint may hold what another one refused: it may still land
                for made, submission_id in zip(files, ids, strict=True):
                    self._give_up(submission_id, made.path)
            return error
        for submission_id in ids:
            self._submissions.advance(submission_id, submission_log.COMMITTED)
        return None

    def _call(self, files: Sequence[Made], beacon: bytes) -> Call:
        chain, run = self._c.chain, self._c.run
        if len(files) == 1:
            return chain.submit(run, files[0].ref, files[0].units, beacon)
        return chain.submit_many(run, [made.ref for made in files], [made.units for made in files], beacon)

    def deliver_all(self, head: Publication | None) -> bool:
        """Brings everything on chain to the hub, also what an earlier life of this node committed.

        False while the hub does not take something: no more is committed then, for it could come too late as well.
        """
        return all(self._deliver(submission, head) for submission in self._owed())

    def deliver_rest(self) -> None:
        """Before the node ends for whatever reason: brings to the hub what it still can, and says what it leaves behind."""
        try:
            head = self._c.chain.head(self._c.run)
            for submission in self._owed():
                try:
                    self._deliver(submission, head)
                except Exception as error:  # noqa: BLE001  logged below; the others go on
                    _warn(f"step {submission.ref.step}, sequence {submission.ref.sequence}", error)
            left = len(self._owed())
        except Exception as error:  # noqa: BLE001  logged below; the node ends for another reason
            _warn("cannot look after what is committed", error)
            return
        if left:
            grace = duration(self._c.spec.upload_grace_seconds)
            log.error("%d submissions may be on chain and are not uploaded; start again within %s", left, grace)

    def _owed(self) -> list[LoggedSubmission]:
        """Oldest first."""
        return self._submissions.all(submission_log.MADE, submission_log.COMMITTED)[::-1]

    def _deliver(self, submission: LoggedSubmission, head: Publication | None) -> bool:
        """False when it is to be tried again before there is more."""
        chain, id = self._c.chain, submission.id
        with chain.ahead(
            chain.runs.functions.submissions(id).request(), newest_block()
        ):  # that is what the hub is told it is at
            return self._bring(submission, chain.submission(self._c.run, submission.ref), head)

    def _bring(self, submission: LoggedSubmission, found: SubmissionState, head: Publication | None) -> bool:
        """What to do with one of which the chain says this; returns as `_deliver`."""
        ref = submission.ref
        path = path_of(self._rollouts, ref.root)
        if found.time:
            self._submissions.date(submission.id, found.time)
        if not found.time:
            if not self._may_be_taken(ref, head):
                self._give_up(submission.id, path)
        elif not path.exists():
            log.warning("the file of step %d, sequence %d is gone", ref.step, ref.sequence)
            self._submissions.advance(submission.id, submission_log.LOST)
        else:
            with about(submission.id):
                return self._upload(submission, found, path)
        return True

    def _may_be_taken(self, ref: SubmissionRef, head: Publication | None) -> bool:
        """Whether a transaction that is still on its way could commit to this submission, as Runs.submit decides."""
        if head is None or head.step <= ref.step:
            return head is not None
        superseded = self._c.chain.publication(self._c.run, ref.step + 1).time
        return self._c.block_time() < superseded + self._c.policy.grace

    def _give_up(self, submission_id: bytes, path: Path) -> None:
        self._submissions.advance(submission_id, submission_log.LOST)
        path.unlink(missing_ok=True)

    def _upload(self, submission: LoggedSubmission, found: SubmissionState, path: Path) -> bool:
        """Uploads a committed file. False when it is to be tried again; raises Unavailable while the hub is."""
        ref, submission_id = submission.ref, submission.id
        try:
            stored = self._c.hub.upload(submission_id, ref.root, path, self._c.trainer)
        except Refused as error:
            log.warning("the hub refused step %d, sequence %d: %s", ref.step, ref.sequence, error)
            if error.may_pass and self._c.block_time() <= found.time + self._c.spec.upload_grace_seconds:
                self._say("waiting", reason=str(error), step=ref.step, sequence=ref.sequence)
                return False
            self._submissions.advance(submission_id, submission_log.LOST)
            return True
        self._submissions.keep_storage_receipt(submission_id, json.dumps(stored.as_json()))
        self._submissions.advance(submission_id, submission_log.STORED)
        log.info("step %d, sequence %d: %d tokens committed and uploaded", ref.step, ref.sequence, submission.units)
        return True

    def remove_files(self, before: float) -> None:
        """Removes files of which the log knows nothing (any more) and that are from before that time, in seconds since the epoch."""
        logged = {root.hex() for root in self._submissions.roots()}
        for path in self._rollouts.glob("*.parquet"):
            if path.stem not in logged and path.stat().st_mtime < before:
                path.unlink(missing_ok=True)


def _warn(what: str, error: Exception) -> None:
    log.warning("%s: %s", what, error, exc_info=not isinstance(error, MurmurationError))
