"""The hub hands the messages of a challenge on, in their order and signed, and bounds what it keeps of them."""

from __future__ import annotations

import hashlib
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from swarm.anvil import Anvil

from protocol import canonical
from protocol.errors import BadSignature
from protocol.hub.challenges import DIALOGUE_SECONDS, MESSAGE_BYTES_MAX, OPENING, Dialogue
from protocol.hub.wire import Refused, sign_write
from protocol.identity import Key
from tests.clock import VirtualClock
from tests.hub.desk import Desk, open_desk
from trainer.hub import challenges as hub_challenges

NAME, OTHER = "ab" * 32, "cd" * 32
SAID = [
    {"say": "ask", "side": 64}, {"say": "ready"}, {"say": "seed", "nonce": "11" * 32}, {"say": "root", "root": "22" * 32},
    {"say": "rows", "rows": list(range(8))}, {"say": "opening", "opening": "AAAA"},
]  # fmt: skip
RESULT = {"say": "result", "outcome": "passed", "milliseconds": 2000}


@pytest.fixture
def validator(desk: Desk) -> Key:
    return desk.validator()


def say(desk: Desk, key: Key, node: Key, value: dict[str, Any], name: str = NAME) -> None:
    with closing(desk.client(key)) as client:  # of one address the hub takes a few connections at once
        client.say(node.address, {**value, "challenge": name})


def begun(desk: Desk, validator: Key, node: Key, count: int, name: str = NAME) -> None:
    """The first so many messages of a dialogue."""
    for number, value in enumerate(SAID[:count]):
        say(desk, node if number % 2 else validator, node, value, name)


def refused(desk: Desk, key: Key, node: Key, value: dict[str, Any], name: str = NAME) -> int:
    with pytest.raises(Refused) as caught:
        say(desk, key, node, value, name)
    return caught.value.status


def test_what_is_said_reaches_the_other_in_order_and_signed(desk: Desk, node: Key, validator: Key) -> None:
    begun(desk, validator, node, 6)
    client = desk.client()
    client._now = desk.now
    found = client.said(node.address, 0)
    assert [signer for signer, _ in found] == [validator.address, node.address] * 3
    assert [value for _, value in found] == [{**value, "challenge": NAME} for value in SAID]
    assert client.said(node.address, 4) == found[4:]
    assert client.said(validator.address, 0) == []


@pytest.mark.parametrize("count", range(1, 7))
def test_only_what_comes_next_is_taken_and_only_from_whose_turn_it_is(
    desk: Desk, node: Key, validator: Key, count: int
) -> None:
    begun(desk, validator, node, count)
    stranger, second = Key.generate(), desk.validator()
    for number, value in enumerate(SAID):
        right, wrong = (node, validator) if number % 2 else (validator, node)
        if number != count:
            assert refused(desk, right, node, value) == 409
        assert refused(desk, wrong, node, value) in (403, 409)
        assert refused(desk, stranger, node, value) == 403
        assert refused(desk, second, node, value) == 409
    assert refused(desk, node, node, RESULT) == 409
    assert refused(desk, second, node, RESULT) == 409
    assert len(desk.hub.challenges.said(node.address, 0)) == count


def test_only_seated_validators_ask(desk: Desk, node: Key) -> None:
    assert refused(desk, Key.generate(), node, SAID[0]) == 403
    assert refused(desk, desk.node(), node, SAID[0]) == 403
    assert refused(desk, node, node, SAID[0]) == 403
    assert desk.get(f"challenges/{node.address}").json() == {"messages": []}


def test_there_is_one_challenge_of_a_seat_and_one_of_a_validator(desk: Desk, node: Key, validator: Key) -> None:
    begun(desk, validator, node, 1)
    assert refused(desk, validator, node, SAID[0], OTHER) == 409
    assert refused(desk, desk.validator(), node, SAID[0], OTHER) == 409
    assert refused(desk, validator, desk.node(), SAID[0], OTHER) == 409


@pytest.mark.parametrize("count", [1, 3, 6])
def test_a_result_ends_a_challenge_at_any_point_and_is_shown(desk: Desk, node: Key, validator: Key, count: int) -> None:
    begun(desk, validator, node, count)
    say(desk, validator, node, RESULT)
    shown = desk.client().status()["hub"]["matrix_challenges"][node.address]
    assert (shown["outcome"], shown["side"], shown["validator"]) == ("passed", 64, validator.address)
    assert shown["operations_per_second"] == 2 * 64**3 // 2
    assert refused(desk, node, node, SAID[1]) == 409
    begun(desk, validator, node, 2, OTHER)


def test_nothing_of_another_challenge_is_taken(desk: Desk, node: Key, validator: Key) -> None:
    begun(desk, validator, node, 3)
    say(desk, validator, node, RESULT)
    begun(desk, validator, node, 3, OTHER)
    assert refused(desk, node, node, SAID[3], NAME) == 409


def test_a_message_is_taken_once(desk: Desk, node: Key, validator: Key) -> None:
    """Also where a dialogue with the same name is begun again."""
    path, body = f"challenges/{node.address}", canonical.encode({**SAID[1], "challenge": NAME})
    begun(desk, validator, node, 1)
    signed = sign_write(
        node, desk.world.chain.domain, run=desk.world.run, method="POST", path=f"/v1/runs/{desk.world.run}/{path}",
        body=hashlib.sha256(body).digest(), now=desk.now(),
    )  # fmt: skip
    url = f"{desk.url}/v1/runs/{desk.world.run}/{path}"
    assert httpx.post(url, content=body, headers=signed, timeout=60).status_code == 204
    say(desk, validator, node, RESULT)
    begun(desk, validator, node, 1)
    assert httpx.post(url, content=body, headers=signed, timeout=60).status_code == 409


@pytest.mark.parametrize(
    "changed", [{"side": 4096}, {"challenge": OTHER}, {"say": "rows"}, {"more": 1.5}], ids=lambda changed: str(*changed)
)  # fmt: skip
def test_a_hub_that_changes_what_was_said_is_found_out(
    desk: Desk, node: Key, validator: Key, changed: dict[str, Any]
) -> None:
    begun(desk, validator, node, 1)
    desk.hub.challenges.said(node.address, 0)[0].value.update(changed)
    with pytest.raises(BadSignature):
        desk.client(node).said(node.address, 0)


def test_a_hub_that_takes_a_message_to_another_seat_is_found_out(desk: Desk, node: Key, validator: Key) -> None:
    begun(desk, validator, node, 1)
    other = desk.node()
    desk.hub.challenges._open[other.address] = desk.hub.challenges._open[node.address]
    with pytest.raises(BadSignature):
        desk.client(other).said(other.address, 0)


def test_what_is_too_long_or_no_message_is_refused_and_stops_nothing(desk: Desk, node: Key, validator: Key) -> None:
    url = f"{desk.url}/v1/runs/{desk.world.run}/challenges/"
    assert httpx.post(url + node.address, content=bytes(MESSAGE_BYTES_MAX + 1), timeout=60).status_code == 413
    assert httpx.post(url + node.address, content=b"[" * 100_000, timeout=60).status_code == 422
    assert httpx.post(url + "0x12", content=b"{}", timeout=60).status_code == 422
    assert desk.get("challenges/nobody").status_code == 422
    for side in (65, 8192, "64", 2**70, None):
        with pytest.raises((Refused, ValueError)):
            say(desk, validator, node, {"say": "ask", "side": side})
    begun(desk, validator, node, 2)
    for wrong in ({"outcome": "slash"}, {"milliseconds": -1}, {"milliseconds": 10**9}, {"outcome": ["passed"]}):
        assert refused(desk, validator, node, {**RESULT, **wrong}) == 422
    assert desk.hub.challenges.results.get(node.address) is None
    assert desk.is_alive()


def test_the_results_of_so_many_seats_are_kept(
    desk: Desk, node: Key, validator: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_challenges, "_RESULTS_MAX", 2)
    others = [Key.generate(), Key.generate()]
    for asked in (node, *others, others[0]):
        begun(desk, validator, asked, 1)
        say(desk, validator, asked, RESULT)
    assert list(desk.hub.challenges.results) == [others[1].address, others[0].address]


def test_a_hub_that_answers_at_once_is_not_asked_without_pause(node: Key, validator: Key) -> None:
    clock = VirtualClock()
    asked: list[int] = []

    class Empty:
        def said(self, address: str, number: int, wait: int) -> list[object]:
            asked.append(number)
            return []

    dialogue = Dialogue(Empty(), node.address, NAME, validator.address, clock)  # type: ignore[arg-type]
    assert dialogue.hear(OPENING, 60.0) is None
    assert len(asked) <= 61


# A desk of its own takes Anvil back to before the others' was opened: nothing may come after it.
def test_a_dialogue_that_nobody_ends_is_forgotten(anvil: Anvil, tmp_path: Path) -> None:
    clock = VirtualClock()
    with open_desk(anvil, tmp_path, clock=clock) as desk:
        node, validator = desk.node(), desk.validator()
        begun(desk, validator, node, 3)
        clock.advance(DIALOGUE_SECONDS + 1)
        assert refused(desk, node, node, SAID[3]) == 409
        begun(desk, validator, node, 1, OTHER)
