"""Bytes of everything that training takes: on each rank's device, on each machine's host, and of a node.

What is certain is added up from shapes: weights and gradients in float32, moments in their own type, and what FSDP2 gathers. What a pass keeps is
measured on tensors without memory (passes.py). What libraries take for themselves is an estimate, and named as one.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from node.engine import footprint, memory
from node.engine.settings import EngineSettings
from node.engine.weights import meta_model, stored_tensors
from protocol import resources
from trainer.config import TrainSettings
from trainer.engines import Engines
from trainer.learning.lora import Adapters
from trainer.learning.ranks import blocks
from trainer.learning.tensors import FILE_BYTES
from trainer.planning.passes import META, Pass, Work, measure

LIBRARIES = 2 << 30
"""Bytes that CUDA, cuBLAS and NCCL take of each GPU. An estimate: no GPU was at hand."""
SPARE = 0.05
"""Share of a device that a plan leaves free: allocators lose some, and passes are measured to within 15 %."""


@dataclass(frozen=True)
class Machines:
    """`memory` and `host` in bytes: of each rank's device, and of each machine's host."""

    ranks: int
    per_machine: int
    memory: int
    host: int
    on_cpu: bool

    @classmethod
    def here(cls) -> Machines:
        """This machine, with a rank for each GPU, or one where there is none."""
        gpus, host = torch.cuda.device_count(), resources.memory_bytes()
        if not gpus:
            return cls(1, 1, host, host, True)
        smallest = min(int(torch.cuda.get_device_properties(i).total_memory) for i in range(gpus))
        return cls(gpus, gpus, smallest, host, False)

    @property
    def sharded(self) -> bool:
        """Whether FSDP2 holds the weights: everywhere but in one process on a CPU."""
        return self.ranks > 1 or not self.on_cpu


@dataclass(frozen=True)
class Sizes:
    """Parameters of a model."""

    all: int
    outside: int
    """Of embedding, last norm and head: gathered together."""
    block: int
    """Of the largest block."""
    largest: int
    """Of the largest tensor."""
    head: int
    """Of an output layer of its own; 0 where it is the embedding."""
    hidden: int
    """Of one row of it."""

    @classmethod
    def of(cls, model: Any) -> Sizes:
        stored = stored_tensors(model)
        count = sum(tensor.numel() for tensor in stored.values())
        layers = [sum(p.numel() for p in block.parameters()) for block in blocks(model)]
        tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
        head = 0 if tied else model.get_output_embeddings().weight.numel()
        largest, hidden = max(t.numel() for t in stored.values()), model.get_output_embeddings().weight.shape[1]
        return cls(count, count - sum(layers), max(layers, default=0), largest, head, hidden)


@dataclass(frozen=True)
class Trained:
    """Parameters that have gradients: all of them, or adapters in their place."""

    all: int
    block: int
    """Of the block that has most."""
    largest: int
    """Of the largest tensor."""
    head: int
    """Of an output layer of its own."""

    @classmethod
    def of(cls, sizes: Sizes, adapted: Any) -> Trained:
        """`adapted`: the model with adapters; None where everything is trained."""
        if adapted is None:
            return cls(sizes.all, sizes.block, sizes.largest, sizes.head)
        own = [p.numel() for p in adapted.parameters() if p.requires_grad]
        per_block = [sum(p.numel() for p in block.parameters() if p.requires_grad) for block in blocks(adapted)]
        return cls(sum(own), max(per_block), max(own), 0)


@dataclass(frozen=True)
class DeviceBytes:
    """Bytes on one rank's device when most is alive: while it learns, or while it compares with a reference that is read for that alone.
    The first rank's: it evaluates as well."""

    weights: int
    gradients: int
    optimizer: int
    reference: int
    gathered: int
    """Layers whole, of which every rank has a part, and their gradients."""
    activations: int
    logits: int
    generation: int
    """Of a training on one machine, which makes its own rollouts."""
    evaluation: int
    libraries: int

    @property
    def total(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True)
class HostBytes:
    """Bytes in one machine's memory; on a CPU beside what is its ranks' device."""

    optimizer: int
    reference: int
    version: int
    """The copy in bfloat16 that is published while the next step is computed."""
    saving: int
    """A file of a checkpoint for each rank, put together before it is written, and its tensors."""
    engines: int
    """What generates or evaluates on the CPU of a machine that trains on GPUs; the first machine's."""

    @property
    def total(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True)
class Budget:
    device: DeviceBytes
    host: HostBytes
    machines: Machines
    tokens: int
    """That go through the model at once."""
    adapters: int
    """Parameters of adapters, which are trained in place of the weights; 0: there are none."""
    moments: str
    """Type of the optimizer's."""
    engines_work: bool
    """Whether what generates and evaluates may take as much as the weights and one answer of the greatest length do."""

    @property
    def device_room(self) -> int:
        return int(self.machines.memory * (1 - SPARE))

    @property
    def host_needed(self) -> int:
        """All that lies in a machine's memory: on a CPU the ranks' own as well."""
        return self.host.total + (self.device.total * self.machines.per_machine if self.machines.on_cpu else 0)

    @property
    def host_room(self) -> int:
        return int(self.machines.host * (1 - SPARE))

    @property
    def fits(self) -> bool:
        return self.device.total <= self.device_room and self.host_needed <= self.host_room


@dataclass(frozen=True)
class EngineBytes:
    """What an engine takes of the first rank's device or of its machine's memory, and whether that is enough to work in."""

    device: int = 0
    host: int = 0
    works: bool = True

    @property
    def total(self) -> int:
        """0 for an engine on a GPU that trains nothing."""
        return self.device + self.host


class Budgets:
    """Budgets of one model under different settings; what a pass takes is measured once for those that decide on it."""

    def __init__(self, folder: Path, work: Work, engines: Engines, machines: Machines, *, least: int = 0) -> None:
        """`folder` needs no more than config.json. `least`: bytes that an engine works in (`NodeBytes`); 0: not known, any are enough."""
        self._folder = folder
        self._work = work
        self.engines = engines
        self.machines = machines
        self.least = least
        self._passes: dict[tuple[Any, ...], Pass] = {}
        self._trained: dict[int, Trained] = {}
        self.sizes = Sizes.of(meta_model(folder, torch.float32))

    @property
    def longest(self) -> int:
        """Tokens of the longest sample: no row can be narrower."""
        return self._work.prompt + self._work.completion

    def on(self, machines: Machines) -> Budgets:
        """The same elsewhere."""
        other = copy(self)
        other.machines = machines
        return other

    def budget(
        self, s: TrainSettings, *, evaluates_on: str | None = None, evaluates_in: str | None = None, generates_in: str | None = None
    ) -> Budget:  # fmt: skip
        """What settings take; `evaluates_on` instead of `evaluation.engine.device`, `evaluates_in` and `generates_in` instead of the
        `memory` there and of [engine]."""
        m, n, t, engines = self.machines, self.sizes, self.trained(s), self.engines
        one = self._pass(s)
        part = -(-t.all // m.ranks)
        layer = 2 if s.compute_dtype == "bfloat16" else 4
        offload = s.optimizer.offload and not m.on_cpu
        moments = 2 * (2 if s.optimizer.moments == "bfloat16" else 4)
        reference = s.kl.reference if s.kl.weight and not s.lora_rank else None  # under adapters it is there anyway
        # In a group layers that are never updated are kept as they are gathered; alone on a CPU they are float32.
        frozen = ((n.all - n.outside) * (layer if m.sharded else 4) + n.outside * 4) // m.ranks
        beside = reference == "device" or (reference == "host" and m.on_cpu)
        generates = self.engine(engines.generates, memory_of=generates_in) if engines.generates else EngineBytes()
        evaluates = self.engine(engines.evaluates, evaluates_on, memory_of=evaluates_in)
        learning = DeviceBytes(
            weights=4 * part + (frozen if s.lora_rank else 0),
            gradients=4 * (part - self._rows_without_gradient(s, t) + self._looked_up(t, one.tokens)),
            optimizer=moments * (-(-t.largest // m.ranks) if offload else part),
            reference=frozen if beside else 0,
            gathered=self._gathered(layer, t, adapts=bool(s.lora_rank)),
            activations=max(0, one.most - one.logits),
            logits=one.logits,
            generation=generates.device,
            evaluation=evaluates.device,
            libraries=0 if m.on_cpu else LIBRARIES,
        )
        device = learning
        if reference == "disk":  # it is there before the first gradients are
            preparing = replace(
                learning, gradients=0, optimizer=0 if offload else learning.optimizer, reference=frozen,
                activations=one.frozen, logits=0,
            )  # fmt: skip
            device = max(learning, preparing, key=lambda at: at.total)
        per = m.per_machine
        saved = min((4 + moments) * part, FILE_BYTES)
        host = HostBytes(
            optimizer=moments * part * per if offload else 0,
            reference=frozen * per if reference == "host" and not m.on_cpu else 0,
            version=2 * n.all,
            saving=per * saved * (1 if m.on_cpu else 2),
            engines=generates.host + evaluates.host,
        )
        adapters, work = t.all if s.lora_rank else 0, generates.works and evaluates.works
        return Budget(device, host, m, one.tokens, adapters, s.optimizer.moments, work)

    def trained(self, s: TrainSettings) -> Trained:
        """What settings leave to be trained. Raises ConfigError for adapters that this model cannot have."""
        adapters = Adapters.of(s)
        if adapters is None:
            return Trained.of(self.sizes, None)
        if adapters.rank not in self._trained:
            model = meta_model(self._folder, torch.float32)
            adapters.attach(model)
            self._trained[adapters.rank] = Trained.of(self.sizes, model)
        return self._trained[adapters.rank]

    def _rows_without_gradient(self, s: TrainSettings, t: Trained) -> int:
        """Numbers of an embedding of its own whose rows no token of an optimizer step looks up, where they have no gradient; taken is that
        all its tokens are different ones, as far as there are."""
        return max(0, t.head - self._work.update(s) * self.sizes.hidden) if self._looks_up_sparsely(t) else 0

    def _looked_up(self, t: Trained, tokens: int) -> int:
        """Numbers of a pass's own gradient of it, a row for each token, before they are added."""
        return tokens * self.sizes.hidden if self._looks_up_sparsely(t) else 0

    def _looks_up_sparsely(self, t: Trained) -> bool:
        """As learning/gradients.py does: with an embedding of its own, on a CPU that shares nothing."""
        return not self.machines.sharded and self.machines.on_cpu and bool(t.head)

    def _gathered(self, layer: int, t: Trained, *, adapts: bool) -> int:
        """The outermost parameters whole, two blocks (the next is fetched early), and the gradients of one of each, with the copy that
        is summed over ranks. An output layer's own gradient waits for the embedding's; where they are one, the pass has it."""
        n = self.sizes
        if not self.machines.sharded:
            return 0
        block = n.block + (t.block if adapts else 0)
        return 4 * n.outside + 4 * t.head + layer * 2 * block + (layer + 4) * t.block

    def engine(
        self, engine: EngineSettings, elsewhere: str | None = None, *, memory_of: str | None = None
    ) -> EngineBytes:
        """What an engine may take: nothing of a GPU that no rank of the machine has. `elsewhere` instead of its own device, `memory_of`
        instead of its own memory."""
        m, device = self.machines, elsewhere or engine.device
        kind, _, number = device.partition(":")
        on_cpu = device == "cpu" or (device == "auto" and m.on_cpu)
        takes = memory.parse(memory_of or engine.memory, m.host if on_cpu else m.memory)
        works = takes * engine.tensor_parallel >= self.least
        if on_cpu != m.on_cpu:
            return EngineBytes(host=takes if on_cpu else 0, works=works)
        unused = kind == "cuda" and int(number or 0) >= m.per_machine
        return EngineBytes(device=0 if unused else takes, works=works)

    def _pass(self, s: TrainSettings) -> Pass:
        key = (s.compute_dtype, s.activation_checkpointing, s.pack_tokens, s.rows_per_forward, s.lora_rank)
        if key not in self._passes:
            model = meta_model(self._folder, torch.float32)
            self._passes[key] = measure(
                model, s, self._work, on_cpu=self.machines.on_cpu, alone=not self.machines.sharded
            )
        return self._passes[key]


@dataclass(frozen=True)
class NodeBytes:
    """Bytes that a contributor's engine takes: weights, and the cache of one answer of the greatest length, with what is beside it."""

    weights: int
    answer: int
    answers: int
    """In one submission."""
    least: int
    """In which an engine works at all: weights, one such answer, and the prefill of its prompt."""

    @classmethod
    def of(cls, folder: Path, dtype: str, work: Work, answers: int) -> NodeBytes:
        took = footprint.of(meta_model(folder, getattr(torch, dtype)), META)
        answer = took.decoding(work.prompt + work.completion)
        least = took.weights + answer + took.prefilling(work.prompt, work.prompt, cached=True)
        return cls(took.weights, answer, answers, least)

    def at_once(self, room: int) -> int:
        """Answers of the greatest length that are decoded at once in so many bytes."""
        return max(0, (room - self.weights) // self.answer)
