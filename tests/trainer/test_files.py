"""Accepted files: what cannot be trained on stops nothing, and what the hub does not give is waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.errors import Unavailable
from protocol.hub import client as hub_client
from protocol.hub.wire import Refused
from protocol.identity import Key
from protocol.submission import SubmissionRef
from protocol.verdict import Outcome
from tests.clock import VirtualClock
from tests.trainer.field import (
    CONTEXT,
    UNEQUAL,
    VOCABULARY,
    Field,
    both,
    changed,
    samples,
    submissions,
    usable,
)
from trainer.rollouts.data import RolloutSource


def row(**values: Any) -> Callable[[Field, Key], bytes]:
    """A file whose sixth sample differs from an honest one."""
    return lambda field, node: field.file(node, changed(samples([UNEQUAL, UNEQUAL]), 5, **values))


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


BAD_FILES: dict[str, Callable[[Field, Key], bytes]] = {
    "no Parquet": lambda field, node: b"PAR1" + bytes(1000) + b"PAR1",
    "nothing": lambda field, node: b"",
    "too few rows": lambda field, node: field.file(node, samples([UNEQUAL])),
    "too many rows": lambda field, node: field.file(node, samples([UNEQUAL] * 3)),
    "a reward that is no number": row(reward=float("nan")),
    "an infinite reward": row(reward=float("inf")),
    "a token beyond the vocabulary": row(completion=ids(3, VOCABULARY)),
    "a prompt beyond the vocabulary": row(prompt=ids(VOCABULARY + 7)),
    "a negative token": row(completion=ids(-1, 1)),
    "an empty prompt": row(prompt=ids()),
    "an empty completion": row(completion=ids()),
    "more tokens than the model takes": row(completion=ids(*[3] * CONTEXT)),
    "a million tokens": row(completion=np.full(10**6, 3, np.int32), logprobs=np.full(10**6, -1, np.float32)),
    "an answer beyond the vocabulary": row(turns=ids(2), answers=ids(1), given=ids(VOCABULARY)),
    "more tokens than the model takes, most of them given": row(
        turns=ids(2), answers=ids(CONTEXT), given=ids(*[3] * CONTEXT)
    ),
    "turns that do not fit together": row(turns=ids(2), answers=ids(2), given=ids(3)),
    "fewer logprobs than tokens": row(logprobs=np.full(2, -1.0, np.float32)),
    "more logprobs than tokens": row(logprobs=np.full(9, -1.0, np.float32)),
    "logprobs above zero": row(logprobs=np.full(5, 5.0, np.float32)),
    "absurd logprobs": row(logprobs=np.full(5, -1e30, np.float32)),
    "a logprob that is no number": row(logprobs=np.array([-1, -1, np.nan, -1, -1], np.float32)),
    "a problem that is not there": row(problem=2**40),
    "a problem below zero": row(problem=-1),
}


def test_accepted_files_that_cannot_be_trained_on_stop_nothing(field: Field, validator: Key) -> None:
    honest, follower, *others = field.desk.nodes(2 + len(BAD_FILES))
    bad = {
        name: field.submit(node, make(field, node))
        for (name, make), node in zip(BAD_FILES.items(), others, strict=True)
    }
    behind = [field.submit(follower, b"PAR1"), field.submission(follower, sequence=1)]
    good = field.submission(honest)
    for ref in (*bad.values(), *behind, good):
        field.judge(validator, ref)
    source = field.source()
    used = usable(source, field.first)
    assert [name for name, ref in bad.items() if used & both(field, ref)] == []
    assert not used & both(field, behind[1])  # a line ends where it cannot be used
    assert used == both(field, good)
    assert source.counts.bad_files == len(bad) + 1
    source.poll()
    assert source.counts.bad_files == len(bad) + 1  # once is enough


def other_bytes(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"?")


@pytest.mark.parametrize("harm", [other_bytes, lambda path: path.write_bytes(bytes(1 << 20))], ids=["changed", "huge"])
def test_a_hub_that_serves_something_else_than_was_committed_stops_nothing(
    field: Field, validator: Key, harm: Callable[[Path], object]
) -> None:
    one, other = field.desk.nodes(2)
    refs = [field.submission(one), field.submission(other)]
    for ref in refs:
        field.judge(validator, ref)
    harm(field.desk.store.file(refs[0].root))
    source = field.source()
    assert usable(source, field.first) == both(field, refs[1])
    assert source.counts.bad_files == 1


# ---- files that the hub does not give ------------------------------------------------------------------------------------


@dataclass
class Missing:
    """A hub that fails for one file until `is_back`."""

    root: bytes
    asked: int = 0
    is_back: bool = False


Fault = Callable[[], object]


def is_unavailable() -> None:
    raise Unavailable("not now")


def is_refused() -> None:
    raise Refused("a proxy says no", 403)


def is_lost() -> None:
    raise Refused("no such file", 404)


FAULTS: list[Fault] = [is_unavailable, is_refused, is_lost]


def missing(monkeypatch: pytest.MonkeyPatch, field: Field, ref: SubmissionRef, fault: Fault) -> Missing:
    original, made = field.desk.hub.file, Missing(ref.root)

    async def file(asked: bytes, wait: float) -> Any:
        if asked == made.root:
            made.asked += 1
            if not made.is_back:
                fault()
        return await original(asked, wait)

    monkeypatch.setattr(field.desk.hub, "file", file)
    return made


def poll(source: RolloutSource) -> None:
    """As the trainer does, which goes on after what may pass."""
    with suppress(Unavailable):
        source.poll()


@pytest.mark.parametrize("fault", FAULTS)
def test_an_accepted_file_is_waited_for_as_long_as_it_is_of_use(
    field: Field, node: Key, validator: Key, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    """Ever less often: a hub in trouble is not asked at every poll."""
    ref, clock = field.submission(node), VirtualClock()
    source = field.source(clock=clock)
    field.judge(validator, ref)
    hub = missing(monkeypatch, field, ref, fault)
    for _ in range(60):
        poll(source)
        clock.advance(10)
    assert 5 < hub.asked <= 16
    assert (source.ready(field.first), source.counts.bad_files) == (0, 0)
    hub.is_back = True
    clock.advance(60)
    assert usable(source, field.first) == both(field, ref)
    assert source.counts.bad_files == 0
    asked = hub.asked
    clock.advance(3600)
    poll(source)
    assert hub.asked == asked


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_that_is_too_old_for_any_batch_is_given_up_and_counted(
    field: Field, node: Key, validator: Key, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    ref, clock = field.submission(node), VirtualClock()
    source = field.source(clock=clock)
    field.judge(validator, ref)
    hub = missing(monkeypatch, field, ref, fault)
    poll(source)
    last = field.first + field.desk.spec.max_lag
    source.forget_before(last)
    clock.advance(60)
    poll(source)
    assert (hub.asked, source.counts.bad_files) == (2, 0)
    source.forget_before(last + 1)
    clock.advance(60)
    poll(source)
    assert (hub.asked, source.counts.bad_files) == (2, 1)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_the_hub_does_not_give_holds_up_its_own_line_only(
    field: Field, validator: Key, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    one, other = field.desk.nodes(2)
    refs = [field.submission(one), field.submission(one, sequence=1), field.submission(other)]
    for ref in refs:
        field.judge(validator, ref)
    clock = VirtualClock()
    hub, source = missing(monkeypatch, field, refs[0], fault), field.source(clock=clock)
    for _ in range(2):  # where it raises, the next poll goes on with the others
        poll(source)
    assert submissions(source.take(field.first, source.ready(field.first))) == both(field, refs[2])
    hub.is_back = True
    clock.advance(60)
    assert usable(source, field.first) == both(field, *refs[:2])


def test_a_rejected_file_is_not_asked_for_again(
    field: Field, node: Key, validator: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref, clock, other = field.submission(node), VirtualClock(), field.desk.validator()
    source = field.source(clock=clock)
    field.judge(validator, ref)
    hub = missing(monkeypatch, field, ref, is_lost)
    poll(source)
    field.judge(other, ref, Outcome.SOFT)
    clock.advance(60)
    poll(source)
    assert hub.asked == 1
    source.forget_before(field.first + field.desk.spec.max_lag + 1)
    assert source.counts.bad_files == 0


def test_a_transfer_that_breaks_off_leaves_no_part_behind(
    field: Field, node: Key, validator: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref, source = field.submission(node), field.source()
    field.judge(validator, ref)

    def broken(*_: object) -> Iterator[bytes]:
        yield b"PAR1"
        raise Unavailable("the connection broke")

    monkeypatch.setattr(hub_client, "_parts", broken)
    with pytest.raises(Unavailable):
        source.hub.download(ref.root, field.folder / "broken.parquet", cap=1 << 20)
    assert not list(field.folder.glob("broken.*"))
