"""Hands signed bytes to the endpoints, and sorts what they say.

What one endpoint refuses the next may take, and one that takes it may keep it to itself. So neither decides: what stops a transaction, raises its
price or gives it up is what more than half of those say that answer.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from enum import Enum

from protocol.chain.client import Chain
from protocol.chain.ethereum import RpcRefusal
from protocol.errors import RpcUnavailable

log = logging.getLogger(__name__)


class Refusal(Enum):
    """Why an endpoint does not take signed bytes, with the words that nodes have for it, in lower case."""

    UNPAID = ("insufficient funds", "insufficientfunds", "upfront cost exceeds", "enough funds")
    USED = ("nonce too low", "nonce is too low", "nonce_too_low", "oldnonce")
    CHEAP = ("underpriced", "fee too low", "feetoolow", "less than block base fee", "below current base fee")
    SMALL = ("intrinsic gas", "floor")
    OTHER = ("",)  # in all, and therefore the last


_KNOWN = ("already known", "already imported", "alreadyknown", "known transaction")  # the very same bytes are there


@dataclass
class Pushed:
    """What the endpoints answered to the same signed bytes."""

    taken: int = 0
    """Endpoints that have it, or say so."""
    refusals: dict[Refusal, list[RpcRefusal]] = field(default_factory=dict)

    def of(self, kind: Refusal) -> int:
        """How many refused for this reason."""
        return len(self.refusals.get(kind, ()))

    @property
    def is_refused(self) -> bool:
        """By more than half of those that answered."""
        return sum(map(len, self.refusals.values())) > self.taken

    def mostly(self, kind: Refusal) -> bool:
        """Whether more than half of those that answered refused for this reason."""
        return 2 * self.of(kind) > self.taken + sum(map(len, self.refusals.values()))


def push(chain: Chain, raw: bytes, doing: str, *, everywhere: bool) -> Pushed:
    """Sends to the best endpoint that takes it; `everywhere`: to the others as well, for the one that took it may keep it to itself. Who rests is
    passed over only where more than half have it."""
    said = Pushed()
    for one in chain.best:
        is_enough = chain.is_majority(said.taken) and chain.provider.is_away(one.place)
        if said.taken and (not everywhere or is_enough):
            continue
        try:
            with one.errors(doing, passing=(RpcRefusal,)):
                one.ethereum.send_raw(raw)
            said.taken += 1
        except RpcRefusal as error:
            text = str(error).lower()
            if any(words in text for words in _KNOWN):
                said.taken, everywhere = said.taken + 1, True  # or so it says: the next one is asked as well
                continue
            kind = next(kind for kind in Refusal if any(words in text for words in kind.value))
            said.refusals.setdefault(kind, []).append(error)
            log.warning("%s: %s refuses the transaction: %s", doing, one.rpc, text[:200])
        except RpcUnavailable as error:
            log.warning("%s; asking the next endpoint", error)
    return said
