"""The gas of a transaction: what the chain takes before anything is carried out, an estimate that may be true, and who pays for it.

A transaction with less is taken by no node, and none of its key with a later nonce lands before it. So one false estimate, signed
and written down, would stop a key for good.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from protocol.chain.client import Chain
from protocol.chain.endpoints import EndpointsDisagree
from protocol.chain.ethereum import RpcRefusal
from protocol.errors import FeeTooHigh, MurmurationError, RpcUnavailable

log = logging.getLogger(__name__)

TIP = 1_000_000
"""Wei per gas for who makes the block, 0.001 gwei: enough on Base, whose sequencer orders by arrival."""

_TRANSACTION, _CREATION, _CODE_WORD = 21_000, 32_000, 2
_TOKEN, _TOKEN_FLOOR = 4, 10
_NONZERO_TOKENS = 4
"""Tokens in a byte that is not zero, which has one."""
_READING = "reading the gas price"


def intrinsic(target: str | None, data: bytes) -> int:
    """The least gas of a transaction to `target`, None: that deploys (EIP-2028, EIP-3860, EIP-7623)."""
    zeros = data.count(0)
    tokens = zeros + _NONZERO_TOKENS * (len(data) - zeros)
    creation = _CREATION + _CODE_WORD * -(-len(data) // 32) if target is None else 0
    return _TRANSACTION + max(_TOKEN * tokens + creation, _TOKEN_FLOOR * tokens)


def estimate(chain: Chain, transaction: Mapping[str, Any], least: int, most: int, *, of_most: bool = False) -> int:
    """What the best endpoint estimates whose estimate is neither below `least` nor above `most`. Where none is within, one above `most`, or else
    `least` itself, which suits a chain that asks less. `of_most`: the median of those within, the higher of two; the best one's was wrong before.

    Raises RpcRefusal where more than half of the endpoints say that the call would revert; of two one, where the other is gone, or answers, and fails at
    this question time and again. Else RpcUnavailable where no endpoint gives an estimate.
    """
    problem, is_low, high = RpcUnavailable(f"{chain.rpc} did not answer"), False, 0
    reverts: list[RpcRefusal] = []
    failed: Chain | None = None
    within: list[int] = []
    for one in chain.best:
        try:
            with one.errors("estimating gas", passing=(RpcRefusal,)):
                found = one.ethereum.estimate_gas(transaction)
        except EndpointsDisagree:
            raise
        except RpcRefusal as error:
            reverts.append(error)
            if chain.is_majority(len(reverts)):
                raise reverts[0] from None
            log.warning("%s says that this would be refused: %s", one.rpc, str(error)[:200])
            continue
        except RpcUnavailable as error:
            problem, failed = error, one
            continue
        if least <= found <= most:
            within.append(found)
            if not of_most:
                break
        elif found > most:
            high = high or found
            log.warning("%s estimates %d gas, and at most %d are wanted", one.rpc, found, most)
        else:
            is_low = True
            log.warning("%s estimates %d gas, and %d is the least for such a transaction", one.rpc, found, least)
    if within or high:
        return sorted(within)[len(within) // 2] if within else high
    if is_low:
        return least
    if reverts and not (failed and _has_no_say(chain, failed, transaction)):
        raise RpcUnavailable(
            f"{problem}, and by another endpoint it would be refused: {_words(chain, reverts[0])}"
        ) from problem
    raise reverts[0] if reverts else problem


def _has_no_say(chain: Chain, other: Chain, transaction: Mapping[str, Any]) -> bool:
    """Of two endpoints, whether the other one is gone, or fails at this question once more and answers another one."""
    if len(chain.singles) != 2:
        return False
    if chain.provider.is_gone(other.place):
        return True
    try:
        with other.errors("estimating gas"):
            other.ethereum.estimate_gas(transaction)
    except RpcUnavailable:
        return _answers(other)
    except MurmurationError:  # it says the same by now
        return True
    return False


def _answers(one: Chain) -> bool:
    with suppress(RpcUnavailable):
        one.block_number()
        return True
    return False


def _words(chain: Chain, refusal: RpcRefusal) -> str:
    try:
        with chain.errors("by it"):
            raise refusal
    except MurmurationError as error:
        return str(error)[:200]


def fee(base: int, cap: int) -> int:
    """What a first attempt offers, in wei per gas, while a block burns `base`. Raises FeeTooHigh where less than the cap would not be mined."""
    if base + TIP > cap:
        raise FeeTooHigh(
            f"a transaction costs {_gwei(base + TIP)} gwei per gas now, and {_gwei(cap)} is the most that may be offered"
        )
    return min(offer(base), cap)


def base_fee(chain: Chain, cap: int) -> int:
    """What a block burns, in wei per gas, by the best endpoint that says so; where it names more than may be offered, the median of those that answer,
    the lower one of two. Raises RpcUnavailable."""
    found = next(chain.answers(_READING, _burnt))
    if found + TIP <= cap or len(chain.singles) == 1:
        return found
    return median_base_fee(chain)


def price(chain: Chain) -> int:
    """Wei per gas that a transaction pays about now: by the median of the endpoints that answer, so that no single one makes people bring more.
    Raises RpcUnavailable where none answers."""
    return median_base_fee(chain) + TIP


def median_base_fee(chain: Chain) -> int:
    """What a block burns, in wei per gas, by the endpoints that answer; the lower one of two. Raises RpcUnavailable where none does."""
    fees = sorted(chain.answers(_READING, _burnt))
    return fees[(len(fees) - 1) // 2]


def _burnt(one: Chain) -> int:
    return one.ethereum.base_fee()


def offer(base: int) -> int:
    """Twice the base fee, so that a few full blocks do not matter."""
    return 2 * base + TIP


def _gwei(wei: int) -> str:
    return f"{wei / 10**9:.9f}".rstrip("0").rstrip(".")


def can_pay(chain: Chain, account: str, wei: int) -> bool:
    """Whether an account has so much gas money, as any endpoint has it: what is signed and cannot be paid for is refused later, and one endpoint that
    says so now may lie or lag. Raises RpcUnavailable where none answers."""
    return any(_shown(chain, account, wei))


def most_show(chain: Chain, account: str, wei: int) -> bool:
    """Whether more than half of the endpoints that answer show so much gas money. Raises RpcUnavailable where none answers."""
    shown = list(_shown(chain, account, wei))
    return 2 * sum(shown) > len(shown)


def _shown(chain: Chain, account: str, wei: int) -> Iterator[bool]:
    return chain.answers("reading a balance", lambda one: one.ethereum.balance(account) >= wei)
