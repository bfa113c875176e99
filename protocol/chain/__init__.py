"""The contracts as Python sees them: typed calls, one sender per key, one book of what happened, deployment.

Reading and deciding
client.py     Chain, as programs hold it: its parts are
access.py     how endpoints and contracts are reached       reading.py    what is read
calls.py      the calls to be sent                          types.py      what the contracts return
contract.py   calls and events as the ABI encodes them      ethereum.py   the JSON-RPC methods in use
endpoints.py  several RPC endpoints, as one or one by one   artifacts.py  ABI and bytecode shipped with the package
endpoint.py   what is known of one of them                  transport.py  JSON-RPC over HTTP, bounded
batches.py    several requests in one                       multicall.py  several calls in one
ahead.py      what a turn will ask, asked before it
reverts.py    contract errors → our error tree              cases.py      cases against a seat
ring.py       when units can be claimed
vouchers.py   the pay of validators                         faucet.py     development tokens
settings.py   where it is, what a transaction may cost      bounded.py    connections on which an answer ends in time
deviations.py what a policy lets each party gain and lose by not playing along
The book of a run
view.py       what can be asked of it                       sync.py          its writer, which follows the chain
events.py     what the contracts emit                       decoding.py      events out of the words of raw logs
log_reader.py pages of logs from an endpoint                witnesses.py     which of several endpoints to believe
following.py  events as they happen, without a book         standing.py      blocks that a reorganisation has left
completeness.py  the second reading                         counters.py      what the contracts count against the book
book_schema.py, book_entries.py  its tables, and what an event changes in them          corrections.py  puts it right
Sending
sender.py     transactions of one key, in order             writing.py  what of that is web3's
transaction_log.py  what was sent, on disk                  command.py  ends what a killed command began
explorer.py   sources for explorers                       finality.py   what is believed of it, at which depth
landing.py    receipts, wherever one is known             gas.py        what a transaction takes, by estimates, and who pays for it
dropped.py    what was refused and may land all the same  look_back.py  whether what has landed stays
pushing.py    hands it to the endpoints, and sorts what they refuse          signer.py   signs, at what it may cost
deploy.py     deployment without a compiler                 networks.py names, chain ids, public endpoints
drafts.py     what a call takes before it is sent         late.py   what too few endpoints can tell of
leaves.py     leave to take tokens, and whose it is       gaps.py   nonces that nothing uses
agreement.py   whether all endpoints name the same contracts, before money goes there

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
