"""What a contract meant when it said no: error selectors decoded into our error tree, each with what to do next."""

from __future__ import annotations

from functools import cache
from typing import Any

from eth_abi import decode as abi_decode
from eth_abi.exceptions import DecodingError
from eth_utils import keccak

from protocol.chain import artifacts
from protocol.errors import Banned, InsufficientFunds, MurmurationError, TransactionReverted

_PLAIN_ERROR = keccak(text="Error(string)")[:4]
_PANIC = keccak(text="Panic(uint256)")[:4]

HINTS = {
    "Denied": "the key that sent this has no such right in this run, or a signature does not fit",
    "InvalidPolicy": "see docs/contracts.md for the ranges a policy must keep",
    "NoSuchRun": "check --run",
    "WrongState": "somebody else may have done it already; look with `node status` or `murmur chain info`",
    "TooLate": "the time for this has passed",
    "TooEarly": "wait until the deadline the contract names",
    "InvalidUnits": "the file claims no tokens, or more than the run's policy allows",
    "Unfunded": "the run's budget is spent; its owner can add to it with `murmur run fund`",
    "StaleStep": "another version of the weights is current; the node moves on by itself",
    "WrongStep": "another version of the weights is current; the node moves on by itself",
    "WrongSequence": "the chain counts submissions; another process may work with the same key",
    "WrongBeacon": "the chain was reorganised; the node starts the step again by itself",
    "SeatTooYoung": "a seat works from the first version published after it was taken",
    "RunPaused": "the run's owner paused it; wait or ask",
    "BeaconPending": "the beacon is made of the next block's hash; wait for that block",
    "InvalidBallot": "a vote names submissions that are not in the case",
    "BenchFull": "a run seats at most 255 validators in its life",
    "CaseOpen": "a hard case is open against this seat; see `node submissions`",
    "InsufficientStake": "deposit more with `node stake` or `murmur validator stake`",
    "Suspended": "too much of this seat's work was rejected; it works again after the time the contract names",
    "Overexposed": "the seat's unclaimed rewards are all its stake answers for; wait until the oldest mature",
    "NotOnBench": "only validators judge a submission that were seated before it was submitted",
    "NoCommonSample": "the two receipts name no false sample in common",
    "TooFewValidators": "verdicts that can be appealed need a jury; approve more validators with `murmur run approve`",
    "Exhausted": "others had all that a period gives; wait for the next",
    "TooLong": "shorten it: URLs, bootnodes, or the reason of an abstention",
    "TooManySubmissions": "split the list",
    "WrongAmount": "the token takes a fee or moves balances by itself; such tokens cannot be used",
    "SafeERC20FailedOperation": "the token refused the transfer, or is no plain ERC-20; such tokens cannot be used",
    "WrongAddress": "something else was deployed with this key meanwhile; deploy again",
    "ZeroAmount": "there is nothing to do it with",
    "ZeroAddress": "an address is missing",
    "NotSlasher": "only the run's own contracts may do this",
    "ERC20InsufficientBalance": "the account holds too few tokens",
    "ERC20InsufficientAllowance": "approve the contract for the amount first",
}
_FUNDS = ("InsufficientStake", "Unfunded", "ERC20InsufficientBalance", "ERC20InsufficientAllowance")


@cache
def _errors() -> dict[bytes, dict[str, Any]]:
    found = {}
    for contract in artifacts.CONTRACTS:
        for item in artifacts.load(contract).abi:
            if item["type"] == "error":
                signature = f"{item['name']}({','.join(i['type'] for i in item['inputs'])})"
                found[keccak(text=signature)[:4]] = item
    return found


def explain(data: bytes, doing: str) -> MurmurationError:
    """The error for revert data that came back while `doing` something ("submitting work")."""
    selector, body = data[:4], data[4:]
    try:
        if selector == _PLAIN_ERROR:
            return TransactionReverted(f"{doing}: the contract says: {abi_decode(['string'], body)[0]}", reason="Error")
        if selector == _PANIC:
            code = abi_decode(["uint256"], body)[0]
            return TransactionReverted(
                f"{doing}: arithmetic or bounds fault 0x{code:x} in the contract", reason="Panic"
            )
        item = _errors().get(selector)
        if item is None:
            return TransactionReverted(f"{doing}: the contract refused with unknown data 0x{data.hex()[:80]}")
        arguments = abi_decode([i["type"] for i in item["inputs"]], body)
    except (DecodingError, OverflowError, UnicodeDecodeError):
        return TransactionReverted(f"{doing}: the contract refused with broken data 0x{data.hex()[:80]}")
    name = item["name"]
    named = ", ".join(f"{i['name']} {value}" for i, value in zip(item["inputs"], arguments, strict=True))
    message = f"{doing}: {name}" + (f" ({named})" if named else "")
    hint = HINTS.get(name, "")
    if name in _FUNDS:
        return InsufficientFunds(message, hint=hint)
    return TransactionReverted(message, reason=name, arguments=arguments, hint=hint)


def banned(node: str) -> Banned:
    return Banned(
        f"the seat of {node} is banned from this run", hint="see `node submissions` for the verdict and its evidence"
    )
