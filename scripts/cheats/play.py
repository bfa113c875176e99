"""Several cheats in one process, each with a home and a seat of its own:

    python -m cheats.play smaller-model=HOME forced-token=HOME forged-reward=HOME

Each is the real worker with one dishonest part put in. Its own check finds nothing wrong, because it checks with that part.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from cheats.engines import ForcedTokenEngine, SmallerModelEngine
from node.contributor.commands.context import open_home, settings
from node.contributor.worker import Worker
from node.engine.torch_engine import TorchEngine
from protocol.environments.programs import Range
from protocol.errors import MurmurationError
from protocol.logs import set_up_logging
from protocol.sandbox import Sandbox
from protocol.shell.cli import report
from protocol.shell.connection import connect
from protocol.shell.signals import Ending, until_signalled


class CreditingSandbox:
    """The real sandbox, but every answer is right."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)

    def score(self, answers: Sequence[Any]) -> list[float]:
        return [1.0] * len(answers)

    def bounds(self, answers: Sequence[Any], claims: Sequence[float], tolerance: float) -> list[Range]:
        return [Range(1.0, 1.0)] * len(answers)


class ForgingWorker(Worker):
    """Claims that every answer is right."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        equipment = self._workbench.equipment
        sandbox = CreditingSandbox(equipment.context.sandbox)
        equipment.context = replace(equipment.context, sandbox=sandbox)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Play:
    rule: str
    """The one that finds it."""
    what: str
    worker: type[Worker] = Worker
    engine: Callable[[str], TorchEngine] = TorchEngine


PLAYS = {
    "smaller-model": Play("computation", "computes with the first layer only", engine=SmallerModelEngine),
    "forced-token": Play("sampling", "puts a token of its own into every answer", engine=ForcedTokenEngine),
    "forged-reward": Play("reward", "says that every answer is right", worker=ForgingWorker),
}


_LOADING = threading.Lock()
"""One starts at a time; nor does transformers build models in several threads at once."""


def _made(kind: Callable[[str], TorchEngine], dtype: str) -> TorchEngine:
    """An engine that loads weights while no other one does."""
    engine = kind(dtype)
    load = engine.load

    def load_alone(folder: Path) -> None:
        with _LOADING:
            load(folder)

    engine.load = load_alone  # type: ignore[method-assign]
    return engine


def play(name: str, home: Path, workers: list[Worker]) -> None:
    """Works until it is thrown out or stopped."""
    place, chosen = open_home(home), PLAYS[name]
    node = settings(place).value
    key = place.open_key("node", None)
    try:
        with place.lock(), connect(node.chain, node.peers, key, peers_file=place.data / "peers.json") as connection:
            with _LOADING:  # each starts a sandbox, which has a deadline: three at once could miss it on a busy machine
                worker = chosen.worker(connection, place, node.work, partial(_made, chosen.engine), Ending())
            workers.append(worker)
            try:
                worker.run()
            finally:
                worker.close()
                place.write_status(state="stopped")
    except MurmurationError as error:
        report(error)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m cheats.play", description=__doc__)
    parser.add_argument("seats", nargs="+", metavar="CHEAT=HOME", help=f"CHEAT is one of {', '.join(PLAYS)}")
    seats = [seat.partition("=") for seat in parser.parse_args().seats]
    if unknown := [name for name, _, home in seats if name not in PLAYS or not home]:
        parser.error(f"no cheat is called {unknown[0]}")
    from transformers import AutoModelForCausalLM, DynamicCache  # noqa: F401  no two threads may be the first to import them

    set_up_logging()
    workers: list[Worker] = []
    threads = [
        threading.Thread(target=play, args=(name, Path(home), workers), name=name, daemon=True)
        for name, _, home in seats
    ]
    with until_signalled():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for worker in workers:
        worker.stop()
    for thread in threads:
        thread.join(10)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
