"""Keystores are those of other wallets: what eth_account writes is read here, and the other way round."""

from __future__ import annotations

from typing import Any

import pytest
from eth_account import Account

from protocol import keystore
from protocol.identity import Key
from protocol.keystore import WrongPassword

SECRET = bytes.fromhex("c0ffee" + "42" * 29)


def ours() -> dict[str, Any]:
    return keystore.encrypt(SECRET, "pässword", Key.from_secret(SECRET).address, rounds=16)


def theirs(kdf: str) -> dict[str, Any]:
    return Account.encrypt(SECRET, "pässword", kdf=kdf, iterations=16)


def test_another_wallet_opens_our_keystore() -> None:
    assert bytes(Account.decrypt(ours(), "pässword")) == SECRET
    assert ours()["address"].lower() == theirs("scrypt")["address"].lower()


@pytest.mark.parametrize("kdf", ["scrypt", "pbkdf2"])
def test_another_wallets_keystore_opens_here(kdf: str) -> None:
    assert keystore.decrypt(theirs(kdf), "pässword") == SECRET
    with pytest.raises(WrongPassword):
        keystore.decrypt(theirs(kdf), "password")


def test_no_two_keystores_of_a_secret_are_alike() -> None:
    first, second = ours()["crypto"], ours()["crypto"]
    assert first["ciphertext"] != second["ciphertext"]
    assert first["kdfparams"]["salt"] != second["kdfparams"]["salt"]


@pytest.mark.parametrize(
    "change", [{"n": 1 << 30}, {"r": 1 << 24}, {"p": 1 << 30}, {"n": 0}, {"n": -2}, {"dklen": 64}, {"salt": "zz"}], ids=str
)  # fmt: skip
def test_a_keystore_cannot_ask_for_the_machines_memory(change: dict[str, Any]) -> None:
    stored = ours()
    stored["crypto"]["kdfparams"] |= change
    with pytest.raises(ValueError):
        keystore.decrypt(stored, "pässword")


@pytest.mark.parametrize("place", ["cipher", "kdf"])
def test_what_is_written_in_another_way_is_not_guessed_at(place: str) -> None:
    stored = ours()
    stored["crypto"][place] = "another"
    with pytest.raises(ValueError, match="another"):
        keystore.decrypt(stored, "pässword")
