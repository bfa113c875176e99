"""Copies within the cache of keys and values (kv_cache.py) on a CPU. Numbers are passed as integers of their size, whatever their type.

Shapes: R rows of the store, B those in use, H heads, N tokens of a block, D head size; M rows that are named.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from node.engine.compiled import compiled

_Bits = NDArray[Any]
_Indices = NDArray[np.int64]

_SIZES = ("i2[:, :, :, ::1]", "i4[:, :, :, ::1]")


@compiled(*(f"void({of}, {of}, i8[::1], i8[::1], {of}, {of})" for of in _SIZES))
def write(
    keys_RHND: _Bits,
    values_RHND: _Bits,
    rows_M: _Indices,
    places_M: _Indices,
    new_keys_BH1D: _Bits,
    new_values_BH1D: _Bits,
) -> None:
    """The newest token of each of these rows goes to its place."""
    for i in range(len(rows_M)):
        row, place = rows_M[i], places_M[i]
        for head in range(keys_RHND.shape[1]):
            for d in range(keys_RHND.shape[3]):
                keys_RHND[row, head, place, d] = new_keys_BH1D[row, head, 0, d]
            for d in range(values_RHND.shape[3]):
                values_RHND[row, head, place, d] = new_values_BH1D[row, head, 0, d]


@compiled(*(f"void({of}, i8[::1], i8[::1], i8[::1])" for of in _SIZES))
def move(store_RHND: _Bits, to_M: _Indices, from_M: _Indices, tokens_M: _Indices) -> None:
    """So many tokens of rows go to other rows, one after the other: a row that is overwritten has been read, or is not asked for."""
    _, heads, _, size = store_RHND.shape
    for i in range(len(to_M)):
        to, source = to_M[i], from_M[i]
        for head in range(heads):
            for n in range(tokens_M[i]):
                for d in range(size):
                    store_RHND[to, head, n, d] = store_RHND[source, head, n, d]
