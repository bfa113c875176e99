"""Amounts: what a person writes is what is sent, to the last wei, or an error that says how to write it."""

from __future__ import annotations

import pytest

from protocol.errors import UsageError
from protocol.shell.money import parse_tokens, tokens


@pytest.mark.parametrize(
    ("text", "wei"),
    [
        ("250", 250 * 10**18),
        ("0.5", 5 * 10**17),
        ("1,000", 1000 * 10**18),
        ("1e3", 1000 * 10**18),
        ("0.000000000000000001", 1),
        ("99999999999.999999999999999999", 99999999999999999999999999999),
        ("123456789012345678901234567890.123456789012345678", 123456789012345678901234567890123456789012345678),
        ("1." + "0" * 5000, 10**18),
        ("115792089237316195423570985008687907853269984665640564039457.584007913129639935", 2**256 - 1),
    ],
)
def test_an_amount_is_read_exactly(text: str, wei: int) -> None:
    assert parse_tokens(text) == wei
    if len(text) < 100:
        assert parse_tokens(tokens(wei).split()[0]) == wei


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "0", "-1", "NaN", "sNaN", "Infinity", "0.0000000000000000001", "99999999999.9999999999999999999",
        "1e999999", "1e-999999", "1e99999999999", "1e-99999999999", "1e999999999999999999999", "9" * 5000,
        "115792089237316195423570985008687907853269984665640564039457.584007913129639936",
    ],
)  # fmt: skip
def test_anything_else_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_tokens(text)
    assert caught.value.hint
    assert len(str(caught.value)) < 200
