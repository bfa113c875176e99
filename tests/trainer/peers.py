"""The rest of the swarm in one thread: an honest node that works on every version, and a validator that accepts it."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from swarm.world import World

from node.contributor.generation import Made, Place, make
from node.engine.torch_engine import TorchEngine
from node.judging.candidate import RunContext
from protocol.constants import PROTOCOL_VERSION
from protocol.environments import TaskSet
from protocol.errors import MurmurationError, Unavailable
from protocol.hub.client import HubClient
from protocol.identity import Key
from protocol.runspec import RunSpec
from protocol.sandbox import Sandbox
from protocol.shell.home import read_json
from protocol.tokenizer import Tokenizer
from protocol.verdict import Details, Outcome, Receipt
from trainer.config import Layout

log = logging.getLogger(__name__)
PER_STEP = 16  # as many as the contract allows: groups with equal rewards do not count


class Peers:
    """Use as a context manager. Weights come straight from the outbox: SHARDCAST has tests of its own."""

    def __init__(self, world: World, spec: RunSpec, layout: Layout, folder: Path) -> None:
        self.node, self.validator = Key.generate(), Key.generate()
        world.seat_node(Key.generate(), self.node)
        for validator in (self.validator, Key.generate()):  # weights are published while two can be jurors
            world.seat_validator(validator)
        self.failures: list[BaseException] = []
        self._world = world
        self._layout = layout
        self._folder = folder
        self._sandbox = Sandbox(spec)
        tasks = TaskSet(spec.environments, self._sandbox)
        self._context = RunContext(spec, world.chain.domain, world.run, tasks, self._sandbox)
        self._engine = TorchEngine("float32")
        self._unfinished: Made | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="peers")

    def __enter__(self) -> Peers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        self._sandbox.close()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            try:
                self._work()
            except MurmurationError as error:
                log.warning("%s: %s", type(error).__name__, error)
                continue  # trainer and hub are killed under our feet; that is what the test is about
            except Exception as error:  # noqa: BLE001  a thread has nobody to raise to; the fixture looks
                self.failures.append(error)
                return

    def _work(self) -> None:
        if self._unfinished is not None:
            self._hand_in(self._unfinished)
        run = self._world.run
        head = self._world.chain.head(run)
        if head is None:
            return
        beacon = self._world.chain.beacon(run, head.step)
        if beacon is None:  # made of a block that is to come, where no block comes by itself
            self._world.anvil.request("evm_mine")
            return
        sequence = self._world.chain.seat(run, self.node.address).next_sequence(head.step)
        weights = self._layout.outgoing / str(head.step)
        if sequence is None or sequence >= PER_STEP or not weights.exists():
            return
        self._engine.load(weights)
        place = Place(self.node.address, head.step, sequence, beacon, 0)
        made = make(self._context, self._engine, Tokenizer(weights), place, self._folder)
        chain = self._world.chain
        self._world.sender(self.node).send(chain.submit(run, made.ref, made.units, beacon))
        self._unfinished = made
        self._hand_in(made)

    def _hand_in(self, made: Made) -> None:
        """Uploads and judges what was committed; without it, nothing that follows it in its step could be used."""
        submission = made.ref.submission_id(self._world.run)
        try:
            self._hub(self.node).upload(submission, made.ref.root, made.path, self._world.trainer.key.address)
            self._hub(self.validator).post_receipt(self._receipt(made))
        except Unavailable:
            raise  # the hub is down: again, when it is back
        except MurmurationError:
            self._unfinished = None
            raise
        self._unfinished = None

    def _receipt(self, made: Made) -> bytes:
        """Accepted unseen: what makes work acceptable has tests of its own."""
        domain, ref, run = self._world.chain.domain, made.ref, self._world.run
        accepted = Details(
            protocol=PROTOCOL_VERSION, chain_id=domain.chain_id, contract=domain.contract, run=run,
            submission=ref.submission_id(run).hex(), node=ref.node, step=ref.step, sequence=ref.sequence, root=ref.root.hex(),
            units=made.units, spec=self._context.spec_digest.hex(), outcome=int(Outcome.ACCEPT), rule="", measured="",
            threshold="", detail="", samples="f" * 64, sequences_checked=8, proofs_checked=8, tokens_checked=made.units,
            time=self._world.chain.block().time,
        )  # fmt: skip
        return Receipt.issue(accepted, self.validator, domain).encode()

    def _hub(self, key: Key) -> HubClient:
        told = read_json(self._layout.hub_status) or {}
        chain = self._world.chain
        url = told.get("url", "http://127.0.0.1:9")
        return HubClient(url, self._world.run, chain.domain, key=key, now=lambda: chain.block().time, timeout=60)
