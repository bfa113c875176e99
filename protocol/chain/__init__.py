"""The contracts as Python sees them: typed calls, one sender per key, a reorg-safe index of events, deployment.

artifacts.py  ABI and bytecode shipped with the package       types.py   what the contracts return
client.py     reading, and calls to be sent                   events.py  what they emit
sender.py     sends transactions of one key, in order         index.py   follows events, survives reorgs
reverts.py    contract errors → our error tree                deploy.py  deployment without a compiler
networks.py   names, chain ids, public endpoints              endpoints.py  several RPC endpoints as one
cases.py      what is open against a seat                     transaction_log.py  what was sent, on disk
settings.py   where it is, what a transaction may cost        command.py   ends what a killed command began
"""

from protocol.chain.client import Chain
from protocol.chain.sender import Sender

__all__ = ["Chain", "Sender"]
