"""Batches of this machine's own rollouts: what teaches is collected, what does not is counted, and no hope ends in an error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from protocol.rollout import Sample
from trainer.rollouts.local import Batches, NothingToLearn, version_for

SIZE = 4
GOOD, EQUAL, UNKNOWN = (1.0, 0.0, 0.0, 0.0), (1.0,) * 4, (1.0, math.nan, 0.0, 0.0)


def submission(*groups: Sequence[float], ends: bool = True) -> list[Sample]:
    tokens = np.array([5, 6, 1 if ends else 7], np.int32)
    return [
        Sample(g, s, g, 0, np.array([3], np.int32), tokens, tokens.astype(np.float32), (), reward, 0.0, reward)
        for g, rewards in enumerate(groups)
        for s, reward in enumerate(rewards)
    ]


def batches(*made: list[Sample]) -> Batches:
    return Batches(lambda step, sequence: made[sequence % len(made)], SIZE, [1], names=["mine"])


def test_a_batch_holds_what_teaches_and_the_rest_is_counted() -> None:
    found = batches(submission(GOOD, EQUAL), submission(UNKNOWN, GOOD))
    made = found.collect(7, 3, version=5)
    assert made is not None
    groups, samples = made
    assert ([group.rewards for group in groups], len(samples)) == ([GOOD] * 3, 3 * 2 * SIZE)
    assert [group.staleness(7) for group in groups] == [2, 2, 2]
    assert len({group.name for group in groups}) == 3
    assert groups[0].samples[0].advantage == pytest.approx(1.5, abs=1e-4)
    counts = found.counts
    assert (counts.groups, counts.zero_advantage_groups, counts.bad_groups) == (6, 2, 1)
    assert counts.environments["mine"].dropped == {"all_right": 2, "none_right": 0, "equal": 0}
    assert counts.environments["mine"].samples == 5 * SIZE  # what is no number is in no mean
    assert math.isfinite(counts.reward)


def test_a_policy_that_cannot_learn_says_how_its_answers_were() -> None:
    with pytest.raises(
        NothingToLearn, match=r"step 3: only 0 of 2 groups .* mean reward 1\.000, 0% .* cut off"
    ) as caught:
        batches(submission(EQUAL, EQUAL)).collect(3, 2, version=3)
    assert "solves sometimes" in caught.value.hint
    for reward, hint in ((0.0, "max_new_tokens"), (1.0, "solves sometimes")):
        same = (reward,) * SIZE
        with pytest.raises(NothingToLearn, match="100% of the answers cut off") as caught:
            batches(submission(same, same, ends=False)).collect(3, 2, version=3)
        assert hint in caught.value.hint


def test_rewards_that_are_never_numbers_end_the_training() -> None:
    with pytest.raises(NothingToLearn, match="no answer got a reward that is a number"):
        batches(submission(UNKNOWN, UNKNOWN)).collect(0, 1, version=0)


def test_fewer_groups_will_do_where_most_teach_nothing(caplog: pytest.LogCaptureFixture) -> None:
    made = iter([submission(GOOD, GOOD)])
    found = Batches(lambda step, sequence: next(made, submission(EQUAL, EQUAL)), SIZE, [1])
    collected = found.collect(0, 4, version=0, least=2)
    assert collected is not None
    assert len(collected[0]) == 2
    assert "only 2 of 4 groups" in caplog.text


def test_a_stop_is_seen_between_submissions() -> None:
    stop, told = Event(), list[int]()

    def make(step: int, sequence: int) -> list[Sample]:
        stop.set()
        return submission(GOOD)

    assert Batches(make, SIZE, [1]).collect(0, 2, version=0, stop=stop, progress=told.append) is None
    assert told == [0]


def test_the_version_is_as_old_as_it_is_said_to_be_or_the_oldest_that_is_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for version in (4, 5, 6):
        (tmp_path / str(version)).mkdir()
    assert [version_for(step, 2, tmp_path) for step in (6, 7, 8)] == [4, 5, 6]
    assert version_for(6, 0, tmp_path) == 6
    assert not caplog.messages
    assert version_for(5, 2, tmp_path) == 4
    assert "step 5: version 3 of the weights, which was to answer for it, is gone; version 4 does" in caplog.text
