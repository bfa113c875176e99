"""Keys and keystores, and that a secret shows nowhere."""

from __future__ import annotations

import logging
import os
import pickle
from pathlib import Path

import pytest
from libp2p.crypto.ed25519 import create_new_key_pair as ed25519_pair
from libp2p.crypto.secp256k1 import create_new_key_pair
from libp2p.peer.id import ID

from protocol.constants import ANVIL_CHAIN_ID
from protocol.errors import BadSignature, ConfigError, Malformed, PreflightError, UsageError
from protocol.identity import Key, address_of_peer, check_peer, is_stranger, load_keystore, read_password, save_keystore
from protocol.signing import Domain, Verdict

SECRET = "c0ffee" + "42" * 29
DOMAIN = Domain(31337, "0x5FbDB2315678afecb367f032d93F642f64180aa3")  # type: ignore[arg-type]


def test_the_peer_id_is_libp2ps_and_proves_the_address() -> None:
    key = Key.from_secret(SECRET)
    assert key.peer_id == ID.from_pubkey(create_new_key_pair(bytes.fromhex(SECRET)).public_key).to_base58()
    assert address_of_peer(key.peer) == key.address


@pytest.mark.parametrize(
    "peer", [b"", b"\x00" * 39, b"\x00\x24\x08\x01\x12\x20" + b"\x07" * 32, b"\x00\x25" + b"\xff" * 37]
)
def test_other_peer_ids_prove_nothing(peer: bytes) -> None:
    with pytest.raises(Malformed):
        address_of_peer(peer)


def test_an_ed25519_key_may_take_part_in_discovery_and_is_no_chain_address() -> None:
    stranger = ID.from_pubkey(ed25519_pair(bytes(32)).public_key).to_bytes()
    assert is_stranger(stranger) and not is_stranger(Key.generate().peer)
    check_peer(stranger)
    with pytest.raises(Malformed):
        address_of_peer(stranger)
    for wrong in (
        b"",
        stranger[:-1],
        stranger + b"x",
        b"\x12\x20" + bytes(32),
        b"\x00\x25\x08\x02\x12\x21" + b"\x05" * 33,
    ):
        with pytest.raises(Malformed):
            check_peer(wrong)


def test_a_keystore_comes_back_with_its_password_only(tmp_path: Path) -> None:
    key, path = Key.generate(), tmp_path / "keys/node.json"
    save_keystore(key, path, "right", chain_id=ANVIL_CHAIN_ID)
    assert load_keystore(path, "right").address == key.address
    with pytest.raises(ConfigError, match="wrong password") as caught:
        load_keystore(path, "wrong")
    assert "--password-file" in caught.value.hint
    with pytest.raises(ConfigError, match="never overwritten"):
        save_keystore(key, path, "right", chain_id=ANVIL_CHAIN_ID)


def test_a_keystore_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    save_keystore(Key.generate(), path, "pw", chain_id=ANVIL_CHAIN_ID)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    with pytest.raises(PreflightError) as caught:
        load_keystore(path, "pw")
    assert caught.value.hint == f"chmod 600 {path}"


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"crypto": {}, "version": 3}'])
def test_a_broken_keystore_is_a_clear_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "node.json"
    path.touch(mode=0o600)
    path.write_text(text)
    with pytest.raises(ConfigError, match="is not a keystore"):
        load_keystore(path, "pw")


def test_weak_encryption_is_for_the_development_chain_only(tmp_path: Path) -> None:
    import json

    for name, chain_id in (("weak", ANVIL_CHAIN_ID), ("strong", 8453)):
        save_keystore(Key.generate(), tmp_path / name, "pw", chain_id=chain_id)
    rounds = {
        name: json.loads((tmp_path / name).read_text())["crypto"]["kdfparams"]["n"] for name in ("weak", "strong")
    }
    assert rounds["strong"] >= 2**18 > rounds["weak"]


def test_the_secret_shows_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    key = Key.from_secret(SECRET)
    caplog.set_level(logging.DEBUG)
    logging.getLogger().error("key %s %r", key, vars(key))
    save_keystore(key, tmp_path / "k", "pw", chain_id=ANVIL_CHAIN_ID)
    assert SECRET not in caplog.text + repr(key) + str(key) + (tmp_path / "k").read_text()
    with pytest.raises(TypeError):
        pickle.dumps(key)
    with pytest.raises(ConfigError) as caught:
        Key.from_secret(SECRET + "zz")
    assert SECRET not in repr(caught.value) + repr(caught.value.__cause__)


def test_passwords_come_from_file_then_environment_and_never_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    file.write_text("from file\n")
    monkeypatch.setenv("MURMUR_TEST_PASSWORD", "from environment")
    assert read_password(file=file, variable="MURMUR_TEST_PASSWORD", what="x") == "from file"
    assert read_password(file=None, variable="MURMUR_TEST_PASSWORD", what="x") == "from environment"
    monkeypatch.delenv("MURMUR_TEST_PASSWORD")
    monkeypatch.setattr(os, "isatty", lambda _: False)
    with pytest.raises(UsageError, match="no password"):
        read_password(file=None, variable="MURMUR_TEST_PASSWORD", what="x")


def test_two_passwords_that_differ_are_asked_for_again_by_the_same_command(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = iter(["one", "other"])
    monkeypatch.setattr(os, "isatty", lambda _: True)
    monkeypatch.setattr("getpass.getpass", lambda _: next(typed))
    with pytest.raises(UsageError, match="the two passwords differ") as refused:
        read_password(file=None, variable="MURMUR_TEST_PASSWORD", what="x", confirm=True)
    assert refused.value.hint == "give the command again"


def test_a_signature_counts_for_its_message_domain_and_key_only() -> None:
    key, message = Key.generate(), Verdict(1, b"\x01" * 32, 3, 1, b"\x02" * 32)
    signature = message.sign(key, DOMAIN)
    message.require(signature, DOMAIN, key.address, "verdict")
    for other_message, domain in (
        (Verdict(2, b"\x01" * 32, 3, 1, b"\x02" * 32), DOMAIN),
        (message, Domain(1, DOMAIN.contract)),
        (message, Domain(31337, Key.generate().address)),
    ):
        with pytest.raises(BadSignature):
            other_message.require(signature, domain, key.address, "verdict")


def test_a_malleable_or_mangled_signature_is_refused() -> None:
    key, message = Key.generate(), Verdict(1, b"\x01" * 32, 3, 1, b"\x02" * 32)
    good = message.sign(key, DOMAIN)
    order = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
    twin = good[:32] + (order - int.from_bytes(good[32:64], "big")).to_bytes(32, "big") + bytes([55 - good[64]])
    for bad in (twin, good[:64], good + b"\x00", good[:64] + b"\x00", bytes(65), b""):
        with pytest.raises(BadSignature):
            message.signer(bad, DOMAIN)
