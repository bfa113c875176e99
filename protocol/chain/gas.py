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
    this question time and again. Else RpcUnavailable where no endpoint gives an estimate. Who refuses in words that are not a contract's has not answered.
    """
    said = _Estimates(chain, transaction, least, most)
    for one in chain.best:
        said.ask(one)
        if said.within and not of_most:
            break
    decides, other = False, said.failed
    if said.reverts and other is not None and len(chain.singles) == 2:
        decides = chain.provider.is_gone(other.place) or (
            not said.ask(other) and not said.is_for_later and _answers(other)
        )
    if said.within or said.high:
        return sorted(said.within)[len(said.within) // 2] if said.within else said.high
    if said.is_low:
        return least
    if said.reverts and not decides:
        raise RpcUnavailable(
            f"{said.problem}, and by another endpoint it would be refused: {_words(chain, said.reverts[0])}"
        ) from said.problem
    raise said.reverts[0] if said.reverts else said.problem


class _Estimates:
    """What endpoints say to one transaction."""

    def __init__(self, chain: Chain, transaction: Mapping[str, Any], least: int, most: int) -> None:
        self._chain, self._transaction, self._least, self._most = chain, transaction, least, most
        self.within: list[int] = []
        self.high = 0
        self.is_low = False
        self.reverts: list[RpcRefusal] = []
        self.failed: Chain | None = None
        """The last one that gave no answer, for the reason in `problem`."""
        self.is_for_later = False
        """Whether it only said, in words or as busy, that it does not answer now."""
        self.problem = RpcUnavailable(f"{chain.rpc} did not answer")

    def ask(self, one: Chain) -> bool:
        """Whether it answers. Raises RpcRefusal where with it more than half say that it would revert."""
        try:
            with one.errors("estimating gas", passing=(EndpointsDisagree, RpcRefusal)):
                found = one.ethereum.estimate_gas(self._transaction)
        except EndpointsDisagree:
            raise
        except RpcRefusal as error:
            if error.revert is None:
                self._note(one, RpcUnavailable(f"estimating gas: {one.rpc} refused: {error.message[:200]}"), later=True)
                return False
            self.reverts.append(error)
            if self._chain.is_majority(len(self.reverts)):
                raise self.reverts[0] from None
            log.warning("%s says that this would be refused: %s", one.rpc, str(error)[:200])
            return True
        except RpcUnavailable as error:
            self._note(one, error, later=self._chain.provider.is_busy(one.place))
            return False
        if self._least <= found <= self._most:
            self.within.append(found)
        elif found > self._most:
            self.high = self.high or found
            log.warning("%s estimates %d gas, and at most %d are wanted", one.rpc, found, self._most)
        else:
            self.is_low = True
            log.warning("%s estimates %d gas, and %d is the least for such a transaction", one.rpc, found, self._least)
        return True

    def _note(self, one: Chain, problem: RpcUnavailable, *, later: bool) -> None:
        self.failed, self.problem, self.is_for_later = one, problem, later


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
