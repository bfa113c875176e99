"""One place to fetch from, and what experience says of it.

A standing holds moving averages of success and bandwidth. It heals with time, so that a relay that has recovered is
tried again; only a lie is final, for the version it was told about. Time is passed in, never read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from protocol.errors import Malformed
from protocol.reach import Reach

_HOST = re.compile(r"[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]")
_KEPT = 0.7  # share of a moving average that stays when a new observation comes
_HEALING = 30.0  # seconds in which half of a lost success rate comes back
_REST_FIRST, _REST_MAX = 0.05, 5.0  # seconds a source is left alone after a failure; doubles with each further one
_ORIGIN_SHARE = 1 / 20  # weight of an origin against a relay of the same standing: relays exist to spare it
_ORIGIN_SHARE_OF_RELAYS = 4.0  # the same for a relay: what it takes from another one, that one cannot give to a node
_EXPLORED = 0.25  # most of the draws that go to sources which never delivered, once one has
_REFERRED_MAX, _REFERRED_LENGTH_MAX = 4, 2048  # relays that an origin may name at once, and characters of that
_WEIGHT_MIN = 1e-3  # no usable source is ever quite without a chance


@dataclass(frozen=True)
class Source:
    """`name` is the party that answers for what `url` serves, and is blamed for it.

    Making one never fails, since addresses come from strangers: a useless one fails where it is used, alone.
    """

    url: str
    name: str
    is_relay: bool
    reach: Reach = Reach.NOWHERE
    """The nearest that its address may be to this machine: where another source named it, as near as that one is."""

    @property
    def is_encrypted(self) -> bool:
        """Whether it is reached by TLS. Hashes make the bytes as certain without; it keeps from others what is fetched."""
        return self.url.startswith("https://")

    def address(self) -> tuple[str, int]:
        """Host and port. Raises Malformed unless `url` is http://host[:port] or https://host[:port]."""
        try:
            parts = urlsplit(self.url)
            port = parts.port or (443 if self.is_encrypted else 80)
        except ValueError as error:
            raise Malformed(f"source address {self.url[:80]!r}: {error}") from error
        host = parts.netloc.removesuffix(f":{port}")
        plain = f"{parts.scheme}://{parts.netloc}"
        if parts.scheme not in ("http", "https") or not _HOST.fullmatch(host) or self.url.rstrip("/") != plain:
            raise Malformed(f"source address {self.url[:80]!r} is not http://host:port or https://host")
        return host.strip("[]"), port


def referred(urls: str, by: Reach) -> list[Source]:
    """The relays that an origin names instead of serving, at most four, separated by blanks. What is no address is left out."""
    found = []
    for url in urls[:_REFERRED_LENGTH_MAX].split(" ")[:_REFERRED_MAX]:
        source = Source(url, url, is_relay=True, reach=by)
        with suppress(Malformed):
            source.address()
            found.append(source)
    return found


class Standing:
    """Success rate in 0..1 and bandwidth in bytes per second of one source's single stream, both moving averages."""

    def __init__(self) -> None:
        self.bandwidth: float | None = None
        self.last_failure = "not asked"
        self.rests_until = 0.0
        self._success = 1.0
        self._failures = 0  # in a row
        self._seen = 0.0

    def success(self, now: float) -> float:
        missing = 1.0 - self._success
        return 1.0 - missing * 0.5 ** ((now - self._seen) / _HEALING)

    @property
    def has_only_failed(self) -> bool:
        """Whether it was tried and never delivered: what it promises counts for nothing, however much time has healed."""
        return self.bandwidth is None and self._success < 1.0

    def delivered(self, count: int, seconds: float) -> None:
        """`count` verified bytes arrived in `seconds`."""
        rate = count / max(seconds, 1e-6)
        self.bandwidth = rate if self.bandwidth is None else _KEPT * self.bandwidth + (1 - _KEPT) * rate

    def succeeded(self, now: float) -> None:
        self._success = _KEPT * self.success(now) + (1 - _KEPT)
        self._seen = now
        self._failures = 0

    def rest(self, reason: str, now: float, seconds: float) -> None:
        """Leaves the source alone for so long, and longer each time in a row as after a failure, which this is not. What was asked of it before,
        and is refused while it rests already, is the same time."""
        self.last_failure = reason
        if now < self.rests_until:
            self.rests_until = max(self.rests_until, now + seconds)
            return
        self.rests_until = now + max(seconds, min(_REST_MAX, _REST_FIRST * 2.0 ** min(self._failures, 16)))
        self._failures += 1

    def failed(self, reason: str, now: float) -> None:
        self._success = _KEPT * self.success(now)
        self._seen = now
        rest = min(_REST_MAX, _REST_FIRST * 2.0 ** min(self._failures, 16))
        self.rests_until = max(self.rests_until, now + rest)  # it may have asked for more
        self._failures += 1
        self.last_failure = reason


def weights(
    sources: Sequence[Source], standings: dict[str, Standing], now: float, *, for_relay: bool = False
) -> list[float]:
    """The relative probability of each source: success rate × bandwidth, an origin counting a twentieth of a relay, or four times
    as much where it is a relay that asks.

    A source that never delivered is taken for as fast as the others on average, but all of those together get at most a
    quarter of the draws, or leave a quarter to the origins while nobody has delivered: names cost nothing, and a crowd of
    them that only hangs must not drown the few that serve.
    """
    rates = [standings[source.name].bandwidth for source in sources]
    known = [rate for rate in rates if rate is not None]
    usual = sum(known) / len(known) if known else 1.0
    result = []
    origin_share = _ORIGIN_SHARE_OF_RELAYS if for_relay else _ORIGIN_SHARE
    for source, rate in zip(sources, rates, strict=True):
        merit = standings[source.name].success(now) * (usual if rate is None else rate) / usual
        result.append(max(_WEIGHT_MIN, merit) * (1.0 if source.is_relay else origin_share))
    if known:
        _limit_share(result, [rate is None for rate in rates], _EXPLORED)
    else:
        _limit_share(result, [source.is_relay for source in sources], 1 - _EXPLORED)
    return result


def _limit_share(shares: list[float], crowd: Sequence[bool], most: float) -> None:
    """Scales the marked shares down until they make up at most the part `most` of all, if there are others at all."""
    crowded = sum(share for share, marked in zip(shares, crowd, strict=True) if marked)
    allowed = (sum(shares) - crowded) * most / (1 - most)
    if 0 < allowed < crowded:
        for index, marked in enumerate(crowd):
            shares[index] *= allowed / crowded if marked else 1.0
