"""Web3 Secret Storage, version 3: the JSON in which wallets keep a secret key under a password.

Written: scrypt and AES-128-CTR. Read: scrypt and PBKDF2-HMAC-SHA-256, whichever wallet wrote it. Files and their rights are
identity.py's business. Source: https://ethereum.org/developers/docs/data-structures-and-encoding/web3-secret-storage.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import uuid
from collections.abc import Mapping
from typing import Any

from Crypto.Cipher import AES
from eth_utils import keccak

_BLOCK, _LANES, _BYTES = 8, 1, 32  # of scrypt: r, p, length of the derived key
_MEMORY_MAX = 1 << 30  # bytes that deriving a key may take: a stranger's file cannot ask for more
_ROUNDS_MAX = 1 << 24


class WrongPassword(Exception):
    """The password does not open this keystore."""


def encrypt(secret: bytes, password: str, address: str, *, rounds: int) -> dict[str, Any]:
    """The keystore of a 32-byte secret. `rounds`: scrypt's n, a power of 2; memory and time grow with it."""
    salt, iv = secrets.token_bytes(32), secrets.token_bytes(16)
    parameters = {"dklen": _BYTES, "n": rounds, "r": _BLOCK, "p": _LANES, "salt": salt.hex()}
    derived = _derive("scrypt", parameters, password)
    sealed = _cipher(derived, iv).encrypt(secret)
    return {
        "address": address.removeprefix("0x").lower(),
        "crypto": {
            "cipher": "aes-128-ctr", "cipherparams": {"iv": iv.hex()}, "ciphertext": sealed.hex(),
            "kdf": "scrypt", "kdfparams": parameters, "mac": _mac(derived, sealed).hex(),
        },
        "id": str(uuid.uuid4()), "version": 3,
    }  # fmt: skip


def decrypt(stored: Any, password: str) -> bytes:
    """The secret of a keystore. Raises WrongPassword, and ValueError, TypeError, KeyError or AttributeError for what is none."""
    if stored["version"] != 3:
        raise ValueError("not of version 3")
    crypto = stored.get("crypto") or stored["Crypto"]  # early wallets wrote it with a capital
    if crypto["cipher"] != "aes-128-ctr":
        raise ValueError("of another cipher")
    sealed, iv = bytes.fromhex(crypto["ciphertext"]), bytes.fromhex(crypto["cipherparams"]["iv"])
    derived = _derive(crypto["kdf"], crypto["kdfparams"], password)
    if not hmac.compare_digest(_mac(derived, sealed), bytes.fromhex(crypto["mac"])):
        raise WrongPassword
    return _cipher(derived, iv).decrypt(sealed)


def _derive(kind: str, parameters: Mapping[str, Any], password: str) -> bytes:
    """Raises ValueError for parameters that would take the machine's memory or time."""
    salt, length, text = bytes.fromhex(parameters["salt"]), parameters["dklen"], password.encode()
    if length != _BYTES:
        raise ValueError("of another length")
    if kind == "scrypt":
        n, r, p = (parameters[name] for name in ("n", "r", "p"))
        memory = 128 * r * (n + p + 2)
        if not 0 < memory <= _MEMORY_MAX or not 0 < n * r * p <= _ROUNDS_MAX:
            raise ValueError("of too many rounds")
        return hashlib.scrypt(text, salt=salt, n=n, r=r, p=p, dklen=length, maxmem=memory)
    if kind == "pbkdf2" and parameters["prf"] == "hmac-sha256" and 0 < parameters["c"] <= _ROUNDS_MAX:
        return hashlib.pbkdf2_hmac("sha256", text, salt, parameters["c"], length)
    raise ValueError("of another way to derive its key")


def _mac(derived: bytes, sealed: bytes) -> bytes:
    return keccak(derived[16:32] + sealed)


def _cipher(derived: bytes, iv: bytes) -> Any:
    return AES.new(derived[:16], AES.MODE_CTR, nonce=b"", initial_value=iv)
