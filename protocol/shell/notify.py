"""Tells a role's operator what somebody should look at, by a webhook, a command, or both ([notify] of its file).

A notification is one JSON object. `text` is a whole sentence, which Slack and Mattermost show; Discord shows `content`, the same. A webhook gets it by POST,
a command on its standard input, and kind and text as MURMUR_KIND and MURMUR_TEXT besides; no shell reads them. What cannot be delivered is tried twice more,
then the log says so: a role never waits for it, nor ends by it.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from queue import Full, Queue
from threading import Event, Thread
from typing import Any, Literal, get_args

from pydantic import Field, field_validator

from protocol.clock import SYSTEM, Clock
from protocol.http_url import host_and_port, without_secrets
from protocol.settings import Settings
from protocol.shell.home import PASSWORD_VARIABLE

log = logging.getLogger(__name__)

Kind = Literal["slashed", "case_opened", "suspended", "no_progress", "disk_low", "rewards_claimable", "ended", "test"]
_PAUSES = (2.0, 10.0)  # seconds before it is tried again
_SECONDS = 10.0  # for one try
_END_SECONDS = 12.0  # in which what waits may still be delivered when the role ends
_WAITING_MAX = 64


class NotifySettings(Settings):
    webhook: str = ""
    """Where notifications are posted as JSON: an address that Slack, Mattermost, Discord or a program of yours gives out. Nobody is shown more of it than its host."""
    command: tuple[str, ...] = ()
    """A program and its arguments, started for each notification, which it reads from standard input: `["/usr/local/bin/tell-me"]`."""
    kinds: tuple[Kind, ...] = tuple(kind for kind in get_args(Kind) if kind != "test")
    """Of what the node tells. `ended`: it cannot go on."""
    rewards_from: float = Field(default=1.0, gt=0)
    """Whole tokens that must be claimable before the node tells of rewards; once until they are claimed."""

    @field_validator("webhook")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        if url and not url.startswith(("http://", "https://")):
            raise ValueError("a webhook begins with https:// or http://")
        try:
            names_a_host = not url or bool(host_and_port(url).encode("idna"))
        except UnicodeError:
            names_a_host = False
        if not names_a_host:
            raise ValueError("it names no host")
        return url

    @field_validator("command", mode="before")
    @classmethod
    def _is_no_line(cls, command: Any) -> Any:
        if isinstance(command, str):
            raise ValueError('it is a list, for no shell reads it: ["/usr/local/bin/tell-me", "an argument"]')
        return command

    @property
    def ways(self) -> dict[str, Callable[[Mapping[str, str]], None]]:
        """How it is told: by the name of each way, what delivers a notification or raises why it cannot."""
        found: dict[str, Callable[[Mapping[str, str]], None]] = {}
        if self.webhook:
            found[without_secrets(self.webhook)] = self._post
        if self.command:
            found[self.command[0]] = self._run
        return found

    def _post(self, notification: Mapping[str, str]) -> None:
        import httpx

        from protocol.deadline import Transport, within

        with within(_SECONDS), httpx.Client(transport=Transport()) as client:
            answer = client.post(self.webhook, json=dict(notification))
        if not answer.is_success:
            raise OSError(f"it answers {answer.status_code}")

    def _run(self, notification: Mapping[str, str]) -> None:
        said = {"MURMUR_KIND": notification["kind"], "MURMUR_TEXT": notification["text"]}
        environment = {name: value for name, value in os.environ.items() if name != PASSWORD_VARIABLE} | said
        try:
            done = subprocess.run(
                list(self.command), input=json.dumps(dict(notification)), text=True, timeout=_SECONDS, env=environment, check=False,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise OSError(f"it did not end within {_SECONDS:g} s") from None
        except FileNotFoundError:
            raise OSError(
                "there is no such program; no shell reads the line, so each argument is a text of its own"
            ) from None
        if done.returncode:
            raise OSError(f"it ended with exit code {done.returncode}")


class Notifier:
    """Delivers within the context, in a thread of its own, and for a few seconds after its end. `who` is part of every notification."""

    def __init__(self, settings: NotifySettings, who: Mapping[str, str], clock: Clock = SYSTEM) -> None:
        self._settings, self._who, self._clock = settings, dict(who), clock
        self._waiting: Queue[dict[str, str] | None] = Queue(_WAITING_MAX)
        self._stop = Event()
        self._thread = Thread(target=self._deliver, name="notify", daemon=True)

    def __enter__(self) -> Notifier:
        if self._settings.ways:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Delivers what waits, for some seconds."""
        if self._thread.is_alive():
            self._stop.set()  # no more pauses
            self._put(None)
            self._thread.join(_END_SECONDS)

    def tell(self, kind: Kind, text: str, next_: str = "") -> None:
        """From any thread; returns at once. `next_` is the command to type."""
        if not self._settings.ways or kind not in (*self._settings.kinds, "test"):
            return
        self._put(notification(kind, text, next_, self._who))

    def _put(self, one: dict[str, str] | None) -> None:
        try:
            self._waiting.put_nowait(one)
        except Full:
            log.warning("too many notifications wait to be delivered; one is left out")

    def _deliver(self) -> None:
        while (one := self._waiting.get()) is not None:
            for name, way in self._settings.ways.items():
                self._try(name, way, one)

    def _try(self, name: str, way: Callable[[Mapping[str, str]], None], one: Mapping[str, str]) -> None:
        for pause in (*_PAUSES, None):
            try:
                way(one)
                return
            except Exception as error:  # noqa: BLE001  the thread lives as long as the role
                if pause is None or self._stop.is_set():
                    log.warning("a notification (%s) was not delivered by %s: %s", one["kind"], name, why_not(error))
                    return
                self._clock.wait(self._stop, pause)


def why_not(error: Exception) -> str:
    """Why one was not delivered. What others' errors say may hold the address."""
    return str(error) if type(error) is OSError else type(error).__name__


def notification(kind: Kind, text: str, next_: str, who: Mapping[str, str]) -> dict[str, str]:
    """As it is delivered."""
    whole = f"{text}; next: {next_}" if next_ else text
    return {
        "kind": kind,
        "text": whole,
        "content": whole,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **who,
    }
