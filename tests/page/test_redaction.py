"""What is hidden of RPC URLs: keys wherever they stand, short words where they stand as in the URL, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from protocol.page.redaction import PageSecrets

VALUE = {
    "chain_id": 84532, "run": 1, "running": True, "away": None, "user": "0xab", "v": "v1", "true": "it is true", "amount": "111551110000",
    "rows": [{"submissions": 1, "rule": "reward"}],
}  # fmt: skip


def shown(url: str, value: object) -> Any:
    return json.loads(PageSecrets((url,), (Path("/srv/node/keys"),)).document(value).body)


@pytest.mark.parametrize(
    "url",
    [
        "https://h/?v=1", "https://h/?chain=84532", "https://user:true@h/", "https://h/?archive=true&x=None", "https://:%3A@h/",
        "https://u:%22@h", "https://h/submissions", "https://h/?network=11155111", "https://h/?=1", "https://h/?1&&a=", "https://h",
    ],
)  # fmt: skip
def test_names_numbers_and_ordinary_words_stay_as_they_are(url: str) -> None:
    assert shown(url, VALUE) == VALUE


@pytest.mark.parametrize(
    ("url", "said", "told"),
    [
        ("https://h/v2/abcdefghijklmnop", "no key abcdefghijklmnop for /v2/", "no key … for /v2/"),
        ("https://h/?v=1&key=a.b", "GET /?v=1&key=a.b: 401, v=10", "GET /?v=…&key=…: 401, v=10"),
        ("https://u:p%3Aw@h/", "https://u:p%3Aw@h/ and u:p:w@h", "https://…@h/ and …@h"),
        ("https://node:longenough@h/", "longenough is wrong for node", "… is wrong for node"),
        ("https://h/?token=a%2Bb%2Fcdef%3D", "token a+b/cdef= or a%2Bb%2Fcdef%3D", "token … or …"),
        ("https://h/?0123456789abcdef", "0123456789abcdef", "…"),
        ("https://h/", "in /srv/node/keys/node.json", "in …/node.json"),
        ("https://h/?key=say%22%5C%22key", 'say"\\"key', "…"),
    ],
)
def test_what_its_customer_pays_with_is_hidden_wherever_it_stands(url: str, said: str, told: str) -> None:
    assert shown(url, {"log": [{"line": said}], "n": (said,)}) == {"log": [{"line": told}], "n": [told]}
