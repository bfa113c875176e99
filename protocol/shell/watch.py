"""`murmur chain watch`: a run's events, told line by line as they happen, for as long as somebody looks.

An endpoint that is gone is said so once on stderr, and asked again at longer pauses until it answers. What it tells is told once.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import typer
from eth_utils import to_checksum_address

from protocol.chain.events import RunCreated
from protocol.chain.following import Follower, Happened
from protocol.chain.types import Policy
from protocol.clock import SYSTEM, Clock
from protocol.errors import RpcUnavailable
from protocol.retry import Backoff
from protocol.shell.money import in_json, policy_in_json
from protocol.shell.sentences import at, sentence

_PAUSE_SECONDS_MAX = 60.0
_LARGE = (
    "amount", "slashed", "charged", "finder_share", "total", "locked", "upheld", "cleared", "found_false", "found_hard",
)  # fmt: skip


class Teller:
    """Prints news to stdout: a sentence with its time, or a JSON object."""

    def __init__(self, as_json: bool = False) -> None:
        self._as_json = as_json

    def tell(self, news: Happened) -> None:
        typer.echo(json.dumps(as_json(news)) if self._as_json else text(news))


def text(news: Happened) -> str:
    """`2026-11-26 12:00:00  block 17: version 3 was published, …`"""
    back = "taken back: " if news.taken_back else ""
    return f"{at(news.time)}  block {news.event.block}: {back}{sentence(news.event.data)}"


def as_json(news: Happened) -> dict[str, Any]:
    """Bytes as hex; amounts and bitmaps as text, for they are more than JSON readers count exactly."""
    event = news.event
    values = {field.name.rstrip("_"): getattr(event.data, field.name) for field in fields(event.data)}
    if isinstance(event.data, RunCreated):
        named = policy_in_json(Policy(*event.data.policy))
        values["policy"] = {
            name: _address(value) if str(value).startswith("0x") else value for name, value in named.items()
        }
    return {
        "event": type(event.data).__name__, "taken_back": news.taken_back, "block": event.block, "time": news.time,
        "log_index": event.log_index, "transaction": "0x" + event.transaction.hex(), "sentence": sentence(event.data),
        "values": in_json({name: _plain(value) for name, value in values.items()}, *_LARGE),
    }  # fmt: skip


def _address(text: str) -> str:
    return str(to_checksum_address(text))


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return value


def follow(
    follower: Follower, teller: Teller, *, poll_seconds: float, once: bool = False, clock: Clock = SYSTEM
) -> None:
    """Tells until interrupted, or with `once` up to the newest block. Raises WrongChain; with `once` RpcUnavailable too."""
    backoff = Backoff(poll_seconds, max(poll_seconds, _PAUSE_SECONDS_MAX), clock=clock)
    is_silent = False
    while True:
        try:
            for news in follower.poll():
                teller.tell(news)
        except RpcUnavailable as error:
            if once:
                raise
            pause = backoff.failed()
            if not is_silent:
                typer.echo(f"no news: {error}; asking again until it answers", err=True)
            is_silent = True
        else:
            if once:
                return
            if is_silent:
                typer.echo("the endpoint answers again", err=True)
            backoff.succeeded()
            is_silent, pause = False, poll_seconds
        clock.sleep(pause)
