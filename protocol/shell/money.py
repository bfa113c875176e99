"""Amounts for people, integers for machines; the one deposit that operators and validators share, and the leave to take tokens that goes before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from decimal import Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from protocol.errors import InsufficientFunds, UsageError

if TYPE_CHECKING:
    from eth_typing import ChecksumAddress

    from protocol.chain import Chain, Sender
    from protocol.chain.agreement import Agreement
    from protocol.chain.sender import Sent
    from protocol.chain.types import Policy
    from protocol.shell.proposal import Proposal

DECIMALS = 18
SYMBOL = "MUR"
_DIGITS_MAX = 78  # of 2**256 - 1


def in_json(table: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """A table as JSON has it: the amounts `names`, in wei, are text. Many readers, JavaScript's among them, count exactly to 2**53 only."""
    return {name: str(value) if name in names and value is not None else value for name, value in table.items()}


def policy_in_json(policy: Policy) -> dict[str, Any]:
    return in_json(
        asdict(policy), "fee", "reward", "bond", "jury_fee", "node_stake", "penalty", "validator_stake", "voucher_cap"
    )


def tokens(wei: int) -> str:
    """`1500000000000000000` → `1.5 MUR`, exactly."""
    whole, rest = divmod(abs(wei), 10**DECIMALS)
    fraction = f".{rest:0{DECIMALS}d}".rstrip("0") if rest else ""
    return f"{'-' if wei < 0 else ''}{whole:,}{fraction} {SYMBOL}"


def ether(wei: int) -> str:
    """As `tokens`, of the chain's own money."""
    return tokens(wei).removesuffix(SYMBOL) + "ETH"


def ether_about(wei: int) -> str:
    """Two digits of an amount that is an estimate, rounded up."""
    unit = 10 ** max(0, len(str(wei)) - 2)
    return ether(-(-wei // unit) * unit)


def parse_tokens(text: str, *, least: int = 1) -> int:
    """Tokens, or ETH, as people write them, in wei, exactly.

    Raises UsageError for anything but a decimal of 18 places or fewer, from `least` wei up to what a contract's uint256 holds.
    """
    try:
        value = Decimal(text.replace(",", ""))
    except InvalidOperation:
        raise UsageError(f"{text[:80]!r} is no amount of tokens", hint="write it like 250 or 0.5") from None
    # Looked at before it is multiplied: no context would hold any exponent, and int() would write it all out.
    if value.is_finite() and value >= 0 and (not value or -DECIMALS <= value.adjusted() < _DIGITS_MAX):
        exact = Context(prec=len(value.as_tuple().digits) + _DIGITS_MAX)  # the usual one rounds to 28 digits
        wei = value.scaleb(DECIMALS, exact) if value else Decimal(0)
        if wei == wei.to_integral_value(context=exact) and least <= wei < 1 << 256:
            return int(wei)
    raise UsageError(
        f"{text[:80]!r} is no amount of tokens",
        hint=f"it must be positive, with at most {DECIMALS} decimals, and no more than a contract can count",
    )


def duration(seconds: int) -> str:
    """`90000` → `1 d 1 h`."""
    parts = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"


def deposit(sender: Sender | Proposal, account: str, wei: int) -> None:
    """Deposits stake for `account` from the sender's tokens, approving exactly that much first."""
    chain = sender.chain
    call = chain.deposit(account, wei)
    if not sender.is_done(call):
        _prepare_deposit(sender, account, wei)
    sender.send(call)


def require_tokens(sender: Sender | Proposal, account: str, wei: int, *, hint: Callable[[], str] | None = None) -> None:
    """Raises InsufficientFunds where the sender cannot deposit that much for `account`, and has not yet; `hint` says how they come."""
    chain, who = sender.chain, sender.key.address
    if wei and not sender.is_done(chain.deposit(account, wei)) and (have := chain.token_balance(who)) < wei:
        raise InsufficientFunds(
            f"{who} holds {tokens(have)}, fewer than {tokens(wei)}",
            hint=hint() if hint else f"send {tokens(wei - have)} to {who}",
        )


def _prepare_deposit(sender: Sender | Proposal, account: str, wei: int) -> None:
    chain = sender.chain
    require_tokens(sender, account, wei)
    allow_to_take(sender, chain.bonds.address, wei)


def allow_to_take(sender: Sender | Proposal, spender: ChecksumAddress, wei: int) -> None:
    """Lets `spender` take so many tokens, where it may not yet: of what all endpoints say is the run's token, else raises WrongChain."""
    from protocol.chain.agreement import require_agreement

    chain = sender.chain
    leave = chain.approve_tokens(spender, wei)
    if chain.allowance(sender.key.address, spender) < wei:
        require_agreement(chain, spender=spender)
        sender.send(leave)


def send_tokens(sender: Sender | Proposal, to: str, wei: int) -> Sent | None:
    """Of what all endpoints say is the run's token, else raises WrongChain. What was sent; None of a proposal."""
    from protocol.chain.agreement import require_agreement

    require_agreement(sender.chain)
    return sender.send(sender.chain.transfer_tokens(to, wei))


def whose_word(chain: Chain, run: int, agreed: Agreement) -> list[str]:
    """For the consequences that a command shows: which run it is, and which endpoints told of it."""
    from protocol.chain import networks

    told, name = agreed.told, networks.Name.of(chain.chain_id)
    where = f"chain {chain.chain_id}" + (f" ({name})" if name else "")
    agree = "which name the same contracts" if len(told) > 1 else "and by no other: take one that you trust"
    silent = f"; {', '.join(agreed.silent)} did not answer" if agreed.silent else ""
    return [f"run       {run} of {chain.runs.address} on {where}", f"told by   {', '.join(told)}, {agree}{silent}"]
