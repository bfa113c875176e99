"""Several commitments to one file: whoever copies is found out, and whoever was copied keeps pay, receipt and name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from node.contributor.generation import Made
from protocol.chain.types import State
from protocol.identity import Key
from protocol.verdict import Outcome
from tests.node.stage import Panel, Stage, rounds


def copied(made: Made, thief: Key) -> Made:
    """Somebody else's file under the thief's own name: the root is on chain for all to see, the bytes are at the hub."""
    return replace(made, ref=replace(made.ref, node=thief.address))


@pytest.mark.parametrize("thief_is_first", [True, False], ids=["copy first", "copy last"])
def test_a_copy_does_not_hurt_the_one_who_was_copied(stage: Stage, panel: Panel, thief_is_first: bool) -> None:
    honest, thief = stage.seated(), stage.seated()
    stage.publish()
    validator = panel.seat()
    made = stage.make(honest)
    copy = copied(made, thief)
    first, last = (thief, copy), (honest, made)
    if not thief_is_first:
        first, last = last, first
    for node, one in (first, last):
        stage.submit(node, one)
        rounds(validator, count=2)  # judged, and its file let go, before the other comes
    run, trainer = stage.world.run, stage.world.trainer.key.address
    found = {r.submission: r.details for r in panel.all_receipts()}
    verdict = {key: found[one.ref.submission_id(run)] for key, one in ((honest, made), (thief, copy))}
    assert verdict[honest].outcome == Outcome.ACCEPT
    assert (verdict[thief].outcome, verdict[thief].rule) == (Outcome.SOFT, "identity")
    assert panel.state(made.ref) == State.SUBMITTED, "what is done to the copy touches nothing else"
    assert panel.state(copy.ref) == State.CHALLENGED
    stored = stage.client(honest).stored(made.ref.submission_id(run), trainer)
    assert stored is not None
    assert stored.receipt.root == made.ref.root


def test_seats_of_one_owner_make_different_files(stage: Stage) -> None:
    """Each file names its node, step and sequence, so that one root fits one submission only."""
    one, two = stage.seated(), stage.seated()
    stage.publish()
    made = [stage.make(one), stage.make(two), stage.make(one, 1)]
    assert len({m.ref.root for m in made}) == 3
    assert len({stage.context.sandbox.read(m.path).file.header for m in made}) == 3
