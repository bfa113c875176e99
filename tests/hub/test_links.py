"""Downloads by signed URL: a hub leads its readers to its bucket, where they may get there, and otherwise sends the file itself."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from protocol.deadline import plain_address
from tests.hub.cloud import SECRET
from tests.hub.desk import damaged
from tests.hub.shop import Shop


def test_a_file_in_the_bucket_is_read_there_and_not_at_the_hub(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, data = shop.deliver(5000)
    shop.store.turn()
    monkeypatch.setattr(shop.store, "fetch", None)  # the hub sends nothing itself
    assert shop.desk.client().download(root, tmp_path / "x", cap=5000)
    assert (tmp_path / "x").read_bytes() == data


def test_a_link_is_good_for_minutes_for_one_object_and_holds_no_secret(shop: Shop) -> None:
    root, data = shop.deliver()
    shop.store.turn()
    answer = shop.desk.get(f"files/{root.hex()}", direct=1)
    assert (answer.status_code, answer.headers["Cache-Control"], answer.content) == (307, "no-store", b"")
    link = urlsplit(answer.headers["Location"])
    query = parse_qs(link.query)
    assert link.path.endswith(f"/files/{root.hex()}")
    assert int(query["X-Amz-Expires"][0]) == 300
    assert SECRET not in answer.headers["Location"]
    assert httpx.get(answer.headers["Location"]).content == data


def test_who_does_not_ask_to_be_led_is_sent_the_file(shop: Shop) -> None:
    root, data = shop.deliver()
    shop.store.turn()
    assert shop.serve(root).content == data


@pytest.mark.parametrize("reason", ["only the folder has it", "links are off", "a stranger and no encryption"])
def test_the_hub_sends_the_file_itself_where_it_leads_nobody(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    root, data = shop.deliver()
    if reason != "only the folder has it":
        shop.store.turn()
    if reason == "links are off":
        shop.store._links = False
    if reason.startswith("a stranger"):
        monkeypatch.setattr("trainer.hub.app.plain_address", lambda host: plain_address("9.9.9.9"))
    answer = shop.desk.get(f"files/{root.hex()}", direct=1)
    assert (answer.status_code, answer.content) == (200, data)


def test_a_bucket_that_is_away_or_damaged_is_the_hubs_to_deal_with(shop: Shop, tmp_path: Path) -> None:
    root, data = shop.deliver()
    shop.store.turn()
    with shop.cloud.away():
        assert shop.desk.client().download(root, tmp_path / "away", cap=5000)
    shop.cloud.write(f"files/{root.hex()}", damaged(data))
    assert shop.desk.client().download(root, tmp_path / "damaged", cap=5000)
    assert {(tmp_path / name).read_bytes() for name in ("away", "damaged")} == {data}
