"""What a validator's seat takes in gas money and tokens, where the tokens come from, and what is to be done next on the way to it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from protocol.errors import MurmurationError
from protocol.shell.money import ether_about, tokens

if TYPE_CHECKING:
    from protocol.chain import Chain
    from protocol.chain.types import Policy
    from protocol.shell.home import Home

_ENLIST_GAS = 150_000
"""As docs/testnet.md has it ("What it costs"), and some more."""


def needs(place: Home, chain: Chain, policy: Policy) -> str:
    """In words, what a new validator's address is to be sent."""
    from protocol.chain.sender import SendLimits
    from protocol.shell.gas import DEPOSIT_GAS, FAUCET_GAS, WORK_GAS, price_ahead

    gas = FAUCET_GAS + DEPOSIT_GAS + _ENLIST_GAS + WORK_GAS
    ether = ether_about(price_ahead(chain, SendLimits.fee) * gas)
    asked = faucet_command(place, chain, policy.validator_stake)
    source = f", which `{asked}` gets" if asked else ""
    return f"{ether} for gas and {tokens(policy.validator_stake)} for the stake{source}"


def faucet_command(place: Home, chain: Chain, missing: int) -> str:
    """What gets tokens from the run's faucet; nothing where the home's card names none, or it gives too few or none now."""
    from protocol.chain.faucet import TokenFaucet
    from protocol.shell import run_card

    card = run_card.kept(place.path)
    if card is None or not card.faucet:
        return ""
    try:
        faucet = TokenFaucet(chain, card.faucet)
        faucet.require_ready(place.address("validator"))
        state = faucet.state()
    except MurmurationError:
        return ""
    if state.token != chain.token.address or state.amount < missing:
        return ""
    named = ("--card", run_card.path_in(place.path), "--keystore", place.keystore("validator"))
    return shlex.join(["murmur", "chain", "faucet", *map(str, named)])


def how_to_get(place: Home, chain: Chain, address: str, wei: int) -> str:
    """How the tokens come that `address` lacks of so much."""
    missing = wei - chain.token_balance(address)
    return faucet_command(place, chain, missing) or f"ask the run's owner to send {tokens(missing)} to {address}"


def next_step(place: Home, chain: Chain, run: int, address: str, state: str, *, fee_max: int) -> str:
    """What to do on the way to a seat that works, or until one that was given up ends; empty where there is nothing."""
    from protocol.shell.gas import DEPOSIT_GAS, WORK_GAS, price_ahead

    seat = chain.validator(run, address)
    if seat.serves(chain.block().time):  # also one that was given up, until it ends
        return place.command("murmur validator start") if state in ("never started", "stopped") else ""
    if seat.until:
        return ""
    missing = chain.policy(run).validator_stake - seat.locked - chain.account(address).free
    price = price_ahead(chain, fee_max)
    if chain.balance(address) < price * _ENLIST_GAS:
        return f"send {ether_about(price * (DEPOSIT_GAS + _ENLIST_GAS + WORK_GAS))} for gas to {address}"
    if chain.token_balance(address) < missing:
        return how_to_get(place, chain, address, missing)
    if missing > 0:
        return place.command("murmur validator stake")
    if not seat.approved:
        return f"ask the run's owner for: murmur run approve @run.toml {address} --keystore OWNER.json"
    return place.command("murmur validator enlist")
