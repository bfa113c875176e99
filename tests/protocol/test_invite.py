"""An invite is one word that comes back as it was, or is refused."""

from __future__ import annotations

import pytest

from protocol.errors import Malformed
from protocol.identity import Key
from protocol.invite import SignedInvite
from protocol.signing import Domain, Invite

DOMAIN = Domain(31337, "0x5FbDB2315678afecb367f032d93F642f64180aa3")  # type: ignore[arg-type]
GATE, NODE = Key.from_secret(b"\x01" * 32), Key.from_secret(b"\x02" * 32)


def test_an_invite_comes_back_from_its_word() -> None:
    signed = SignedInvite.sign(Invite(7, NODE.address, 1_800_000_000), GATE, DOMAIN)
    assert len(signed.text.split()) == 1
    found = SignedInvite.parse(f" {signed.text}\n")
    assert found == signed
    assert found.invite.signer(found.signature, DOMAIN) == GATE.address
    assert signed.as_json()["invite"] == signed.text


@pytest.mark.parametrize(
    "text",
    [
        "", "7", "7:8:9", f"7:{NODE.address}:9:", f"7:{NODE.address}:9:0x", f"7:{NODE.address}:9:zz", "7:0x12:9:0x01",
        f"-7:{NODE.address}:9:0x01", f"07:{NODE.address}:9:0x01", f"{2**256}:{NODE.address}:9:0x01",
        f"7:{NODE.address}:{'9' * 5000}:0x01", f"7:{NODE.address}:9:0x{'01' * 5000}", f"٧:{NODE.address}:9:0x01",
    ],
)  # fmt: skip
def test_what_is_no_invite_is_refused(text: str) -> None:
    with pytest.raises(Malformed, match="invite"):
        SignedInvite.parse(text)
