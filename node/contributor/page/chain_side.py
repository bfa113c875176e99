"""What the page asks of the chain: what `node status` and `node submissions ID` ask, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from node.contributor.commands.inspect import add_chain_story, collect
from node.contributor.submission_log import LoggedSubmission, SubmissionLog
from protocol.chain import Chain
from protocol.chain.types import Policy
from protocol.shell.home import Home


class ChainSide:
    """All raise ChainError."""

    def __init__(self, place: Home, run: int, open_chain: Callable[[], Chain]) -> None:
        self._place = place
        self._run = run
        self._open = open_chain
        self._chain: Chain | None = None

    def policy(self) -> Policy:
        return self._opened().policy(self._run)

    def tell(self, log: SubmissionLog) -> dict[str, Any]:
        """What `node status` tells."""
        return collect(self._place, self._opened(), self._run, log)

    def add_story(self, log: SubmissionLog, one: LoggedSubmission, row: dict[str, Any]) -> None:
        """To the row of a submission what the chain says of it."""
        add_chain_story(self._place, self._opened(), self._run, log, [one], [row])

    def _opened(self) -> Chain:
        self._chain = self._chain or self._open()
        return self._chain
