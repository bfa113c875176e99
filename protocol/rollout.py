"""The rollout file: what a node uploads for one submission. One Parquet row per sample, groups in order.

A header (canonical JSON under the key "murmuration" of the Parquet metadata) names the file's version and proofs, and run, node,
step, sequence, beacon and spec, so that a file can be judged alone. Pages are PLAIN, without dictionaries, under any codec: what
they expand to is what they declare (protocol/parquet_footer.py). Writing is for one's own work. Reading a stranger's file
happens in the bounded child of protocol/sandbox only, because a Parquet decoder is a large surface.

Columns; what turns are and what follows from them, protocol/turns.py says:

    group, sample, problem, budget             which sample this is: its place, its problem, its length budget (0: none)
    prompt, completion                         token ids of the prompt, and all that the model generated, turn after turn
    logprobs                                   of each generated token at temperature 1; the column is there where the spec asks for it
    proofs                                     of all chunks, turn after turn
    turns, answers, given                      empty for a single turn; else how many tokens each turn but the last has, how many the
                                               answer to it has, and the token ids of all answers
    calls                                      what the answers stand for: tool calls, each as canonical JSON
    task_reward, length_penalty, reward

Vectors: tests/vectors/turns.json, rollout_header.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from protocol import canonical
from protocol.constants import BUILD_CHARS_MAX, PROTOCOL_VERSION
from protocol.errors import Malformed, ProtocolViolation, UnknownVersion
from protocol.turns import Turns

VERSION: Final = 1
"""Version of the file's form. Changing it breaks: programs that know only earlier ones accept no work."""

PROOFS: Final = ("toploc/1",)
"""Proof schemes and their versions that this program can check."""
METADATA_KEY = b"murmuration"
_HEADER_BYTES_MAX = 4096
_CALL_BYTES_MAX = 1 << 16


@dataclass(frozen=True)
class Header:
    """`proof` is one of PROOFS; `beacon` and `spec` (the spec digest) are 64 hex digits, `node` a checksummed address.

    `build`: that of the engine (node/engine/build.py), in printable ASCII, where the run compares bits. Left out where it is empty, so that other runs'
    files are what they were.
    """

    proof: str
    chain_id: int
    contract: str
    run: int
    node: str
    step: int
    sequence: int
    beacon: str
    spec: str
    hardware: int
    version: int = VERSION
    protocol: int = PROTOCOL_VERSION
    build: str = ""

    def encode(self) -> bytes:
        return canonical.encode({name: value for name, value in asdict(self).items() if name != "build" or value})

    @classmethod
    def parse(cls, data: bytes) -> Header:
        """Raises UnknownVersion as `require_known`, Malformed for any key, type or size that is not exactly the header's."""
        value = require_known(data)
        expected = {name: field.type for name, field in cls.__dataclass_fields__.items()}
        if not isinstance(value, dict) or set(value) | {"build"} != set(expected):
            raise Malformed("rollout header has other keys than it should")
        for name, kind in expected.items():
            if name in value and type(value[name]).__name__ != kind:
                raise Malformed(f"rollout header: {name} is {type(value[name]).__name__}, not {kind}")
        build = value.get("build", "-")
        if not (0 < len(build) <= BUILD_CHARS_MAX and build.isascii() and build.isprintable()):
            raise Malformed("rollout header: build is no line of text, or too long")
        return cls(**value)


def require_known(header: bytes) -> Any:
    """The decoded header of a file of this version. Raises UnknownVersion for a version of files, or of proofs, that this program
    does not know, whatever else it says, and Malformed where it names none."""
    value = canonical.decode(header, cap=_HEADER_BYTES_MAX, what="rollout header")
    version = value.get("version") if isinstance(value, dict) else None
    if type(version) is not int:
        raise Malformed("rollout header: version is missing or no number")
    if version != VERSION:
        raise UnknownVersion(f"the rollout file has version {version}, this program reads version {VERSION}")
    proof = value.get("proof")
    if not isinstance(proof, str):
        raise Malformed("rollout header: proof is missing or no text")
    if proof not in PROOFS:
        raise UnknownVersion(f"the rollout file has proofs {proof[:40]!r}, this program checks {', '.join(PROOFS)}")
    return value


@dataclass(frozen=True)
class ToolCall:
    """One use of a tool: the turn that asked for it, the tool's name, what it was given and what it gave back, as text."""

    turn: int
    tool: str
    arguments: str
    result: str

    def encode(self) -> bytes:
        return canonical.encode(asdict(self))

    @classmethod
    def parse(cls, data: bytes) -> ToolCall:
        """Raises Malformed."""
        value = canonical.decode(data, cap=_CALL_BYTES_MAX, what="tool call")
        kinds = {"turn": int, "tool": str, "arguments": str, "result": str}
        if not isinstance(value, dict) or {name: type(of) for name, of in value.items()} != kinds:
            raise Malformed("a tool call has other keys or types than it should")
        return cls(**value)


@dataclass(frozen=True)
class ToolResult:
    """What an environment says to a turn: the text that the model sees next, and the tool calls that it comes from."""

    text: str
    calls: tuple[ToolCall, ...] = ()


def _nothing() -> NDArray[np.int32]:
    return np.zeros(0, np.int32)


@dataclass(frozen=True)
class Sample:
    """One row. Token arrays are int32, `logprobs` float32 at temperature 1 (None where the file has none), `proofs` TOPLOC proofs
    of the completion. The last four are empty for a single turn."""

    group: int
    sample: int
    problem: int
    budget: int
    prompt: NDArray[np.int32]
    completion: NDArray[np.int32]
    logprobs: NDArray[np.float32] | None
    proofs: tuple[bytes, ...]
    task_reward: float
    length_penalty: float
    reward: float
    turns: NDArray[np.int32] = field(default_factory=_nothing)
    answers: NDArray[np.int32] = field(default_factory=_nothing)
    given: NDArray[np.int32] = field(default_factory=_nothing)
    calls: tuple[bytes, ...] = ()

    @cached_property
    def conversation(self) -> Turns:
        """How its turns and their answers alternate. Raises Malformed where they do not fit together."""
        return Turns.of(len(self.completion), self.turns.tolist(), self.answers.tolist(), len(self.given))

    @property
    def context(self) -> NDArray[np.int32]:
        """The tokens after the prompt as the model saw them: generated and given ones."""
        return self.conversation.woven(self.completion, self.given)

    @cached_property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Raises Malformed, also for calls that are out of order or of a turn without an answer."""
        if self.calls and not len(self.answers):
            raise Malformed("tool calls without an answer")
        calls = tuple(ToolCall.parse(call) for call in self.calls)
        asked = [call.turn for call in calls]
        if asked != sorted(asked) or any(not 0 <= turn < len(self.answers) for turn in asked):
            raise Malformed("tool calls are out of order, or of turns that nothing answers")
        return calls


@dataclass(frozen=True)
class RolloutFile:
    header: Header
    samples: tuple[Sample, ...]

    @property
    def units(self) -> int:
        """What a submission claims: the tokens that the model generated."""
        return sum(len(sample.completion) for sample in self.samples)


@dataclass(frozen=True)
class Column:
    """`kind`: int32, int64, float32 or binary, of the values or of a list's entries."""

    name: str
    kind: str
    is_list: bool = False


_COLUMNS = (
    Column("group", "int32"),
    Column("sample", "int32"),
    Column("problem", "int64"),
    Column("budget", "int32"),
    Column("prompt", "int32", is_list=True),
    Column("completion", "int32", is_list=True),
    Column("logprobs", "float32", is_list=True),
    Column("proofs", "binary", is_list=True),
    Column("task_reward", "float32"),
    Column("length_penalty", "float32"),
    Column("reward", "float32"),
    Column("turns", "int32", is_list=True),
    Column("answers", "int32", is_list=True),
    Column("given", "int32", is_list=True),
    Column("calls", "binary", is_list=True),
)


def columns(*, logprobs: bool = True) -> tuple[Column, ...]:
    """The columns of files with or without logprobs, in order."""
    return tuple(column for column in _COLUMNS if logprobs or column.name != "logprobs")


def schema(*, logprobs: bool = True) -> Any:
    """The exact Arrow schema, without metadata, of files with or without logprobs."""
    import pyarrow as pa

    kinds = {"int32": pa.int32(), "int64": pa.int64(), "float32": pa.float32(), "binary": pa.binary()}

    def field_of(column: Column) -> pa.Field:
        kind = kinds[column.kind]
        if column.is_list:
            kind = pa.list_(pa.field("element", kind, nullable=False))
        return pa.field(column.name, kind, nullable=False)

    return pa.schema(field_of(column) for column in columns(logprobs=logprobs))


def write(file: RolloutFile, path: Path) -> None:
    """Writes a rollout file of one's own: with logprobs where its samples have them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    layout = schema(logprobs=all(sample.logprobs is not None for sample in file.samples))
    values = {name: [getattr(sample, name) for sample in file.samples] for name in layout.names}
    # No statistics and no dictionaries: nothing a reader would have to trust or blow up. No Arrow schema either: it repeats
    # what Parquet's own says, in more bytes than the columns of turns take.
    options: dict[str, Any] = {"use_dictionary": False, "write_statistics": False, "store_schema": False}
    with pq.ParquetWriter(path, layout, compression="zstd", **options) as writer:
        writer.write_table(pa.table(values, schema=layout))
        writer.add_key_value_metadata({METADATA_KEY: file.header.encode()})


def from_columns(header: Header, values: Mapping[str, Sequence[Any]]) -> RolloutFile:
    """Rows from columns of equal length, as the sandbox returns them. Raises Malformed where turns and calls of a row do not fit
    together."""
    rows = len(values["group"])
    values = {"logprobs": [None] * rows, **values}
    samples = tuple(Sample(*row) for row in zip(*(values[name] for name in Sample.__dataclass_fields__), strict=True))
    for number, sample in enumerate(samples):
        try:
            _ = sample.conversation, sample.tool_calls
        except ProtocolViolation as error:
            raise Malformed(f"row {number}: {error}") from error
    return RolloutFile(header, samples)
