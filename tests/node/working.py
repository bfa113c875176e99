"""What tests of the worker share: a worker on a stage, and what can be seen of it from outside."""

from __future__ import annotations

from collections.abc import Callable

from node.contributor.settings import WorkSettings
from node.contributor.worker import Worker
from node.engine.torch_engine import TorchEngine
from protocol.chain import Sender
from protocol.chain.calls import Call
from protocol.chain.sync import Book
from protocol.chain.view import Submission
from protocol.identity import Key
from protocol.verdict import Details, Outcome, Receipt
from tests.node.stage import Stage

QUICK = WorkSettings(commit_seconds=0, retry_seconds=0.05, self_check_share=0.2, answer_matrix_challenges=False)


def a_worker(
    stage: Stage, node: Key, *, name: str = "node", engine: Callable[[str], TorchEngine] | None = None
) -> Worker:
    return Worker(stage.connection(node), stage.home(name), QUICK, engine or (lambda dtype: TorchEngine(dtype)))


def submitted(stage: Stage) -> list[Submission]:
    book = Book(stage.world.chain, stage.world.run)
    book.poll()
    return book.changes_since(0).submissions


def stored(stage: Stage, node: Key) -> int:
    """Submissions of the node that the hub holds."""
    client, trainer = stage.client(node), stage.world.trainer.key.address
    submissions = [s.id for s in submitted(stage) if s.node == node.address]
    return sum(client.stored(submission, trainer) is not None for submission in submissions)


def told(stage: Stage, name: str = "node") -> dict[str, object]:
    return stage.home(name).read_status() or {}


def waits_because(stage: Stage, reason: str, name: str = "node") -> Callable[[], bool]:
    return lambda: told(stage, name).get("state") == "waiting" and reason in str(told(stage, name).get("reason"))


def judged(stage: Stage, validator: Key, submission: bytes, outcome: Outcome) -> None:
    """A validator's receipt, posted at the hub."""
    s = next(s for s in submitted(stage) if s.id == submission)
    domain = stage.world.chain.domain
    rule = "" if outcome == Outcome.ACCEPT else "sampling"
    details = Details(
        protocol=1, chain_id=domain.chain_id, contract=domain.contract, run=stage.world.run, submission=submission.hex(), node=s.node, step=s.step,
        sequence=s.sequence, root=s.root.hex(), units=s.units, spec="00" * 32, outcome=int(outcome), rule=rule,
        measured="1" if rule else "", threshold="0" if rule else "", detail="row 0" if rule else "", samples="0" * 63 + "1", sequences_checked=1,
        proofs_checked=1, tokens_checked=1, time=1,
    )  # fmt: skip
    stage.client(validator).post_receipt(Receipt.issue(details, validator, domain).encode())


class Hooked(Sender):
    """Does something just before or after a transaction is sent, as other parties might."""

    before: Callable[[], None] | None = None
    after: Callable[[], None] | None = None

    def send(self, call: Call, *, name: str | None = None):
        if self.before:
            hook, self.before = self.before, None
            hook()
        sent = super().send(call, name=name)
        if self.after:
            hook, self.after = self.after, None
            hook()
        return sent


def hooked(worker: Worker) -> Hooked:
    plain = worker._delivery._sender
    worker._delivery._sender = made = Hooked(plain.chain, plain.key, plain._journal)
    return made
