"""A reference probe comes back from its file as it was made, and a file that is none is refused before anything is computed."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from protocol import canonical, probe
from protocol.errors import Malformed, Oversized, ProtocolViolation
from protocol.probe import Probe, ProbeSequence, packed

TOKENS, TOP = 33, 4  # two proofs
LOGPROBS = -np.arange(TOKENS, dtype=np.float32) / 7
IDS = np.arange(TOKENS * TOP, dtype=np.int32).reshape(TOKENS, TOP)


def a_sequence(**changes: Any) -> dict[str, Any]:
    table = {
        "prompt": [1, 2], "key": str(2**64 - 1), "completion": list(range(TOKENS)), "logprobs": packed(LOGPROBS),
        "proofs": [base64.b64encode(b"\x01" * 258).decode()] * 2, "top_tokens": packed(IDS),
        "top_logprobs": packed(-IDS.astype(np.float32)),
    }  # fmt: skip
    return table | changes


def a_probe(**changes: Any) -> Probe:
    return Probe(
        config="01" * 32, compute_dtype="float32", made_on={"device": "a CPU"}, sampling={"temperature": "1"}, max_new_tokens=40,
        sequences=[ProbeSequence.model_validate(a_sequence(**changes))],
    )  # fmt: skip


def test_a_probe_comes_back_to_the_last_bit() -> None:
    read = probe.decode(a_probe().encode())
    assert read == a_probe()
    (one,) = read.sequences
    assert one.logprobs_T.tobytes() == LOGPROBS.tobytes()
    assert (one.top_tokens_TK == IDS).all()
    assert one.top_logprobs_TK.shape == (TOKENS, TOP)
    assert one.proof_bytes == [b"\x01" * 258] * 2
    assert (read.tokens, read.largest_token) == (TOKENS, TOKENS * TOP - 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"key": str(2**64)},
        {"key": "-1"},
        {"completion": []},
        {"completion": [-1] * TOKENS},
        {"logprobs": packed(LOGPROBS[1:])},
        {"logprobs": packed(np.full(TOKENS, np.nan, np.float32))},
        {"logprobs": "no base64!"},
        {"logprobs": "AAAA"},
        {"proofs": []},
        {"top_tokens": packed(IDS[1:])},
        {"top_tokens": packed(-1 - IDS)},
        {"top_tokens": ""},
        {"top_logprobs": packed(np.full((TOKENS, TOP), np.inf, np.float32))},
        {"top_logprobs": packed(np.zeros((TOKENS, TOP + 1), np.float32))},
        {"extra": 1},
    ],
    ids=lambda changes: f"{next(iter(changes))}: {str(next(iter(changes.values())))[:12]}",
)
def test_what_does_not_fit_together_is_no_probe(changes: dict[str, Any]) -> None:
    table = json.loads(a_probe().encode()) | {"sequences": [a_sequence(**changes)]}
    with pytest.raises(Malformed):
        probe.decode(canonical.encode(table))


def test_bytes_of_a_stranger_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    good = a_probe().encode()
    for data in (b"", b"{}", b"\xff", good[:-1], b" " + good, json.dumps(json.loads(good), indent=1).encode()):
        with pytest.raises(ProtocolViolation):
            probe.decode(data)
    monkeypatch.setattr(probe, "FILE_BYTES_MAX", len(good) - 1)
    with pytest.raises(Oversized):
        probe.decode(good)
