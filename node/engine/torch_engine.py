"""The engine on transformers and torch: batched decoding with a KV cache, seeded sampling, proofs as rows appear.

Covers: the models of protocol/architectures.py, one device. One prefill serves all samples of a prompt; rows that finish make room for
those that wait (decoding.py), in a cache that holds each prompt once (kv_cache.py) and is read as it lies (step_attention.py); proofs.py
folds proofs chunk by chunk; memory.py says how many rows are computed at once. Does not cover: many GPUs, speculation, compiled graphs.

Shapes: B rows of a batch, N prompts of a prefill, T tokens, H hidden size, V vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from node.engine import build, device, footprint, memory, output, products, row_attention, sampler, scan, widened
from node.engine.decoding import DecodingBatch, Request, Wave, cache_of, requests_of
from node.engine.degrade import round_cache, rounding_of
from node.engine.fixed_cache import FixedCache
from node.engine.fixed_rows import FixedRows, one_thread
from node.engine.interface import Completion, Prompt, Reply, no_version
from node.engine.kv_cache import KeyValueCache
from node.engine.memory import DecodingPlan, MemoryBudget
from node.engine.scan import Scan
from node.engine.settings import EngineSettings
from node.engine.weights import build_model, load_weights
from protocol import architectures
from protocol.errors import ConfigError, IntegrityError, PreflightError
from protocol.sampling import TokenScores

TokenIds = Sequence[int] | NDArray[np.integer[Any]]
log = logging.getLogger(__name__)

_PREFILL_TOKENS = 1 << 14  # tokens of one prefill batch at most, padding included: more is no faster
_PREFILL_TOKENS_OF_CPUS = 1 << 11  # the same on a CPU, whose cache more would not fit
_SCORED_TOKENS = 128  # tokens whose logits are held at once: as many rows as make a product with `lm_head` efficient
_SCANNED_TOKENS = 512  # the same where logits are looked at a part of the vocabulary at a time, so many of them at once
_SCANNED_LOGITS = 1 << 20


class TorchEngine:
    def __init__(self, compute_dtype: str, settings: EngineSettings | None = None) -> None:
        """`compute_dtype` as the run spec names it. Raises PreflightError where the device is not there."""
        settings = settings or EngineSettings()
        torch.set_num_threads(settings.thread_count)
        self._dtype: torch.dtype = getattr(torch, compute_dtype)
        self._device = device.named(settings.device)
        self._attention = "sdpa" if settings.attention == "auto" else settings.attention
        self._most = memory.parse(settings.memory, device.free_bytes(self._device))
        self._aside = device.exact(self._device)
        self._rows_most = memory.rows_most(self._device.type)
        self._prefill_most = _PREFILL_TOKENS_OF_CPUS if self._device.type == "cpu" else _PREFILL_TOKENS
        self._shrunk = False
        self._built: Any = None  # the model, whatever its weights are
        self._model: Any = None  # the same while they are those of one version
        self._is_fixed = settings.batch_invariant
        self._fixed: FixedRows | None = None  # of that model, where bits must not depend on the batch
        self._budget: MemoryBudget | None = None

    @staticmethod
    def require(settings: EngineSettings) -> None:
        """Raises PreflightError where the device is not there, or cannot compute so that bits do not depend on the batch; ConfigError where that
        is to be done in a way of attention that is not made for it."""
        found = device.named(settings.device)
        if not settings.batch_invariant:
            return
        if found.type != "cpu":
            raise PreflightError(
                f"batch-invariant computation is asked for, and the engine 'torch' has it on a CPU alone, not on {device.describe(found)}",
                hint='set engine.device to "cpu", or engine.name to "vllm"',
            )
        if settings.attention != "auto":
            raise ConfigError(
                f"engine.attention is {settings.attention}, and batch-invariant attention is computed in one way",
                hint='leave it "auto"',
            )

    def load(self, folder: Path) -> None:
        """Loads a version, from its files to the device; the first call builds the model from its config.json. Raises ConfigError for a
        model that is not computed rightly, IntegrityError for weights that are not the model's; then the engine holds no version."""
        self._model = None
        if self._built is None:
            model = build_model(folder, self._dtype, self._device)
            row_attention.install(model, self._attention)
            products.install(model)
            if self._is_fixed:
                self._fix(model)
            else:
                widened.install(model)
            self._built = model
        else:
            round_cache(self._built, None)
            load_weights(self._built, folder)
        self._model = self._built

    def _fix(self, model: Any) -> None:
        """From now on it is computed in fixed shapes."""
        of = footprint.of(model, self._device)
        prefilled = of.prefill_token + of.cache_token  # a prefill keeps keys and values as well
        self._budget = MemoryBudget(self._most, replace(of, prefill_token=prefilled))
        self._fixed = FixedRows(model)
        self._fixed.settle()

    @property
    def _held(self) -> Any:
        if self._model is None:
            raise no_version()
        return self._model

    @property
    def hidden_size(self) -> int:
        return int(self._held.config.hidden_size)

    @property
    def vocabulary(self) -> int:
        return int(self._held.config.vocab_size)

    @property
    def device(self) -> str:
        return device.describe(self._device)

    @property
    def build(self) -> str:
        """What another machine must share to compute the same bits (build.py); empty where these depend on the batch."""
        return build.of_fixed_rows(self._fixed.rows, self._dtype) if self._fixed is not None else ""

    def adjust(self, *, attention: str, threads: int) -> None:
        """Computes attention in another way of row_attention.py, and with so many threads. Raises ConfigError where bits must not depend on
        the batch: there is one way then."""
        torch.set_num_threads(threads)
        if self._is_fixed:
            raise ConfigError(
                "batch-invariant attention is computed in one way", hint="calibrate without engine.batch_invariant"
            )
        row_attention.install(self._held, attention)

    def degrade(self, change: Callable[[Any], None]) -> None:
        """Changes the loaded model in place (degrade.py); the next `load` undoes it."""
        change(self._held)

    # ---- generation ----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        temperature: float,
        max_new_tokens: int,
        end_tokens: frozenset[int],
        top_k: int = 0,
        top_p: float = 1.0,
        prove: bool = True,
    ) -> list[list[Completion]]:
        """Completions per prompt and key, in order (node/engine/interface.py). What is sampled from, protocol/sampling.py defines."""
        return self.converse(
            prompts, None, reply_tokens=0, temperature=temperature, max_new_tokens=max_new_tokens, end_tokens=end_tokens,
            top_k=top_k, top_p=top_p, prove=prove,
        )  # fmt: skip

    @torch.inference_mode()
    def converse(
        self, prompts: Sequence[Prompt], reply: Reply | None, *, reply_tokens: int, temperature: float, max_new_tokens: int,
        end_tokens: frozenset[int], top_k: int = 0, top_p: float = 1.0, prove: bool = True,
    ) -> list[list[Completion]]:  # fmt: skip
        """The same of as many turns as `reply` makes them. What it gives goes through the model a token in a step, with the row's cache."""
        longest = max(len(prompt.tokens) - prompt.first for prompt in prompts) + max_new_tokens + reply_tokens
        architectures.require_positions(self._held.config.to_dict(), longest)
        requests = requests_of(prompts)
        while left := [request for request in requests if not request.done]:
            prefill = min(_PREFILL_TOKENS, self._prefill_most)
            plan = self._fits.plan(prompts, max_new_tokens + reply_tokens, rows=self._rows_most, prefill_tokens=prefill)
            try:
                self._decode(
                    left, plan, max_new_tokens, reply_tokens, end_tokens, reply, temperature, top_k, top_p, prove=prove
                )
            except (RuntimeError, MemoryError) as error:
                self._shrink(plan.rows, plan.prefill_tokens, error)
            else:
                break
            device.release(self._device)
        flat = iter(requests)
        return [[request.completion for request in islice(flat, len(prompt.keys))] for prompt in prompts]

    def _decode(
        self, requests: list[Request], plan: DecodingPlan, most: int, reply_tokens: int, end_tokens: frozenset[int],
        reply: Reply | None, temperature: float, top_k: int, top_p: float, *, prove: bool,
    ) -> None:  # fmt: skip
        """Until all samples are done."""
        if self._fixed is not None:
            longest = max(len(request.prompt) for request in requests)
            cache: KeyValueCache | FixedCache = FixedCache(plan.rows + 1, longest + most + reply_tokens)
        else:
            latent = bool(getattr(self._held.config, "kv_lora_rank", None))
            cache = shared = cache_of(requests, plan.rows, most + reply_tokens, latent=latent)
            shared.rounding = rounding_of(self._held)
        batch = DecodingBatch(requests, plan, cache, self._device, self._aside, prove=prove)
        try:
            while True:
                if batch.has_room:
                    while (wave := batch.next_wave()) is not None:
                        self._prefill_wave(batch, wave)
                if not batch.requests:
                    return
                tokens, logprobs = self._sample(batch.hidden, batch.keys, batch.positions, temperature, top_k, top_p)
                drawn, speaking = tokens.tolist(), batch.speaking
                batch.write(speaking, drawn, logprobs.tolist())
                tokens = batch.heard(speaking, tokens)
                ended = [row for row in speaking if self._is_over(batch.requests[row], drawn[row], most, end_tokens)]
                if reply is not None:
                    ended = _without_replies(batch, ended, reply, end_tokens)
                tokens = batch.leave(ended, tokens)
                if batch.requests:
                    self._step(batch, tokens)
        finally:
            batch.stop()

    def _is_over(self, request: Request, token: int, most: int, end_tokens: frozenset[int]) -> bool:
        return token in end_tokens or request.first + len(request.completion.tokens) == most

    def _prefill_wave(self, batch: DecodingBatch, wave: Wave) -> None:
        """Prompts through the model, right-padded: no token sees what comes after it, so that no mask is needed."""
        if isinstance(batch.cache, FixedCache):
            hidden = self._in_slots(wave.prompts, batch.cache.join(wave.joining), batch.cache)
            ends = torch.tensor([len(prompt) for prompt in wave.prompts]).cumsum(0) - 1
            batch.join(wave, hidden[ends])
            return
        ids, last = wave.padded(self._device)
        batch.cache.join(wave.joining)
        hidden = self._held.base_model(
            input_ids=ids, position_ids=torch.arange(ids.shape[1], device=self._device)[None],
            past_key_values=batch.cache, use_cache=True,
        ).last_hidden_state  # fmt: skip
        batch.join(wave, hidden[torch.arange(len(ids), device=self._device), last])

    @property
    def _fixed_rows(self) -> FixedRows:
        assert self._fixed is not None  # who has a cache in slots computes so
        return self._fixed

    def _in_slots(self, sequences: Sequence[TokenIds], slots: Sequence[int], cache: FixedCache) -> Tensor:
        """Hidden states of all tokens of sequences that go to these slots, one sequence after the other."""
        lengths = [len(sequence) for sequence in sequences]
        return self._fixed_rows.hidden(
            torch.from_numpy(np.concatenate([np.asarray(sequence, np.int64) for sequence in sequences])).to(self._device),
            np.repeat(slots, lengths).tolist(), [place for length in lengths for place in range(length)], cache,
        )  # fmt: skip

    def _step(self, batch: DecodingBatch, tokens: Tensor) -> None:
        """The newest token of every row through the model: hidden states for the next."""
        if isinstance(batch.cache, FixedCache):
            slots, places = batch.cache.step()
            batch.hidden = self._fixed_rows.hidden(tokens, slots, places, batch.cache)
            return
        step = batch.cache.step(self._dtype, self._device)
        out = self._held.base_model(
            input_ids=tokens[:, None], position_ids=step.places[:, None], past_key_values=batch.cache, use_cache=True,
            **{row_attention.CACHE: batch.cache},
        )  # fmt: skip
        batch.hidden = out.last_hidden_state[:, -1]

    def _sample(
        self, hidden: Tensor, keys: Tensor, positions: Tensor, temperature: float, top_k: int, top_p: float
    ) -> tuple[Tensor, Tensor]:
        """The seeded draw per row, each at its own position [B], and the logprob of the chosen token."""
        logits = self._logits(hidden).to(self._aside)
        keys, positions = keys.to(self._aside), positions.to(self._aside)
        tokens, logprobs = [], []
        for part in self._together(len(logits)):
            with self._threads:
                drawn = sampler.draw(
                    logits[part], keys[part], positions[part], temperature=temperature, top_k=top_k, top_p=top_p
                )
            chosen = logits[part].gather(1, drawn.tokens[:, None]).squeeze(1).float()
            tokens.append(drawn.tokens)
            logprobs.append(chosen - drawn.normalisers)
        return torch.cat(tokens).to(self._device), torch.cat(logprobs)

    def _logits(self, hidden: Tensor) -> Tensor:
        return output.logits(self._held, hidden) if self._fixed is None else self._fixed.logits(hidden)

    @property
    def _threads(self) -> AbstractContextManager[None]:
        return nullcontext() if self._fixed is None else one_thread()

    def _together(self, rows: int) -> list[slice]:
        """Rows that are drawn or scored at once: a normaliser is a sum, and has shapes as well."""
        return [slice(0, rows)] if self._fixed is None else [slice(row, row + 1) for row in range(rows)]

    # ---- checking ------------------------------------------------------------------------------------------------------

    def prefill(self, sequences: Sequence[tuple[TokenIds, TokenIds]]) -> list[Tensor]:
        """Final hidden states [T, H] that produced each completion token, of (prompt, completion) pairs."""
        found = {i: hidden for batch in self.prefill_in_batches(sequences) for i, hidden in batch.items()}
        return [found[i] for i in range(len(sequences))]

    def require_room(self, tokens: int, *, prompt: int | None = None) -> None:
        """Raises PreflightError where one sequence of so many tokens does not fit, or generated from such a prompt would not."""
        self._fits.prefill_batches([tokens], tokens)
        if prompt is not None:
            self._fits.require_row(prompt, tokens - prompt)

    @torch.inference_mode()
    def prefill_in_batches(self, sequences: Sequence[tuple[TokenIds, TokenIds]]) -> Iterator[dict[int, Tensor]]:
        """As `prefill`, a batch at a time and by index, of which nothing is kept here: memory does not grow with the work."""
        lengths = [len(prompt) + len(completion) for prompt, completion in sequences]
        left = list(range(len(sequences)))
        while left:
            plan = self._fits.prefill_batches([lengths[i] for i in left], min(_PREFILL_TOKENS, self._prefill_most))
            done: set[int] = set()
            for batch in ([left[i] for i in places] for places in plan):
                try:
                    found = self._prefill({i: sequences[i] for i in batch})
                except (RuntimeError, MemoryError) as error:
                    self._shrink(len(batch), len(batch) * max(lengths[i] for i in batch), error)
                    break
                done |= set(batch)
                yield found
                del found
            left = [i for i in left if i not in done]
            if left:
                device.release(self._device)

    def _prefill(self, sequences: dict[int, tuple[TokenIds, TokenIds]]) -> dict[int, Tensor]:
        """Hidden states [T, H] of these, all at once."""
        rows = [np.concatenate(sequence) for sequence in sequences.values()]
        if self._fixed is not None:
            whole = [self._in_slots([row], [0], FixedCache(1, len(row))) for row in rows]
            return {
                i: hidden[len(prompt) - 1 : len(prompt) - 1 + len(completion)]
                for hidden, (i, (prompt, completion)) in zip(whole, sequences.items(), strict=True)
            }
        ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
        for row, tokens in enumerate(rows):  # padded on the right, which no token sees
            ids[row, : len(tokens)] = torch.as_tensor(tokens, dtype=torch.long)
        hidden = self._held.base_model(input_ids=ids.to(self._device), use_cache=False).last_hidden_state
        return {
            i: hidden[row, len(prompt) - 1 : len(prompt) - 1 + len(completion)]
            for row, (i, (prompt, completion)) in enumerate(sequences.items())
        }

    @torch.inference_mode()
    def score(
        self, hidden_TH: Tensor, tokens_T: Sequence[int] | NDArray[np.integer[Any]], *,
        key: int, temperature: float, top_k: int = 0, top_p: float = 1.0,
    ) -> TokenScores:  # fmt: skip
        """Scores a completion's tokens against the logits of its hidden states, without ever holding all of them.

        Raises IntegrityError where the logits are no numbers: that is this machine's trouble, never the claim's.
        """
        tokens = torch.as_tensor(np.asarray(tokens_T, np.int64), device=self._aside)
        if not self._is_fixed and scan.covers(self._device, temperature, top_k, top_p):
            return self._scan(hidden_TH, tokens, key, temperature)
        parts = []
        for first in range(0, len(tokens), _SCORED_TOKENS):
            logits = self._logits(hidden_TH[first : first + _SCORED_TOKENS]).to(self._aside)
            if not (logits.amax().isfinite() and logits.amin().isfinite()):
                raise _broken()
            part = tokens[first : first + _SCORED_TOKENS]
            for of in self._together(len(part)):
                with self._threads:
                    parts.append(
                        sampler.score(
                            logits[of],
                            part[of],
                            key,
                            first + of.start,
                            temperature=temperature,
                            top_k=top_k,
                            top_p=top_p,
                        )
                    )
        return TokenScores.joined(parts)

    def _scan(self, hidden_TH: Tensor, tokens_T: Tensor, key: int, temperature: float) -> TokenScores:
        parts = []
        for first in range(0, len(tokens_T), _SCANNED_TOKENS):
            rows = slice(first, first + _SCANNED_TOKENS)
            scanned = Scan(tokens_T[rows], key, first, temperature)
            for start, logits in self._logits_in_parts(hidden_TH[rows]):
                scanned.take(start, logits)
            if not scanned.is_finite:
                raise _broken()
            parts.append(scanned.scores())
        return TokenScores.joined(parts)

    def _logits_in_parts(self, hidden_TH: Tensor) -> Iterator[tuple[int, Tensor]]:
        return scan.logits_in_parts(self._held, hidden_TH, _SCANNED_LOGITS)

    @torch.inference_mode()
    def logits(self, hidden_TH: Tensor) -> NDArray[np.float32]:
        """Logits [T, V] of hidden states."""
        return self._logits(hidden_TH).float().cpu().numpy()

    # ---- limits --------------------------------------------------------------------------------------------------------

    @property
    def _fits(self) -> MemoryBudget:
        """What may be computed at once; measured of the model when it is first asked for."""
        if self._budget is None:
            self._budget = MemoryBudget(self._most, footprint.of(self._held, self._device))
        return self._budget

    def _shrink(self, rows: int, prefilled: int, error: BaseException) -> None:
        """Running out of the device's memory is answered once, by half as many sequences and tokens of a prefill from then on; what
        was done stays done. Raises `error` where it says something else, or says it again."""
        said = memory.exhausted(error)
        if said is None or self._shrunk or rows == 1:
            raise error
        self._shrunk, self._rows_most, self._prefill_most = True, rows // 2, prefilled // 2
        log.warning("%s; from now on %d sequences are computed at once, not %d", said, self._rows_most, rows)


def _broken() -> IntegrityError:
    return IntegrityError("this machine's own logits hold NaN or infinity")


def _without_replies(batch: DecodingBatch, ended: Sequence[int], reply: Reply, end_tokens: frozenset[int]) -> list[int]:
    """Of these rows, those that leave; the others go on with what they are told."""
    asked = [row for row in ended if batch.requests[row].completion.tokens[-1] in end_tokens]
    told = reply([batch.requests[row].ended for row in asked]) if asked else []
    going = {row: given for row, given in zip(asked, told, strict=True) if given}
    for row, given in going.items():
        batch.go_on(row, given)
    return [row for row in ended if row not in going]
