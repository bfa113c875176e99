"""What becomes of a node after a turn that failed.

| what failed                                               | what follows                                                    |
| peers, endpoints, a hub that refuses, dear gas             | tried again after `retry_seconds`                               |
| memory for the engine: another program has it              | tried again, after pauses that grow                             |
| anything unknown: a fault of the program, or a device lost | the same, with its traceback in the log; after some in a row, the end: a fresh process may be able to |
| a disk that is full                                        | tried again, after pauses that grow; what is committed still goes to the hub |
| a disk that may not be written                             | the end: nothing that is made can be kept                       |
| this node's own trouble (no seat, no money, false work)    | the end                                                         |

Each turn begins with cases and uploads, so that they go on while work cannot be made; and a node that ends delivers first what
it has committed to (delivery.py).
"""

from __future__ import annotations

import logging

from node.engine import memory
from protocol.clock import SYSTEM, Clock
from protocol.errors import MurmurationError
from protocol.retry import Backoff
from protocol.shell import machine
from protocol.shell.connection import is_fatal

log = logging.getLogger("node")

_IN_A_ROW = 8
"""Unknown failures that a node lives through."""
_REST_MOST = 60
"""The longest pause, in first pauses."""


class Failures:
    def __init__(self, retry_seconds: float, clock: Clock = SYSTEM) -> None:
        self._retry_seconds = retry_seconds
        self._backoff = Backoff(retry_seconds, _REST_MOST * retry_seconds, clock=clock)
        self._unknown = 0

    def succeeded(self) -> None:
        """A turn came to its end."""
        self._unknown = 0
        self._backoff.succeeded()

    def failed(self, error: Exception) -> tuple[str, float]:
        """(why, for how many seconds to wait). Raises what the node ends with."""
        if (full := machine.full_disk(error)) is not None:
            pause = self._backoff.failed()
            log.warning("%s; %s; trying again in %.0f s", full, full.hint, pause)
            return str(full), pause
        if isinstance(error, MurmurationError):
            if is_fatal(error):
                raise error
            log.warning("%s; trying again", error)
            return str(error), self._retry_seconds
        if (refused := machine.trouble(error)) is not None:
            raise refused from error
        pause = self._backoff.failed()
        if (exhausted := memory.exhausted(error)) is not None:
            log.warning("%s; %s; trying again in %.0f s", exhausted, exhausted.hint, pause)
            return str(exhausted), pause
        self._unknown += 1
        what = f"{type(error).__name__}: {error}"
        if self._unknown > _IN_A_ROW:
            raise MurmurationError(
                f"{self._unknown} attempts in a row failed, the last with {what}",
                hint="the log holds the tracebacks; start again, and report them if it stays so",
            ) from error
        log.error("this should not happen; trying again in %.0f s", pause, exc_info=error)
        return what, pause
