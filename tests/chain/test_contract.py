"""Calls and events as bytes: ours are those of web3.py, for every function and event of the contracts."""

from __future__ import annotations

import re
from typing import Any

import pytest
from eth_abi import encode
from eth_abi.exceptions import EncodingError
from hexbytes import HexBytes
from web3 import Web3

from protocol.chain import artifacts
from protocol.chain.contract import Contract, NoContract, creation
from protocol.chain.ethereum import Ethereum, RpcRefusal, data, quantity

ADDRESS = "0x5FbDB2315678afecb367f032d93F642f64180aa3"
OTHER = "0x7d931fd3f5a12c18Cd77f9Cb90ff58E677dF9479"


class Answers:
    """A provider that gives one answer to everything."""

    def __init__(self, **answer: Any) -> None:
        self.answer = answer

    def make_request(self, method: str, params: Any) -> dict[str, Any]:
        return self.answer


def ethereum(**answer: Any) -> Ethereum:
    return Ethereum(Answers(**answer))


def example(item: dict[str, Any]) -> Any:
    kind = item["type"]
    if array := re.fullmatch(r"(.*)\[(\d*)\]", kind):
        return [example({**item, "type": array[1]})] * int(array[2] or 2)
    if kind == "tuple":
        return tuple(example(field) for field in item["components"])
    if kind == "bool":
        return True
    if kind == "string":
        return "wörd"
    if kind.startswith("bytes"):
        return b"\x81" * int(kind[5:] or 40)
    return OTHER if kind == "address" else 2**7 - 3


def items(kind: str) -> list[Any]:
    found = [(name, item) for name in artifacts.CONTRACTS for item in artifacts.load(name).abi if item["type"] == kind]
    return [pytest.param(name, item, id=f"{name}.{item['name']}") for name, item in found]


@pytest.mark.parametrize(("name", "item"), items("function"))
def test_a_call_is_the_bytes_that_web3_makes(name: str, item: dict[str, Any]) -> None:
    abi, arguments = artifacts.load(name).abi, [example(one) for one in item["inputs"]]
    ours = Contract(ethereum(), ADDRESS, abi).functions[item["name"]](*arguments)
    theirs = Web3().eth.contract(address=ADDRESS, abi=abi).encode_abi(item["name"], args=arguments)  # type: ignore[arg-type]
    assert "0x" + ours.data.hex() == theirs


@pytest.mark.parametrize(("name", "item"), items("event"))
def test_an_event_is_what_web3_reads(name: str, item: dict[str, Any]) -> None:
    abi = artifacts.load(name).abi
    contract = Contract(ethereum(), ADDRESS, abi)
    event = next(event for event in contract.events.values() if event.name == item["name"])
    values = {one["name"]: example(one) for one in item["inputs"]}
    topics = [encode([kind], [values[key]]) for key, kind in event.indexed]
    plain = encode([kind for _, kind in event.plain], [values[key] for key, _ in event.plain])
    log: Any = {
        "address": ADDRESS, "topics": [HexBytes(topic) for topic in (event.topic, *topics)], "data": HexBytes(plain),
        "blockNumber": 1, "transactionHash": HexBytes(bytes(32)), "transactionIndex": 0, "blockHash": HexBytes(bytes(32)),
        "logIndex": 0,
    }  # fmt: skip
    theirs = Web3().eth.contract(address=ADDRESS, abi=abi).events[item["name"]]().process_log(log)["args"]  # type: ignore[arg-type]
    entry = {"topics": ["0x" + bytes(topic).hex() for topic in log["topics"]], "data": "0x" + plain.hex()}
    assert event.arguments(entry) == {key: _plain(value) for key, value in theirs.items()} == values


def _plain(value: Any) -> Any:
    """web3 gives structs as mappings."""
    return tuple(value.values()) if hasattr(value, "values") else value


@pytest.mark.parametrize("name", artifacts.CONTRACTS)
def test_a_deployment_is_the_bytes_that_web3_makes(name: str) -> None:
    artifact = artifacts.load(name)
    inputs = next((item["inputs"] for item in artifact.abi if item["type"] == "constructor"), [])
    arguments = [example(one) for one in inputs]
    theirs = (
        Web3().eth.contract(abi=artifact.abi, bytecode=artifact.bytecode).constructor(*arguments).data_in_transaction
    )
    assert "0x" + creation(ethereum(), artifact.abi, artifact.bytecode, *arguments).data.hex() == theirs


@pytest.mark.parametrize("arguments", [(1, b"\x01" * 31), (-1, bytes(32)), (1,), (1, "0x" + "01" * 32)], ids=str)
def test_a_value_that_does_not_fit_its_type_is_refused(arguments: tuple[object, ...]) -> None:
    """eth_abi alone would fill bytes up, and another root would be committed to."""
    abi = [{"type": "function", "name": "f", "inputs": [{"type": "uint8"}, {"type": "bytes32"}], "outputs": []}]
    function = Contract(ethereum(), ADDRESS, abi).functions.f
    assert function(1, bytes(32)).data[4:] == (1).to_bytes(32, "big") + bytes(32)
    with pytest.raises((EncodingError, ValueError)):
        function(*arguments)


def test_addresses_come_out_checksummed() -> None:
    contract = Contract(ethereum(result="0x" + encode(["address"], [OTHER]).hex()), ADDRESS, artifacts.load("Runs").abi)
    assert contract.functions.bonds().call() == OTHER


def test_an_address_without_code_is_told_from_an_empty_answer() -> None:
    contract = Contract(ethereum(result="0x"), ADDRESS, artifacts.load("Runs").abi)
    with pytest.raises(NoContract):
        contract.functions.bonds().call()


@pytest.mark.parametrize(
    ("error", "revert"),
    [
        ({"code": 3, "message": "execution reverted", "data": "0x08c379a0"}, b"\x08\xc3\x79\xa0"),  # geth, Anvil, Erigon
        ({"code": -32000, "message": "execution reverted"}, b""),
        ({"code": -32015, "message": "VM execution error.", "data": "Reverted 0x08c379a0"}, b"\x08\xc3\x79\xa0"),
        ({"code": -32603, "message": "reverted with", "data": {"data": "0x08c379a0"}}, b"\x08\xc3\x79\xa0"),  # Hardhat
        ({"code": -32000, "message": "nonce too low"}, None),
        ("busy", None),
        ({}, None),
    ],
)  # fmt: skip
def test_what_a_contract_says_is_found_in_every_clients_answer(error: Any, revert: bytes | None) -> None:
    with pytest.raises(RpcRefusal) as refused:
        ethereum(error=error).call({})
    assert refused.value.revert == revert


@pytest.mark.parametrize("value", ["0x" + "1" * 65, "12", 12, None, "0x", "0xzz", [], {}], ids=str)
def test_what_is_no_quantity_is_refused(value: object) -> None:
    with pytest.raises(ValueError):
        quantity(value)


@pytest.mark.parametrize("value", ["0x123", "1234", 12, None, "0xzz", "0x" + "00" * 31], ids=str)
def test_what_is_no_hash_is_refused(value: object) -> None:
    with pytest.raises(ValueError):
        data(value, 32)
