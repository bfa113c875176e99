"""Raw logs of JSON-RPC, word by word: what an endpoint says happened, checked strictly and ten times as fast as web3 does it.

A log that is not ours (another address, another run) is passed over: an endpoint may say more than it was asked. A log of ours
must be exactly what the contracts can emit: every word within its type, no byte too few or too many, in the blocks that were
asked for. Anything else is Malformed, and nothing of that answer is used. The same log twice counts once; two different logs
at one place are Malformed. The answer comes in the chain's order, whatever order the endpoint chose.

Rules: the ABI's encoding of events (indexed words in topics, the others in `data`), and the events of contracts/src/interfaces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from eth_abi.abi import decode as abi_decode
from eth_abi.exceptions import DecodingError
from eth_utils import keccak, to_checksum_address

from protocol.chain import artifacts
from protocol.chain.events import KINDS, field_name
from protocol.errors import Malformed

_HEX = re.compile(r"0x(?:[0-9a-fA-F]{2})*").fullmatch
_HASH = re.compile(r"0x[0-9a-fA-F]{64}").fullmatch
_QUANTITY = re.compile(r"0x[0-9a-fA-F]{1,16}").fullmatch
_WORD = 64  # hex digits
_INDEX_MAX = 1 << 32  # of a log in its block
_BLOCK_MAX = 1 << 62

Read = Callable[[str], Any]


class Log(NamedTuple):
    """One event. `values` are the fields of the dataclass `kind` (events.py), in order."""

    block: int
    log_index: int
    block_hash: bytes
    transaction: bytes
    kind: type
    values: tuple[Any, ...]


class _Form(NamedTuple):
    kind: type
    size: int
    """Number of fields."""
    indexed: tuple[tuple[int, Read], ...]
    """(place among the fields, reader) of each topic after the first two."""
    plain: tuple[tuple[int, Read], ...] | None
    """The same for each word of `data`; None where it holds more than words."""
    types: tuple[tuple[int, str], ...]
    """(place among the fields, ABI type) of the values in `data`; a text as the bytes that it is encoded as."""
    texts: frozenset[int]
    """Places of those."""


class Decoder:
    """Of one run's events; `contracts` maps addresses to the names of their artifacts."""

    def __init__(self, run: int, contracts: Mapping[str, str]) -> None:
        self.run = run
        self.addresses = tuple(contracts)
        self.topic = f"0x{run:064x}"
        """The run, as every event of a run has it in its second topic."""
        self._forms = {
            (address.lower(), topic): form
            for address, contract in contracts.items()
            for topic, form in _forms(contract).items()
        }

    def decode(self, logs: Any, first: int, last: int) -> list[Log]:
        """The run's events in blocks first … last, out of the `result` of eth_getLogs. Raises Malformed."""
        if not isinstance(logs, list):
            raise Malformed("the logs are no list")
        found: dict[tuple[int, int], Log] = {}
        for entry in logs:
            log = self._log(entry)
            if log is None:
                continue
            if not first <= log.block <= last:
                raise Malformed(f"a log of block {log.block}, asked for {first} to {last}")
            if found.setdefault(log[:2], log) != log:
                raise Malformed(f"two logs at place {log.log_index} of block {log.block}")
        ordered = [found[place] for place in sorted(found)]
        for one, other in pairwise(ordered):
            if one.block == other.block and one.block_hash != other.block_hash:
                raise Malformed(f"block {one.block} has two hashes")
        return ordered

    def _log(self, entry: Any) -> Log | None:
        try:
            topics, address, data = entry["topics"], entry["address"], entry["data"]
            form = self._forms.get((address.lower(), topics[0].lower() if topics else ""))
            if form is None or topics[1].lower() != self.topic:
                return None
            if entry.get("removed"):
                raise Malformed("a log that was taken back")
            values: list[Any] = [None] * form.size
            values[0] = self.run
            if len(topics) != 2 + len(form.indexed) or not _HEX(data):
                raise Malformed(f"a {form.kind.__name__} of another form")
            for (place, read), topic in zip(form.indexed, topics[2:], strict=True):
                if not _HASH(topic):
                    raise Malformed("a topic that is no word")
                values[place] = read(topic[2:])
            self._read_data(form, data, values)
            return Log(
                _quantity(entry["blockNumber"], _BLOCK_MAX),
                _quantity(entry["logIndex"], _INDEX_MAX),
                _hash(entry["blockHash"]),
                _hash(entry["transactionHash"]),
                form.kind,
                tuple(values),
            )
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise Malformed(f"a log lacks what every log has: {error!r}") from error

    @staticmethod
    def _read_data(form: _Form, data: str, values: list[Any]) -> None:
        if form.plain is not None:
            if len(data) != 2 + _WORD * len(form.plain):
                raise Malformed(f"a {form.kind.__name__} of {len(data) // 2 - 1} bytes")
            at = 2
            for place, read in form.plain:
                values[place] = read(data[at : at + _WORD])
                at += _WORD
            return
        try:
            decoded = abi_decode([kind for _, kind in form.types], bytes.fromhex(data[2:]))
        except (DecodingError, OverflowError) as error:
            raise Malformed(f"a {form.kind.__name__} that cannot be decoded: {error}") from error
        for (place, kind), value in zip(form.types, decoded, strict=True):
            if place in form.texts:
                values[place] = value.decode("utf-8", "replace")  # anybody may have written it
            else:
                values[place] = to_checksum_address(value) if kind == "address" else _frozen(value)


def _forms(contract: str) -> dict[str, _Form]:
    """By first topic: the contract's events that begin with an indexed run."""
    found = {}
    for entry in artifacts.load(contract).abi:
        kind = KINDS.get(entry["name"]) if entry["type"] == "event" else None
        inputs = entry.get("inputs", [])
        if kind is None or not inputs or inputs[0]["name"] != "run" or not inputs[0]["indexed"]:
            continue
        names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
        indexed, plain, types, texts = [], [], [], []
        for value in inputs[1:]:
            place = names.index(field_name(value["name"]))
            if value["indexed"]:
                indexed.append((place, _reader(value["type"])))
            else:
                plain.append((place, _reader(value["type"])))
                is_text = value["type"] == "string"
                types.append((place, "bytes" if is_text else _type(value)))
                texts += [place] if is_text else []
        words = None if any(read is None for _, read in plain) else tuple(plain)
        signature = f"{entry['name']}({','.join(map(_type, inputs))})"
        form = _Form(kind, len(names), tuple(indexed), words, tuple(types), frozenset(texts))  # type: ignore[arg-type]
        found["0x" + keccak(text=signature).hex()] = form
    return found


def _type(value: Mapping[str, Any]) -> str:
    kind: str = value["type"]
    if not kind.startswith("tuple"):
        return kind
    return f"({','.join(map(_type, value['components']))}){kind.removeprefix('tuple')}"


def _reader(kind: str) -> Read | None:
    """Reads 64 hex digits, which the caller has checked to be such; None for types of more than a word."""
    if kind == "address":
        return _address
    if kind == "bool":
        return _bool
    if kind == "bytes32":
        return bytes.fromhex
    if kind == "int256":
        return _int256
    if kind.startswith("uint") and kind[4:].isdecimal():
        limit = 1 << int(kind[4:])

        def read(word: str) -> int:
            value = int(word, 16)
            if value >= limit:
                raise Malformed(f"a word above {kind}")
            return value

        return read
    return None


@lru_cache(1 << 14)
def _address(word: str) -> str:
    if word[:24] != "0" * 24:
        raise Malformed("a word that is no address")
    return to_checksum_address("0x" + word[24:])


def _bool(word: str) -> bool:
    value = int(word, 16)
    if value > 1:
        raise Malformed("a word that is neither true nor false")
    return bool(value)


def _int256(word: str) -> int:
    value = int(word, 16)
    return value - (1 << 256) if value >> 255 else value


def _quantity(text: str, limit: int) -> int:
    if not _QUANTITY(text):
        raise Malformed(f"{str(text)[:20]!r} is no quantity")
    value = int(text, 16)
    if value >= limit:
        raise Malformed(f"{text} is too large")
    return value


def _hash(text: str) -> bytes:
    if not _HASH(text):
        raise Malformed(f"{str(text)[:20]!r} is no hash")
    return bytes.fromhex(text[2:])


def _frozen(value: Any) -> Any:
    """As events have it: structs as tuples with checksummed addresses stay as eth_abi gives them, but hashable."""
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value
