"""One made-up run and its page for all who only look."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from benches.page_run import MadeRun

from tests.page.shown import Shown, shown

STRANGE = "<script>document.title='owned'</script> \x1b[31mred\x1b[0m \u202eturned\u202c \x00 \u200b end"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    run = MadeRun(tmp_path_factory.mktemp("run"), nodes=60)
    run.train()
    run.show_samples(("What is 1/2 + 1/3?", "5/6"), (STRANGE, STRANGE))
    with shown(run) as made:
        yield made.ready()
    run.close()


@pytest.fixture
def own_run(tmp_path: Path) -> Iterator[MadeRun]:
    run = MadeRun(tmp_path, nodes=12, per_node=5, steps=5)
    yield run
    run.close()
