"""How much ETH a role's key needs for gas; and what a running one has left, as a metric: looked up now and then, and only where metrics are
served."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from protocol import metrics
from protocol.chain import Chain
from protocol.clock import SYSTEM, Clock
from protocol.errors import MurmurationError

log = logging.getLogger(__name__)

LOOK_SECONDS = 300.0
"""Between two looks: one request each."""
SUBMISSION_GAS = 80_000
SUBMISSIONS_LOW = 100
"""Gas money for fewer than this many submissions is worth a warning."""
_ETH = metrics.gauge("murmur_gas_eth", "ETH that the role's key has left for gas, as of a look every five minutes.")
_WEI = 10**18


def look(chain: Chain, address: str) -> None:
    """Raises RpcUnavailable."""
    _ETH.set(chain.balance(address) / _WEI)


@contextmanager
def watched(chain: Chain, address: str, clock: Clock = SYSTEM) -> Iterator[None]:
    """Looks again and again, in a thread, until the block ends."""
    stop = threading.Event()

    def follow() -> None:
        while not stop.is_set():
            try:
                look(chain, address)
            except MurmurationError as error:
                log.debug("the balance of %s is not known: %s", address, error)
            clock.wait(stop, LOOK_SECONDS)

    thread = threading.Thread(target=follow, name="gas", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
