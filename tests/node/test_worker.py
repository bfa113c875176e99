"""The worker against a real chain and a real hub: it commits only what is right, and loses nothing that it committed."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from starlette.responses import PlainTextResponse, Response

from node import journal as states
from node.engine import TorchEngine
from node.generation import Made
from node.journal import Journal
from node.settings import WorkSettings
from node.worker import Worker
from protocol.chain import Sender
from protocol.chain.client import Call
from protocol.chain.events import Submitted
from protocol.chain.index import EventIndex
from protocol.chain.types import State
from protocol.errors import (
    Banned,
    DeadlineExceeded,
    InsufficientFunds,
    IntegrityError,
    LockHeld,
    PreflightError,
    RpcUnavailable,
)
from protocol.identity import Key
from protocol.verdict import Details, Outcome, Receipt
from tests.node.stage import LiveHub, Stage, Wired, eventually, running
from tests.world import TOKEN, World

QUICK = WorkSettings(retry_seconds=0.05, self_check_share=0.2)


def a_worker(
    stage: Stage, node: Key, *, name: str = "node", engine: Callable[[str], TorchEngine] | None = None
) -> Worker:
    return Worker(stage.connection(node), stage.home(name), QUICK, engine or (lambda dtype: TorchEngine(dtype)))


def submitted(stage: Stage) -> list[Submitted]:
    index = EventIndex(stage.world.chain)
    index.poll()
    return [s for _, s in index.events(Submitted)]


def stored(stage: Stage, node: Key) -> int:
    """Works of the node that the hub holds."""
    client, run, trainer = stage.client(node), stage.world.run, stage.world.trainer.key.address
    works = [_ref(s).work_id(run) for s in submitted(stage) if s.node == node.address]
    return sum(client.stored(work, trainer) is not None for work in works)


def _ref(s: Submitted):
    from protocol.chain.types import Ref

    return Ref(s.node, s.step, s.sequence, s.root)


def told(stage: Stage, name: str = "node") -> dict[str, object]:
    return stage.home(name).read_status() or {}


def waits_because(stage: Stage, reason: str, name: str = "node") -> Callable[[], bool]:
    return lambda: told(stage, name).get("state") == "waiting" and reason in str(told(stage, name).get("reason"))


def judged(stage: Stage, validator: Key, work: bytes, outcome: Outcome) -> None:
    """A validator's receipt, posted at the hub."""
    s = next(s for s in submitted(stage) if _ref(s).work_id(stage.world.run) == work)
    domain = stage.world.chain.domain
    rule = "" if outcome == Outcome.ACCEPT else "sampling"
    details = Details(
        protocol=1, chain_id=domain.chain_id, contract=domain.contract, run=s.run, work=work.hex(), node=s.node, step=s.step,
        sequence=s.sequence, root=s.root.hex(), units=s.units, spec="00" * 32, outcome=int(outcome), rule=rule,
        measured="1" if rule else "", threshold="0" if rule else "", detail="row 0" if rule else "", samples="0" * 63 + "1", sequences_checked=1,
        proofs_checked=1, tokens_checked=1, time=1,
    )  # fmt: skip
    stage.client(validator).post_receipt(Receipt.issue(details, validator, domain).encode())


# ---- the usual course --------------------------------------------------------------------------------------------------


def test_it_works_through_a_version_and_uploads_what_it_committed(stage: Stage) -> None:
    node = stage.seated()
    stage.publish()
    with running(a_worker(stage, node)):
        eventually(waits_because(stage, "done for this version"), within=40, what="all sequences are used")
        found = [s for s in submitted(stage) if s.node == node.address]
        assert [s.sequence for s in found] == list(range(stage.world.chain.policy(stage.world.run).max_per_step))
        assert stored(stage, node) == len(found)
        for s in found:
            data = (stage.home("node").data / "rollouts" / f"{s.root.hex()}.parquet").read_bytes()
            assert hashlib.sha256(data).digest() == s.root


def test_it_learns_its_verdicts_and_the_gravest_stays(stage: Stage) -> None:
    node, one, two = stage.seated(), stage.validator(), stage.validator()
    stage.publish()
    worker = a_worker(stage, node)
    with running(worker):
        eventually(lambda: len(worker.journal.all(states.STORED)) >= 3, what="three works are stored")
        a, b, c = (s.work for s in reversed(worker.journal.all()[-3:]))
        judged(stage, one, a, Outcome.ACCEPT)
        judged(stage, one, b, Outcome.SOFT)
        judged(stage, two, b, Outcome.ACCEPT)
        judged(stage, one, c, Outcome.SOFT)
        judged(stage, two, c, Outcome.HARD)
        state = lambda work: worker.journal.get(work).state  # noqa: E731
        eventually(lambda: state(c) == states.HARD, what="the hard verdict is known")
        assert (state(a), state(b)) == (states.ACCEPTED, states.SOFT)
        receipt = json.loads(worker.journal.get(c).receipt)
        assert receipt["details"]["rule"] == "sampling"
        assert receipt["validator"] == two.address


def test_receipts_of_nobody_in_particular_mean_nothing(stage: Stage) -> None:
    """The hub lists what it likes; only validators with a seat and a signature that fits count."""
    node, validator, stranger = stage.seated(), stage.validator(), Key.generate()
    stage.publish()
    worker = a_worker(stage, node)
    lies: list[str] = []
    asked: list[str] = []

    def lie(method: str, path: str) -> Response | None:
        if method != "GET" or not path.endswith("/receipts"):
            return None
        asked.extend(lies)
        return PlainTextResponse(lies[0] if lies else '{"entries": []}')

    stage.hub.fault = lie
    with running(worker):
        eventually(lambda: len(worker.journal.all(states.STORED)) >= 2, what="two works are stored")
        a, b = (s.work for s in reversed(worker.journal.all()[-2:]))
        lies.append(_forged(stage, stranger, a))
        eventually(lambda: len(asked) > 2, what="the forged receipts were read")
        assert worker.journal.get(a).state == states.STORED
        stage.hub.fault = lambda method, path: None
        judged(stage, validator, b, Outcome.ACCEPT)
        eventually(lambda: worker.journal.get(b).state == states.ACCEPTED, what="the real receipt is read")


def _forged(stage: Stage, stranger: Key, work: bytes) -> str:
    s = next(s for s in submitted(stage) if _ref(s).work_id(stage.world.run) == work)
    domain = stage.world.chain.domain
    details = Details(
        protocol=1, chain_id=domain.chain_id, contract=domain.contract, run=s.run, work=work.hex(), node=s.node, step=s.step,
        sequence=s.sequence, root=s.root.hex(), units=s.units, spec="00" * 32, outcome=3, rule="sampling", measured="1",
        threshold="0", detail="", samples="0" * 63 + "1", sequences_checked=1, proofs_checked=1, tokens_checked=1, time=1,
    )  # fmt: skip
    value = json.loads(Receipt.issue(details, stranger, domain).encode())
    broken = {**value, "signature": "0x" + "11" * 65}
    odd = {"details": {"node": s.node}, "validator": 7}
    entries = [{"id": i + 1, "value": v} for i, v in enumerate((value, broken, odd))]
    return json.dumps({"entries": entries})


GARBAGE = ["[" * 20_000, '{"entries": [{"id": 1e999, "value": {}}]}', "\xff", '{"entries": 7}', "{}", ""]


def test_garbage_in_the_listing_does_not_keep_it_from_the_verdicts(stage: Stage) -> None:
    node, validator = stage.seated(), stage.validator()
    stage.publish()
    worker = a_worker(stage, node)
    answers = iter(GARBAGE)

    def garble(method: str, path: str) -> Response | None:
        garbage = next(answers, None) if method == "GET" and path.endswith("/receipts") else None
        return None if garbage is None else PlainTextResponse(garbage)

    stage.hub.fault = garble
    with running(worker):
        eventually(lambda: worker.journal.all(states.STORED), what="a work is stored")
        work = worker.journal.all(states.STORED)[0].work
        judged(stage, validator, work, Outcome.ACCEPT)
        eventually(lambda: worker.journal.get(work).state == states.ACCEPTED, what="the receipt is read")
        assert next(answers, None) is None


# ---- never false work --------------------------------------------------------------------------------------------------


class FaultyEngine(TorchEngine):
    """Right in prefill, wrong in decoding: as a machine with a fault in one of two kernels."""

    def _sample(self, hidden, keys, position, temperature):
        tokens, logprobs = super()._sample(hidden, keys, position, temperature)
        return (tokens + (position == 0)) % self.vocabulary, logprobs


class OverflowingEngine(TorchEngine):
    """Computes no numbers with the first version it loads, though its weights are some."""

    loads = 0

    def load(self, folder: Path) -> None:
        super().load(folder)
        self.loads += 1
        if self.loads == 1:
            with torch.no_grad():
                self._model.base_model.norm.weight.fill_(float("nan"))


def test_it_never_submits_what_its_own_check_rejects(stage: Stage) -> None:
    node = stage.seated()
    stage.publish()
    worker = a_worker(stage, node, engine=FaultyEngine)
    with running(worker) as ended:
        assert ended.event.wait(20)
        assert isinstance(ended.error, IntegrityError)
        assert ended.error.exit_code == 8
        assert not submitted(stage)
        assert not worker.journal.all()


def test_a_version_that_cannot_be_loaded_is_waited_out(stage: Stage) -> None:
    """The bytes are the chain's, so they are nobody's fault here; the next version may be right."""
    node = stage.seated()
    stage.publish(_without_a_tensor(stage))
    with running(a_worker(stage, node)) as ended:
        eventually(waits_because(stage, "cannot be used"), what="the status says so")
        stage.publish()
        eventually(lambda: [s.step for s in submitted(stage)], what="it works on the next version")
        assert {s.step for s in submitted(stage)} == {1}
        assert not ended.event.is_set()


def test_a_version_that_holds_a_nan_is_waited_out(stage: Stage) -> None:
    """Or one bad version would end every node at once, each with the advice to look for faulty memory."""
    import shutil

    from safetensors.torch import load_file, save_file

    folder = stage.folder / "nan"
    shutil.copytree(stage.tiny.model, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][0] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    node = stage.seated()
    stage.publish(folder)
    with running(a_worker(stage, node)) as ended:
        eventually(waits_because(stage, "cannot be used"), what="the status says so")
        stage.publish()
        eventually(lambda: [s.step for s in submitted(stage)], what="it works on the next version")
        assert {s.step for s in submitted(stage)} == {1}
        assert not ended.event.is_set()


def test_a_version_that_computes_no_numbers_is_waited_out(stage: Stage) -> None:
    node = stage.seated()
    stage.publish()
    with running(a_worker(stage, node, engine=OverflowingEngine)) as ended:
        eventually(waits_because(stage, "computes no numbers"), what="the status says so")
        assert not submitted(stage)
        stage.publish()
        eventually(lambda: [s.step for s in submitted(stage)], what="it works on the next version")
        assert {s.step for s in submitted(stage)} == {1}
        assert not ended.event.is_set()


def test_a_version_of_another_model_is_never_loaded(stage: Stage) -> None:
    import shutil

    node = stage.seated()
    folder = stage.folder / "other"
    shutil.copytree(stage.tiny.model, folder)
    config = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))
    stage.publish(folder)
    worker = a_worker(stage, node)
    with running(worker):
        eventually(waits_because(stage, "config.json"), what="the status says so")
        seen = told(stage)["at"]
        eventually(
            lambda: told(stage)["at"] != seen and waits_because(stage, "config.json")(), what="not at the second try"
        )
        assert worker._engine._model is None
        assert not submitted(stage)


def _without_a_tensor(stage: Stage) -> Path:
    import shutil

    from safetensors.torch import load_file, save_file

    folder = stage.folder / "short"
    shutil.copytree(stage.tiny.model, folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_weights_of_another_run_in_the_same_home_are_replaced(stage: Stage) -> None:
    """The folder holds a step 0 already, of other weights. What the chain says counts, not the number."""
    from node.versions import Versions

    other = stage.publish(stage.variant(0.5))
    versions = Versions(stage.connection(Key.generate()), stage.home("node").data / "weights")
    before = (versions.folder(other) / "model.safetensors").read_bytes()
    versions.close()
    world = World.fresh(stage.world.anvil, spec_digest=stage.tiny.spec.digest)
    second = Stage(world, stage.tiny, stage.folder / "second")
    try:
        published = second.publish()
        assert published.step == other.step
        versions = Versions(second.connection(Key.generate()), stage.home("node").data / "weights")
        assert (versions.folder(published) / "model.safetensors").read_bytes() != before
        versions.close()
    finally:
        second.close()


def test_a_version_that_nobody_keeps_any_more_is_not_waited_for(stage: Stage) -> None:
    from node.versions import Versions
    from protocol.errors import Unavailable

    first = stage.publish()
    for _ in range(stage.tiny.spec.versions_kept):
        last = stage.publish()
    versions = Versions(stage.connection(Key.generate()), stage.folder / "weights")
    started = time.monotonic()
    with pytest.raises(Unavailable, match="older than what anybody keeps"):
        versions.folder(first)
    assert time.monotonic() - started < 2
    assert versions.folder(last).exists()
    versions.close()


# ---- refusals ----------------------------------------------------------------------------------------------------------


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
    worker._sender = Hooked(worker._sender.chain, worker._sender.key, worker._sender._journal)
    return worker._sender


def test_it_goes_on_when_the_head_moved_while_it_generated(stage: Stage) -> None:
    """grace is 60 s of block time; beyond it the old version is refused with WrongStep."""
    node = stage.seated()
    stage.publish()
    worker = a_worker(stage, node)

    def move() -> None:
        stage.publish()
        stage.world.anvil.advance(61)

    hooked(worker).before = move
    with running(worker) as ended:
        eventually(lambda: submitted(stage), what="it submits for the new version")
        assert {s.step for s in submitted(stage)} == {1}
        assert not ended.event.is_set()
        eventually(lambda: worker.journal.all(states.LOST), what="the refused one is given up")
        lost = worker.journal.all(states.LOST)
        assert [(s.ref.step, s.ref.sequence) for s in lost] == [(0, 0)]
        assert not (stage.home("node").data / "rollouts" / f"{lost[0].ref.root.hex()}.parquet").exists()


def test_it_goes_on_when_a_reorg_replaced_the_beacon(stage: Stage) -> None:
    node = stage.seated()
    stage.world.anvil.advance(1)
    stage.publish()
    worker = a_worker(stage, node)
    anvil = stage.world.anvil

    def replace_head() -> None:
        before = stage.world.chain.publication(stage.world.run, 0).beacon
        anvil.request("anvil_reorg", 1, [])
        stage.world.trainer = Sender(
            stage.world.chain, stage.world.trainer.key
        )  # the old one counts a nonce that is free again
        stage.world.publish(0, stage.origin.publish(stage.tiny.model, 0).digest)
        assert stage.world.chain.publication(stage.world.run, 0).beacon != before

    hooked(worker).before = replace_head
    with running(worker) as ended:
        eventually(lambda: submitted(stage), what="it submits with the new beacon")
        assert not ended.event.is_set()
        assert [s.ref.sequence for s in worker.journal.all(states.LOST)] == [0]


def test_a_paused_run_is_waited_for_without_burning_power(stage: Stage) -> None:
    node, world = stage.seated(), stage.world
    stage.publish()
    world.owner.send(world.chain.pause(world.run, True))
    world.anvil.advance(61)  # the notice
    with running(a_worker(stage, node)) as ended:
        eventually(waits_because(stage, "paused"), what="the status says so")
        assert not list((stage.home("node").data / "rollouts").glob("*"))
        world.owner.send(world.chain.pause(world.run, False))
        eventually(lambda: submitted(stage), what="it goes on")
        assert not ended.event.is_set()


def test_an_open_hard_case_is_waited_for_and_the_status_says_so(stage: Stage) -> None:
    node, validator, world = stage.seated(), stage.validator(), stage.world
    stage.publish()
    made = stage.make(node)
    stage.submit(node, made)
    world.accuse(validator, made.ref)
    with running(a_worker(stage, node)) as ended:
        eventually(waits_because(stage, "hard case"), what="the status says so")
        assert len(submitted(stage)) == 1
        assert not ended.event.is_set()


# ---- cases ---------------------------------------------------------------------------------------------------------------


def test_it_appeals_by_itself_against_a_false_accusation(stage: Stage) -> None:
    node, liar, world = stage.seated(), stage.validator(), stage.world
    stage.publish()
    with running(a_worker(stage, node)) as ended:
        eventually(lambda: stored(stage, node) >= 1, what="it works")
        ref = _ref(submitted(stage)[0])
        world.accuse(liar, ref)
        eventually(lambda: world.chain.state(world.run, ref) == State.APPEALED, what="it appeals")
        assert not ended.event.is_set()


def test_it_does_not_appeal_for_what_it_finds_false_itself(stage: Stage) -> None:
    """Somebody else used the node's key; or its disk changed the file."""
    node, validator, world = stage.seated(), stage.validator(), stage.world
    stage.publish()
    worker = a_worker(stage, node)
    made = stage.make(node)
    work = stage.commit(node, made.ref, made.units + 1)
    worker.journal.add(made.ref, work, made.units + 1, 0)
    (stage.home("node").data / "rollouts").mkdir(exist_ok=True)
    shutil.copy(made.path, stage.home("node").data / "rollouts" / made.path.name)
    world.accuse(validator, made.ref)
    with running(worker):
        eventually(waits_because(stage, "hard case"), what="the status says so")
        eventually(lambda: 1 in worker._defence._done, what="it has looked")
        assert world.chain.state(world.run, made.ref) == State.CHALLENGED


def test_a_run_without_budget_is_waited_for(stage: Stage) -> None:
    node, world = stage.seated(), stage.world
    stage.publish()
    free = world.chain.funds(world.run).free
    worker = a_worker(stage, node)

    def defund() -> None:
        world.owner.send(world.chain.defund(world.run, free))
        world.anvil.advance(61)  # the notice

    hooked(worker).before = defund
    with running(worker) as ended:
        eventually(waits_because(stage, "budget"), what="the status says so")
        assert not submitted(stage)
        world.owner.send(world.chain.fund(world.run, 1000 * TOKEN))
        eventually(lambda: submitted(stage), what="it goes on")
        assert not ended.event.is_set()


def test_a_banned_node_ends_with_code_nine(stage: Stage) -> None:
    node, world = stage.seated(), stage.world
    stage.publish()
    with running(a_worker(stage, node)) as ended:
        eventually(lambda: submitted(stage), what="it works")
        world.owner.send(world.chain.ban(world.run, node.address))
        world.anvil.advance(61)  # the notice
        assert ended.event.wait(15)
        assert isinstance(ended.error, Banned)
        assert ended.error.exit_code == 9


def test_a_ban_between_the_look_and_the_submission_is_called_a_ban(stage: Stage) -> None:
    node, world = stage.seated(), stage.world
    stage.publish()
    worker = a_worker(stage, node)

    def ban() -> None:
        world.owner.send(world.chain.ban(world.run, node.address))
        world.anvil.advance(61)  # the notice

    hooked(worker).before = ban
    with running(worker) as ended:
        assert ended.event.wait(15)
        assert isinstance(ended.error, Banned)


def test_without_a_seat_it_says_how_to_take_one(stage: Stage) -> None:
    stage.publish()
    with running(a_worker(stage, Key.generate())) as ended:
        assert ended.event.wait(15)
        assert isinstance(ended.error, PreflightError)
        assert "node stake" in ended.error.hint


def test_without_gas_money_it_ends_and_says_where_to_send_some(stage: Stage) -> None:
    node = stage.seated()
    stage.publish()
    stage.world.anvil.give(node.address, 0)
    with running(a_worker(stage, node)) as ended:
        assert ended.event.wait(15)
        assert isinstance(ended.error, InsufficientFunds)
        assert node.address in ended.error.hint


def test_a_chain_that_does_not_answer_is_waited_for(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    node = stage.seated()
    stage.publish()
    chain, down = stage.world.chain, [True]
    read = chain.seat

    def seat(*arguments):
        if down[0]:
            raise RpcUnavailable("no answer")
        return read(*arguments)

    monkeypatch.setattr(chain, "seat", seat)
    with running(a_worker(stage, node)) as ended:
        eventually(waits_because(stage, "no answer"), what="the status says so")
        down[0] = False
        eventually(lambda: submitted(stage), what="it goes on")
        assert not ended.event.is_set()


# ---- nothing lost, nothing twice -----------------------------------------------------------------------------------------


def uploads(hub: LiveHub) -> int:
    return sum(method == "PUT" for method, _ in hub.requests)


def test_a_hub_that_is_down_for_a_while_costs_nothing(stage: Stage) -> None:
    node = stage.seated()
    stage.publish()
    worker = a_worker(stage, node)
    hooked(worker).after = stage.hub.stop
    with running(worker) as ended:
        eventually(lambda: told(stage).get("state") == "waiting", what="the status says that it waits")
        assert len(submitted(stage)) == 1, "nothing more is committed while a file cannot be delivered"
        stage.hub.start()
        eventually(lambda: stored(stage, node) >= 2, what="it uploads and goes on")
        assert not worker.journal.all(states.LOST)
        assert not ended.event.is_set()


def test_a_hub_that_lags_behind_is_asked_again(stage: Stage) -> None:
    """A hub that does not know the commitment yet must not cost the node its work."""
    node = stage.seated()
    stage.publish()
    refusals = iter([404, 404, 401, 409, 429, 500, 503])

    def refuse(method: str, path: str) -> Response | None:
        status = next(refusals, None) if method == "PUT" else None
        return PlainTextResponse("not yet", status) if status else None

    stage.hub.fault = refuse
    worker = a_worker(stage, node)
    with running(worker):
        eventually(lambda: stored(stage, node) >= 1, what="it uploads in the end")
        assert not worker.journal.all(states.LOST)


def test_an_upload_that_came_too_late_is_given_up(stage: Stage) -> None:
    node = stage.seated()
    stage.publish()
    worker = a_worker(stage, node)
    hooked(worker).after = lambda: stage.world.anvil.advance(stage.tiny.spec.upload_grace_seconds + 1)
    with running(worker) as ended:
        eventually(lambda: worker.journal.all(states.LOST), what="the late one is given up")
        eventually(lambda: stored(stage, node) >= 1, what="it goes on with the next")
        assert [s.ref.sequence for s in worker.journal.all(states.LOST)] == [0]
        assert not ended.event.is_set()


class Killed(BaseException):
    """Stands for SIGKILL: nothing below may catch it."""


def test_a_crash_between_commit_and_upload_loses_nothing(stage: Stage) -> None:
    node = stage.seated()
    stage.publish()
    worker = a_worker(stage, node)

    def kill() -> None:
        raise Killed

    hooked(worker).after = kill
    with running(worker) as ended:
        assert ended.event.wait(15)
        assert isinstance(ended.error, Killed)
    assert (len(submitted(stage)), stored(stage, node)) == (1, 0)
    again = a_worker(stage, node)
    with running(again):
        eventually(lambda: stored(stage, node) >= 2, what="a new life uploads the file and goes on")
        assert [s.sequence for s in submitted(stage)][:2] == [0, 1]
        first = [path for method, path in stage.hub.requests if method == "PUT" and _first(stage) in path]
        assert len(first) == 1, "it was uploaded once"
        assert not again.journal.all(states.LOST)


def _first(stage: Stage) -> str:
    return _ref(submitted(stage)[0]).work_id(stage.world.run).hex()


def test_a_crash_before_the_commit_makes_the_same_work_again(stage: Stage) -> None:
    node = stage.seated()
    stage.publish()
    worker = a_worker(stage, node)

    def kill() -> None:
        raise Killed

    hooked(worker).before = kill
    with running(worker) as ended:
        assert ended.event.wait(15)
    made = worker.journal.all()[0]
    with running(a_worker(stage, node)):
        eventually(lambda: stored(stage, node) >= 1, what="a new life submits")
    assert submitted(stage)[0].root == made.ref.root


def test_a_transaction_that_was_mined_after_all_is_not_lost(stage: Stage) -> None:
    """The answer to the first attempt got lost; the second is refused, because the work is there. Its file must stay."""
    node = stage.seated()
    stage.publish()
    worker = a_worker(stage, node)

    def lose_answer() -> None:
        raise DeadlineExceeded("submitting work: not mined in 60 s")

    hooked(worker).after = lose_answer
    with running(worker):
        eventually(lambda: stored(stage, node) >= 2, what="it uploads both")
        assert not worker.journal.all(states.LOST)
        assert [s.sequence for s in submitted(stage)][:2] == [0, 1]


def test_a_transaction_that_is_mined_late_is_noticed(stage: Stage) -> None:
    """The first attempt is mined only after it was given up on, while the same work is being sent once more."""
    node, world = stage.seated(), stage.world
    stage.publish()
    worker = a_worker(stage, node)
    made: list[Made] = []
    sender = hooked(worker)

    def give_up() -> None:
        sender.before = mine_first
        raise DeadlineExceeded("submitting work: not mined in 60 s")

    def mine_first() -> None:
        made.append(stage.make(node))
        stage.commit(node, made[0].ref, made[0].units)

    sender.before = give_up
    with running(worker):
        eventually(lambda: stored(stage, node) >= 1, what="the file of the first attempt is uploaded")
        assert submitted(stage)[0].root == made[0].ref.root
        assert not worker.journal.all(states.LOST)
        assert world.chain.state(world.run, made[0].ref) == State.SUBMITTED


def test_the_storage_receipt_is_kept(stage: Stage) -> None:
    node = stage.seated()
    stage.publish()
    worker = a_worker(stage, node)
    with running(worker):
        eventually(lambda: worker.journal.all(states.STORED), what="a file is stored")
        submission = worker.journal.all(states.STORED)[0]
    kept = json.loads(submission.storage)
    assert kept["work"] == submission.work.hex()
    assert len(kept["signature"]) == 130


def test_two_workers_cannot_share_a_home(stage: Stage) -> None:
    node = stage.seated()
    first = a_worker(stage, node)
    try:
        with pytest.raises(LockHeld):
            a_worker(stage, node)
    finally:
        first.close()


def test_files_are_removed_once_nothing_can_be_claimed_for_them(stage: Stage) -> None:
    import os

    node, policy = stage.seated(), stage.world.chain.policy(stage.world.run)
    folder = stage.home("node").data / "rollouts"
    folder.mkdir(parents=True)
    life = 2 * policy.window + policy.appeal + policy.vote
    for name, age in (("old", life + 60), ("young", life - 60)):
        (folder / f"{name}.parquet").write_bytes(b"x")
        os.utime(folder / f"{name}.parquet", (time.time() - age,) * 2)
    stage.publish()
    with running(a_worker(stage, node)):
        eventually(lambda: submitted(stage), what="it works")
    assert not (folder / "old.parquet").exists()
    assert (folder / "young.parquet").exists()


# ---- journal -----------------------------------------------------------------------------------------------------------


def test_a_verdict_heard_before_the_upload_returned_is_not_forgotten(stage: Stage, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    stage.publish()
    ref = stage.make(stage.seated()).ref
    journal.add(ref, b"w", 3, 1)
    journal.advance(b"w", states.ACCEPTED, receipt="{}")
    journal.advance(b"w", states.STORED)
    assert (journal.get(b"w").state, journal.get(b"w").receipt) == (states.ACCEPTED, "{}")
    journal.add(ref, b"w", 3, 2)
    assert journal.get(b"w").state == states.ACCEPTED
    journal.close()


def test_wired_is_a_connection(stage: Stage) -> None:
    """The tests' connection differs from a real one in look-ups only."""
    assert set(vars(Wired)) & {"retry", "hub", "spec", "policy", "forget_hub"} == set()
