"""JSON-RPC: what a submission and each idle role ask of an endpoint, counted by a proxy before Anvil.

A *request* is one of HTTP; a *call* is one of JSON-RPC, which providers bill: a batch is one request of several calls, a Multicall3
one call. "Idle" is a role whose every turn finds new blocks and nothing for it to do, at the default `chain.poll_seconds`, on a
chain with a block every two seconds, as Base has. Minutes pass on a clock of the bench's own. Gossip, where it flows, makes node
and relay look five times less often; it is left out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

from eth_utils import keccak
from swarm.anvil import Anvil
from swarm.faulty_endpoint import FaultyEndpoint
from swarm.multicall import place_multicall
from swarm.world import World

from benches import Bench, Cost
from node.contributor.beacons import Beacons
from node.contributor.delivery import Delivery
from node.contributor.generation import Made, path_of
from node.contributor.next_submission import NextSubmission
from node.contributor.submission_log import SubmissionLog
from protocol.chain import Chain, Sender, networks
from protocol.chain.following import Follower
from protocol.chain.sender import SendLimits
from protocol.chain.settings import ChainSettings
from protocol.chain.sync import Book
from protocol.identity import Key
from protocol.submission import SubmissionRef

_SUBMISSIONS, _WARM = 6, 2
_MINUTES, _SETTLED = 10, 256
_MINUTE, _BLOCK_SECONDS = 60.0, 2.0
_BASE = 8453
_PAUSE = float(ChainSettings.model_fields["poll_seconds"].default)
_REQUESTS, _CALLS = 6, 20
"""Goals, a minute and endpoint."""
Turn = Callable[[], object]


class _Passing:
    """A clock on which time passes when the bench says so."""

    def __init__(self, wall: float) -> None:
        self._begun, self._passed = wall, 0.0

    def monotonic(self) -> float:
        return self._passed

    def wall(self) -> float:
        return self._begun + self._passed

    def sleep(self, seconds: float) -> None:
        self._passed += seconds

    def wait(self, event: Event, seconds: float) -> bool:
        self.sleep(seconds)
        return event.is_set()


def run() -> Bench:
    bench = Bench("rpc")
    with _world() as world:
        for name, depth in (
            ("submission on a development chain", 0),
            ("submission a minute on Base", networks.depth(_BASE)),
        ):
            _add(bench, name, _submission(world, depth), None)
        for count in (1, 2):
            roles = {
                "validator, hub or trainer (each a book)": _book,
                "contributor that is done for a version": _contributor,
                "relay": _relay,
                "`murmur chain watch`": _follower,
            }
            for name, role in roles.items() if count == 1 else list(roles.items())[:1]:
                of = f"{name}, idle, a minute" + (f", each of {count} endpoints" if count > 1 else "")
                _add(bench, of, _idle(world, count, role), _CALLS)
    return bench


def _add(bench: Bench, of: str, counted: tuple[float, float], calls: int | None) -> None:
    bench.rows.append(Cost(f"{of}: HTTP requests", "requests", counted[0], None, None, _REQUESTS))
    bench.rows.append(Cost(f"{of}: calls", "calls", counted[1], None, None, calls))


# ---- idle roles ----------------------------------------------------------------------------------------------------------


def _idle(world: World, count: int, role: Callable[[World, Chain], tuple[Turn, float]]) -> tuple[float, float]:
    """(requests, calls) a minute, of the endpoint that is asked most."""
    clock = _Passing(world.chain.block().time)
    with _proxies(world, count) as proxies:
        chain = Chain([proxy.url for proxy in proxies], world.chain.runs.address, clock=clock)
        chain.check()
        chain.expect_blocks(_MINUTE)
        turn, pause = role(world, chain)
        turn()
        for _ in range(_SETTLED // 32):  # past the first looks at what has settled
            _pass(world, clock, 64.0)
            turn()
        before = [proxy.counted for proxy in proxies]
        for _ in range(round(_MINUTES * _MINUTE / pause)):
            _pass(world, clock, pause)
            turn()
        after = [proxy.counted for proxy in proxies]
    counted = [((a[0] - b[0]) / _MINUTES, (a[1] - b[1]) / _MINUTES) for a, b in zip(after, before, strict=True)]
    return max(requests for requests, _ in counted), max(calls for _, calls in counted)


def _pass(world: World, clock: _Passing, seconds: float) -> None:
    world.anvil.request("anvil_mine", hex(round(seconds / _BLOCK_SECONDS)), hex(round(_BLOCK_SECONDS)))
    ahead = world.chain.block().time - clock.wall()  # Anvil adds what passes on this machine, which may be busy
    clock.sleep(max(seconds, ahead))


def _book(world: World, chain: Chain) -> tuple[Turn, float]:
    return Book(chain, world.run).poll, _PAUSE


def _contributor(world: World, chain: Chain) -> tuple[Turn, float]:
    """As the worker's loop looks for something to do."""
    node = Key.generate()
    world.seat_node(Key.generate(), node)
    connection = _connection(world, chain, node)
    beacons, follows, looks = (
        Beacons(connection, world.sender(node)),
        NextSubmission(connection, _silent),
        chain.turns(),
    )

    def turn() -> None:
        with looks.turn():
            seat, head = follows.seat(), chain.head(world.run)
            follows.sequence(seat, head, head and beacons.of(head), 0, 0)

    return turn, _PAUSE


def _relay(world: World, chain: Chain) -> tuple[Turn, float]:
    """As the relay looks for a new version."""
    looks = chain.turns()

    def turn() -> None:
        with looks.turn():
            chain.head(world.run)

    return turn, _PAUSE


def _follower(world: World, chain: Chain) -> tuple[Turn, float]:
    follower = Follower(chain, world.run, chain.block_number())
    return lambda: list(follower.poll()), _PAUSE


# ---- a submission --------------------------------------------------------------------------------------------------------


def _submission(world: World, depth: int) -> tuple[float, float]:
    """(requests, calls) of one, from the commitment to the hub's receipt, while blocks come every second; after some, for the sender
    learns how long they take. Where what is mined is believed at a `depth`, a minute's blocks come in between: the one before is deep enough then."""
    node = Key.generate()
    world.seat_node(Key.generate(), node)
    beacon = world.publish(world.chain.published(world.run))
    with _proxies(world, 1) as (proxy,), tempfile.TemporaryDirectory() as folder:
        chain = Chain(proxy.url, world.chain.runs.address)
        chain.check()
        connection, log = _connection(world, chain, node), SubmissionLog(Path(folder) / "submissions.sqlite")
        delivery = Delivery(connection, log, Sender(chain, node, limits=SendLimits(depth=depth)), Path(folder), _silent)
        head = chain.head(world.run)
        world.anvil.request("evm_setAutomine", False)
        world.anvil.request("evm_setIntervalMining", 1)
        before = proxy.counted
        for number in range(_WARM + _SUBMISSIONS):
            if number == _WARM:
                before = proxy.counted
            ref = SubmissionRef(node.address, head.step, number, keccak(text=str(number)))
            path = path_of(Path(folder), ref.root)
            path.touch()
            place: Any = None
            made = [Made(ref, 1, path, place)]
            with delivery.ahead(made, beacon):  # as the worker
                delivery.note(made)
                assert delivery.commit(made, beacon) is None
            assert delivery.deliver_all(head)
            if depth:
                world.anvil.request("anvil_mine", hex(round(_MINUTE / _BLOCK_SECONDS)))
        after = proxy.counted
        world.anvil.request("evm_setIntervalMining", 0)
        world.anvil.request("evm_setAutomine", True)
        log.close()
    return (after[0] - before[0]) / _SUBMISSIONS, (after[1] - before[1]) / _SUBMISSIONS


# ---- what they need ------------------------------------------------------------------------------------------------------


@contextmanager
def _world() -> Iterator[World]:
    """A run with one version, on a chain that has what Base has."""
    with tempfile.TemporaryDirectory() as folder:
        anvil = Anvil(Path(folder))
        try:
            world = World.fresh(anvil)
            place_multicall(anvil)
            world.publish(0)
            yield world
        finally:
            anvil.stop()


@contextmanager
def _proxies(world: World, count: int) -> Iterator[list[FaultyEndpoint]]:
    proxies = [FaultyEndpoint(world.anvil.rpc) for _ in range(count)]
    try:
        yield proxies
    finally:
        for proxy in proxies:
            proxy.close()


def _connection(world: World, chain: Chain, key: Key) -> Any:
    """As much of protocol/shell/connection.py as asks the chain; its hub signs what it is given after one look at the time."""

    def block_time() -> int:
        return chain.block().time

    def upload(*_: object) -> Any:
        block_time()
        return SimpleNamespace(as_json=dict)

    sampling = SimpleNamespace(max_new_tokens=64)
    return SimpleNamespace(
        chain=chain, run=world.run, key=key, policy=world.chain.policy(world.run), block_time=block_time, trainer="",
        hub=SimpleNamespace(upload=upload), spec=SimpleNamespace(samples=4, sampling=sampling),
    )  # fmt: skip


def _silent(*_: object, **__: object) -> None:
    pass
