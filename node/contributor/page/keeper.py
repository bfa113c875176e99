"""The thread that makes the node's page. Its own files are read every few seconds while somebody looks, the chain as often as the node asks it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from node.contributor import submission_log
from node.contributor.commands.inspect import row_of
from node.contributor.earning import RECENT
from node.contributor.page import documents
from node.contributor.page.chain_side import ChainSide
from node.contributor.page.machine import machine, network, weights
from node.contributor.settings import NodeSettings
from node.contributor.submission_log import NotedSettlements, SubmissionLog
from protocol.chain.types import Policy
from protocol.clock import SYSTEM, Clock
from protocol.errors import ChainError
from protocol.page.inquiries import PageInquiries
from protocol.page.keeper import TURN_SECONDS, Keeper, PageContent
from protocol.page.log_tail import LogTail, last_of
from protocol.page.redaction import PageSecrets
from protocol.shell.home import Home

PARTS = ("node", "earnings", "submissions", "machine", "network", "log")
_CHAIN_SECONDS = 10.0
"""Between two looks at the chain, at least."""
_TROUBLE = "This page cannot be made now; the node’s log says why, and it goes on trying."


class NodePageKeeper(Keeper[PageContent]):
    def __init__(
        self, place: Home, settings: NodeSettings, chain: ChainSide, tail: LogTail | None = None,
        clock: Clock = SYSTEM, *, turn_seconds: float = TURN_SECONDS,
    ) -> None:  # fmt: skip
        """`tail` has what this very process logs as the running node; None where the node is another process, or none."""
        super().__init__(PageContent, _TROUBLE, logging.getLogger("node"), clock, turn_seconds)
        self._place = place
        self._settings = settings
        self._chain = chain
        self._tail = tail
        rpc = settings.chain.rpc
        self.secrets = PageSecrets((rpc,) if isinstance(rpc, str) else rpc, (place.path / "keys",))
        self.lists, self.details = (PageInquiries(self.secrets.document) for _ in range(2))
        """The second wait for the chain."""
        self._policy: Policy | None = None
        self._told: dict[str, Any] | None = None
        self._told_at: float | None = None
        self._away: str | None = None
        self._next_look = float("-inf")
        self._settlements: NotedSettlements = {}
        self._summed: tuple[object, tuple[dict[str, Any], dict[str, Any]]] = (None, ({}, {}))

    def __exit__(self, *_: object) -> None:
        for inquiries in (self.lists, self.details):
            inquiries.close()
        super().__exit__(*_)

    def _open(self, opened: ExitStack) -> Callable[[], None]:
        self._summed = None, ({}, {})
        log = opened.enter_context(self._open_log())
        return lambda: self._turn(log)

    def _turn(self, log: SubmissionLog) -> None:
        self._look_at_chain(log)
        parts = {name: self.secrets.document(value) for name, value in self._parts(log).items()}
        if self.content.trouble is None and {name: part.tag for name, part in parts.items()} == self.content.tags:
            return
        self._replace(PageContent(self._mark(), parts))

    def _open_log(self) -> closing[SubmissionLog]:
        return closing(SubmissionLog(self._place.data / submission_log.FILE, self._settlements))

    def _look_at_chain(self, log: SubmissionLog) -> None:
        """What the chain said last stays while it is away."""
        now = self._clock.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + max(_CHAIN_SECONDS, self._settings.chain.poll_seconds)
        try:
            self._policy = self._policy or self._chain.policy()
            self._told, self._away = self._chain.tell(log), None
            self._told_at = self._clock.wall()
        except ChainError as error:
            self._away = str(error)

    def _parts(self, log: SubmissionLog) -> dict[str, Any]:
        place, settings, is_own = self._place, self._settings, self._tail is not None
        if (version := (log.version(), self._policy)) != self._summed[0]:
            self._summed = version, self._sums(log)
        counts, of_log = self._summed[1]
        doing = place.doing()
        local = {
            "running": doing is not None, "doing": doing, **counts, "run": settings.chain.run, "chain_id": settings.chain.chain_id,
            "contract": settings.chain.contract, "node": place.address("node"), "told_at": self._told_at, "away": self._away,
            "home": place.command("").strip(),
        }  # fmt: skip
        found = {
            "node": documents.front(self._told, local), "submissions": of_log["submissions"],
            "machine": machine(settings.engine, place.data, is_own=is_own) | {"weights": weights(place.data / "weights", is_own=is_own)},
            "network": network(place.data), "log": self._log_lines(),
        }  # fmt: skip
        if self._told is not None and "days" in of_log:
            found["earnings"] = documents.money(self._told, of_log["days"])
        return found

    def _sums(self, log: SubmissionLog) -> tuple[dict[str, Any], dict[str, Any]]:
        """What takes a look at every submission: done again when one of them has changed."""
        of_log: dict[str, Any] = {"submissions": documents.listing(log, self._policy, log.kept())}
        if self._policy is not None:
            of_log["days"] = documents.days(log, self._policy)
        return {"submissions": dict(log.counts()), "recent": dict(log.recent(RECENT))}, of_log

    def _log_lines(self) -> dict[str, Any]:
        if self._tail is not None:
            return {"lines": self._tail.lines(self.secrets.text), "from": "this process"}
        file = self._settings.logging.file
        return {
            "lines": last_of(Path(file), self.secrets.text) if file else [],
            "from": "a file" if file else "nowhere",
        }

    # ---- questions, asked by other threads -------------------------------------------------------------------------------

    def rows(self, state: str, offset: int, limit: int) -> dict[str, Any]:
        with self._open_log() as log:
            return documents.listing(log, self._policy, log.kept(), state, offset, limit)

    def submission(self, id: bytes) -> dict[str, Any] | None:
        """What `node submissions ID` tells; without what the chain says while that is away."""
        with self._open_log() as log:
            one = log.get(id)
            if one is None:
                return None
            row = row_of(one)
            try:
                self._chain.add_story(log, one, row)
            except ChainError as error:
                row["away"] = str(error)
            return documents.in_full(row)

    @property
    def list_mark(self) -> str:
        """Names the log as it is now, not as the last turn saw it, which may be long ago: SQLite writes to one of two files."""
        log = self._place.data / submission_log.FILE
        written = [_written(file) for file in (log, log.with_name(f"{log.name}-wal"))]
        return f"{self.content.mark} {written}"

    @property
    def stretch(self) -> str:
        """Names the stretch of time within which the chain is asked about the same thing once."""
        return f"{self._clock.monotonic() // _CHAIN_SECONDS:.0f}"


def _written(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_mtime_ns, found.st_size
