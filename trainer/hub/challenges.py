"""Matrix challenges on their way between validators and seats: one dialogue a seat and one a validator, in memory only.

The hub keeps order, sizes and time; what is said it does not judge. A restart forgets what is under way, and then it has no result.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from protocol import metrics
from protocol.challenge import operations, require_side
from protocol.clock import SYSTEM, Clock
from protocol.hub import challenges as wire
from protocol.hub.challenges import ASK, DIALOGUE_SECONDS, ORDER, RESULT, Message
from protocol.hub.wire import Refused

_RESULTS_MAX = 256  # seats whose last result is shown
_CHALLENGES = metrics.counter(
    "murmur_hub_matrix_challenges_total", "Matrix challenges that validators told the result of.", "outcome"
)


@dataclass(frozen=True)
class _Dialogue:
    validator: str
    begun: float
    """Monotonic."""
    said: list[Message]

    def is_of(self, value: dict[str, Any]) -> bool:
        return bool(self.said[0].value["challenge"] == value["challenge"])


class Challenges:
    """For one event loop, but that any thread may read `results`: the last of each seat, newest last. It is never changed, only replaced."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self.results: dict[str, dict[str, Any]] = {}
        self._clock = clock
        self._open: dict[str, _Dialogue] = {}

    def said(self, node: str, after: int) -> list[Message]:
        """What was said in the dialogue with a seat, but for its first `after` messages."""
        self._forget()
        found = self._open.get(node)
        return [] if found is None else found.said[after:]

    def name(self, node: str) -> str:
        """Of the dialogue with a seat; empty where there is none."""
        said = self.said(node, 0)
        return str(said[0].value["challenge"]) if said else ""

    def require_turn(self, node: str, speaker: str, value: dict[str, Any]) -> None:
        """Raises Refused unless this is what comes next, and from whom."""
        self._forget()
        dialogue, kind = self._open.get(node), value["say"]
        if kind == ASK:
            require_side(value["side"])
            if speaker == node:
                raise Refused("nobody challenges itself", HTTPStatus.FORBIDDEN)
            if dialogue is not None or any(other.validator == speaker for other in self._open.values()):
                raise Refused("one challenge at a time, of a seat and of a validator", HTTPStatus.CONFLICT)
            return
        if dialogue is None or not dialogue.is_of(value):
            raise Refused("no such challenge is under way", HTTPStatus.CONFLICT)
        turn = len(dialogue.said)
        is_next = kind == RESULT or (turn < len(ORDER) and kind == ORDER[turn])
        from_seat = kind in ORDER and ORDER.index(kind) % 2 == 1
        if not is_next or speaker != (node if from_seat else dialogue.validator):
            raise Refused("this is not what comes next in the challenge", HTTPStatus.CONFLICT)

    def say(self, node: str, speaker: str, message: Message, now: int) -> None:
        """Takes a message whose turn it is; `now` in block time."""
        kind = message.value["say"]
        if kind == ASK:
            self._open[node] = _Dialogue(speaker, self._clock.monotonic(), [message])
        elif kind == RESULT:
            outcome, milliseconds = wire.outcome_of(message.value)
            side = self._open.pop(node).said[0].value["side"]
            rate = operations(side) * 1000 // milliseconds if milliseconds else 0
            result = {
                "outcome": outcome, "side": side, "milliseconds": milliseconds, "operations_per_second": rate,
                "validator": speaker, "time": now,
            }  # fmt: skip
            others = [(seat, last) for seat, last in self.results.items() if seat != node]
            self.results = dict([*others, (node, result)][-_RESULTS_MAX:])
            _CHALLENGES.add(outcome=outcome)
        else:
            self._open[node].said.append(message)

    def _forget(self) -> None:
        late = self._clock.monotonic() - DIALOGUE_SECONDS
        self._open = {node: dialogue for node, dialogue in self._open.items() if dialogue.begun > late}
