"""The hub's wire format: routes, headers, signed writes and storage receipts. A hub is where rollout files and receipts of a run are left and fetched. (The hub itself: trainer/hub.)

    GET  /v1/runs/R/spec                   canonical JSON of the run spec
    GET  /v1/runs/R/status                 what the trainer does, as JSON; informative only
    PUT  /v1/runs/R/submissions/ID         rollout file of a committed submission; answers with a storage receipt
    GET  /v1/runs/R/submissions/ID         the storage receipt, 404 before the upload
    GET  /v1/runs/R/files/SHA256?wait=S&direct=1   a rollout file by its root; with `direct` perhaps 307 and a URL where it lies (elsewhere.py)
    GET  /v1/runs/R/tasks/SHA256           a file that the run spec names: of tasks, or its reference probe
    POST /v1/runs/R/receipts               a verdict receipt
    GET  /v1/runs/R/receipts?after=N&mark=H&wait=S   everybody's receipts in order of arrival, at most a page: for validators and trainer
    POST /v1/runs/R/opinions               asks the other validators to check a submission as well; 409 beyond OPINIONS_OPEN_MAX
    GET  /v1/runs/R/opinions?after=N&mark=H&wait=S   such requests
    GET  /v1/runs/R/listings?receipts=N&receipts_mark=H&opinions=N&opinions_mark=H&wait=S   a page of each of both
    POST /v1/runs/R/challenges/0xNODE      the next message of the challenge of a seat (challenges.py); 409 where it is not its turn
    GET  /v1/runs/R/challenges/0xNODE?after=N&wait=S   its messages but for the first N, none while there is no challenge
    GET  /v1/runs/R/nodes/0xNODE?after=N&mark=H&also=A+B&challenge=C&need=T&wait=S   what concerns one node: receipts of its submissions,
                                           the name of the dialogue in which it is challenged, what the trainer needs
    GET  /v1/runs/R/need                   what the trainer still wants, signed (need.py); 404 while it has not said
    GET  /v1/runs/R/vouchers/0xADDRESS     what the run has promised a validator, signed; 404 while that is nothing

A write that names what the hub has not read off the chain yet may be answered with 503 and `Retry-After: seconds`. So may everything
where there is too much to do: who waits for news is refused first, then who asks for listings, then for files, uploads last. Clients come
back after that time and a random part of it more.
A listing's `since` is a block time: entries that came before may be listed no more, for no deadline of the protocol reaches them.
`mark` is the SHA-256 of entry N: where another one stands there, or the hub never came so far, it lists from the start; `from` says after
which number an answer begins, N or 0. `also` are earlier keys of the same node, at most EARLIER_KEYS_MAX.
A node's news are held back until a receipt comes, a dialogue other than C begins, or the trainer says something else than what the hub called
`tag` T. Where many wait to hear what the trainer needs, they hear it one after the other.
With `wait` an answer that would be empty is held back up to so many seconds until there is something to say.
Every write carries an EIP-712 `Write` over (run, method, path, SHA-256 of the body, nonce, expiry) of a seated key, in the
four headers below. Nothing read from a hub is trusted: files hash to roots on chain, receipts carry signatures.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from protocol.constants import WRITE_LIFETIME_SECONDS
from protocol.errors import BadSignature, Malformed, MurmurationError, Unavailable
from protocol.identity import Key
from protocol.signing import Domain, StorageReceipt, Write

ADDRESS, NONCE, EXPIRY, SIGNATURE = "Murmur-Address", "Murmur-Nonce", "Murmur-Expiry", "Murmur-Signature"
PAGE = 256
"""Most entries of one answer to a listing."""
OPINIONS_OPEN_MAX = 64
"""Most submissions that a validator may have asked about without a receipt of its own; each costs the others a judgement in full."""
EARLIER_KEYS_MAX = 7
"""Addresses that a node may name besides its own."""
NEED_TAG_LENGTH = 16
"""Hex digits by which the hub names what the trainer said."""
WAIT_MAX = 60
"""Longest wait a hub grants, in seconds."""
RETRY_MOST = 120.0
"""Longest that a client stays away because a hub says so, in seconds."""


class Refused(MurmurationError):
    """The hub understood and said no; `status` is the HTTP status.

    It ends a command. It never ends a role, whatever the status: no hub may stop a node that has cases to answer or a validator
    that has votes to give. Who asked decides about what was refused, and goes on with the rest.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status

    @property
    def may_pass(self) -> bool:
        """Whether the same may be taken later: the hub's view of the chain lags (its clock, a seat, a commitment that it has not
        seen), or another upload of the same submission is under way. Anything else it says for good."""
        return self.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)


class TryAgain(Unavailable):
    """The hub cannot say yet, and after how many `seconds` the same may be asked again: 503 with a Retry-After."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds

    @property
    def pause(self) -> float:
        """Seconds to stay away for: by chance up to half as long again, so that not all return together."""
        return min(self.seconds, RETRY_MOST) * random.uniform(1.0, 1.5)


@dataclass(frozen=True)
class Stored:
    """A hub's signed promise that it holds a submission's file."""

    receipt: StorageReceipt
    signature: bytes

    def as_json(self) -> dict[str, Any]:
        r = self.receipt
        return {
            "run": r.run, "submission": r.submission.hex(), "root": r.root.hex(), "size": r.size, "time": r.time,
            "signature": self.signature.hex(),
        }  # fmt: skip

    @classmethod
    def parse(cls, value: Any, domain: Domain, hub: str) -> Stored:
        """Raises Malformed or BadSignature unless `hub` signed exactly this."""
        stored = cls.read(value)
        stored.receipt.require(stored.signature, domain, hub, "storage receipt")  # type: ignore[arg-type]
        return stored

    @classmethod
    def read(cls, value: Any) -> Stored:
        """Whoever signed it. Raises Malformed."""
        try:
            receipt = StorageReceipt(
                int(value["run"]),
                bytes.fromhex(value["submission"]),
                bytes.fromhex(value["root"]),
                int(value["size"]),
                int(value["time"]),
            )
            signature = bytes.fromhex(value["signature"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise Malformed("no storage receipt") from error
        if (
            len(receipt.submission) != 32
            or len(receipt.root) != 32
            or not all(0 <= number < 1 << 64 for number in (receipt.run, receipt.size, receipt.time))
        ):
            raise Malformed("the storage receipt's values are out of range")
        return cls(receipt, signature)


def sign_write(key: Key, domain: Domain, *, run: int, method: str, path: str, body: bytes, now: int) -> dict[str, str]:
    """Headers for one write; `body` is the SHA-256 of what is sent, `now` block time."""
    nonce, expiry = secrets.token_bytes(32), now + WRITE_LIFETIME_SECONDS // 2
    signature = Write(run, method, path, body, nonce, expiry).sign(key, domain)
    return {ADDRESS: key.address, NONCE: nonce.hex(), EXPIRY: str(expiry), SIGNATURE: signature.hex()}


def check_write(
    headers: Mapping[str, str], domain: Domain, *, run: int, method: str, path: str, body: bytes, now: int
) -> tuple[str, bytes]:
    """(address, nonce) of a write's signer. Raises BadSignature; whether the nonce is fresh is for the caller."""
    try:
        address, expiry = headers[ADDRESS], int(headers[EXPIRY])
        nonce, signature = bytes.fromhex(headers[NONCE]), bytes.fromhex(headers[SIGNATURE])
    except (KeyError, ValueError) as error:
        raise BadSignature("the write carries no signature") from error
    if len(nonce) != 32 or not now <= expiry <= now + WRITE_LIFETIME_SECONDS:
        raise BadSignature("the write's nonce or expiry is out of range")
    Write(run, method, path, body, nonce, expiry).require(signature, domain, address, "write")  # type: ignore[arg-type]
    return address, nonce
