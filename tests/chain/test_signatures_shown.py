"""Who signed a transaction that an endpoint shows, whatever the endpoint puts in its place."""

from __future__ import annotations

import random

from eth_account import Account

from protocol.chain.ethereum import signed_by

JUNK = (
    None,
    "",
    "0x",
    "0xzz",
    "0x" + "ff" * 33,
    [],
    {},
    [1],
    [{"address": "0x1", "storageKeys": []}],
    [[]],
    1.5,
    b"x",
    10**80,
)
FIELDS = {"type": 2, "chainId": 1, "nonce": 4, "maxPriorityFeePerGas": 1, "maxFeePerGas": 5, "gas": 21_000, "value": 3}


def test_who_signed_is_told_and_what_is_changed_was_signed_by_nobody_or_another() -> None:
    account, rng = Account.create(), random.Random(7)
    signed = account.sign_transaction({**FIELDS, "to": account.address, "data": b"ab"})
    numbers = {name: hex(value) for name, value in {**FIELDS, "r": signed.r, "s": signed.s, "v": signed.v}.items()}
    shown = {**numbers, "to": account.address.lower(), "input": "0x6162", "accessList": []}
    assert signed_by(shown) == account.address
    told = 0
    for _ in range(500):
        changed = {**shown, **{rng.choice([*shown]): rng.choice(JUNK) for _ in range(rng.choice((1, 1, 3)))}}
        try:
            assert signed_by(changed) != account.address or {**changed, "accessList": [], "v": shown["v"]} == shown
            told += 1
        except (ValueError, TypeError, LookupError, AttributeError):
            continue
    assert told
