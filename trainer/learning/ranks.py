"""The processes that train one model together, as torchrun starts them, and what they tell each other.

    torchrun --nproc-per-node 4 --no-python murmur trainer run @run.toml

The model is sharded by FSDP2 over all of them; every rank holds the whole batch, and the shares of its optimizer steps are
dealt out by cost. Without torchrun there is one rank, which talks to nobody; on a CPU nothing is sharded then.

No call here has a deadline of its own: the phase it belongs to has one, and the watchdog ends a rank that waits beyond it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_AGES = timedelta(days=365)  # longer than any phase: see above


@dataclass(frozen=True)
class Ranks:
    """`device` is where this rank computes; `mesh` is None when it is alone."""

    rank: int
    size: int
    device: torch.device
    mesh: DeviceMesh | None = None

    @classmethod
    def alone(cls, device: torch.device | None = None) -> Ranks:
        return cls(0, 1, device or torch.device("cpu"))

    @property
    def leads(self) -> bool:
        return self.rank == 0

    @property
    def offloads(self) -> bool:
        """Whether host memory is another one than the device's."""
        return self.mesh is not None and self.device.type == "cuda"

    def shard(self, net: nn.Module, compute: torch.dtype = torch.float32, *, on_host: bool = False) -> nn.Module:
        """Shards a module by its transformer blocks, or leaves it whole where this rank is alone; it lies where it lay.

        Blocks are gathered and computed in `compute`; embedding, last norm and head in their own type. Gradients are summed over
        ranks, in float32. `on_host`: the shards stay in host memory, and each block is brought to the device for as long as it computes.
        """
        if self.mesh is None:
            return net
        from torch.distributed.fsdp import (
            CPUOffloadPolicy,
            FSDPModule,
            MixedPrecisionPolicy,
            OffloadPolicy,
            fully_shard,
        )

        offload = CPUOffloadPolicy() if on_host else OffloadPolicy()
        mixed = MixedPrecisionPolicy(compute, torch.float32)
        for block in (*blocks(net), net):
            # Also the outermost: what it gathered for a look without gradient would be out of date after the next update.
            policy = MixedPrecisionPolicy() if block is net or compute == torch.float32 else mixed
            sharded: FSDPModule = fully_shard(
                block, mesh=self.mesh, reshard_after_forward=True, mp_policy=policy, offload_policy=offload
            )
            sharded.set_gradient_divide_factor(1.0)
            sharded.set_force_sum_reduction_for_comms(True)  # the only sum that gloo knows
        return net

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sums over all ranks, the same on each."""
        if self.size == 1:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(sums)
        return [float(value) for value in sums]

    def share(self, tensor: Tensor | None, count: int, owner: int) -> Tensor:
        """The `count` float32 that `owner` has in `tensor`, on every rank."""
        if self.size == 1:
            assert tensor is not None
            return tensor
        held = torch.empty(count) if tensor is None else tensor.detach().float().cpu().contiguous()
        dist.broadcast(held, owner)
        return held.to(self.device)

    def tell(self, message: bytes | None = None) -> bytes:
        """What rank 0 says: it passes the bytes, the others nothing."""
        length = torch.tensor([len(message or b"")])
        dist.broadcast(length, 0)
        said = (
            torch.frombuffer(bytearray(message), dtype=torch.uint8)
            if message
            else torch.empty(int(length), dtype=torch.uint8)
        )
        if len(said):
            dist.broadcast(said, 0)
        return said.numpy().tobytes()


def started_many() -> bool:
    """Whether torchrun started this process beside others."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def torchrun() -> Iterator[Ranks]:
    """The ranks this process is started among: by torchrun's variables, or alone."""
    device = (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if torch.cuda.is_available()
        else torch.device("cpu")
    )
    alone = not started_many()
    if alone and device.type == "cpu":
        yield Ranks.alone(device)
        return
    with group(device, alone=alone) as ranks:
        yield ranks


@contextmanager
def group(device: torch.device, *, alone: bool = False) -> Iterator[Ranks]:
    """A group of ranks and their mesh. One that is alone is a group too where its device is a GPU: what saves memory, types of its own for
    the layers and shards on the host, is FSDP2's."""
    from torch.distributed.device_mesh import init_device_mesh

    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if alone:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=_AGES)
    else:
        dist.init_process_group(backend, timeout=_AGES)
    try:
        size = dist.get_world_size()
        yield Ranks(dist.get_rank(), size, device, init_device_mesh(device.type, (size,)))
    finally:
        dist.destroy_process_group()


def gathered(tensor: Tensor) -> Tensor:
    """A tensor whole, wherever its shards are; every rank has to ask."""
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def own_rows(tensor: Tensor) -> tuple[Tensor, int]:
    """This rank's part of a tensor, and the index of its first row: FSDP2 shards rows, as many as there are to each rank but the last."""
    from torch.distributed.tensor import DTensor

    if not isinstance(tensor, DTensor):
        return tensor, 0
    each = -(-tensor.shape[0] // tensor.device_mesh.size())
    return tensor.to_local(), min(tensor.shape[0], each * tensor.device_mesh.get_local_rank())


def everywhere(tensor: Tensor) -> Tensor:
    """A tensor whole on every rank, in such a form that shards of others can be multiplied with it; every rank has to ask."""
    from torch.distributed.tensor import DTensor, Replicate

    return tensor.redistribute(placements=[Replicate()]) if isinstance(tensor, DTensor) else tensor


def deal(costs: Sequence[float], ranks: int) -> list[list[int]]:
    """Indices for each rank: all get the same number but for what is missing at the end, and about the same cost."""
    room = -(-len(costs) // ranks)
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    load = [0.0] * ranks
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        rank = min((r for r in range(ranks) if len(dealt[r]) < room), key=lambda r: load[r])
        dealt[rank].append(i)
        load[rank] += costs[i]
    return [sorted(own) for own in dealt]


def blocks(net: nn.Module) -> list[nn.Module]:
    """The modules that a transformers model says must not be split."""
    names: set[str] = set()
    for module in net.modules():
        names |= set(getattr(module, "_no_split_modules", None) or ())
    return [module for module in net.modules() if type(module).__name__ in names]


def round_layers(net: nn.Module, to: torch.dtype) -> None:
    """Makes the parameters of the blocks ones of another type."""
    for block in blocks(net):
        for parameter in block.parameters():
            parameter.data = parameter.data.to(to)


def is_finite(gradients: Sequence[Any]) -> bool:
    """Whether all shards of all gradients are, on this rank."""
    from torch.distributed.tensor import DTensor

    local = (g.to_local() if isinstance(g, DTensor) else g for g in gradients)
    return all(bool(torch.isfinite(gradient).all()) for gradient in local)
