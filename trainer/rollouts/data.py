"""Training data: validated rollouts only, and only what this process has verified itself.

The hub is believed nothing: commitments and seats come from the trainer's own book of the chain, receipts must carry the
signatures of seated validators, files must hash to their commitments and are read in the sandbox (files.py). Of a node's work for a
step only what lies before its first rejected, skipped or missing sequence counts: nobody gains by withholding a submission.
Whatever is not as it should be is counted and left out; it stops nothing. A poll costs what is new, not what came before.
"""

from __future__ import annotations

import hashlib
import logging
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Collection
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import numpy as np

from protocol.chain import Chain
from protocol.chain.sync import Book
from protocol.chain.view import Submission
from protocol.clock import SYSTEM, Clock
from protocol.errors import Malformed, ProtocolViolation
from protocol.hub.client import HubClient
from protocol.hub.listing import Listing
from protocol.retry import Backoff
from protocol.rollout import Sample
from protocol.runspec import RunSpec, starts
from protocol.sandbox import Sandbox
from protocol.verdict import Outcome, Receipt
from trainer.config import OnlineFilter
from trainer.learning import advantage
from trainer.learning.packing import TrainingSample
from trainer.rollouts.counts import DataCounts, names_of
from trainer.rollouts.files import Bounds, RolloutFiles
from trainer.rollouts.lines import SubmissionLines
from trainer.rollouts.outlook import Outlook
from trainer.rollouts.pool import GroupPool, Name, TrainingGroup
from trainer.rollouts.share import cap, least_cap, pick
from trainer.rollouts.workforce import Workforce
from trainer.seats import SEAT_EVENTS, HeldSeat, held_seats, may_have_seats

log = logging.getLogger("trainer")

_OVERTAKEN_MAX = 4096  # submissions whose late acceptance is noticed
_STRANGERS_MAX = 1024  # receipts kept in case their signer's seat is on chain but not read yet


@dataclass
class _Submission:
    event: Submission
    read: bool = False
    groups: tuple[TrainingGroup, ...] = ()
    fresh: bool = True
    """Not in the counts of the checkpoint that this process went on from."""
    broken: bool = False
    """Accepted, but of no use: the line ends here as if it had been rejected."""


class RolloutSource:
    """Follows chain and hub; call `poll`, then `take`. Not thread-safe. `hub` may be replaced when it has moved."""

    def __init__(
        self, chain: Chain, run: int, spec: RunSpec, book: Book, hub: HubClient, sandbox: Sandbox, folder: Path,
        bounds: Bounds, *, end_tokens: Collection[int], node_share: float = 1.0, online_filter: OnlineFilter = "task_reward",
        poll_seconds: float = 0.0, clock: Clock = SYSTEM,
    ) -> None:  # fmt: skip
        """`poll_seconds` lie between looks at the chain, unless a validator speaks of a submission that is not known here. `end_tokens`: those that end an answer. `node_share`: the largest share of a batch that one node may supply, see share.py.
        `online_filter`: see config.py."""
        self.hub = hub
        self.counts = DataCounts()
        self.trained_nodes: Counter[str] = Counter()
        self._chain = chain
        self._run = run
        self._spec = spec
        self._digest = spec.digest.hex()
        self._book = book
        self._known: int | None = None  # how far in the book
        self._poll_seconds = poll_seconds
        self._looks = Backoff(poll_seconds, clock=clock)
        self._files = RolloutFiles(spec, sandbox, folder, bounds, clock)
        self._end_tokens = frozenset(end_tokens)
        self._node_share = node_share
        self._online_filter = online_filter
        self._environments = names_of(environment.dataset for environment in spec.environments)
        self._starts = starts(spec.environments)
        self._oldest = 0
        self._submissions: dict[bytes, _Submission] = {}
        self._lines = SubmissionLines(self._stands, self._admit, self._withdraw)
        # (step, submission) → validator → outcome
        self._verdicts: dict[tuple[int, bytes], dict[str, Outcome]] = defaultdict(dict)
        self._strangers: deque[Receipt] = deque(maxlen=_STRANGERS_MAX)
        self._receipts = Listing()
        self._pool = GroupPool()
        self._outlook = Outlook(clock)
        self._overtaken: dict[bytes, None] = {}  # too old before enough validators had accepted them
        self._duplicates: set[Name] = set()
        self._supplies: Counter[str] = Counter()  # usable submissions by node
        self._serving: frozenset[str] = frozenset()
        self._stale_before = 0
        self._seats: list[HeldSeat] | None = None  # read again once one has changed
        self._most = 0  # submissions of a seat for one version

    def poll(self, *, wait: int = 0) -> None:
        """Learns what is new; with `wait` the hub holds its answer back up to so many seconds until there is something.

        Raises what chain and hub fail with. What was learnt by then stays, and the next poll goes on from there.
        """
        if not self._looks.left():
            self._follow_chain()
            self._looks.hold(None, self._poll_seconds)
        for data in self._receipts.news(lambda mark: self.hub.receipts(mark, wait=wait)):
            self._add_receipt(data)
        for submission in self._files.due():
            self._lines.stir(submission)
        self._lines.settle()

    def ready(self, step: int) -> int:
        """Groups that a batch for `step` could be made of now."""
        self._drop_stale(step)
        return len(self._pool)

    def take(self, step: int, count: int, *, uncapped: bool = False) -> list[TrainingGroup] | None:
        """`count` groups for the batch of `step`, of the oldest weights first, or None while there are too few.

        Newer ones can be trained on later; so none is left over as long as no more come than batches hold.

        One node's part is capped; `uncapped` spreads what the others cannot supply as evenly as it goes.
        """
        self._drop_stale(step)
        if len(self._pool) < count:
            return None
        ready = self._pool.ready()
        least, most = least_cap(ready, count), cap(count, self._node_share, len(self._supplies))
        if least is None or (least > most and not uncapped):
            return None
        batch = pick(sorted(ready, key=lambda group: group.step), count, max(least, most))
        for group in batch:
            self._pool.train_on(group)
            self.counts.staleness[group.staleness(step)] += 1
            self.trained_nodes[group.node] += 1
        return batch

    def settled(self, step: int) -> int:
        """Submissions that a batch for `step` may hold groups of, and of which nothing more is expected."""
        return self._outlook.settled(self._oldest_for(step))

    @property
    def usable(self) -> float:
        """Share of submitted groups that could be trained on, lately."""
        return self._outlook.usable

    @property
    def has_seats(self) -> bool:
        """Whether anybody could work for the run at all."""
        return bool(self._serving_seats()) or may_have_seats(self._book)

    def workforce(self, step: int) -> Workforce | None:
        """What may still come for a batch for `step`, whose weights are version `step`; None while they are not published."""
        published = self._book.publication(step)
        if published is None:
            return None
        oldest = self._oldest_for(step)
        committed = [state.event for state in self._submissions.values() if state.event.step >= oldest]
        of_head = Counter(event.node for event in committed if event.step == step)
        on_the_way = max(0, len(committed) - self._outlook.settled(oldest))
        return Workforce.of(self._serving_seats(), published.block, of_head, self._most, on_the_way)

    def _serving_seats(self) -> list[HeldSeat]:
        head = self._book.head
        if self._seats is None:
            self._seats = held_seats(self._book)
        return [] if head is None else [seat for seat in self._seats if seat.serves(head.time)]

    def forget_before(self, step: int) -> None:
        """Drops, and from now on ignores, what no batch can use any more when the next one is for `step`."""
        self._drop_stale(step)
        oldest = self._oldest_for(step)
        self._tell_unjudged(oldest)
        self._note_overtaken(oldest)
        self._outlook.forget_before(oldest)
        self._oldest = oldest
        self._lines.forget_before(oldest)
        self.counts.bad_files += self._files.forget_before(oldest)
        self._submissions = {
            submission: state for submission, state in self._submissions.items() if state.event.step >= oldest
        }
        self._verdicts = defaultdict(dict, {key: of for key, of in self._verdicts.items() if key[0] >= oldest})
        self._pool.forget_before(oldest)
        self.counts.counted = {id_: of for id_, of in self.counts.counted.items() if of >= oldest}
        self._duplicates = {key for key in self._duplicates if key[0] in self._submissions}

    def _tell_unjudged(self, oldest: int) -> None:
        """A submission that nobody judges is paid unchecked. What was too old when the process started is not among these."""
        lost = Counter(
            state.event.step for id_, state in self._submissions.items()
            if state.event.step < oldest and not self._verdicts.get((state.event.step, id_))
        )  # fmt: skip
        self.counts.unjudged_submissions += lost.total()
        for step, number in sorted(lost.items()):
            log.warning(
                "%d submissions of step %d are too old to be trained on, and no validator has judged them: does one work?",
                number,
                step,
            )

    def _note_overtaken(self, oldest: int) -> None:
        """Keeps which submissions were too old before they were accepted: their groups are too old when they are."""
        for id_, state in self._submissions.items():
            if state.event.step < oldest and not state.read and Outcome.ACCEPT not in self._said(id_):
                self._overtaken[id_] = None
        for id_ in list(self._overtaken)[:-_OVERTAKEN_MAX]:
            del self._overtaken[id_]

    def _said(self, submission: bytes) -> list[Outcome]:
        """What those who hold a seat now have said of a submission."""
        of = self._verdicts.get((self._submissions[submission].event.step, submission), {})
        return [outcome for validator, outcome in of.items() if self._serves(validator)]

    @property
    def cursor(self) -> list[list[object]]:
        """What was consumed and could be met again, for a checkpoint."""
        return [[submission.hex(), index, step, content] for (submission, index), step, content in self._pool.trained]

    def restore(self, cursor: list[list[object]]) -> None:
        self._pool.restore(
            ((bytes.fromhex(str(submission)), int(str(index))), int(str(step)), str(content))
            for submission, index, step, content in cursor
        )

    # ---- following -----------------------------------------------------------------------------------------------------

    def _follow_chain(self) -> None:
        self._book.poll()
        self._note_seats()
        self._most = self._most or self._chain.policy(self._run).max_per_step
        if self._known is None:
            self._begin()
        more = True
        while more:
            changes = self._book.changes_since(self._known or 0)
            for s in changes.gone_submissions:
                self._lines.remove(s.id)
                self._files.forget(s.id)
                self._outlook.taken_back(s.id)
                self._submissions.pop(s.id, None)
            for s in changes.submissions:
                self._note(s)
            if any(isinstance(event.data, SEAT_EVENTS) for event in (*changes.gone_events, *changes.events)):
                self._seats = None
            self._known, more = changes.cursor, changes.more

    def _begin(self) -> None:
        """Starts with what a batch may still hold, however much the book knows: nobody works on a version before it is out."""
        published = self._book.publication(self._oldest)
        first = 0 if published is None else published.block
        self._known = self._book.position
        for s in takewhile(lambda s: s.block >= first, self._book.newest_submissions()):
            self._note(s)

    def _note(self, s: Submission) -> None:
        if s.step >= self._oldest:
            self._submissions[s.id] = _Submission(s)
            self._lines.put(s.node, s.step, s.sequence, s.id)
            self._outlook.committed(s.id, s.step)

    def _note_seats(self) -> None:
        """Where a validator has come or gone, whatever was said counts anew."""
        head = self._book.head
        serving = self._book.validators(head.time if head else 0)
        if serving == self._serving:
            return
        self._serving = serving
        self._lines.stir_all()
        waiting = list(self._strangers)
        self._strangers.clear()
        for receipt in waiting:
            self._apply(receipt)

    def _serves(self, validator: str) -> bool:
        return validator in self._serving

    def _add_receipt(self, data: bytes) -> None:
        try:
            receipt = Receipt.parse(data, self._chain.domain, self._run)
            if receipt.details.spec != self._digest:
                raise Malformed("its validator works with another run spec")
        except ProtocolViolation as error:
            self.counts.bad_receipts += 1
            log.warning("a receipt is ignored: %s", error)
            return
        if not self._serves(receipt.validator):
            self.counts.bad_receipts += 1
            log.warning("a receipt counts only once its signer's seat is on chain: %s", receipt.validator)
        self._apply(receipt)

    def _apply(self, receipt: Receipt) -> None:
        if not self._serves(receipt.validator):
            self._strangers.append(receipt)
        elif receipt.details.step >= self._oldest:
            self._verdicts[receipt.details.step, receipt.submission].setdefault(receipt.validator, receipt.outcome)
            self._lines.stir(receipt.submission)
            if receipt.submission not in self._submissions:
                self._looks.succeeded()  # looked at the next time, and not later
            if receipt.outcome != Outcome.ACCEPT:
                self._outlook.settle(receipt.submission, 0.0)
        elif receipt.outcome == Outcome.ACCEPT and receipt.submission in self._overtaken:
            del self._overtaken[receipt.submission]
            self.counts.stale_groups += self._spec.sampling.groups_per_submission

    def _accepted(self, submission: bytes) -> bool:
        """Whether enough of those who hold a seat now have accepted a submission, and none of them has not."""
        outcomes = self._said(submission)
        return len(outcomes) >= self._spec.verification.validators_needed and set(outcomes) == {Outcome.ACCEPT}

    def _stands(self, submission: bytes) -> bool:
        return self._accepted(submission) and not self._submissions[submission].broken

    def _admit(self, submission: bytes) -> bool:
        """Takes a submission's groups into the pool, where it is accepted and of use."""
        if not self._accepted(submission):
            self._files.forget(submission)
            return False
        state = self._submissions[submission]
        if not state.read:
            self._read(submission, state)
        if state.broken or not state.read:
            return False
        self._supplies[state.event.node] += 1
        for group in state.groups:
            if not self._pool.add(group) and group.name not in self._duplicates:
                self._duplicates.add(group.name)
                self.counts.duplicate_groups += state.fresh
        return True

    def _withdraw(self, submission: bytes) -> None:
        """Gives back what is not usable any more."""
        state = self._submissions[submission]
        self._supplies[state.event.node] -= 1
        if not self._supplies[state.event.node]:
            del self._supplies[state.event.node]
        self._pool.take_back(state.groups)

    def _read(self, submission: bytes, state: _Submission) -> None:
        """Takes a file's groups, unless it is to be had later."""
        try:
            samples = self._files.read(self.hub, state.event)
        except ProtocolViolation as error:
            log.error("validators accepted %s, which cannot be used: %s", state.event.root.hex(), error)
            state.broken, samples = True, ()
        if samples is None:
            return
        state.read = True
        state.fresh = submission.hex() not in self.counts.counted
        self.counts.counted[submission.hex()] = state.event.step
        self.counts.bad_files += state.broken and state.fresh
        size = self._spec.sampling.group_size
        for sample in samples if state.fresh else ():
            number = self._environment(sample)
            reward = self._spec.reward_of(number)
            self.counts.add(self._environments[number], [sample], self._end_tokens, reward)
        found = [
            self._group(submission, index, state, samples[index * size : (index + 1) * size])
            for index in range(len(samples) // size)
        ]
        state.groups = tuple(group for group in found if group is not None)
        self._outlook.settle(submission, len(state.groups) / len(found) if found else 0.0)

    def _environment(self, sample: Sample) -> int:
        return bisect_right(self._starts, sample.problem) - 1

    def _group(
        self, submission: bytes, index: int, state: _Submission, samples: tuple[Sample, ...]
    ) -> TrainingGroup | None:
        """A group with its advantages; None where it teaches nothing or was trained on before."""
        if self._pool.was_trained_on((submission, index)):
            return None
        s = state.event
        self.counts.groups += state.fresh
        if reason := advantage.no_signal(samples, self._online_filter):
            if state.fresh:
                self.counts.drop(self._environments[self._environment(samples[0])], reason)
            return None
        rewards = tuple(float(sample.reward) for sample in samples)
        advantages = advantage.normalised(np.array(rewards))
        if not np.isfinite(advantages).all():
            self.counts.bad_groups += state.fresh
            log.error("group %d of %s is left out: its rewards give no finite advantages", index, s.root.hex())
            return None
        made = tuple(
            training_sample(sample, float(a), f"{submission.hex()}/{index}.{number}")
            for number, (sample, a) in enumerate(zip(samples, advantages, strict=True))
        )
        return TrainingGroup(submission, index, s.node, s.step, made, _content(samples), rewards)

    def _oldest_for(self, step: int) -> int:
        """The oldest version whose rollouts a batch for `step` may hold."""
        return step - self._spec.max_lag

    def _drop_stale(self, step: int) -> None:
        oldest = self._oldest_for(step)
        self.counts.stale_groups += self._pool.drop_before(oldest)
        if oldest > self._stale_before:
            self._stale_before = oldest
            for state in self._submissions.values():
                if state.event.step < oldest:
                    state.groups = ()


def training_sample(sample: Sample, advantage: float, name: str = "") -> TrainingSample:
    """A row of a rollout file as the learner sees it: no loss on what the model was given."""
    turns = sample.conversation
    generated = None if len(turns) == 1 else turns.mask
    return TrainingSample(sample.prompt, sample.context, advantage, sample.logprobs, name, generated)


def _content(samples: tuple[Sample, ...]) -> str:
    hasher = hashlib.sha256()
    for sample in samples:
        for tokens in (sample.prompt, sample.completion, sample.turns, sample.answers, sample.given):
            hasher.update(len(tokens).to_bytes(8, "big") + tokens.tobytes())
    return hasher.hexdigest()
