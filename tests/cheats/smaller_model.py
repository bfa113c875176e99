"""A worker that generates and proves with a cheaper model than the published one: only its first layer.

    python -m tests.cheats.smaller_model --home HOME

Its own check finds nothing wrong, because it checks with the same cheap model.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from torch import nn

from node.commands.operate import run_worker
from node.engine import TorchEngine
from protocol.cli import report
from protocol.errors import MurmurationError


class SmallerModelEngine(TorchEngine):
    """Drops all layers but the first after loading the published weights."""

    def load(self, folder: Path) -> None:
        full = getattr(self, "_full", None)
        if full is not None:
            self._model.base_model.layers = full
        super().load(folder)
        self._full = self._model.base_model.layers
        self._model.base_model.layers = nn.ModuleList([self._full[0]])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, required=True)
    arguments = parser.parse_args()
    try:
        run_worker(arguments.home, None, lambda dtype: SmallerModelEngine(dtype))
    except MurmurationError as error:
        report(error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
