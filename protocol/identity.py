"""Keys: one secp256k1 secret is a chain address and a libp2p PeerID at once, so a PeerID proves an on-chain seat.

Keys rest in keystore files (Web3 Secret Storage v3: scrypt + AES-128-CTR) that only their owner may read. The secret
never leaves a `Key`: it has no place in its repr, in logs or in errors.

PeerID: libp2p specs, peer-ids: identity multihash of the protobuf-encoded public key. Strangers may have an Ed25519 one,
libp2p's usual kind: it is a peer like any other and nobody on any chain.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from functools import lru_cache
from pathlib import Path

import base58
from eth_keys.datatypes import PrivateKey, PublicKey
from eth_typing import ChecksumAddress

from protocol.constants import ANVIL_CHAIN_ID
from protocol.errors import ConfigError, Malformed, PreflightError, UsageError

_PEER_PREFIX = bytes.fromhex("0025") + bytes.fromhex(
    "08021221"
)  # identity multihash, 37 bytes: type secp256k1, 33 bytes
_PEER_BYTES = len(_PEER_PREFIX) + 33
_STRANGER_PREFIX = bytes.fromhex("0024") + bytes.fromhex("08011220")  # the same of type Ed25519, 32 bytes
_STRANGER_BYTES = len(_STRANGER_PREFIX) + 32


class _Hidden:
    """Holds a private key where nothing prints it: eth_keys' own prints itself."""

    __slots__ = ("key",)

    def __init__(self, key: PrivateKey) -> None:
        self.key = key


class Key:
    """A secret key and what follows from it. Printing one shows the address only."""

    def __init__(self, secret: bytes) -> None:
        """`secret`: 32 bytes, a number below the curve's order. Raises ValueError, which quotes the secret: see `from_secret`."""
        private = PrivateKey(secret)
        public = private.public_key
        self._hidden = _Hidden(private)
        self.address: ChecksumAddress = public.to_checksum_address()
        self.peer: bytes = _PEER_PREFIX + public.to_compressed_bytes()

    @property
    def secret(self) -> bytes:
        """32 bytes, for what has to make its own key object of them."""
        return self._hidden.key.to_bytes()

    def sign(self, digest: bytes) -> bytes:
        """65 bytes r, s, v over 32 bytes that nobody else chose."""
        signature = self._hidden.key.sign_msg_hash(digest).to_bytes()
        return signature[:64] + bytes([27 + signature[64]])

    @property
    def peer_id(self) -> str:
        return base58.b58encode(self.peer).decode()

    def __repr__(self) -> str:
        return f"Key({self.address})"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a key is never pickled")

    @classmethod
    def generate(cls) -> Key:
        return cls.from_secret(secrets.token_bytes(32))

    @classmethod
    def from_secret(cls, secret: bytes | str) -> Key:
        """From 32 raw bytes or their hex. For development accounts and tests; people keep keystores."""
        try:
            return cls(bytes.fromhex(secret.removeprefix("0x")) if isinstance(secret, str) else secret)
        except Exception:  # noqa: BLE001  the library's error may quote the secret, so it is not chained
            raise ConfigError("this is no secp256k1 secret key") from None


@lru_cache(maxsize=4096)  # asked for again and again, and a point on the curve is dear to decompress
def address_of_peer(peer: bytes) -> ChecksumAddress:
    """The chain address of a PeerID's bytes. Raises Malformed unless it is a secp256k1 identity PeerID."""
    if len(peer) != _PEER_BYTES or not peer.startswith(_PEER_PREFIX):
        raise Malformed("PeerID does not carry a secp256k1 key")
    try:
        return PublicKey.from_compressed_bytes(peer[len(_PEER_PREFIX) :]).to_checksum_address()
    except Exception as error:
        raise Malformed("PeerID carries a point that is not on the curve") from error


def is_stranger(peer: bytes) -> bool:
    """Whether a PeerID's bytes carry an Ed25519 key, which may take part in discovery and has no chain address."""
    return len(peer) == _STRANGER_BYTES and peer.startswith(_STRANGER_PREFIX)


def check_peer(peer: bytes) -> None:
    """Raises Malformed unless `peer` is a PeerID that carries its key: secp256k1, or a stranger's."""
    if not is_stranger(peer):
        address_of_peer(peer)


def save_keystore(key: Key, path: Path, password: str, *, chain_id: int) -> None:
    """Encrypts `key` into a new file that only the owner may read; never overwrites one.

    On the development chain scrypt is made cheap, because every process of a local swarm opens a keystore.
    """
    from eth_account import Account  # takes a second of CPU to import: only who opens a keystore pays for it

    iterations = 1 << 4 if chain_id == ANVIL_CHAIN_ID else 1 << 18
    stored = Account.encrypt(key.secret, password, kdf="scrypt", iterations=iterations)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(
            f"{path} exists; a key is never overwritten", hint="move it away or name another file"
        ) from None
    with os.fdopen(handle, "w") as file:
        json.dump(stored, file)
        file.flush()
        os.fsync(file.fileno())


def load_keystore(path: Path, password: str) -> Key:
    """Raises ConfigError for a missing, unsafe or broken file and for a wrong password."""
    try:
        mode = path.stat().st_mode
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"cannot read the keystore {path}: {error.strerror}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise PreflightError(f"others may read the keystore {path}", hint=f"chmod 600 {path}")
    from eth_account import Account

    try:
        secret = Account.decrypt(json.loads(text), password)
    except ValueError as error:
        if "MAC mismatch" in str(error):
            hint = (
                "try another one, at the prompt, with --password-file or in MURMUR_PASSWORD; without it the key is lost"
            )
            raise ConfigError(f"wrong password for the keystore {path}", hint=hint) from None
        raise ConfigError(f"{path} is not a keystore file") from None
    except (TypeError, KeyError, AttributeError):
        raise ConfigError(f"{path} is not a keystore file") from None
    return Key.from_secret(bytes(secret))


def read_password(*, file: Path | None, variable: str, what: str, confirm: bool = False) -> str:
    """The password for `what`: from a file, else from the environment variable, else from a prompt.

    Raises UsageError at once when there is neither and nobody sits at a terminal.
    """
    if file is not None:
        try:
            return file.read_text().rstrip("\r\n")
        except OSError as error:
            raise ConfigError(f"cannot read the password file {file}: {error.strerror}") from error
    if variable in os.environ:
        return os.environ[variable]
    if not os.isatty(0):
        raise UsageError(f"no password for {what}", hint=f"give --password-file or set {variable}")
    from getpass import getpass

    password = getpass(f"Password for {what}: ")
    if confirm and getpass("Again: ") != password:
        raise UsageError("the two passwords differ", hint="give the command again")
    return password
