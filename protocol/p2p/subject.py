"""What is gossiped about, and what messages of it are worth: the seam between those who carry messages and those who understand them.

Imports neither trio nor libp2p: whoever sets the rules needs neither.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from protocol.p2p.settings import GossipLimits

MESSAGE_BYTES_MAX: Final = 4096
"""Cap on a message's data. Changing it breaks: peers with a smaller one cut off who sends larger ones."""


class Fate(Enum):
    ACCEPT = "accept"
    """It is valid and news: it is kept and handed on."""
    IGNORE = "ignore"
    """It is not handed on, and nobody is to blame: it is old, say."""
    LATER = "later"
    """Not now, and nobody is to blame: its signer has said too much just now, or it is of a time to come. It may be told again."""
    REJECT = "reject"
    """No honest peer hands this on: it is forged, or no message at all."""
    DISOWN = "disown"
    """Its signer has no part in the run, as far as the last look at the chain says; before anybody is blamed the chain is asked again."""
    ASK = "ask"
    """The chain must be asked about its signer first."""


@dataclass(frozen=True)
class Ruling:
    """`reason` is for people. Of what is taken, the last `most` of the same `slot` (its signer and kind) are kept; `about` is whom to ask for."""

    fate: Fate
    reason: str = ""
    slot: Hashable = None
    most: int = 1
    about: str = ""


class SubjectRules(Protocol):
    """All but `look_up` and `refresh` are called in the host's thread and return at once."""

    def rule(self, data: bytes) -> Ruling:
        """Of a message that was not ruled on before, unless as one for later; one that is taken counts from here as known."""

    def heard(self, data: bytes) -> None:
        """A message of somebody else was taken."""

    def weight(self, peer: bytes) -> float:
        """Of a peer's stake in the run; 0 where it has none, or none is known."""

    def unknown(self, peer: bytes) -> str:
        """The address to look up for the weight of `peer`; empty where it is known or stands for nobody."""

    def look_up(self, about: str) -> bool:
        """Asks the chain about an address, and says whether it answered. In a thread of its own."""

    def refresh(self) -> None:
        """Asks the chain how far the run is. In a thread of its own, before the first message and from time to time."""


@dataclass(frozen=True)
class GossipSubject:
    """`keys` are those of the DHT under which others who gossip about it are found; who can be reached provides the first."""

    topic: str
    keys: tuple[bytes, ...]
    rules: SubjectRules
    limits: GossipLimits = field(default_factory=GossipLimits)
