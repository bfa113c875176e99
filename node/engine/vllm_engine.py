"""The engine on vLLM: continuous batching with a paged cache, in a process of its own under the role.

Covers: generation with seeded draws and proofs, prefill of other people's work, reload in place, tensor parallelism, and what is done
when the process ends: what is finished is kept, and the rest is computed by its successor, which is started after a pause that
grows. A device that was out of memory is answered once, by half the memory. A version is checked before vLLM sees a byte of it: a
checkpoint that lacks tensors would be loaded with a warning.

The process is vllm_server.py, its parent's side vllm_process.py; vllm_build.py says which vLLM this is for, vllm_plan.py divides the
memory, vllm_check.py is what a process has to show before it works. Does not cover: pipeline parallelism, models of more than one machine.

Shapes: T tokens, H hidden size.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence, Sized
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import RLock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from node.engine import device, footprint, lengths, memory, version_files, vllm_build, vllm_check, vllm_plan
from node.engine.interface import Completion, Prompt, no_version
from node.engine.memory import Footprint
from node.engine.settings import EngineSettings
from node.engine.vllm_plan import Plan
from node.engine.vllm_process import Lost, VllmProcess
from node.engine.weights import build_model, meta_model, require_weights, save_weights, stored_tensors
from protocol import architectures
from protocol.errors import ConfigError, PreflightError, Unavailable
from protocol.model_files import CONFIG, WEIGHTS
from protocol.retry import Backoff
from protocol.sampling import TokenScores

log = logging.getLogger(__name__)

_PREFILL_TOKENS = 1 << 14  # of sequences whose states are held at once
_START_SECONDS = 1_800.0  # for kernels to be compiled and weights to be read
_SILENT_SECONDS = {
    "cpu": 600.0,
    "cuda": 180.0,
}  # that the longest step takes, by far
_BUSY_SECONDS = {
    "cpu": 6_000.0,
    "cuda": 0.0,
}  # the same on a CPU that is slow or busy; on a GPU, who waits for a kernel that hangs uses the CPU too
_CACHE_SIZE = "VLLM_CPU_KVCACHE_SPACE"  # a variable that vLLM obeys rather than what it is told here
_LIVES = 3  # processes in a row that end without a completion before it is given up
_REST_SECONDS, _REST_MOST_SECONDS = 1.0, 60.0  # before another process is started

TokenIds = Sequence[int] | NDArray[np.integer[Any]]


class VllmEngine:
    """One job at a time: a `load` from another thread waits for what is being computed, so that no completion is of two versions."""

    def __init__(self, compute_dtype: str, settings: EngineSettings | None = None) -> None:
        """`compute_dtype` as the run spec names it. Raises ConfigError where vLLM is not installed, or is another version or build
        than needed; PreflightError where the device is not there or cannot do what is asked."""
        self._settings = settings or EngineSettings(name="vllm")
        self._device = vllm_build.require(self._settings)
        devices = device.group(self._settings.device, self._settings.tensor_parallel)
        free = min(device.free_bytes(one) for one in devices)  # a model is split evenly
        self._allowed = memory.parse(self._settings.memory, free)  # of one device, in bytes
        self._dtype: torch.dtype = getattr(torch, compute_dtype)
        self._threads = self._settings.thread_count
        self._share = 1.0  # of what is allowed; half after the device was out of memory
        self._folder: Path | None = None
        self._worse: TemporaryDirectory[str] | None = None  # holds `_folder` after `degrade`
        self._config: bytes = b""
        self._model: Any = None
        self._footprint: Footprint | None = None
        self._process: VllmProcess | None = None
        self.vet: Callable[[], None] | None = None
        self._is_vetted = self._is_vetting = False
        self._reloads = 0  # of this process
        self._backoff = Backoff(_REST_SECONDS, _REST_MOST_SECONDS)
        self._busy = RLock()

    @staticmethod
    def require(settings: EngineSettings) -> None:
        """Raises what says that this vLLM cannot compute with `settings` here, as when it is made."""
        vllm_build.require(settings)

    def close(self) -> None:
        """Ends the process. The engine can be used again."""
        if self._process is not None:
            self._process.end()
            self._process = None

    # ---- versions ------------------------------------------------------------------------------------------------------

    def load(self, folder: Path) -> None:
        """Loads a version (node/engine/interface.py). The first one starts the process; later ones are read into it."""
        try:
            self._load(folder)
        except BaseException:
            with self._busy:
                self._folder = self._worse = None
            raise

    def _load(self, folder: Path) -> None:
        config = (folder / CONFIG).read_bytes() if (folder / CONFIG).is_file() else b""
        model = self._model
        if model is None or config != self._config:
            vllm_build.require_model(architectures.require_file(folder / CONFIG), str(folder / CONFIG))
            model = meta_model(folder, self._dtype)
        require_weights(folder, stored_tensors(model))
        with self._busy:
            if model is not self._model:
                self._footprint = footprint.of(model, torch.device("meta"), self._settings.tensor_parallel)
                self._share = 1.0
                self.close()
            self._folder, self._config, self._model, self._worse = folder, config, model, None
            if self._process is not None and not self._reload(self._process):
                self.close()
            # Otherwise whoever asks for something first starts the process: it may be that the memory is too little.

    def start(self) -> None:
        """Starts the process where there is none, and has it vetted. Raises as `generate`."""
        self._persist(lambda _: None, 1, ())

    def _reload(self, process: VllmProcess) -> bool:
        """Whether the process holds the version now, and nothing of the one before."""
        try:
            with version_files.alone(self._held) as folder:  # vLLM takes every *.safetensors that it finds, and more
                answer = process.ask("load", seconds=_START_SECONDS, folder=str(folder))
        except Lost as error:
            log.warning("vLLM did not take the new weights and is started anew: %s", error)
            return False
        self._reloads += 1
        self._is_vetted = self._is_vetted and self._reloads > 1
        return bool(answer["clean"])

    @property
    def _held(self) -> Path:
        if self._folder is None:
            raise no_version()
        return self._folder

    @property
    def hidden_size(self) -> int:
        return int(self._model.config.hidden_size)

    @property
    def vocabulary(self) -> int:
        return int(self._model.config.vocab_size)

    # ---- measuring -----------------------------------------------------------------------------------------------------

    @property
    def device(self) -> str:
        return device.describe(self._device)

    def adjust(self, *, attention: str, threads: int) -> None:
        """Computes with so many threads on the CPU, in another process. Its attention vLLM chooses itself: the name must be empty."""
        if attention:
            raise ConfigError(f"vLLM computes with its own attention, not with {attention!r}")
        with self._busy:
            if threads != self._threads:
                self._threads = threads
                self.close()

    def degrade(self, change: Callable[[Any], None]) -> None:
        """Changes the loaded model (degrade.py), by way of a copy on disk; the next `load` undoes it."""
        model = build_model(self._held, self._dtype)
        change(model)
        worse = TemporaryDirectory(prefix="murmur-degraded-")
        save_weights(model, Path(worse.name) / WEIGHTS, self._dtype)
        (Path(worse.name) / CONFIG).write_bytes(self._config)
        with self._busy:
            self._folder, self._worse = Path(worse.name), worse
            if self._process is not None and not self._reload(self._process):
                self.close()

    # ---- generation ----------------------------------------------------------------------------------------------------

    def generate(
        self, prompts: Sequence[Prompt], *, temperature: float, max_new_tokens: int, end_tokens: frozenset[int],
        top_k: int = 0, top_p: float = 1.0, prove: bool = True,
    ) -> list[list[Completion]]:  # fmt: skip
        """Completions per prompt and key, in order (node/engine/interface.py)."""
        longest = max(len(prompt.tokens) - prompt.first for prompt in prompts) + max_new_tokens
        wanted = [(key, prompt.tokens, prompt.first) for prompt in prompts for key in prompt.keys]
        done: dict[int, Completion] = {}

        def attempt(process: VllmProcess) -> None:
            left = [[i, *wanted[i]] for i in range(len(wanted)) if i not in done]
            sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
            for index, completion in _generated(
                process, prompts=left, sampling=sampling, max_new_tokens=max_new_tokens, end_tokens=sorted(end_tokens), prove=prove
            ):  # fmt: skip
                done[index] = completion

        self._persist(attempt, longest, done)
        flat = iter([done[i] for i in range(len(wanted))])
        return [[next(flat) for _ in prompt.keys] for prompt in prompts]

    def require_room(self, tokens: int, *, prompt: int | None = None) -> None:
        """Raises PreflightError where one sequence of so many tokens does not fit; checked or generated, it takes the same."""
        assert self._footprint is not None
        vllm_plan.require_room(self._footprint, self._most(), tokens)

    # ---- checking ------------------------------------------------------------------------------------------------------

    def prefill_in_batches(self, sequences: Sequence[tuple[TokenIds, TokenIds]]) -> Iterator[dict[int, Tensor]]:
        """Final hidden states [T, H] by index (node/engine/interface.py). Nothing is taken from the prefix cache for it."""
        batch: list[list[Any]] = []
        tokens = 0
        for index, (prompt, completion) in enumerate(sequences):
            ids = [*map(int, prompt), *map(int, completion[:-1])]
            if batch and tokens + len(ids) > _PREFILL_TOKENS:
                yield self._prefill(batch)
                batch, tokens = [], 0
            batch.append([index, ids, len(prompt) - 1])
            tokens += len(ids)
        if batch:
            yield self._prefill(batch)

    def _prefill(self, batch: list[list[Any]]) -> dict[int, Tensor]:
        found: dict[int, Tensor] = {}

        def attempt(process: VllmProcess) -> None:
            found.update(_prefilled(process, [one for one in batch if one[0] not in found]))

        self._persist(attempt, max(len(ids) for _, ids, _ in batch) + 1, found)
        return found

    def score(
        self, hidden_TH: Tensor, tokens_T: TokenIds, *, key: int, temperature: float, top_k: int = 0, top_p: float = 1.0
    ) -> TokenScores:
        """Scores of a completion's tokens (node/engine/interface.py)."""
        hidden, tokens = hidden_TH.detach().cpu().contiguous(), [int(token) for token in tokens_T]
        found: dict[int, TokenScores] = {}

        def attempt(process: VllmProcess) -> None:
            sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
            found[0] = _scored(process, hidden, tokens, key, sampling)

        self._persist(attempt, 1, found)
        return found[0]

    # ---- the process and its successors --------------------------------------------------------------------------------

    def _persist(self, attempt: Callable[[VllmProcess], None], tokens: int, done: Sized) -> None:
        """Lets a process attempt it, and when that is lost another one, as long as `done` grows. `tokens`: of the longest sequence.

        Raises PreflightError where processes end without having done anything, Unavailable where the device was out of memory again, or
        no version is held.
        """
        lives = _LIVES
        with self._busy:
            while True:
                self._require_room(tokens)
                before = len(done)
                try:
                    attempt(self._live())
                except Lost as error:
                    lives = _LIVES if len(done) > before else lives - 1
                    self._bury(error, lives)
                except BaseException:
                    self.close()  # what is still running would come up in the next job
                    raise
                else:
                    self._backoff.succeeded()
                    return

    def _bury(self, error: Lost, lives: int) -> None:
        """Notes why the process ended, and what the next one does otherwise. Raises what there is no answer to."""
        self.close()
        if error.is_memory and self._share < 1:
            raise Unavailable(
                f"vLLM ran out of memory again, with {self._most() >> 20} MiB for it: {error}",
                hint="see what else uses this device; where nothing does, lower engine.memory",
            ) from error
        if lives <= 0:
            raise PreflightError(f"vLLM ended {_LIVES} times in a row: {error}") from error
        if error.is_memory:
            self._share = 0.5
            log.warning("vLLM was out of memory and starts anew with %d MiB: %s", self._most() >> 20, error)
        else:
            log.warning("vLLM is started anew in %.0f s: %s", self._backoff.failed(), error)

    def _live(self) -> VllmProcess:
        """The process, started and checked where there is none, and vetted."""
        if self._process is None:
            time.sleep(self._backoff.left())
            kind = self._device.type
            self._process = VllmProcess(self._environment(), _SILENT_SECONDS[kind], _BUSY_SECONDS[kind])
            self._is_vetted, self._reloads = False, 0
            with version_files.alone(self._held) as folder:
                facts = self._process.ask(
                    "start", seconds=_START_SECONDS, rows=2 * self._plan.sequences, arguments=self._arguments(self._plan, folder)
                )  # fmt: skip
            vllm_check.require_installed(facts, self._device)
            self._check(self._process)
            log.info(
                "vLLM %s computes on %s: at most %d sequences at once, %d MiB of cache",
                vllm_build.VERSION, self.device, self._plan.sequences, self._plan.cache >> 20,
            )  # fmt: skip
        if not (self._is_vetted or self._is_vetting or self.vet is None):
            self._vet(self.vet, self._process)
        return self._process

    def _vet(self, vet: Callable[[], None], process: VllmProcess) -> None:
        """Raises what `vet` raises, and Lost where it was not one process that was vetted."""
        self._is_vetting = True
        try:
            vet()
        finally:
            self._is_vetting = False
        if self._process is not process:
            raise Lost("its process ended while it was compared with the plain model")
        self._is_vetted = True

    def _check(self, process: VllmProcess) -> None:
        """Raises PreflightError unless the process draws and proves as it should."""
        ids, keys = vllm_check.prompt(self.vocabulary), vllm_check.KEYS
        sampling = {"temperature": vllm_check.TEMPERATURE, "top_k": 0, "top_p": 1.0}
        made = dict(_generated(
            process, prompts=[[i, key, ids, 0] for i, key in enumerate(keys)], sampling=sampling, max_new_tokens=vllm_check.TOKENS,
            end_tokens=[], prove=True,
        ))  # fmt: skip
        states = dict(
            _prefilled(process, [[i, [*ids, *one.tokens[:-1]], len(ids) - 1] for i, one in sorted(made.items())])
        )
        scores = [_scored(process, states[i], made[i].tokens, key, sampling) for i, key in enumerate(keys)]
        order = range(len(keys))
        vllm_check.require_right([made[i] for i in order], [states[i] for i in order], scores)

    def _arguments(self, plan: Plan, folder: Path) -> dict[str, Any]:
        """Of vLLM's engine."""
        devices = self._settings.tensor_parallel
        share = self._most_of_one() / device.memory_bytes(self._device)
        return dict(
            model=str(folder), skip_tokenizer_init=True, dtype=str(self._dtype).removeprefix("torch."),
            load_format="safetensors", generation_config="vllm", seed=0, trust_remote_code=False,
            max_model_len=min(lengths.positions(self._model.config), plan.tokens),
            max_num_seqs=plan.sequences, max_num_batched_tokens=plan.step,
            kv_cache_memory_bytes=plan.cache // devices, gpu_memory_utilization=min(1.0, max(0.01, share)),  # must be free at start
            block_size=vllm_plan.BLOCK, enable_prefix_caching=True, disable_log_stats=True, async_scheduling=False,
            enforce_eager=self._device.type == "cpu", tensor_parallel_size=devices,
            worker_extension_cls="node.engine.vllm_capture.Capture",
            logits_processors=["node.engine.vllm_sampling:SeededDraw"],
        )  # fmt: skip

    def _environment(self) -> dict[str, str]:
        fixed = {
            "VLLM_USE_V2_MODEL_RUNNER": "0",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine's core in this very process: one to watch and to end
            "VLLM_BATCH_INVARIANT": "1" if self._settings.batch_invariant else "0",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_PLUGINS": "",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "0",
            "OMP_NUM_THREADS": str(self._threads),
        }
        if self._device.type == "cuda":
            fixed["CUDA_VISIBLE_DEVICES"] = vllm_build.visible(self._device, self._settings.tensor_parallel)
        return {name: value for name, value in os.environ.items() if name != _CACHE_SIZE} | fixed

    # ---- limits --------------------------------------------------------------------------------------------------------

    def _require_room(self, tokens: int) -> None:
        """That there is a version to compute with, and that one sequence of so many tokens fits its positions and this machine's memory."""
        _ = self._held  # raises
        architectures.require_positions(self._model.config.to_dict(), tokens)
        self.require_room(tokens)

    @property
    def _plan(self) -> Plan:
        assert self._footprint is not None
        return vllm_plan.plan(self._footprint, self._most(), lengths.positions(self._model.config))

    def _most(self) -> int:
        """Bytes of all devices together."""
        return self._settings.tensor_parallel * self._most_of_one()

    def _most_of_one(self) -> int:
        return int(self._share * self._allowed)


def _generated(process: VllmProcess, **job: Any) -> Iterator[tuple[int, Completion]]:
    """Completions by index, as they are ready."""
    for answer, _ in process.run("generate", **job):
        proofs = [bytes.fromhex(proof) for proof in answer["proofs"]]
        yield answer["index"], Completion(answer["tokens"], answer["logprobs"], proofs)


def _prefilled(process: VllmProcess, sequences: list[list[Any]]) -> Iterator[tuple[int, Tensor]]:
    """States by index, of [index, token ids, first position whose state is wanted]."""
    for answer, data in process.run("prefill", sequences=sequences):
        dtype = getattr(torch, answer["dtype"])
        yield answer["index"], torch.frombuffer(bytearray(data), dtype=dtype).view(answer["shape"])


def _scored(
    process: VllmProcess, hidden_TH: Tensor, tokens: list[int], key: int, sampling: dict[str, Any]
) -> TokenScores:
    return TokenScores.unpacked(process.score(hidden_TH, tokens, key, sampling))
