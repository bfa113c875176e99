"""Whether what serves HTTP at an endpoint is what the chain says: it answers, and what it serves is signed or hashed as it should be.

The hub by its run spec (the chain has its digest) and by the trainer's signature under what the run needs; who serves weights by the
manifest of the newest version (digest on chain, signature of the trainer).
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from protocol.deadline import why
from protocol.errors import ChainError, MurmurationError, ProtocolViolation, Unavailable, VersionMismatch
from protocol.hub.wire import Refused

if TYPE_CHECKING:
    from protocol.chain import Chain
    from protocol.chain.types import Publication
    from protocol.shell.location import RunLocation

SECONDS = 10.0
"""For one endpoint."""
RESERVE_SECONDS = 4.0
"""For one that nobody needs now."""


@dataclass(frozen=True)
class EndpointCheck:
    """`problem` is None where all is well; `detail` says what was found."""

    url: str
    seconds: float
    detail: str
    problem: MurmurationError | None = None
    answers: bool = True
    """Whether anybody of this protocol is there, though it may not have what it was asked for."""
    serves_others: bool = False
    """Whether it answers that it does not serve this machine: then nothing about it can be judged from here."""

    def as_json(self) -> dict[str, Any]:
        found = {"url": self.url, "ok": self.problem is None, "seconds": self.seconds, "detail": self.detail}
        return found if self.problem is None else found | {"problem": str(self.problem)}


def check(chain: Chain, run: int, role: str, url: str, *, seconds: float = SECONDS) -> EndpointCheck:
    """Asks the endpoint. Raises ChainError where the chain does not say what it should serve."""
    trainer = chain.trainer(run)
    began = time.monotonic()
    try:
        if role == "hub":
            detail = _hub(chain, run, url, trainer, seconds)
        else:
            detail = _weights(chain, run, url, trainer, chain.head(run), seconds)
    except (Unavailable, Refused, ProtocolViolation, VersionMismatch) as error:
        from protocol.shardcast.connection import NotServed

        answer = error.__cause__ if isinstance(error.__cause__, NotServed) else None
        serves_others = answer is not None and answer.is_for_good
        return EndpointCheck(url, time.monotonic() - began, "", error, answer is not None, serves_others)
    return EndpointCheck(url, time.monotonic() - began, detail)


def silent(chain: Chain, run: int, where: RunLocation, *, seconds: float = 4.0) -> list[str]:
    """What of a location is not there, as seen from here: a sentence each. Empty too where the chain cannot be asked."""
    named = [(role, url) for role in ("hub", "origin") if (url := where.of(role))]

    def look(role: str, url: str) -> str:
        try:
            problem = check(chain, run, role, url, seconds=seconds).problem
        except ChainError:
            return ""
        return f"{role} at {url}: {problem}" if problem else ""

    with ThreadPoolExecutor(2, thread_name_prefix="looks") as pool:
        return [text for text in pool.map(lambda each: look(*each), named) if text]


def _hub(chain: Chain, run: int, url: str, trainer: str, seconds: float) -> str:
    from protocol.hub.client import HubClient

    with closing(HubClient(url, run, chain.domain, timeout=seconds)) as hub:
        hub.spec(chain.spec_digest(run))
        need = hub.need(trainer)
    signed = "what it needs is signed by the trainer" if need else "the trainer has not said what it needs"
    return f"its run spec is the chain's; {signed}"


def _weights(chain: Chain, run: int, url: str, trainer: str, head: Publication | None, seconds: float) -> str:
    from eth_utils import to_checksum_address

    from protocol.constants import MANIFEST_BYTES_MAX
    from protocol.shardcast.connection import ConnectionPool, NotServed, Timeouts
    from protocol.shardcast.http1 import manifest_target
    from protocol.shardcast.manifest import Expected, ManifestLimits
    from protocol.shardcast.source import Source

    step = head.step if head else 0
    deadline = time.monotonic() + seconds
    with closing(ConnectionPool(Timeouts(connect=seconds, idle=seconds))) as pool:
        try:
            connection = pool.take(Source(url, name=url, is_relay=True), deadline)
            data = memoryview(bytearray(connection.ask_whole(manifest_target(step), MANIFEST_BYTES_MAX, deadline)))
            connection.read(data, deadline)
            pool.drop(connection)
        except NotServed as error:
            if head is None and error.status == 404:
                return "it answers; nothing is published yet"
            if error.is_for_good:
                raise Unavailable(
                    "it serves only networks of serve.allow: cannot be judged from here",
                    hint="look from a machine that it serves",
                ) from error
            raise Unavailable(
                f"it {error} when asked for version {step}", hint="it may still be fetching that; ask again in a minute"
            ) from error
        except OSError as error:
            raise Unavailable(f"it does not answer: {why(error)}") from error
    if head is None:
        return "it answers"
    digest, who = head.manifest, to_checksum_address(trainer)
    Expected(run, step, digest, who, chain.domain, ManifestLimits()).open(bytes(data))
    return f"it has version {step}, signed by the trainer"
