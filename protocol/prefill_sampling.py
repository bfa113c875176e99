"""Which samples of a submission get the prefill: drawn by a secret that was committed to before and is revealed afterwards.

Time is divided into *periods* as long as the run's verification window. A validator has a secret for each, and draws with that
of the period in which it judges, by block time. The secrets are a hash chain: a period's is the SHA-256 of the next one's. A
receipt names the SHA-256 of the secret it was drawn with, its field `prefill`. So

- a receipt of an earlier period commits the validator to all later secrets, before the submission in question exists;
- the first receipt of the next period reveals this one's secret: its `prefill` *is* that secret.

Then anyone can check that the samples a receipt vouches for include all that were drawn (`require_drawn`). A revealed secret
tells nothing about later ones. Not covered: a validator chooses when it judges, and so between the two periods a window
touches; its first receipts are bound by nothing earlier; who looks at more samples than it drew breaks no promise.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from functools import lru_cache

from protocol.errors import HashMismatch, Malformed, ProtocolViolation
from protocol.verdict import Details, Outcome

NO_COMMITMENT = "0" * 64
"""`prefill` of a receipt that no secret was used for."""

PERIODS = 1 << 16
"""Length of one hash chain, 179 years of daily periods; a new one begins at each multiple. Changing it breaks: the link
between a validator's receipts before and after."""


def period(time: int, window: int) -> int:
    """Number of the period of a block time; `window` in seconds, as the run's policy has it."""
    return time // window


@lru_cache(8)
def secret(master: bytes, number: int) -> bytes:
    """A validator's secret of a period, 32 bytes; `master` is its own and never leaves it."""
    chain, place = divmod(number, PERIODS)
    value = hmac.digest(master, b"murmuration/draw" + chain.to_bytes(8, "big"), hashlib.sha256)
    for _ in range(PERIODS - 1 - place):
        value = hashlib.sha256(value).digest()
    return value


def commitment(of: bytes) -> bytes:
    """What a receipt names of a secret: its SHA-256, which is the secret of the period before."""
    return hashlib.sha256(of).digest()


def rows(of: bytes, submission: bytes, block_hash: bytes, samples: int, share: float) -> list[int]:
    """The rows drawn with a secret, at least one; `block_hash` is that of the commitment's block."""
    if share >= 1:
        return list(range(samples))
    drawn = [
        hmac.digest(of, submission + block_hash + row.to_bytes(4, "big"), hashlib.sha256) for row in range(samples)
    ]
    limit = int(share * 2**64)
    chosen = [row for row in range(samples) if int.from_bytes(drawn[row][:8], "big") < limit]
    return chosen or [min(range(samples), key=lambda row: drawn[row])]


# ---- checking ------------------------------------------------------------------------------------------------------------


def require_chained(earlier: Details, later: Details, window: int) -> None:
    """Raises HashMismatch unless two receipts of one validator draw from one chain of secrets; the order does not matter.

    Raises Malformed for receipts without a draw or of two chains (PERIODS): they can not be compared.
    """
    first, last = sorted((earlier, later), key=lambda details: details.time)
    begin, end = period(first.time, window), period(last.time, window)
    if NO_COMMITMENT in (first.prefill, last.prefill) or begin // PERIODS != end // PERIODS:
        raise Malformed("these receipts have no chain of secrets in common")
    value = bytes.fromhex(last.prefill)
    for _ in range(end - begin):
        value = hashlib.sha256(value).digest()
    if value.hex() != first.prefill:
        raise HashMismatch("the later receipt was drawn with a secret that the earlier one does not commit to")


def revealed(of: Details, later: Details, window: int) -> bytes | None:
    """The secret that a receipt was drawn with, as a later one of its chain reveals it; None while that is of the same period."""
    after = period(later.time, window) - period(of.time, window)
    if after < 1:
        return None
    value = bytes.fromhex(later.prefill)
    for _ in range(after - 1):
        value = hashlib.sha256(value).digest()
    return value


def require_drawn(details: Details, secret: bytes, block_hash: bytes, samples: int, share: float) -> None:
    """Raises unless an accept receipt vouches for every sample that its secret draws.

    `secret` is that of its period, once it is revealed; `samples` and `share` are the run spec's. Raises HashMismatch for
    another secret than the receipt names, ProtocolViolation where a drawn sample is missing, Malformed for anything but an accept.
    """
    if details.outcome != Outcome.ACCEPT or details.prefill == NO_COMMITMENT:
        raise Malformed("only accept receipts vouch for samples that were drawn")
    if commitment(secret).hex() != details.prefill:
        raise HashMismatch("this is not the secret that the receipt names")
    require_vouched(details, rows(secret, bytes.fromhex(details.submission), block_hash, samples, share))


def require_vouched(details: Details, drawn: Iterable[int]) -> None:
    """Raises ProtocolViolation unless a receipt names all of these samples."""
    vouched = int(details.samples, 16)
    missing = [row for row in drawn if not vouched >> row & 1]
    if missing:
        raise ProtocolViolation(f"drawn and not checked: samples {', '.join(map(str, missing))}")
