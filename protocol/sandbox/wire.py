"""Messages between a service and its sandbox child: a JSON head, then raw little-endian arrays.

    u32 length of the head ‖ head (JSON) ‖ arrays, in the order and with the types and lengths the head's "arrays" names

Both sides bound what they read. Nested lists travel as flat values and offsets, as Arrow holds them.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.canonical import parse
from protocol.errors import Malformed

Arrays = dict[str, NDArray[Any]]

HEAD_BYTES_MAX = 64 << 20
_TYPES = {"int32": np.int32, "int64": np.int64, "float32": np.float32, "uint8": np.uint8}


class WireError(Exception):
    """The other side sent something that is no message."""


def encode(head: dict[str, Any], arrays: Arrays | None = None) -> bytes:
    return b"".join(pieces(head, arrays or {}))


def pieces(head: dict[str, Any], arrays: Arrays) -> list[bytes | memoryview]:
    """A message in parts to be written one after another; those of arrays are views, not copies."""
    head = {**head, "arrays": [[name, array.dtype.name, len(array)] for name, array in arrays.items()]}
    text = json.dumps(head).encode()
    bodies = [np.ascontiguousarray(array).data for array in arrays.values()]
    return [struct.pack(">I", len(text)), text, *(body.cast("B") for body in bodies if body.nbytes)]


def read(receive: Callable[[int], bytes | bytearray], *, cap: int) -> tuple[dict[str, Any], Arrays]:
    """Reads one message with `receive(n)`, which returns exactly n bytes or raises. `cap` bounds all arrays together."""
    (size,) = struct.unpack(">I", receive(4))
    if size > HEAD_BYTES_MAX:
        raise WireError(f"head of {size} bytes")
    try:
        head = parse(bytes(receive(size)), "head")
        wanted = [(str(name), _TYPES[kind], int(length)) for name, kind, length in head.pop("arrays")]
    except (Malformed, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WireError(f"head cannot be read: {error}") from error
    if any(length < 0 for _, _, length in wanted):
        raise WireError("negative length")
    if sum(length * np.dtype(kind).itemsize for _, kind, length in wanted) > cap:
        raise WireError(f"more than {cap} bytes of arrays")
    arrays = {}
    for name, kind, length in wanted:
        arrays[name] = np.frombuffer(receive(length * np.dtype(kind).itemsize), kind)
    return head, arrays


def split(values: NDArray[Any], offsets: NDArray[np.int64], rows: int) -> list[NDArray[Any]]:
    """The rows of a flattened list column. Raises WireError for offsets that are not those of `rows` rows."""
    if len(offsets) != rows + 1 or offsets[0] != 0 or offsets[-1] != len(values) or (np.diff(offsets) < 0).any():
        raise WireError("offsets do not fit their values")
    return [values[start:end] for start, end in itertools.pairwise(offsets)]
