"""What the pages and the demo's view look like, kept as files beside the tests: `scripts/captures` writes them, for whoever reviews them by eye.

    tests/page/captures/PAGE-WIDTH-COLOUR.webp     run, node and trainer, of made-up data
    tests/swarm/captures/COLUMNSxROWS.txt          the demo's view

Browsers draw the same page a little differently, so that a test looks only whether all pictures are there; the view it compares.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from benches.chromium import Chromium, program
from benches.page_run import MadeRun
from swarm import display

from protocol.page.log_tail import LogTail
from tests.page import test_in_chromium, test_node_in_chromium, test_trainer_in_chromium
from tests.page.made_node import MadeNode, shown_node
from tests.page.made_trainer import CLOCK, MadeTrainer, shown_trainer
from tests.page.shown import shown
from tests.swarm.watched import a_watch, drawn, live

PICTURES = Path(__file__).parent / "captures"
VIEWS = Path(__file__).parents[1] / "swarm" / "captures"
WIDTHS = (360, 768, 1440)
SIZES = ((40, 15), (80, 24), (120, 40))
_QUALITY = 42
_HEIGHTS = {360: 3200, 768: 2400, 1440: 1800}
"""Of a picture; what is below is left out, or all of them would be megabytes."""


def names() -> set[str]:
    """Of the pictures."""
    return {
        f"{page}-{width}-{colour}.webp"
        for page in ("run", "node", "trainer")
        for width in WIDTHS
        for colour in ("light", "dark")
    }


def view(columns: int, rows: int) -> str:
    """The demo's view at a terminal of this size, twelve minutes after its start."""
    with patch.object(display, "time", SimpleNamespace(monotonic=lambda: 0.0)) as clock:
        shown = live(columns, rows)
        shown.show(a_watch())
        clock.monotonic = lambda: 754.0
        for line in (
            "step 7: reward 0.500",
            "node-3 was convicted of sampling and banned",
            "validator-1 was killed, and goes on",
        ):
            shown.say(line)
        return "\n".join(drawn(shown)) + "\n"


@contextmanager
def _pages(folder: Path) -> Iterator[dict[str, tuple[str, str]]]:
    """Address of each page, and what holds once it is drawn."""
    run = MadeRun(folder / "run", nodes=60)
    run.train()
    run.show_samples(("What is 1/2 + 1/3?", "Both over 6: 3/6 + 2/6 = 5/6"), ("What is 3/4 - 1/2?", "1/2"))
    node, trainer = MadeNode(folder).work().run().network(), MadeTrainer(folder / "trainer").work()
    with (
        shown(run) as of_run,
        shown_node(node, node.told(), _tail("step 13, sequence 1 committed")) as of_node,
        shown_trainer(
            trainer, _tail("step 39: reward 0.720 ± 0.310, 235 tokens (at most 512), entropy 0.510")
        ) as of_trainer,
    ):
        yield {
            "run": (of_run.ready().page, test_in_chromium.DRAWN),
            "node": (of_node.ready().url, test_node_in_chromium.DRAWN),
            "trainer": (of_trainer.ready().url, test_trainer_in_chromium.DRAWN),
        }
    run.close()


def _tail(line: str) -> LogTail:
    tail = LogTail()
    tail.emit(logging.LogRecord("made up", logging.INFO, "", 0, line, (), None))
    return tail


def _take(browser: Chromium, name: str, url: str, is_drawn: str) -> None:
    page, width, colour = name.removesuffix(".webp").split("-")
    with browser.tab(int(width), _HEIGHTS[int(width)], dark=colour == "dark") as tab:
        if page != "node":  # which has the time of its chain, and tells when it heard of it
            tab.before_scripts(CLOCK)
        tab.open(url)
        tab.wait(is_drawn)
        tab.picture(PICTURES / name, whole=False, quality=_QUALITY)


def main() -> None:
    for folder in (PICTURES, VIEWS):
        folder.mkdir(exist_ok=True)
    for size in SIZES:
        (VIEWS / f"{size[0]}x{size[1]}.txt").write_text(view(*size))
    if program() is None:
        raise SystemExit("the pictures need Chromium (Debian: apt install chromium); the views are written")
    with tempfile.TemporaryDirectory() as folder, _pages(Path(folder)) as pages, Chromium() as browser:
        for name in sorted(names()):
            _take(browser, name, *pages[name.split("-")[0]])


if __name__ == "__main__":
    main()
