"""The reference probe of a run: a few completions with everything that can be compared of them, made by the trainer at version 0.

`murmur trainer probe` makes it on the trainer's device (trainer/evaluation/probe.py); the run spec pins the file by SHA-256, the hub serves
it, and a node computes the same before its first work (node/judging/probe.py). It is one canonical JSON file: token ids as numbers,
sampling keys as text (they have 64 bits), float32 and int32 arrays little-endian in base64, so that no digit is lost.

Shapes: T tokens of a completion, K tokens whose logprobs are told at each.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError, field_validator, model_validator

from protocol import canonical, toploc
from protocol.errors import ConfigError, Malformed
from protocol.runspec_part import HexDigest, Part

TOP = 16
"""Tokens whose logprobs are told at each position."""
FILE_BYTES_MAX = 16 << 20
SEQUENCES_MAX = 256

TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class ProbeSequence(Part):
    """One completion. Logprobs are at temperature 1, over the whole vocabulary."""

    prompt: list[TokenId] = Field(min_length=1)
    key: str = Field(pattern=r"^[0-9]{1,20}$")
    """The sampling key, an unsigned 64-bit number."""
    completion: list[TokenId] = Field(min_length=1)
    logprobs: str
    """Of the completion's tokens, float32 [T]."""
    proofs: list[str]
    """TOPLOC proofs, in base64."""
    top_tokens: str
    """The likeliest tokens, int32 [T, K], in descending order."""
    top_logprobs: str
    """Theirs, float32 [T, K]."""

    @field_validator("key")
    @classmethod
    def _has_64_bits(cls, text: str) -> str:
        if int(text) >= 1 << 64:
            raise ValueError("expected a number of 64 bits")
        return text

    @model_validator(mode="after")
    def _fits_together(self) -> ProbeSequence:
        tokens = len(self.completion)
        chosen, ids, tops = self.logprobs_T, self.top_tokens_TK, self.top_logprobs_TK
        if len(chosen) != tokens or len(ids) != tokens or ids.shape != tops.shape:
            raise ValueError("logprobs are not of as many tokens as the completion has")
        if not (np.isfinite(chosen).all() and np.isfinite(tops).all()) or (ids < 0).any():
            raise ValueError("a logprob is no number, or a token none")
        try:
            toploc.require_count(self.proof_bytes, tokens)
        except Malformed as error:
            raise ValueError(str(error)) from error
        return self

    @property
    def logprobs_T(self) -> NDArray[np.float32]:
        return _array(self.logprobs, "<f4")

    @property
    def top_tokens_TK(self) -> NDArray[np.int32]:
        return _table(_array(self.top_tokens, "<i4"), len(self.completion))

    @property
    def top_logprobs_TK(self) -> NDArray[np.float32]:
        return _table(_array(self.top_logprobs, "<f4"), len(self.completion))

    @property
    def proof_bytes(self) -> list[bytes]:
        return [_bytes(proof) for proof in self.proofs]


class Probe(Part):
    format: Literal["murmuration/probe/1"] = "murmuration/probe/1"
    config: HexDigest
    """SHA-256 of the model's config.json."""
    compute_dtype: Literal["float32", "bfloat16"]
    made_on: dict[str, str]
    """Device, engine and versions, for people."""
    sampling: dict[str, str | int]
    """The distribution that was drawn from, as the run spec writes it."""
    max_new_tokens: int = Field(ge=1, lt=2**20)
    """After which a completion was cut off."""
    sequences: list[ProbeSequence] = Field(min_length=1, max_length=SEQUENCES_MAX)

    def encode(self) -> bytes:
        """Canonical bytes. Raises ConfigError where nobody would read that much."""
        data = canonical.encode(self.model_dump(mode="json"))
        if len(data) > FILE_BYTES_MAX:
            raise ConfigError(
                f"a probe of {len(data) >> 20} MiB is more than {FILE_BYTES_MAX >> 20} MiB",
                hint="take fewer prompts or tokens",
            )
        return data

    @property
    def tokens(self) -> int:
        """Tokens of all completions."""
        return sum(len(one.completion) for one in self.sequences)

    @property
    def largest_token(self) -> int:
        """The highest token id in it: the model's vocabulary must be larger."""
        return max(max(*one.prompt, *one.completion, int(one.top_tokens_TK.max(initial=0))) for one in self.sequences)


def decode(data: bytes) -> Probe:
    """Raises Oversized or Malformed for what is none."""
    value = canonical.decode(data, cap=FILE_BYTES_MAX, what="reference probe")
    try:
        return Probe.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise Malformed(f"the reference probe is wrong: {place}: {first['msg']}") from None


def packed(values: NDArray[Any]) -> str:
    """Base64 of an int32 or float32 array, row after row."""
    return base64.b64encode(np.ascontiguousarray(values, values.dtype.newbyteorder("<")).tobytes()).decode()


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("expected base64") from error


def _array(text: str, kind: str) -> NDArray[Any]:
    data = _bytes(text)
    if len(data) % 4:
        raise ValueError("expected numbers of four bytes")
    return np.frombuffer(data, kind)


def _table(values: NDArray[Any], rows: int) -> NDArray[Any]:
    if len(values) % rows or not len(values):
        raise ValueError("expected as many numbers for each token of the completion")
    return values.reshape(rows, -1)
