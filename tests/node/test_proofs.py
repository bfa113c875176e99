"""Proofs as rows appear: the bytes of protocol/toploc.py, whatever the device, the type and the order in which rows came."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from swarm.tiny_run import TinyRun
from torch import Tensor

from node.engine.proofs import ProofFolder, bits, largest, largest_on_device
from node.engine.torch_engine import TorchEngine
from node.judging.rules import computation
from protocol import toploc
from protocol.constants import TOPLOC_CHUNK, TOPLOC_K
from protocol.errors import IntegrityError

TYPES = [torch.float32, torch.float16, torch.bfloat16]
HIDDEN = 48

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no NVIDIA GPU here")


def fold(states: list[Tensor], device: str = "cpu") -> list[list[bytes]]:
    """Proofs of sequences [T, H] that are decoded side by side and end one after the other."""
    proofs: list[list[bytes]] = [[] for _ in states]
    folder = ProofFolder(proofs, states[0].shape[1], torch.device(device))
    for position in range(max(map(len, states))):
        rows = [i for i, rows in enumerate(states) if position < len(rows)]
        folder.add(torch.tensor(rows), torch.stack([states[i][position] for i in rows]).to(device))
        folder.close([i for i in rows if position + 1 == len(states[i])])
    folder.finish()
    return proofs


def states(lengths: list[int], dtype: torch.dtype = torch.float32, hidden: int = HIDDEN) -> list[Tensor]:
    torch.manual_seed(len(lengths))
    return [(3 * torch.randn(n, hidden)).to(dtype) for n in lengths]


# ---- folding -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_folded_proofs_are_those_of_whole_sequences(dtype: torch.dtype) -> None:
    whole = states([1, 31, 32, 33, 63, 64, 65, 100, 1, 96], dtype)
    assert fold(whole) == toploc.prove([bits(rows) for rows in whole])


def test_more_sequences_than_a_batch_fold_to_the_same() -> None:
    whole = states([32] * 70 + [7] * 40)
    assert fold(whole) == toploc.prove([bits(rows) for rows in whole])


def test_all_proofs_are_there_when_the_thread_falls_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.engine.proofs._BATCHES_WAITING", 1)
    whole = states([320, 320, 300])
    assert fold(whole) == toploc.prove([bits(rows) for rows in whole])


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf"), 3.4e38])
@pytest.mark.parametrize("position", [0, 40])
def test_states_that_are_no_numbers_are_an_error_to_the_prover(odd: float, position: int) -> None:
    whole = states([50, 50])
    whole[1][position, -1] = odd
    with pytest.raises(ValueError, match="NaN or infinity"):
        fold(whole)


def test_memory_does_not_grow_with_the_length_of_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.engine.proofs._BATCHES_WAITING", 4)

    def held(length: int) -> int:
        """Numbers in all tensors alive after so many rows."""
        folder = ProofFolder([[], []], HIDDEN, torch.device("cpu"))
        for _ in range(length):
            folder.add(torch.arange(2), torch.randn(2, HIDDEN))
        gc.collect()
        numbers = sum(found.numel() for found in gc.get_objects() if type(found) is Tensor)
        assert len(folder._waiting) <= 4
        folder.finish()
        return numbers

    assert held(40 * TOPLOC_CHUNK + 5) == held(TOPLOC_CHUNK + 5)


# ---- the largest, in torch ---------------------------------------------------------------------------------------------


def tied(shape: tuple[int, int]) -> Tensor:
    return torch.randint(-2, 3, shape).float()


def constant(shape: tuple[int, int]) -> Tensor:
    return torch.full(shape, -1.5)


def zeros_of_both_signs(shape: tuple[int, int]) -> Tensor:
    return torch.zeros(shape) * torch.randn(shape).sign()


def one_large_column(shape: tuple[int, int]) -> Tensor:
    values = torch.randn(shape)
    values[:, :: shape[1] // 16] *= 1000
    return values


def ties_at_the_end(shape: tuple[int, int]) -> Tensor:
    """One less than k stand out, the last of k is one of many equal ones, all in the second half."""
    values = torch.rand(shape) * 0.5
    values[:, shape[1] // 2 :] = 1
    values[:, -(TOPLOC_K - 1) :] = -2
    return values


DATA = [torch.randn, tied, constant, zeros_of_both_signs, one_large_column, ties_at_the_end]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("size", [TOPLOC_K - 1, TOPLOC_K, 1000, 32 * 96, 32 * 1024 + 7])
@pytest.mark.parametrize("make", DATA, ids=lambda make: make.__name__)
def test_the_largest_in_torch_are_the_largest_in_numpy(
    make: Callable[[tuple[int, int]], Tensor], size: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(size)
    chunks = make((3, size)).to(dtype).to(torch.bfloat16)
    expected, patterns = toploc.largest(bits(chunks))
    for indices, values in (largest_on_device(chunks), largest(chunks)):
        assert (indices == expected).all()
        assert (values == patterns).all()


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("make", DATA, ids=lambda make: make.__name__)
def test_a_gpu_finds_the_same_largest(make: Callable[[tuple[int, int]], Tensor], dtype: torch.dtype) -> None:
    chunks = make((3, 32 * 1024)).to(dtype).to(torch.bfloat16)
    expected, patterns = toploc.largest(bits(chunks))
    indices, values = largest(chunks.cuda())
    assert (indices == expected).all()
    assert (values == patterns).all()


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_gpu_folds_to_the_same_proofs(dtype: torch.dtype) -> None:
    whole = states([1, 31, 32, 33, 100], dtype, hidden=4096)
    assert fold(whole, "cuda") == toploc.prove([bits(rows) for rows in whole])
    assert (bits(whole[4].cuda()) == bits(whole[4])).all()


# ---- bf16 patterns -----------------------------------------------------------------------------------------------------


def test_bits_are_the_same_whatever_the_layout() -> None:
    plain = torch.randn(8, 16)
    expected = toploc.bf16_bits(plain.numpy())
    assert (bits(plain) == expected).all()
    assert (bits(plain.t().contiguous().t()) == expected).all()
    assert (bits(torch.cat([plain, plain], 1)[:, :16]) == expected).all()


def test_bits_round_other_types_to_bf16() -> None:
    half = torch.randn(4, 8).to(torch.float16)
    assert (bits(half) == toploc.bf16_bits(half.float().numpy())).all()
    assert (bits(half.double()) == bits(half)).all()


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf"), 3.4e38])
def test_no_proof_is_made_of_what_is_no_number(odd: float) -> None:
    with pytest.raises(ValueError, match="NaN or infinity"):
        toploc.prove([bits(torch.tensor([[1.0, odd]]))])


def test_a_validator_whose_own_states_are_no_numbers_blames_itself(tiny_run: TinyRun) -> None:
    """Nobody is judged by a prefill that went wrong."""
    broken = TorchEngine("float32")
    broken.load(tiny_run.model)
    with torch.no_grad():
        broken._model.base_model.norm.weight[-1] = float("nan")
    candidate = tiny_run.candidate(tiny_run.honest())
    assert computation.check(candidate) is None
    with pytest.raises(IntegrityError, match="own prefill is broken"):
        computation.check(replace(tiny_run.candidate(tiny_run.honest()), engine=broken))
