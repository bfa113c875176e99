"""A contract at an address: its functions as calls that can be made or sent, its events out of raw logs.

    runs = Contract(ethereum, address, abi)
    runs.functions.seats(run, node).call()

Only the ABI's own encoding (eth_abi) over JSON-RPC: no names are resolved and nothing is subscribed to. Addresses come out
checksummed. A value must fit its type exactly: bytes32 of 31 bytes is refused, where eth_abi would fill it up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any

from eth_abi.codec import ABICodec
from eth_abi.decoding import AddressDecoder, StringDecoder
from eth_abi.encoding import BytesEncoder
from eth_abi.registry import BaseEquals
from eth_abi.registry import registry as eth_abi_registry
from eth_typing import ChecksumAddress
from eth_utils import keccak, to_checksum_address

from protocol.chain.ethereum import Ethereum, Log, Which, call_request, data
from protocol.chain.transport import Request


class _ExactBytes(BytesEncoder):
    """bytes1 … bytes32 of exactly that many bytes."""

    def validate_value(self, value: object) -> None:
        super().validate_value(value)
        size = (self.value_bit_size or 0) // 8
        if not isinstance(value, bytes) or len(value) != size:
            self.invalidate_value(value, msg=f"has not the {size} bytes of its type")


class _ChecksumAddress(AddressDecoder):
    decoder_fn = staticmethod(lru_cache(maxsize=4096)(to_checksum_address))  # the same few come again and again


class _AnyText(StringDecoder):
    """Of what anybody wrote: bytes that are no UTF-8 are shown as such."""

    def __init__(self) -> None:
        super().__init__(handle_string_errors="replace")

    @classmethod
    def from_type_str(cls, type_str: str, registry: object) -> _AnyText:
        return cls()


def _codec() -> ABICodec:
    registry = eth_abi_registry.copy()
    registry.unregister_encoder("bytes<M>")
    registry.register_encoder(BaseEquals("bytes", with_sub=True), _ExactBytes, label="bytes<M>")
    registry.unregister_decoder("address")
    registry.register_decoder(BaseEquals("address"), _ChecksumAddress, label="address")
    registry.unregister_decoder("string")
    registry.register_decoder(BaseEquals("string", with_sub=False), _AnyText, label="string")
    return ABICodec(registry)


CODEC = _codec()


class NoContract(Exception):
    """The address answers like one without code."""


@dataclass(frozen=True)
class Function:
    """A call with its arguments. `address` None deploys; then `data` is the code with its arguments."""

    ethereum: Ethereum
    address: ChecksumAddress | None
    data: bytes
    outputs: tuple[str, ...] = ()
    value: int = 0
    """Wei that goes along."""

    def call(self, which: Which = "latest") -> Any:
        """What it returns after a block: the value, a tuple of several, None of none. Raises NoContract, RpcRefusal."""
        returned = self.ethereum.call(self.transaction(), which)
        if not returned and self.outputs:
            raise NoContract
        values = CODEC.decode(self.outputs, returned)
        return values[0] if len(values) == 1 else values or None

    def request(self, which: Which = "latest") -> Request:
        """What `call` asks."""
        return call_request(self.transaction(), which)

    def transaction(self) -> dict[str, str]:
        """Fields that every JSON-RPC form of this call has."""
        to = {} if self.address is None else {"to": self.address}
        value = {"value": hex(self.value)} if self.value else {}
        return {**to, **value, "data": "0x" + self.data.hex()}


class Functions:
    """The functions of a contract by name, as attributes or items: each makes a Function of its arguments."""

    def __init__(self, contract: Contract, abi: Sequence[Mapping[str, Any]]) -> None:
        self._contract = contract
        self._abi = {item["name"]: item for item in abi if item["type"] == "function"}

    def __getitem__(self, name: str) -> Callable[..., Function]:
        item = self._abi[name]
        inputs = [_type(one) for one in item["inputs"]]
        outputs = tuple(_type(one) for one in item["outputs"])
        selector = _digest(f"{name}({','.join(inputs)})")[:4]

        def make(*arguments: object) -> Function:
            encoded = selector + CODEC.encode(inputs, arguments)
            return Function(self._contract.ethereum, self._contract.address, encoded, outputs)

        return make

    def __getattr__(self, name: str) -> Callable[..., Function]:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the contract has no function {name!r}") from None


@dataclass(frozen=True)
class EventType:
    """An event as the ABI describes it."""

    name: str
    topic: bytes
    indexed: tuple[tuple[str, str], ...]
    """(name, type)"""
    plain: tuple[tuple[str, str], ...]

    def arguments(self, entry: Log) -> dict[str, Any]:
        """Values by name, of a log of this event."""
        topics = entry["topics"][1:]
        found = {
            name: CODEC.decode([kind], data(topic, 32))[0]
            for (name, kind), topic in zip(self.indexed, topics, strict=True)
        }
        values = CODEC.decode([kind for _, kind in self.plain], data(entry["data"]))
        return found | {name: value for (name, _), value in zip(self.plain, values, strict=True)}


class Contract:
    def __init__(self, ethereum: Ethereum, address: str, abi: Sequence[Mapping[str, Any]]) -> None:
        """Raises ValueError where `address` is none."""
        self.ethereum = ethereum
        self.address: ChecksumAddress = to_checksum_address(address)
        self.functions = Functions(self, abi)
        self._abi = abi

    @cached_property
    def events(self) -> dict[bytes, EventType]:
        """By topic."""
        found = (_event(item) for item in self._abi if item["type"] == "event")
        return {event.topic: event for event in found}


def creation(ethereum: Ethereum, abi: Sequence[Mapping[str, Any]], bytecode: str, *arguments: object) -> Function:
    """The call that creates a contract."""
    inputs = next((item["inputs"] for item in abi if item["type"] == "constructor"), ())
    encoded = CODEC.encode([_type(one) for one in inputs], arguments)
    return Function(ethereum, None, bytes.fromhex(bytecode.removeprefix("0x")) + encoded)


def _event(item: Mapping[str, Any]) -> EventType:
    places = [(one["name"], _type(one), one["indexed"]) for one in item["inputs"]]
    topic = _digest(f"{item['name']}({','.join(kind for _, kind, _ in places)})")
    indexed = tuple((name, kind) for name, kind, is_indexed in places if is_indexed)
    plain = tuple((name, kind) for name, kind, is_indexed in places if not is_indexed)
    return EventType(item["name"], topic, indexed, plain)


@cache  # of what the ABIs hold; each Chain has contracts of its own
def _digest(signature: str) -> bytes:
    return keccak(text=signature)


def _type(item: Mapping[str, Any]) -> str:
    """The type as signatures write it: structs as the tuple of their fields' types."""
    kind = str(item["type"])
    if not kind.startswith("tuple"):
        return kind
    fields = ",".join(_type(field) for field in item["components"])
    return f"({fields}){kind.removeprefix('tuple')}"
