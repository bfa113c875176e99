"""The contracts as Python sees them: typed calls, one sender per key, a reorg-safe index of events, deployment.

artifacts.py  ABI and bytecode shipped with the package       types.py   what the contracts return
client.py     reading, and calls to be sent                   events.py  what they emit
sender.py     sends transactions of one key, in order         index.py   follows events, survives reorgs
reverts.py    contract errors → our error tree                deploy.py  deployment without a compiler
networks.py   names, chain ids, public endpoints              endpoints.py  several RPC endpoints as one
cases.py      what is open against a seat                     transaction_log.py  what was sent, on disk
settings.py   where it is, what a transaction may cost        command.py   ends what a killed command began
ethereum.py   the JSON-RPC methods in use                     contract.py  calls and events as the ABI encodes them
envelope.py   a signed transaction as bytes

Chain and Sender are imported at their first use: what only wants a type of types.py or a network's name starts at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protocol.chain.client import Chain
    from protocol.chain.sender import Sender

__all__ = ["Chain", "Sender"]

_HOMES = {"Chain": "protocol.chain.client", "Sender": "protocol.chain.sender"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
