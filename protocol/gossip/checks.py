"""Which messages are taken and handed on. In order: form, age, signature, the signer's part in the run, how often it speaks.

Nobody is blamed for what was valid when it was sent: what is old is passed over, and so is, for now, what a signer says too often. Blame is for what no
honest peer hands on: what is no message, what is not signed by who should have, and what comes from nobody in the run.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from protocol.clock import SYSTEM, Clock
from protocol.errors import BadSignature, ProtocolViolation
from protocol.gossip.authority import Authority, RunPart
from protocol.gossip.messages import NeedWord, UnknownKind, VerdictWord, VersionWord, Word, parse
from protocol.hub.need import AHEAD_SECONDS
from protocol.p2p import Fate, Ruling
from protocol.signing import Domain

AHEAD_STEPS: Final = 8
"""A version may be so many steps beyond the chain's head: a trainer puts it there within seconds."""
VERSIONS_KEPT: Final = 4
VERDICTS_KEPT: Final = 256

_DIGESTS_MOST = 2  # of one step: a reorganised chain may hold another one than before
_STEPS_REMEMBERED = 64
_TRAINER_BURST, _TRAINER_RATE = 16.0, 0.5  # messages of one kind at once, and per second after that
_VERDICTS_BURST, _VERDICTS_RATE = (
    64.0,
    0.5,
)  # of a validator with just the stake that is asked for; as much more as it has more at stake
_ALL_BURST, _ALL_RATE = 256.0, 5.0  # of all validators together

OLD = Ruling(Fate.IGNORE, "old")
UNKNOWN = Ruling(Fate.IGNORE, "of a kind that is not known here")
EARLY = Ruling(Fate.LATER, "of a time to come")
OFTEN = Ruling(Fate.LATER, "too many of one signer")
TOO_MANY = Ruling(Fate.LATER, "too many in all")
SEVERAL = Ruling(Fate.IGNORE, "one manifest too many of a step")
FORMER = Ruling(Fate.IGNORE, "of a validator that has left")
MALFORMED = Ruling(Fate.REJECT, "malformed")
FORGED = Ruling(Fate.REJECT, "forged")


class Checks:
    """For the host's thread alone."""

    def __init__(self, run: int, domain: Domain, authority: Authority, clock: Clock = SYSTEM) -> None:
        self._run, self._domain, self._authority, self._clock = run, domain, authority, clock
        self._budgets: dict[Hashable, tuple[float, float]] = {}  # what is left, and since when
        self._versions: dict[tuple[str, int], set[bytes]] = {}
        self._need: tuple[int, int] = (-1, -1)

    def rule(self, data: bytes) -> Ruling:
        try:
            word = parse(data, self._run)
        except UnknownKind:
            return UNKNOWN
        except ProtocolViolation:
            return MALFORMED
        if untimely := self._untimely(word):
            return untimely
        try:
            signer = word.signer(self._domain)
        except BadSignature:
            return FORGED
        return self._verdict(word, signer) if isinstance(word, VerdictWord) else self._of_trainer(word, signer)

    def _untimely(self, word: Word) -> Ruling | None:
        """Before its signature is looked at, which costs a hundred times as much."""
        authority = self._authority
        if word.step < authority.oldest:
            return OLD
        if word.step > (authority.head or 0) + AHEAD_STEPS:
            return EARLY
        if isinstance(word, NeedWord):
            need = word.signed.need
            if (need.step, need.until) <= self._need or need.until < authority.now:
                return OLD
            return EARLY if need.until > authority.now + AHEAD_SECONDS + AHEAD_SECONDS else None
        return None

    def _of_trainer(self, word: VersionWord | NeedWord, signer: str) -> Ruling:
        if signer != self._authority.trainer:
            return FORGED
        if not self._may_say((word.kind, signer), _TRAINER_BURST, _TRAINER_RATE):
            return OFTEN
        if isinstance(word, NeedWord):
            self._need = word.step, word.signed.need.until
            return Ruling(Fate.ACCEPT, slot=word.kind)
        digests = self._versions.setdefault((word.kind, word.step), set())
        digests.add(word.published.digest)
        while len(self._versions) > _STEPS_REMEMBERED:
            del self._versions[min(self._versions, key=lambda each: each[1])]
        if len(digests) > _DIGESTS_MOST:
            digests.discard(word.published.digest)
            return SEVERAL
        return Ruling(Fate.ACCEPT, slot=word.kind, most=VERSIONS_KEPT)

    def _verdict(self, word: VerdictWord, signer: str) -> Ruling:
        stake = self._authority.stake(signer)
        if stake is None:
            return Ruling(Fate.ASK, about=signer)
        if stake.part is RunPart.FORMER:
            return FORMER
        if stake.part is not RunPart.VALIDATOR:
            return Ruling(Fate.DISOWN, "of somebody without a stake", about=signer)
        weight = stake.weight
        if not self._may_say((word.kind, signer), _VERDICTS_BURST * weight, _VERDICTS_RATE * weight):
            return OFTEN
        if not self._may_say(word.kind, _ALL_BURST, _ALL_RATE):
            return TOO_MANY
        return Ruling(Fate.ACCEPT, slot=(word.kind, signer), most=VERDICTS_KEPT)

    def _may_say(self, who: Hashable, burst: float, rate: float) -> bool:
        """A token bucket for each."""
        now = self._clock.monotonic()
        left, since = self._budgets.get(who, (burst, now))
        left = min(burst, left + (now - since) * rate)
        may = left >= 1
        self._budgets[who] = left - may, now
        return may
