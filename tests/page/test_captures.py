"""What `scripts/captures` keeps beside the tests is all there, small enough for a repository, and the demo's view is as it is drawn now."""

from __future__ import annotations

import pytest

from tests.page import capture

_BYTES_MOST = 1_500_000


def test_every_page_is_kept_at_every_width_in_either_colour() -> None:
    kept = {path.name: path.stat().st_size for path in capture.PICTURES.iterdir()}
    assert set(kept) == capture.names(), "scripts/captures writes them"
    assert min(kept.values()) > 10_000 and sum(kept.values()) <= _BYTES_MOST
    assert all((capture.PICTURES / name).read_bytes()[8:12] == b"WEBP" for name in kept)


@pytest.mark.parametrize(("columns", "rows"), capture.SIZES)
def test_the_demos_view_is_kept_as_it_is_drawn(columns: int, rows: int) -> None:
    assert (capture.VIEWS / f"{columns}x{rows}.txt").read_text() == capture.view(columns, rows), (
        "scripts/captures writes it anew"
    )
