"""The samples of a submission on their way through a bounded number of rows: who waits, who decodes, who is done.

Prompts are prefilled once, and shared by the rows of their samples; as rows end, the next samples take their places, so that
a batch stays full whatever the lengths are. The order of the work is that of the submission, and what is drawn depends on
none of this but by rounding: keys and positions belong to samples. A sample that goes on after a reply keeps its row, and hears a token of
it in each step, beside the rows that draw.

Does not cover: the forward passes and the draw (torch_engine.py), where keys and values lie (kv_cache.py, fixed_cache.py), how many rows there may be
(memory.py).

Shapes: B rows that decode, N prompts of a prefill, H hidden size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch
from torch import Tensor

from node.engine import noise
from node.engine.fixed_cache import FixedCache
from node.engine.interface import Completion, Ended, Prompt
from node.engine.kv_cache import Joining, KeyValueCache
from node.engine.memory import DecodingPlan
from node.engine.proofs import ProofFolder

_REFILLED = 16  # of so many rows one has to be free before others join: one short prompt is no full batch


@dataclass
class Request:
    """One completion, from the queue to its end."""

    prompt: list[int]
    key: int
    first: int = 0
    """Tokens that the sample has generated before this."""
    place: tuple[int, int] = (0, 0)
    """The number of its prompt, and that of its key."""
    completion: Completion = field(default_factory=Completion)
    to_hear: deque[int] = field(default_factory=deque)
    """Tokens of a reply that the model is still to be given."""
    done: bool = False
    desk: int = -1
    """Its row among the proofs while it decodes."""

    @property
    def ended(self) -> Ended:
        return Ended(*self.place, self.completion)


def requests_of(prompts: Sequence[Prompt]) -> list[Request]:
    return [
        Request(prompt.tokens, key, prompt.first, (p, s))
        for p, prompt in enumerate(prompts)
        for s, key in enumerate(prompt.keys)
    ]


def cache_of(requests: Sequence[Request], rows: int, most: int, *, latent: bool) -> KeyValueCache:
    """For so many of these at once, with at most `most` new tokens each."""
    prompts = sum(1 for _ in groupby(requests, key=lambda request: id(request.prompt)))  # as `_Waiting` hands them out
    longest = max(len(request.prompt) for request in requests)
    return KeyValueCache(rows, min(rows, prompts), longest, most, latent=latent)


@dataclass
class _Waiting:
    """Samples that wait for rows, those of one prompt side by side."""

    requests: list[Request]
    at: int = 0

    def __bool__(self) -> bool:
        return self.at < len(self.requests)

    def take(self, most: int) -> list[Request]:
        """The next samples, all of one prompt."""
        first = self.requests[self.at]
        end = self.at
        while end < len(self.requests) and end - self.at < most and self.requests[end].prompt is first.prompt:
            end += 1
        taken, self.at = self.requests[self.at : end], end
        return taken

    def goes_on(self, prompt: list[int]) -> bool:
        """Whether the next sample is of this prompt, too."""
        return bool(self) and self.requests[self.at].prompt is prompt


@dataclass
class Wave:
    """Prompts that are prefilled together, and the samples of each that get rows now."""

    prompts: list[list[int]]
    groups: list[list[Request]]
    keep: bool

    @property
    def joining(self) -> Joining:
        return Joining([len(prompt) for prompt in self.prompts], [len(group) for group in self.groups], self.keep)

    def padded(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Their ids [N, T], padded on the right, and the place of each one's last token [N]."""
        lengths = torch.tensor([len(prompt) for prompt in self.prompts])
        ids = torch.zeros(len(self.prompts), int(lengths.max()), dtype=torch.long)
        for row, prompt in enumerate(self.prompts):
            ids[row, : len(prompt)] = torch.tensor(prompt)
        return ids.to(device), (lengths - 1).to(device)


class DecodingBatch:
    """The rows that decode: which sample each is, its key, its position, and its newest hidden state."""

    def __init__(
        self,
        requests: list[Request],
        plan: DecodingPlan,
        cache: KeyValueCache | FixedCache,
        device: torch.device,
        proving: torch.device,
        *,
        prove: bool,
    ) -> None:
        """`device` is the model's, `proving` where proofs are folded."""
        for request in requests:
            request.completion = Completion()
            request.to_hear.clear()
        self._waiting = _Waiting(requests)
        self._plan, self._device, self._proving, self._prove = plan, device, proving, prove
        self.cache = cache
        self.requests: list[Request] = []
        self.keys = torch.empty(0, dtype=torch.long, device=device)
        self.positions = torch.empty(0, dtype=torch.long, device=device)
        """Of the next token of each row [B], counted from the first one that its sample has generated."""
        self.hidden = torch.empty(0, 0, device=device)
        """What the next token of each row is drawn from [B, H]."""
        self._proofs: ProofFolder | None = None
        self._desks = list(range(plan.rows))
        self._kept: tuple[list[int], Tensor] | None = None

    # ---- joining -----------------------------------------------------------------------------------------------------------

    @property
    def _free(self) -> int:
        return self._plan.rows - len(self.requests)

    @property
    def has_room(self) -> bool:
        """Whether samples wait, and enough rows are free for them."""
        return bool(self._waiting) and (self._free >= max(1, self._plan.rows // _REFILLED) or not self.requests)

    def next_wave(self) -> Wave | None:
        """Prompts to prefill now; samples of the prompt that was kept join without. None where no row is free, or nobody waits."""
        self._join_kept()
        wave = Wave([], [], keep=False)
        room = self._free
        while room and self._waiting:
            prompt = self._waiting.requests[self._waiting.at].prompt
            width = max(len(prompt), *map(len, wave.prompts)) if wave.prompts else len(prompt)
            if wave.prompts and (len(wave.prompts) + 1) * width > self._plan.prefill_tokens:
                break
            group = self._waiting.take(room)
            wave.prompts.append(prompt)
            wave.groups.append(group)
            room -= len(group)
        if not wave.prompts:
            return None
        wave.keep = self._waiting.goes_on(wave.prompts[-1])
        return wave

    def join(self, wave: Wave, hidden_NH: Tensor) -> None:
        """A wave whose keys and values are written: its last hidden states, one for each prompt."""
        self.cache.joined()
        for group, hidden in zip(wave.groups, hidden_NH, strict=True):
            self._sit(group, hidden)
        self._kept = (wave.prompts[-1], hidden_NH[-1].clone()) if wave.keep else None

    def _join_kept(self) -> None:
        if self._kept is None or not self._free:
            return
        prompt, hidden = self._kept
        group = self._waiting.take(self._free)
        keep = self._waiting.goes_on(prompt)
        self.cache.join_kept(len(group), keep=keep)
        self._sit(group, hidden)
        if not keep:
            self._kept = None

    def _sit(self, group: list[Request], hidden: Tensor) -> None:
        keys = torch.tensor([noise.as_signed(request.key) for request in group], device=self._device)
        new = hidden.expand(len(group), -1)
        self.hidden = torch.cat([self.hidden, new]) if self.requests else new.clone()
        self.keys = torch.cat([self.keys, keys])
        self.positions = torch.cat([self.positions, torch.tensor([one.first for one in group]).to(keys)])
        self.requests += group
        if not self._prove:
            return
        if self._proofs is None:
            self._proofs = ProofFolder([[] for _ in self._desks], len(hidden), self._proving)
        for request in group:
            request.desk = self._desks.pop()
            request.completion.proofs = self._proofs.begin(request.desk)

    # ---- a token for each --------------------------------------------------------------------------------------------------

    @property
    def speaking(self) -> list[int]:
        """Rows whose next token is drawn; the others listen: theirs is one of a reply."""
        return [row for row, request in enumerate(self.requests) if not request.to_hear]

    def write(self, speaking: Sequence[int], tokens: Sequence[int], logprobs: Sequence[float]) -> None:
        """The tokens that were drawn from `hidden`, for all rows: those that speak take theirs."""
        all_speak = len(speaking) == len(self.requests)
        if self._proofs and speaking:
            hidden = self.hidden if all_speak else self.hidden[speaking]
            self._proofs.add([self.requests[row].desk for row in speaking], hidden.to(self._proving))
        for row in speaking:
            self.requests[row].completion.tokens.append(tokens[row])
            self.requests[row].completion.logprobs.append(logprobs[row])
        if all_speak:
            self.positions = self.positions + 1
        else:
            drew = torch.tensor([not request.to_hear for request in self.requests], device=self._device)
            self.positions = self.positions + drew

    def heard(self, speaking: Sequence[int], tokens: Tensor) -> Tensor:
        """The newest token of each row [B]: drawn ones, and in rows that listen the next of their replies."""
        if len(speaking) == len(self.requests):
            return tokens
        newest = tokens.clone()
        for row in {*range(len(self.requests))} - {*speaking}:
            newest[row] = self.requests[row].to_hear.popleft()
        return newest

    def go_on(self, row: int, given: Sequence[int]) -> None:
        """This row's turn has ended, and after a reply of these tokens there is another."""
        request = self.requests[row]
        request.completion.turns.append(len(request.completion.tokens) - sum(request.completion.turns))
        request.completion.given.append(list(given))
        request.to_hear.extend(given)
        if self._proofs:
            self._proofs.close([request.desk])

    def leave(self, ended: Sequence[int], tokens: Tensor) -> Tensor:
        """Rows whose samples have ended go; the newest tokens of those that stay, in their new order."""
        if not ended:
            return tokens
        if self._proofs:
            self._proofs.close([self.requests[row].desk for row in ended])
        for row in ended:
            self.requests[row].done = True
            self._desks += [self.requests[row].desk] if self._proofs else []
        order = self.cache.leave(ended)
        self.requests = [self.requests[row] for row in order]
        kept = torch.tensor(order, dtype=torch.long, device=self._device)
        self.keys, self.positions = self.keys[kept], self.positions[kept]
        return tokens[kept]

    def stop(self) -> None:
        """Waits for the proofs of the samples that are done."""
        if self._proofs:
            self._proofs.stop()
