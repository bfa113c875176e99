"""How much ETH a role's key needs for gas, and what that costs; and what a running one has left, as a metric: looked up now and then, and only where metrics are
served."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from protocol import metrics
from protocol.chain import Chain, gas
from protocol.clock import SYSTEM, Clock
from protocol.errors import MurmurationError

log = logging.getLogger(__name__)

LOOK_SECONDS = 300.0
"""Between two looks: one request each."""
SUBMISSION_GAS = 80_000
SUBMISSIONS_LOW = 100
"""Gas money for fewer than this many submissions is worth a warning."""
WORK_GAS = SUBMISSION_GAS * SUBMISSIONS_LOW
"""What a key should have for its work when it begins."""
FAUCET_GAS, DEPOSIT_GAS = 125_000, 170_000
"""Of asking a faucet, and of depositing stake with the approval before it (docs/testnet.md, "What it costs"), and some more."""
DEARER = 3
"""Times the price of the moment: gas becomes dearer while somebody looks for ETH."""
_ETH = metrics.gauge("murmur_gas_eth", "ETH that the role's key has left for gas, as of a look every five minutes.")
_WEI = 10**18


def price_ahead(chain: Chain, most: int) -> int:
    """Wei per gas to reckon with, at most `most`. Raises RpcUnavailable."""
    return min(DEARER * gas.price(chain), most)


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
