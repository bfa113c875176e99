"""One step of reinforcement learning, generation included: ours against TRL's GRPOTrainer on the same work.

The same tiny model, prompts, group size, completion lengths and number of optimizer steps; one thread; in turns, each in a
process of its own (trainer_ours.py, trainer_trl.py). Lengths are forced on both, so that both make and learn from equally many
tokens. TRL runs in float32 and in bfloat16; its better one counts. What is not generation counts as training, for both.
Peak memory is what a process takes beyond model and libraries.
"""

from __future__ import annotations

import json
import os
import random
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch

from benches import Bench, Cost, Row, in_turns, peers
from benches.memory import peak_bytes
from node.engine.weights import save_weights
from protocol.model_files import WEIGHTS
from trainer.learning.logprobs import token_logprobs

_VOCABULARY, _GROUPS, _SIZE = 64, 16, 16
_ROUND_SECONDS_MAX = 900
HERE = Path(__file__).parent
Measured = dict[str, float]


def run() -> Bench:
    bench = Bench("trainer")
    _logprobs(bench)
    python = peers.python("trl")
    short = _compare(python, "short", lambda r: r.randint(3, 10), longest=10, rounds=5)
    _add(bench, "completions of at most 10 tokens", *short, end_to_end=2.5, training=None)
    log_normal = _compare(
        python, "long", lambda r: max(8, min(256, int(r.lognormvariate(3.9, 0.7)))), longest=256, rounds=3
    )
    _add(bench, "log-normal lengths up to 256", *log_normal, end_to_end=5.0, training=3.5)
    return bench


def _add(bench: Bench, name: str, ours: Measured, peer: Measured, *, end_to_end: float, training: float | None) -> None:
    def row(what: str, key: str, unit: str, goal: float | None) -> None:
        bench.rows.append(Row(f"{name}: {what}", unit, ours[key], peer[key], ours[key] / peer[key], goal))

    row("end to end", "samples", "samples/CPU s", end_to_end)
    row("training", "trained", "tokens/CPU s", training)
    row("generation", "generated", "tokens/CPU s", None)
    mebibytes = [of["peak"] / 2**20 for of in (ours, peer)]
    bench.rows.append(
        Cost(f"{name}: peak memory", "MiB", mebibytes[0], mebibytes[1], mebibytes[1] / mebibytes[0], None)
    )


# ---- against TRL ---------------------------------------------------------------------------------------------------------


def _compare(
    python: Path, name: str, length: Callable[[random.Random], int], *, longest: int, rounds: int
) -> tuple[Measured, Measured]:
    """Best rounds of ours and of TRL in its better type, after one that counts for nobody."""
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        _write_work(folder, length, longest, rounds + 1)
        children = [stack.enter_context(_Child([sys.executable, "-m", "benches.trainer_ours", temporary]))]
        for dtype in ("float32", "bfloat16"):
            command = [str(python), str(HERE / "trainer_trl.py"), temporary, dtype]
            children.append(stack.enter_context(_Child(command)))
        best: list[Measured] = [{}, {}, {}]
        for turn in range(rounds + 1):
            for child, of in zip(children, best, strict=True):
                made = child.round()
                if turn:
                    of.update({key: max(value, of.get(key, 0.0)) for key, value in made.items()})
    ours, *theirs = best
    return ours, max(theirs, key=lambda of: of["samples"])


def _write_work(folder: Path, length: Callable[[random.Random], int], longest: int, rounds: int) -> None:
    """The model's folder, and work.json: per round prompts (token ids) and the length of every sample's completion."""
    from trainer.models.tiny import _model

    torch.manual_seed(0)
    model = _model(_VOCABULARY)
    model.config.save_pretrained(folder)
    save_weights(model, folder / WEIGHTS, torch.float32)
    draw = random.Random(0)
    made = [
        {
            "prompts": [[draw.randrange(2, _VOCABULARY) for _ in range(draw.randint(8, 16))] for _ in range(_GROUPS)],
            "lengths": [[length(draw) for _ in range(_SIZE)] for _ in range(_GROUPS)],
        }
        for _ in range(rounds)
    ]
    (folder / "work.json").write_text(json.dumps({"longest": longest, "group_size": _SIZE, "rounds": made}))


class _Child:
    """A process that does a round of work for every line it is sent, and answers with a line of JSON."""

    def __init__(self, command: list[str]) -> None:
        paths = f"{peers.ROOT}:{peers.ROOT / 'scripts'}" if command[0] == sys.executable else ""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": paths}
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the process
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            bufsize=1,
        )

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate(timeout=60)
        self._log.close()

    def round(self) -> Measured:
        assert self._process.stdin and self._process.stdout
        with suppress(BrokenPipeError):
            self._process.stdin.write("go\n")
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            line = self._process.stdout.readline() if selector.select(_ROUND_SECONDS_MAX) else ""
        if not line:
            self._log.seek(0)
            raise RuntimeError(f"{self._process.args} gave no result:\n{self._log.read()[-3000:]}")
        made: dict[str, Any] = json.loads(line)
        generate, train = made["generate"], made["train"]
        return {
            "samples": made["samples"] / (generate + train), "trained": made["tokens"] / train,
            "generated": made["tokens"] / generate, "peak": made["peak"],
        }  # fmt: skip


# ---- chunked logprobs ------------------------------------------------------------------------------------------------------


def _logprobs(bench: Bench) -> None:
    """Logprobs, entropies and their gradients at a vocabulary of 32k, against a full log-softmax."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokens, head = 2048, torch.nn.Linear(256, 32_768, bias=False)
    hidden, targets = torch.randn(tokens, 256, requires_grad=True), torch.randint(0, 32_768, (tokens,))

    def plain(hidden: torch.Tensor, head: Any, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs = head(hidden).log_softmax(-1)
        return logprobs.gather(1, targets[:, None]).squeeze(1), -(logprobs.exp() * logprobs).sum(-1)

    def step(of: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> float:
        logprobs, entropy = of(hidden, head, targets)
        (logprobs.sum() + entropy.sum()).backward()
        hidden.grad = head.weight.grad = None
        return tokens

    full, chunked = peak_bytes(lambda: step(plain)), peak_bytes(lambda: step(token_logprobs))
    bench.rows.append(
        Cost("logprobs: memory at vocabulary 32k", "% of full", 100 * chunked / full, 100.0, full / chunked, 15.0)
    )
    ours, peer = in_turns(lambda: step(token_logprobs), lambda: step(plain), rounds=3)
    bench.rows.append(Row("logprobs: speed at vocabulary 32k", "tokens/CPU s", ours, peer, ours / peer, 1 / 1.6))
