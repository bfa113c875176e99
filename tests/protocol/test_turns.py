"""Turns: what counts, where noise is drawn, what a proof is over and where a turn ends, as the vectors fix it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.constants import TOPLOC_CHUNK
from protocol.errors import Malformed, ProtocolViolation
from protocol.rollout import Sample, ToolCall
from protocol.sampling import measure
from protocol.turns import Turns, wrong_end
from tests.protocol.scored import scored

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "vectors" / "turns.json").read_text())


def of(case: dict[str, Any]) -> Turns:
    return Turns.of(case["completion"], case["turns"], case["answers"], case["given"])


def name(case: dict[str, Any]) -> str:
    return f"{case['turns'][:4]} of {case.get('completion')}"


@pytest.mark.parametrize("case", VECTORS["turns"], ids=name)
def test_every_token_has_the_turn_position_and_chunk_of_the_vector(case: dict[str, Any]) -> None:
    turns, tokens = of(case), case["tokens"]
    assert turns.turn_of_tokens.tolist() == [turn for turn, *_ in tokens]
    assert turns.mask.tolist() == [generated for _, generated, *_ in tokens]
    positions = np.arange(case["completion"])
    woven = turns.woven(positions, np.full(case["given"], -1))
    assert woven.tolist() == [-1 if position is None else position for _, _, position, _ in tokens]
    chunk_of = {p: number for number, chunk in enumerate(turns.chunks) for p in range(chunk.start, chunk.stop)}
    assert [chunk_of[p] for p in positions] == [chunk for _, generated, _, chunk in tokens if generated]
    assert sum(turns.generated) == case["units"]
    assert sum(len(own) for own in turns.proofs_of([b""] * case["proofs"])) == case["proofs"] == len(turns.chunks)
    for wrong in (case["proofs"] - 1, case["proofs"] + 1):
        with pytest.raises(Malformed, match=f"need {case['proofs']}$"):
            turns.proofs_of([b""] * wrong)


@pytest.mark.parametrize("case", VECTORS["refused"], ids=name)
def test_turns_that_do_not_fit_together_are_refused_for_the_reason_recorded(case: dict[str, Any]) -> None:
    with pytest.raises(Malformed, match=case["refused"]):
        of(case)


@pytest.mark.parametrize("case", VECTORS["ends"], ids=lambda case: f"{case['turns']} of {case['completion']}")
def test_a_turn_ends_in_its_only_end_token_or_at_the_limit(case: dict[str, Any]) -> None:
    answered = case["turns"]
    turns = Turns.of(len(case["completion"]), answered, [1] * len(answered), len(answered))
    found = wrong_end(turns, np.array(case["completion"]), case["ends"], case["limit"])
    assert (found.why if found else None) == case["wrong"]


def test_quantities_of_a_chunk_are_those_of_the_proofs_chunks() -> None:
    """Eight mismatches on either side of a turn's end are two chunks of eight, not one of sixteen."""
    margins = np.zeros(40)
    margins[2:18] = 1.0
    scores = scored(margins)
    limits = {"mismatch_above": 0.5, "margin_clip": 1.0}
    assert measure(scores, None, **limits)["chunk_mismatches"].value == 16
    in_turns = measure(scores, None, **limits, turns=Turns((10, 30), (5,)))
    assert in_turns["chunk_mismatches"].value == 8
    assert in_turns["chunk_mean_margin"].value == 8 / TOPLOC_CHUNK
    assert in_turns["sequence_mismatches"].value == 16
    assert "logprob_error" not in in_turns


def sample(calls: list[bytes], answers: list[int]) -> Sample:
    given, turns = np.ones(sum(answers), np.int32), np.ones(len(answers), np.int32)
    return Sample(0, 0, 0, 0, given, np.ones(9, np.int32), None, (), 0.0, 0.0, 0.0, turns, np.array(answers, np.int32), given,
                  tuple(calls))  # fmt: skip


CALL = ToolCall(0, "sum", "[1, 2]", "3")


def test_tool_calls_are_read_as_they_were_written() -> None:
    calls = (CALL, ToolCall(1, "sum", "", ""), ToolCall(1, "product", "", ""))
    assert sample([call.encode() for call in calls], [1, 4]).tool_calls == calls
    assert sample([], [1]).tool_calls == ()


@pytest.mark.parametrize(
    ("calls", "answers"),
    [
        ([CALL.encode()], []),
        ([ToolCall(1, "", "", "").encode()], [1]),
        ([ToolCall(-1, "", "", "").encode()], [1]),
        ([ToolCall(1, "", "", "").encode(), CALL.encode()], [1, 1]),
        ([b"{}"], [1]),
        ([CALL.encode().replace(b"0", b"true")], [1]),
        ([CALL.encode()[:-1] + b',"x":0}'], [1]),
        ([CALL.encode() + b" "], [1]),
        ([ToolCall(0, "x" * (1 << 16), "", "").encode()], [1]),
    ],
    ids=[
        "without an answer",
        "of the last turn",
        "negative turn",
        "out of order",
        "empty",
        "bool",
        "more keys",
        "not canonical",
        "huge",
    ],
)
def test_tool_calls_that_make_no_sense_are_refused(calls: list[bytes], answers: list[int]) -> None:
    with pytest.raises(ProtocolViolation):
        _ = sample(calls, answers).tool_calls
