"""Every cheat of the catalogue is found by the rule it names, through the real judge; what is not told apart is said to be.

Here on a small scale; `--long` has longer answers and older weights, `scripts/bench cheats` many submissions of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from cheats.catalogue import Cheat, catalogue
from cheats.play import PLAYS, CreditingSandbox, ForgingWorker
from cheats.scene import DEMO_LR, Scene
from eth_utils import keccak
from swarm.settings import SwarmSettings
from swarm.tiny_run import TinyRun, run_tables
from swarm.world import World

from node.judging.judge import judge
from node.judging.rules import RULES
from protocol.chain.calls import Call
from protocol.errors import TransactionReverted
from protocol.identity import Key
from protocol.submission import SubmissionRef
from protocol.verdict import Outcome

CHEATS = catalogue()
FOUND, UNSEEN = [c for c in CHEATS if c.is_told_apart], [c for c in CHEATS if not c.is_told_apart]
_OLDEST = 20


def is_light(cheat: Cheat) -> bool:
    """Whether it shows in a few short answers of a policy trained for some steps. Sums take thousands of tokens."""
    return cheat.kind != "sums" and is_recent(cheat)


def is_recent(cheat: Cheat) -> bool:
    return cheat.age is None or (cheat.age[0] <= _OLDEST and cheat.age[1] == DEMO_LR) or cheat.age[0] <= 5


@pytest.fixture(scope="module")
def scene(tiny_run: TinyRun, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Eight answers of at most forty tokens a submission."""
    folder = tmp_path_factory.mktemp("scene")
    return Scene.create(tiny_run, folder, ages=(1, 5, _OLDEST), paper_ages=(5,), end=0.6)


@pytest.fixture(scope="module")
def long_scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Answers of up to 160 tokens by a policy that knows its task a little."""
    from trainer.models.tiny import make_policy

    folder, tables = tmp_path_factory.mktemp("long"), run_tables()
    tables["spec"]["sampling"]["max_new_tokens"] = 160
    run = TinyRun.create(folder / "run", make_policy, tables, target=0.2)
    yield Scene.create(run, folder / "scene", ages=(1, 5, 20, 100), paper_ages=(5, 100), end=0.0)
    run.context.sandbox.close()


def test_the_catalogue_has_a_cheat_for_every_rule() -> None:
    assert {rule for cheat in FOUND for rule in cheat.rules} == set(RULES)
    assert len(FOUND) >= 26
    assert all(cheat.what.endswith(".") for cheat in CHEATS)


def is_found(scene: Scene, cheat: Cheat) -> bool:
    return any(cheat.finds(judge(cheat.make(scene, sequence))) for sequence in range(cheat.within))


@pytest.mark.parametrize("cheat", [c for c in FOUND if is_light(c)], ids=str)
def test_a_cheat_is_found_by_its_rule(scene: Scene, cheat: Cheat) -> None:
    assert is_found(scene, cheat)


@pytest.mark.parametrize("cheat", [c for c in UNSEEN if is_light(c)], ids=str)
def test_what_is_said_not_to_be_told_apart_is_not(scene: Scene, cheat: Cheat) -> None:
    """Once a rule finds it every time the catalogue and the documentation are to say so."""
    assert not all(cheat.finds(judge(cheat.make(scene, sequence))) for sequence in range(12))  # ends with the first


def test_the_honest_work_that_cheats_start_from_is_accepted(scene: Scene) -> None:
    for sequence in range(3):
        assert judge(scene.run.candidate(scene.honest(sequence).made)) is None


@pytest.mark.long
@pytest.mark.timeout(600)  # the first of them trains a hundred versions of the policy
@pytest.mark.parametrize(
    "cheat", [c for c in FOUND if c.kind != "turns"], ids=str
)  # these answers never end, so nobody replies
def test_a_cheat_is_found_at_length(long_scene: Scene, cheat: Cheat) -> None:
    assert is_found(long_scene, cheat)


@pytest.mark.parametrize("name", list(PLAYS))
def test_the_demos_cheats_believe_themselves_and_are_found(tiny_run: TinyRun, name: str) -> None:
    play = PLAYS[name]
    engine = play.engine("float32")
    engine.load(tiny_run.model)
    context = tiny_run.context
    if play.worker is ForgingWorker:
        context = replace(context, sandbox=CreditingSandbox(context.sandbox))  # type: ignore[arg-type]
    crook = replace(tiny_run, engine=engine, context=context)
    made = crook.honest()
    assert judge(crook.candidate(made)) is None
    finding = judge(tiny_run.candidate(made))
    assert finding is not None
    assert (finding.rule, finding.outcome) == (play.rule, Outcome.HARD)


def test_the_demos_cheats_are_found_by_three_rules() -> None:
    assert len({PLAYS[name].rule for name in SwarmSettings().cheats}) == 3


# ---- what the chain refuses, so that no file of it is ever judged --------------------------------------------------------


def test_a_sequence_can_be_skipped_neither_silently_nor_for_nothing(world: World) -> None:
    """Whoever does not like what sequence 1 asks cannot go on with 2: it is refused, and to skip is a strike."""
    node = Key.generate()
    world.seat_node(Key.generate(), node)
    beacon = world.publish(0)
    world.submit(node, 0, 0, b"\x01" * 32)
    with pytest.raises(TransactionReverted, match="WrongSequence"):
        world.submit(node, 0, 2, b"\x02" * 32)
    skip = world.chain.runs.functions.skip(world.run, 0, 1, beacon)
    world.sender(node).send(Call("skipping", skip))
    assert world.chain.seat(world.run, node.address).strikes == 1
    world.submit(node, 0, 2, b"\x02" * 32)


def test_a_key_cannot_be_chosen_to_suit_a_beacon(world: World) -> None:
    """Assignments follow from key and beacon; a seat that came after the beacon does not work for it."""
    world.publish(0)
    node = Key.generate()
    world.seat_node(Key.generate(), node)
    with pytest.raises(TransactionReverted, match="SeatTooYoung"):
        world.submit(node, 0, 0, b"\x01" * 32)


def test_work_for_another_beacon_is_refused(world: World) -> None:
    node = Key.generate()
    world.seat_node(Key.generate(), node)
    world.publish(0)
    ref = SubmissionRef(node.address, 0, 0, b"\x01" * 32)
    with pytest.raises(TransactionReverted, match="WrongBeacon"):
        world.sender(node).send(world.chain.submit(world.run, ref, 10, keccak(b"another beacon")))
