"""Proofs made on a GPU are those of protocol/toploc.py, byte by byte."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from node.engine.proofs import bits, largest_on_device
from protocol import toploc
from tests.node.chunks import DATA, TYPES, fold, states


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("make", DATA, ids=lambda make: make.__name__)
def test_a_gpu_finds_the_same_largest(
    make: Callable[[tuple[int, int]], Tensor], dtype: torch.dtype, gpu: torch.device
) -> None:
    torch.manual_seed(0)
    chunks = make((3, 32 * 1024)).to(dtype).to(torch.bfloat16)
    expected, patterns = toploc.largest(bits(chunks))
    indices, values = largest_on_device(chunks.to(gpu))
    assert (indices == expected).all()
    assert (values == patterns).all()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_gpu_folds_to_the_same_proofs(dtype: torch.dtype, gpu: torch.device) -> None:
    whole = states([1, 31, 32, 33, 100], dtype, hidden=4096)
    assert fold(whole, str(gpu)) == toploc.prove([bits(rows) for rows in whole])
    assert (bits(whole[4].to(gpu)) == bits(whole[4])).all()
