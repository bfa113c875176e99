"""The rollout file: what a node uploads for one submission. One Parquet row per sample, groups in order.

A header (canonical JSON under the key "murmuration" of the Parquet metadata) names run, node, step, sequence, beacon and
spec, so that a file can be judged alone. Pages are PLAIN, without dictionaries, under any codec: what they expand to is what
they declare (protocol/parquet_footer.py). Writing is for one's own work. Reading a stranger's file happens in the bounded
child of protocol/sandbox only, because a Parquet decoder is a large surface.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol import canonical
from protocol.errors import Malformed

METADATA_KEY = b"murmuration"
_HEADER_BYTES_MAX = 4096


@dataclass(frozen=True)
class Header:
    """`beacon` and `spec` (the spec digest) are 64 hex digits, `node` a checksummed address."""

    protocol: int
    chain_id: int
    contract: str
    run: int
    node: str
    step: int
    sequence: int
    beacon: str
    spec: str
    hardware: int

    def encode(self) -> bytes:
        return canonical.encode(asdict(self))

    @classmethod
    def parse(cls, data: bytes) -> Header:
        """Raises Malformed for any key, type or size that is not exactly the header's."""
        value = canonical.decode(data, cap=_HEADER_BYTES_MAX, what="rollout header")
        expected = {name: field.type for name, field in cls.__dataclass_fields__.items()}
        if not isinstance(value, dict) or set(value) != set(expected):
            raise Malformed("rollout header has other keys than it should")
        for name, kind in expected.items():
            if type(value[name]).__name__ != kind:
                raise Malformed(f"rollout header: {name} is {type(value[name]).__name__}, not {kind}")
        return cls(**value)


@dataclass(frozen=True)
class Sample:
    """One row. Token arrays are int32, `logprobs` float32 at temperature 1, `proofs` TOPLOC proofs of the completion."""

    group: int
    sample: int
    problem: int
    budget: int
    prompt: NDArray[np.int32]
    completion: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    proofs: tuple[bytes, ...]
    task_reward: float
    length_penalty: float
    reward: float


@dataclass(frozen=True)
class RolloutFile:
    header: Header
    samples: tuple[Sample, ...]

    @property
    def units(self) -> int:
        """What a submission claims: its completion tokens."""
        return sum(len(sample.completion) for sample in self.samples)


def schema() -> Any:
    """The exact Arrow schema, without metadata."""
    import pyarrow as pa

    def column(name: str, kind: pa.DataType) -> pa.Field:
        return pa.field(name, kind, nullable=False)

    def many(kind: pa.DataType) -> pa.DataType:
        return pa.list_(pa.field("element", kind, nullable=False))

    return pa.schema(
        [
            column("group", pa.int32()),
            column("sample", pa.int32()),
            column("problem", pa.int64()),
            column("budget", pa.int32()),
            column("prompt", many(pa.int32())),
            column("completion", many(pa.int32())),
            column("logprobs", many(pa.float32())),
            column("proofs", many(pa.binary())),
            column("task_reward", pa.float32()),
            column("length_penalty", pa.float32()),
            column("reward", pa.float32()),
        ]
    )


def write(file: RolloutFile, path: Path) -> None:
    """Writes a rollout file of one's own."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    layout = schema()
    columns = {name: [getattr(sample, name) for sample in file.samples] for name in layout.names}
    table = pa.table(columns, schema=layout.with_metadata({METADATA_KEY: file.header.encode()}))
    # No statistics and no dictionaries: nothing a reader would have to trust or blow up.
    pq.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)


def from_columns(header: Header, columns: dict[str, Sequence[Any]]) -> RolloutFile:
    """Rows from columns of equal length, as the sandbox returns them."""
    rows = zip(*(columns[name] for name in Sample.__dataclass_fields__), strict=True)
    return RolloutFile(header, tuple(Sample(*row) for row in rows))
