"""Receipts: signed, strict, and bound to their work."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from protocol import canonical, rendezvous, statistics
from protocol.eprocess import Sums
from protocol.errors import BadSignature, Malformed, ProtocolViolation
from protocol.identity import Key
from protocol.signing import Domain
from protocol.submission import SubmissionRef
from protocol.verdict import RULES, Details, Outcome, Receipt

DOMAIN = Domain(31337, "0x5FbDB2315678afecb367f032d93F642f64180aa3")  # type: ignore[arg-type]
NODE = Key.from_secret("0x" + "44" * 32)
REF = SubmissionRef(NODE.address, 4, 1, b"\x0a" * 32)


def details(**changes: object) -> Details:
    made = Details(
        protocol=1, chain_id=31337, contract=DOMAIN.contract, run=1, submission=REF.submission_id(1).hex(), node=REF.node, step=4, sequence=1,
        root=REF.root.hex(), units=77, spec="00" * 32, outcome=int(Outcome.HARD), rule="reward", measured="1", threshold="0",
        detail="row 0", samples="0" * 63 + "1", sequences_checked=1, proofs_checked=2, tokens_checked=3, time=1_800_000_000,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def test_a_receipt_is_read_back_with_its_validator() -> None:
    key = Key.generate()
    receipt = Receipt.issue(details(), key, DOMAIN)
    again = Receipt.parse(receipt.encode(), DOMAIN, 1)
    assert again == receipt
    assert (again.validator, again.outcome, again.details.ref) == (key.address, Outcome.HARD, REF)
    assert len(again.evidence(DOMAIN)) == 32


@pytest.mark.parametrize(
    "changes",
    [
        {"submission": "00" * 32},
        {"run": 2},
        {"chain_id": 1},
        {"contract": NODE.address},
        {"protocol": 2},
        {"outcome": 4},
        {"outcome": int(Outcome.ACCEPT)},
        {"rule": ""},
        {"rule": "vibes"},
        {"node": REF.node.lower()},
        {"step": 2**32},
        {"units": -1},
        {"root": "zz" * 32},
        {"samples": "00" * 32},
        {"samples": "01"},
        {"prefill": "zz" * 32},
    ],
    ids=str,
)
def test_a_receipt_that_contradicts_itself_is_malformed(changes: dict[str, object]) -> None:
    with pytest.raises(Malformed):
        Receipt.parse(Receipt.issue(details(**changes), Key.generate(), DOMAIN).encode(), DOMAIN, 1)


SUMS = {"margins_soft": [5, 9, 3], "temperature": [1 << 20, 1 << 20, 2 << 20]}


def test_a_receipt_carries_sums_and_one_without_them_is_what_it_always_was() -> None:
    key = Key.generate()
    receipt = Receipt.parse(Receipt.issue(details(sums=SUMS), key, DOMAIN).encode(), DOMAIN, 1)
    assert statistics.decode(receipt.details.sums) == {
        "margins_soft": Sums(5, 9, 3),
        "temperature": Sums(1 << 20, 1 << 20, 2 << 20),
    }
    assert statistics.encode(statistics.decode(receipt.details.sums)) == SUMS
    without = Receipt.issue(details(), key, DOMAIN)
    assert b"sums" not in without.encode()
    assert b"sums" not in without.details.encode()
    assert without.evidence(DOMAIN) != Receipt.issue(details(sums=SUMS), key, DOMAIN).evidence(DOMAIN)


@pytest.mark.parametrize(
    "sums",
    [
        [],
        {},
        {"margins": [1, 1, 1]},
        {"margins_soft": [1, 1]},
        {"margins_soft": [1, 1, "1"]},
        {"margins_soft": [1, 1, True]},
        {"margins_soft": [-1, 1, 1]},
        {"margins_soft": [0, 0, 0]},
        {"temperature": [2, 2, 1]},
    ],
    ids=str,
)
def test_sums_that_cannot_be_are_malformed(sums: object) -> None:
    value = json.loads(Receipt.issue(details(sums=SUMS), Key.generate(), DOMAIN).encode())
    value["details"]["sums"] = sums
    with pytest.raises(Malformed):
        Receipt.parse(canonical.encode(value), DOMAIN, 1)


def test_sums_of_more_than_the_tokens_that_were_checked_are_malformed() -> None:
    def parse(tokens: int, sums: dict[str, list[int]]) -> None:
        receipt = Receipt.issue(details(tokens_checked=tokens, sums=sums), Key.generate(), DOMAIN)
        Receipt.parse(receipt.encode(), DOMAIN, 1)

    most = [8 << 20, 64 << 20, 1 << 20]
    parse(1, {"margins_hard": most})
    for part in range(3):
        larger = [*most[:part], most[part] + 8, *most[part + 1 :]]
        with pytest.raises(Malformed, match="more than 1 tokens"):
            parse(1, {"margins_hard": larger})
    parse(1, {"temperature": [1 << 20, 1 << 20, 1 << 20]})
    with pytest.raises(Malformed, match="more than 1 tokens"):
        parse(1, {"temperature": [1 << 20, 1 << 20, 2 << 20]})


FOUND = {"outcome": 3, "rule": "history", "samples": "0" * 64, "history": "a" * 64}


@pytest.mark.parametrize("outcome", [2, 3])
def test_a_finding_about_the_history_names_it_and_no_sample(outcome: int) -> None:
    found = Receipt.issue(details(**FOUND | {"outcome": outcome}), Key.generate(), DOMAIN)
    assert Receipt.parse(found.encode(), DOMAIN, 1).details.history == "a" * 64
    assert Receipt.stored(found.encode()) == found
    assert b"history" not in Receipt.issue(details(), Key.generate(), DOMAIN).encode()


@pytest.mark.parametrize(
    "changes",
    [
        {"samples": "1".zfill(64)},
        {"history": ""},
        {"history": "A" * 64},
        {"history": "a" * 63},
        {"rule": "sampling"},
        {"rule": "sampling", "history": ""},
        {"outcome": 1, "rule": ""},
    ],
    ids=str,
)
def test_a_finding_about_the_history_that_contradicts_itself_is_malformed(changes: dict[str, object]) -> None:
    with pytest.raises(Malformed):
        Receipt.parse(Receipt.issue(details(**FOUND | changes), Key.generate(), DOMAIN).encode(), DOMAIN, 1)


def test_a_forged_receipt_is_refused() -> None:
    receipt = Receipt.issue(details(), Key.generate(), DOMAIN)
    value = json.loads(receipt.encode())
    forgeries = [
        {**value, "validator": Key.generate().address},
        {**value, "details": {**value["details"], "units": 78}},
        {**value, "signature": "0x" + "00" * 65},
        {**value, "signature": "zz"},
        {**value, "more": 1},
        {**value, "details": []},
        [],
        7,
    ]
    for forgery in forgeries:
        with pytest.raises(ProtocolViolation):
            Receipt.parse(canonical.encode(forgery), DOMAIN, 1)


def test_a_signature_of_another_run_does_not_count() -> None:
    key = Key.generate()
    for_two = Receipt.issue(details(run=2, submission=REF.submission_id(2).hex()), key, DOMAIN)
    value = json.loads(for_two.encode())
    value["details"] |= {"run": 1, "submission": REF.submission_id(1).hex()}
    with pytest.raises(BadSignature):
        Receipt.parse(canonical.encode(value), DOMAIN, 1)


def test_rules_are_named_once() -> None:
    from node.judging.rules import RULES as CHECKS

    assert tuple(CHECKS) == RULES


def test_every_validator_derives_the_same_order_and_work_spreads_evenly() -> None:
    validators = [Key.generate().address for _ in range(4)]
    first = [rendezvous.order(i.to_bytes(32, "big"), b"\x01" * 32, validators)[0] for i in range(400)]
    assert first == [rendezvous.order(i.to_bytes(32, "big"), b"\x01" * 32, validators[::-1])[0] for i in range(400)]
    assert all(60 < first.count(v) < 140 for v in validators)


def test_a_silent_validator_moves_only_its_own_work() -> None:
    validators = [Key.generate().address for _ in range(4)]
    for i in range(50):
        full = rendezvous.order(i.to_bytes(32, "big"), b"\x01" * 32, validators)
        without = rendezvous.order(i.to_bytes(32, "big"), b"\x01" * 32, validators[1:])
        assert without == [v for v in full if v != validators[0]]
