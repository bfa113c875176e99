"""Hidden states out of vLLM: an extension of its workers that folds the rows which enter `lm_head` into proofs, where they are.

    EngineArgs(worker_extension_cls="node.engine.vllm_capture.Capture")
    SamplingParams(extra_args={"proof_row": row})      a proof row of its own until `murmur_proofs`
    SamplingParams(extra_args={"states_from": i})      all rows from the i-th token on, for `murmur_states`

vLLM's runner hands `sample_tokens` what `execute_model` computed: `sample_hidden_states` are exactly the rows that logits were
computed of, one for each request of the batch. They are taken there, outside of compiled and captured graphs, and before anything
is drawn. A request that is computed again after it had to give up its cache is not proved twice.

Written for vllm 0.32.0, runner V1. Does not cover: speculative decoding (several rows of a request), pipeline parallelism.

Shapes: N requests of a batch, T tokens, H hidden size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from node.engine import sampler
from node.engine.proofs import ProofFolder
from node.engine.vllm_sampling import SeededRows
from protocol.errors import IntegrityError
from protocol.sampling import TokenScores

RUNNERS = ("vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.cpu_model_runner")
"""Modules of the runners that this was written for."""
_SCORED_TOKENS = 128  # whose logits are held at once


class Capture:
    """Methods that vLLM mixes into its worker class; called by `collective_rpc`, on every rank of a tensor-parallel group."""

    model_runner: Any

    def murmur_install(self, rows: int) -> dict[str, Any]:
        """Begins to capture, with `rows` proof rows. Returns which runner is live, whether it is one of `RUNNERS`, and whether the
        seeded draw is among its logits processors."""
        runner = self.model_runner
        name = f"{type(runner).__module__}.{type(runner).__qualname__}"
        if type(runner).__module__ not in RUNNERS:
            return {"name": name, "is_known": False, "draws": False}
        self.murmur_capture = _Rows(runner, rows)
        draw = runner.sample_tokens

        def sample_tokens(grammar_output: Any, *args: Any, **kwargs: Any) -> Any:
            if runner.execute_model_state is not None:
                self.murmur_capture.take(runner.execute_model_state)
            return draw(grammar_output, *args, **kwargs)

        runner.sample_tokens = sample_tokens
        draws = any(isinstance(processor, SeededRows) for processor in runner.input_batch.logitsprocs.all)
        return {"name": name, "is_known": True, "draws": draws}

    def murmur_reloaded(self) -> None:
        """Has a head that shares its weights with the embeddings take the new ones. vLLM's reload counts it as a layer that nothing
        was loaded into, and on a CPU the head computes with a packed copy, which would stay that of the version before."""
        for layer in self.model_runner.get_model().modules():
            if hasattr(layer, "cpu_linear") and hasattr(layer, "num_embeddings"):
                layer.quant_method.process_weights_after_loading(layer)

    def murmur_proofs(self, lengths: dict[int, int]) -> dict[int, list[bytes]] | str:
        """Ends these proof rows, of so many tokens each, and frees them. Raises IntegrityError where another number was seen; a text
        instead of proofs says that some states were no numbers."""
        try:
            return self.murmur_capture.proofs(lengths)
        except ValueError as error:
            return str(error)

    def murmur_states(self, request: str) -> Tensor:
        """The states [T, H] that were kept of a request, which is then forgotten."""
        return self.murmur_capture.states(request)

    @torch.inference_mode()
    def murmur_score(self, hidden_TH: Tensor, tokens: Sequence[int], key: int, sampling: dict[str, Any]) -> bytes:
        """Scores of tokens against the logits of hidden states, as `TokenScores.packed` has them. Raises IntegrityError where those are no
        numbers."""
        model, device = self.model_runner.get_model(), self.model_runner.device
        found = []
        for first in range(0, len(tokens), _SCORED_TOKENS):
            logits = model.compute_logits(hidden_TH[first : first + _SCORED_TOKENS].to(device))
            if logits is None:  # another rank has them
                continue
            if not (logits.amax().isfinite() and logits.amin().isfinite()):
                raise IntegrityError("this machine's own logits hold NaN or infinity")
            part = torch.tensor(tokens[first : first + _SCORED_TOKENS], device=device)
            found.append(sampler.score(logits, part, key, first, **sampling))
        return TokenScores.joined(found).packed() if found else b""


class _Rows:
    def __init__(self, runner: Any, rows: int) -> None:
        self._runner = runner
        hidden = int(runner.model_config.get_hidden_size())
        self._proofs: list[list[bytes]] = [[] for _ in range(rows)]
        self._folder = ProofFolder(self._proofs, hidden, runner.device)
        self._seen = np.zeros(rows, np.int64)  # tokens, by proof row
        self._states: dict[str, list[Tensor]] = defaultdict(list)
        self._kept: dict[str, int] = defaultdict(int)  # position after the last that was kept

    @torch.inference_mode()
    def take(self, state: Any) -> None:
        """What one step computed."""
        runner, batch = self._runner, self._runner.input_batch
        count = batch.num_reqs
        if len(state.sample_hidden_states) != count:
            raise RuntimeError(f"{len(state.sample_hidden_states)} rows enter lm_head for {count} requests")
        unfinished = runner.discard_request_mask.np[:count]  # prompts that are in the cache only in part
        scheduled = state.scheduler_output.num_scheduled_tokens
        offset, at, proof_rows = 0, [], []
        for i, request in enumerate(batch.req_ids[:count]):
            before = int(batch.num_computed_tokens_cpu[i])
            after = before + scheduled[request]
            extra = runner.requests[request].sampling_params.extra_args or {}
            if "states_from" in extra:
                self._keep(
                    request, state.hidden_states[offset : offset + scheduled[request]], before, extra["states_from"]
                )
            row = extra.get("proof_row")
            if row is not None and not unfinished[i]:
                position = after - int(batch.num_prompt_tokens[i])  # of the token that is drawn now
                if position == self._seen[row]:
                    at.append(i)
                    proof_rows.append(row)
            offset += scheduled[request]
        if at:
            self._seen[proof_rows] += 1
            self._folder.add(proof_rows, state.sample_hidden_states[at])

    def _keep(self, request: str, hidden_TH: Tensor, before: int, first: int) -> None:
        start = max(first, self._kept[request])
        if before + len(hidden_TH) > start >= before:
            self._states[request].append(hidden_TH[start - before :].clone())
            self._kept[request] = before + len(hidden_TH)

    def proofs(self, lengths: dict[int, int]) -> dict[int, list[bytes]]:
        self._folder.close(list(lengths))
        self._folder.wait()
        found = {}
        for row, length in lengths.items():
            if self._seen[row] != length:
                raise IntegrityError(f"{self._seen[row]} rows of hidden states were seen for {length} tokens")
            found[row] = self._proofs[row]
            self._release(row)
        return found

    def states(self, request: str) -> Tensor:
        self._kept.pop(request, None)
        return torch.cat(self._states.pop(request)).cpu()

    def _release(self, row: int) -> None:
        self._folder.begin(row)
        self._seen[row] = 0
