"""How a matrix challenge (protocol/challenge.py) is asked through the hub: a dialogue of signed messages between a validator and a seat.

    validator  ask      side of the matrices                           seat  ready     it has time now
    validator  seed     the nonce that they are drawn with             seat  root      Merkle root of their product
    validator  rows     which rows it wants to see                     seat  opening   these rows, with their paths
    validator  result   what came of it; ends the dialogue at any point

The seat hears of an `ask` with its news (wire.py); from `ready` on both wait for each other at the hub. The time that counts is the validator's, from
when `seed` has reached the hub until it has the root: it covers the way there and back, drawing, multiplying and hashing.
Each message is a signed write to the hub (wire.py), which hands its headers on, so that nobody has to believe the hub who said what. A
message names its dialogue by 32 random bytes and its own place in it: none can be said twice, or in another run.
A challenge never leads to a verdict. A seat that is busy, away or does not want to leaves no more than an `ask` without an answer.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

from eth_utils import to_canonical_address

from protocol import canonical, challenge
from protocol.clock import SYSTEM, Clock
from protocol.errors import BadSignature, Malformed
from protocol.hub.wire import ADDRESS, EXPIRY, NONCE, SIGNATURE, WAIT_MAX, check_write
from protocol.signing import Domain

if TYPE_CHECKING:
    from protocol.hub.client import HubClient

ASK, READY, SEED, ROOT, ROWS, OPENING, RESULT = "ask", "ready", "seed", "root", "rows", "opening", "result"
ORDER = (ASK, READY, SEED, ROOT, ROWS, OPENING)
FIELDS = {
    ASK: {"side"}, READY: set(), SEED: {"nonce"}, ROOT: {"root"}, ROWS: {"rows"}, OPENING: {"opening"},
    RESULT: {"outcome", "milliseconds"},
}  # fmt: skip

PASSED, FALSE, LATE, SILENT = "passed", "false", "late", "silent"
OUTCOMES = (PASSED, FALSE, LATE, SILENT)
"""True in time; not the product; `ready` and then nothing in time; never `ready`."""

READY_SECONDS, ROOT_SECONDS, OPENING_SECONDS = 120, 60, 30
"""How long a validator waits for each."""
DIALOGUE_SECONDS = 240
"""After which the hub forgets a dialogue that nobody ended."""
MESSAGE_BYTES_MAX = 256 << 10
"""Of one message: the largest opening has 179 KiB."""
SHORT_BYTES_MAX = 1024
"""Of every other one."""


@dataclass(frozen=True)
class Message:
    """One message as the hub hands it on: the write's headers and its body."""

    headers: Mapping[str, str]
    value: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        return {"headers": dict(self.headers), "value": self.value}

    @classmethod
    def parse(cls, value: Any) -> Message:
        """Of the hub's answer. Raises Malformed."""
        try:
            headers = {name: value["headers"][name] for name in (ADDRESS, NONCE, EXPIRY, SIGNATURE)}
            body = value["value"]
        except (KeyError, TypeError) as error:
            raise Malformed("the hub hands on a message that is none") from error
        if not all(isinstance(text, str) for text in headers.values()) or not isinstance(body, dict):
            raise Malformed("the hub hands on a message that is none")
        return cls(headers, body)

    def signer(self, domain: Domain, run: int, path: str, now: int) -> str:
        """Who said it; `path` is the route that it was written to, `now` block time. Raises BadSignature for nobody, or too long ago."""
        try:
            body = hashlib.sha256(canonical.encode(self.value)).digest()
        except ValueError as error:
            raise BadSignature("no write signs what is not canonical") from error
        return check_write(self.headers, domain, run=run, method="POST", path=path, body=body, now=now)[0]


class Dialogue:
    """One party's end of a challenge; `other` is the address that has to sign what is heard."""

    def __init__(self, hub: HubClient, node: str, name: str, other: str, clock: Clock = SYSTEM) -> None:
        """`name`: the 64 hex digits that `ask` gave it."""
        self._hub = hub
        self._node = node
        self._name = name
        self._other = other
        self._clock = clock

    def say(self, kind: str, **fields: object) -> None:
        """Raises Refused where it is not the turn, or the dialogue is over."""
        self._hub.say(self._node, {"say": kind, "challenge": self._name, **fields})

    def hear(self, kind: str, within: float) -> dict[str, Any] | None:
        """The other's message, its fields not looked at yet; None where it has not come after `within` seconds.

        Raises a ProtocolViolation of the hub where it hands on something else.
        """
        until = self._clock.monotonic() + within
        while (left := until - self._clock.monotonic()) > 0:
            wait, asked = min(WAIT_MAX, ceil(left)), self._clock.monotonic()
            said = self._hub.said(self._node, ORDER.index(kind), wait=wait)
            if said:
                speaker, value = said[0]
                require(value)
                if (speaker, value["say"], value["challenge"]) != (self._other, kind, self._name):
                    raise Malformed("the hub hands on what is no part of this challenge")
                return value
            if self._clock.monotonic() < asked + wait / 2:  # the hub was to answer when there is something to tell
                self._clock.sleep(1.0)
        return None


def read(data: bytes) -> dict[str, Any]:
    """A message's body, of bytes. Raises Malformed or Oversized; what its fields hold is for `side_of` and the others to say."""
    value = canonical.decode(data, cap=MESSAGE_BYTES_MAX, what="message of a challenge")
    require(value)
    if value["say"] != OPENING and len(data) > SHORT_BYTES_MAX:
        raise Malformed("only an opening is that long")
    return value


def require(value: Any) -> None:
    """Raises Malformed unless it has a message's fields."""
    kind = value.get("say") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in FIELDS or value.keys() != FIELDS[kind] | {"say", "challenge"}:
        raise Malformed("this is no message of a challenge")
    bytes32(value, "challenge")


def bytes32(value: Mapping[str, Any], field: str) -> bytes:
    text = value[field]
    try:
        found = bytes.fromhex(text) if isinstance(text, str) and len(text) == 64 else b""
    except ValueError:
        found = b""
    if len(found) != 32:
        raise Malformed(f"{field} has 64 hex digits")
    return found


def rows_of(value: Mapping[str, Any], side: int) -> list[int]:
    rows = value["rows"]
    if not isinstance(rows, list) or len(rows) != challenge.ROWS:
        raise Malformed(f"{challenge.ROWS} rows are opened")
    if any(not isinstance(row, int) or isinstance(row, bool) or not 0 <= row < side for row in rows):
        raise Malformed("these rows do not exist")
    return rows


def opening_of(value: Mapping[str, Any], side: int) -> bytes:
    """Decoded only where it has the length that it must have."""
    text, size = value["opening"], challenge.opening_bytes(side, challenge.ROWS)
    if not isinstance(text, str) or len(text) != 4 * -(-size // 3):
        raise Malformed("an opening of another length")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Malformed("an opening is base64") from error


def opening_text(opening: bytes) -> str:
    return base64.b64encode(opening).decode()


def outcome_of(value: Mapping[str, Any]) -> tuple[str, int]:
    """What a validator says came of it, and after how many milliseconds it had the root (0: never)."""
    outcome, milliseconds = value["outcome"], value["milliseconds"]
    if outcome not in OUTCOMES or not isinstance(milliseconds, int) or not 0 <= milliseconds <= 1000 * DIALOGUE_SECONDS:
        raise Malformed("no result of a challenge")
    return outcome, milliseconds


def seed_of(domain: Domain, run: int, node: str, nonce: bytes) -> bytes:
    """Seed of the matrices for this seat."""
    contract, address = to_canonical_address(domain.contract), to_canonical_address(node)
    return challenge.seed(chain_id=domain.chain_id, contract=contract, run=run, node=address, nonce=nonce)
