"""What a run's trainer still wants, as its hub serves it: advice to nodes, signed by the run's trainer key.

A node that knows it makes what a batch can still hold and leaves the rest (node/contributor/wanted.py). It is advice: nobody checks
whether it was followed, and work is paid alike. A trainer that lies wastes its own time, or its nodes'; docs/decisions/0019 says why that is enough.

    step      the batch that is being collected; during a training the one after it
    last      batches there will be: `step` == `last` wants nothing more
    groups    groups of a batch
    ahead     batches that submissions may be made ahead for, in hundredths
    ready     groups that the trainer could put into batches from `step` on
    settled   submissions of the versions `step` - max_lag and later of which the trainer knows what they were good for, or that it has
              given up waiting for; all others that the chain knows are on their way
    usable    groups that can be trained on, of a thousand that are submitted
    until     block time (seconds) after which it means nothing; one further ahead than a statement holds means nothing either
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

from protocol.errors import Malformed
from protocol.identity import Key
from protocol.signing import Domain, Need, signature_of

NEED_SECONDS: Final = 120
"""How long a statement holds, in block time. Changing it breaks: nothing; a hub that is gone is heeded for so long."""
AHEAD_SECONDS: Final = 2 * NEED_SECONDS
"""How far after a node's block time `until` may lie: as long as a statement holds, and once more where the hub has seen later blocks."""
REPEATED_SECONDS: Final = 7200
"""How long a hub repeats what its trainer has not said again, by this machine's clock: as long as a training may take by default. A
trainer that waits for rollouts says it again every `RENEWED_SECONDS`."""
RENEWED_SECONDS: Final = 60

_MOST = {"run": 2**64, "until": 2**64, "usable": 1001, "ahead": 10_001}
_LEAST = {"groups": 1, "ahead": 1, "usable": 1}
_NAMES = tuple(field.name for field in fields(Need))


@dataclass(frozen=True)
class SignedNeed:
    need: Need
    signature: bytes

    @classmethod
    def issue(cls, need: Need, key: Key, domain: Domain) -> SignedNeed:
        return cls(need, need.sign(key, domain))

    def as_json(self) -> dict[str, Any]:
        return {**{name: getattr(self.need, name) for name in _NAMES}, "signature": self.signature.hex()}

    def holds(self, now: int) -> bool:
        """Whether it means anything at this block time. Nobody can bind a node for longer than that, its trainer included."""
        return now <= self.need.until <= now + AHEAD_SECONDS

    @classmethod
    def parse(cls, value: Any, domain: Domain, run: int, trainer: str) -> SignedNeed:
        """Raises Malformed or BadSignature unless `trainer` signed exactly this for this run."""
        made = cls.read(value, run)
        made.need.require(made.signature, domain, trainer, "what the trainer needs")  # type: ignore[arg-type]
        return made

    @classmethod
    def read(cls, value: Any, run: int) -> SignedNeed:
        """The form only: whose signature it is remains to be asked. Raises Malformed."""
        if not isinstance(value, dict) or set(value) != {*_NAMES, "signature"}:
            raise Malformed("no statement of what the trainer needs")
        for name in _NAMES:
            number = value[name]
            if type(number) is not int or not _LEAST.get(name, 0) <= number < _MOST.get(name, 2**32):
                raise Malformed(f"what the trainer needs is out of range: {name}")
        if value["run"] != run or value["step"] > value["last"]:
            raise Malformed("what the trainer needs is of another run, or after its end")
        signed = signature_of(value["signature"], "what the trainer needs")
        return cls(Need(**{name: value[name] for name in _NAMES}), signed)
