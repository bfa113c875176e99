"""What is committed keeps its file for as long as the commitment may land."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.contributor import submission_log as states
from node.contributor.delivery import Delivery
from node.contributor.submission_log import SubmissionLog
from protocol.errors import InsufficientFunds, TransactionReverted
from protocol.identity import Key
from protocol.submission import SubmissionRef


@pytest.mark.parametrize(
    ("refusal", "is_kept"), [(InsufficientFunds("no gas"), True), (TransactionReverted("WrongSequence"), False)]
)
def test_a_file_is_given_up_only_where_its_commitment_cannot_land(
    tmp_path: Path, refusal: Exception, is_kept: bool
) -> None:
    """One endpoint may hold the transaction that another one refused to pay for."""
    ref = SubmissionRef("0x" + "a" * 40, 1, 0, bytes(32))  # type: ignore[arg-type]
    path = tmp_path / f"{ref.root.hex()}.parquet"
    path.write_bytes(b"work")

    def send(call: object, *, name: str) -> None:
        raise refusal

    chain = SimpleNamespace(
        submit=lambda *_: None, submission=lambda *_: SimpleNamespace(time=0), ahead=lambda *_: nullcontext()
    )
    connection: Any = SimpleNamespace(run=1, block_time=lambda: 1, chain=chain, key=Key.generate())
    log, sender = SubmissionLog(tmp_path / "submissions.sqlite"), SimpleNamespace(send=send)
    delivery = Delivery(connection, log, sender, tmp_path, lambda *_, **__: None)  # type: ignore[arg-type]
    made: Any = SimpleNamespace(ref=ref, units=5, path=path)
    assert delivery.commit([made], bytes(32)) is refusal
    kept = log.get(ref.submission_id(1))
    assert kept is not None
    assert (path.exists(), kept.state) == ((True, states.MADE) if is_kept else (False, states.LOST))
    log.close()
