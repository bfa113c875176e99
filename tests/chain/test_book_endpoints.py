"""The book before endpoints that forget, lie, cap, repeat, mix up, or turn into another chain."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from eth_utils import keccak
from swarm.anvil import Anvil
from swarm.faulty_endpoint import FaultyEndpoint, error, result
from swarm.world import World

from protocol.chain import Chain, completeness, counters, sync
from protocol.chain.contract import Contract
from protocol.chain.decoding import Decoder
from protocol.chain.events import Published, Settled, Submitted
from protocol.chain.sync import Book
from protocol.errors import RpcUnavailable, WrongChain
from protocol.identity import Key
from tests.chain.committed import submissions_of
from tests.chain.test_book import committing, sequences, submitting
from tests.clock import VirtualClock

Logs = list[dict[str, Any]]


@pytest.fixture
def faulty(world: World) -> Iterator[FaultyEndpoint]:
    endpoint = FaultyEndpoint(world.anvil.rpc)
    yield endpoint
    endpoint.close()


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completeness, "BATCH", 4)
    monkeypatch.setattr(counters, "_REQUESTS", 20)


def book_at(world: World, *urls: str, path: Path | None = None) -> Book:
    return Book(Chain(list(urls), world.chain.runs.address, timeout=5), world.run, path)


def logs_of(world: World, params: Any) -> Logs:
    answer = requests.post(
        world.anvil.rpc, json={"jsonrpc": "2.0", "id": 0, "method": "eth_getLogs", "params": params}, timeout=10
    ).json()
    return list(answer["result"])


def changing(world: World, change: Callable[[Logs], Any]) -> Callable[[str, Any], bytes | None]:
    """A fault that answers for events with what `change` makes of them."""

    def fault(method: str, params: Any) -> bytes | None:
        return result(change(logs_of(world, params))) if method == "eth_getLogs" else None

    return fault


def topic_of(contract: Contract, name: str) -> str:
    return "0x" + next(topic for topic, event in contract.events.items() if event.name == name).hex()


def settle_blocks(world: World, count: int = 24) -> None:
    world.anvil.request("anvil_mine", hex(count))


def test_one_empty_answer_loses_nothing(world: World, faulty: FaultyEndpoint) -> None:
    node = committing(world)
    book = book_at(world, faulty.url)
    book.poll()
    cursor = book.changes_since(0).cursor
    submitting(world, node, 0, 1)
    faulty.fault = changing(world, lambda logs: [])
    book.poll()
    assert book.changes_since(cursor).submissions == []
    faulty.fault = lambda method, params: None
    settle_blocks(world)
    book.poll()
    assert sequences(book.changes_since(cursor).submissions) == [0, 1]
    assert book.settled == world.chain.block_number() - 12


def test_what_one_endpoint_withholds_for_ever_another_gives(world: World, faulty: FaultyEndpoint) -> None:
    node = committing(world)
    submitting(world, node, 0, 1)
    faulty.fault = changing(world, lambda logs: [])
    settle_blocks(world)
    book = book_at(world, faulty.url, world.anvil.rpc)
    book.poll()
    assert sequences(submissions_of(book, node.address, 0)) == [0, 1]


@pytest.mark.parametrize("is_first", [True, False], ids=["first reader", "second reader"])
def test_an_endpoint_that_hid_a_submission_is_asked_for_events_after_the_others_for_minutes(
    world: World, faulty: FaultyEndpoint, is_first: bool
) -> None:
    clock, urls = VirtualClock(), [faulty.url, world.anvil.rpc]
    chain = Chain(urls if is_first else urls[::-1], world.chain.runs.address, timeout=5, clock=clock)
    place = 0 if is_first else 1
    book, node = Book(chain, world.run), committing(world)
    book.poll()
    submitting(world, node, 0, 1)
    topic = topic_of(world.chain.runs, "Submitted")
    faulty.fault = changing(world, lambda logs: [entry for entry in logs if entry["topics"][0] != topic])
    book.poll()
    settle_blocks(world)
    book.poll()
    assert sequences(submissions_of(book, node.address, 0)) == [0, 1]
    clock.advance(590)
    assert chain.provider.order(of_logs=True) == [1 - place, place]
    assert chain.provider.order() == [0, 1]
    assert not chain.provider.rests(place)
    clock.advance(20)
    assert chain.provider.order(of_logs=True) == [0, 1]


def without(logs: Logs, *places: int) -> Logs:
    return [entry for number, entry in enumerate(logs) if number not in places]


def test_a_hole_that_the_contract_counts_is_no_book(world: World, faulty: FaultyEndpoint) -> None:
    """An endpoint that never tells of one submission: its state shows that there is one."""
    node = committing(world)
    refs = submitting(world, node, 0, 1, 2)
    hidden = refs[2].root.hex()
    faulty.fault = changing(world, lambda logs: [entry for entry in logs if hidden not in "".join(entry["topics"])])
    settle_blocks(world)
    book = book_at(world, faulty.url)
    for _ in range(2):
        with pytest.raises(RpcUnavailable, match="which the contract counts"):
            book.poll()
    assert book.head is None
    faulty.fault = lambda method, params: None
    book.poll()
    assert sequences(submissions_of(book, node.address, 0)) == [0, 1, 2]


def test_an_answer_cut_short_in_silence_is_found_in_smaller_ranges(world: World, faulty: FaultyEndpoint) -> None:
    node = committing(world)
    submitting(world, node, *range(8))
    faulty.fault = changing(world, lambda logs: logs[:5])
    settle_blocks(world)
    book = book_at(world, faulty.url)
    book.poll()
    assert sequences(submissions_of(book, node.address, 0)) == list(range(8))


@pytest.mark.parametrize("kind", ["publication", "case", "verdict"])
def test_counters_show_publications_cases_and_verdicts_that_are_withheld(
    world: World, faulty: FaultyEndpoint, kind: str
) -> None:
    validator, node = Key.generate(), Key.generate()
    world.seat_node(Key.generate(), node)
    world.seat_validator(validator)
    world.publish(0)
    ref = world.submit(node, 0, 0, b"\x01" * 32)
    world.accuse(validator, ref)
    world.anvil.advance(3601)
    world.sender(validator).send(world.chain.settle(world.run, node.address, 1))
    contract = world.chain.weights if kind == "publication" else world.chain.court
    name = {"publication": "Published", "case": "Challenged", "verdict": "Settled"}[kind]
    topic = topic_of(contract, name)
    faulty.fault = changing(world, lambda logs: [entry for entry in logs if entry["topics"][0] != topic])
    settle_blocks(world)
    book = book_at(world, faulty.url)
    with pytest.raises(RpcUnavailable, match="which the contract counts"):
        book.poll()
    faulty.fault = lambda method, params: None
    book.poll()
    assert len(book.events(Published)) == 1
    assert len(book.events(Settled)) == 1
    assert [case.number for case in book.convictions()] == [1]


def test_a_soft_case_that_misses_one_of_its_submissions_is_no_case(world: World, faulty: FaultyEndpoint) -> None:
    validator, node = Key.generate(), Key.generate()
    world.seat_node(Key.generate(), node)
    world.seat_validator(validator)
    world.publish(0)
    refs = submitting(world, node, 0, 1, 2)
    world.sender(validator).send(world.chain.challenge(world.run, refs, b"\x0e" * 32))
    topic = topic_of(world.chain.court, "Challenged")
    hidden = "0x" + refs[1].root.hex()
    faulty.fault = changing(
        world, lambda logs: [e for e in logs if e["topics"][0] != topic or hidden not in e["topics"]]
    )
    settle_blocks(world)
    book = book_at(world, faulty.url)
    with pytest.raises(RpcUnavailable, match="which the contract counts"):
        book.poll()
    faulty.fault = lambda method, params: None
    book.poll()
    assert [set(case.refs) for case in book.open_cases()] == [set(refs)]


def test_an_event_that_no_block_holds_is_taken_back(world: World, faulty: FaultyEndpoint) -> None:
    node = committing(world)
    submitting(world, node, 0)
    settle_blocks(world, 40)  # deep enough that not every block is looked up

    def invent(logs: Logs) -> Logs:
        return [{**logs[-1], "blockNumber": "0x1", "blockHash": "0x" + "ab" * 32}, *logs]

    answers = [invent]
    faulty.fault = changing(world, lambda logs: answers.pop()(logs) if answers and logs else logs)
    book = book_at(world, faulty.url)
    book.poll()
    assert answers == []
    assert sequences(submissions_of(book, node.address, 0)) == [0]
    assert book.rows("SELECT count(*) FROM removed") == [(1,)]


def test_a_provider_that_caps_its_answers_is_asked_for_less(world: World, faulty: FaultyEndpoint) -> None:
    node = committing(world)
    submitting(world, node, *range(9))
    most = []

    def fault(method: str, params: Any) -> bytes | None:
        if method == "eth_getLogs":
            found = logs_of(world, params)
            if len(found) > 2:
                return error(-32005, "query returned more than 10000 results")
            most.append(len(found))
        return None

    faulty.fault = fault
    book = book_at(world, faulty.url)
    book.poll()
    assert sequences(submissions_of(book, node.address, 0)) == list(range(9))
    assert max(most) <= 2


def test_a_failure_in_the_middle_keeps_what_was_read(
    world: World, faulty: FaultyEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "_RANGE", 4)
    node = committing(world)
    submitting(world, node, *range(12))
    seen = world.chain.block_number() - 6

    def fault(method: str, params: Any) -> bytes | None:
        dead = method == "eth_getLogs" and int(params[0]["toBlock"], 16) > seen
        return error(-32000, "not now") if dead else None

    faulty.fault = fault
    book = book_at(world, faulty.url)
    with pytest.raises(RpcUnavailable):
        book.poll()
    assert sequences(submissions_of(book, node.address, 0)) == list(range(6))
    faulty.fault = lambda method, params: None
    book.poll()
    assert sequences(submissions_of(book, node.address, 0)) == list(range(12))


def test_ranges_grow_again_after_an_outage(
    world: World, faulty: FaultyEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "_RANGE", 4)
    settle_blocks(world, 8)
    sizes: list[int] = []

    def fault(method: str, params: Any) -> bytes | None:
        if method != "eth_getLogs":
            return None
        sizes.append(int(params[0]["toBlock"], 16) - int(params[0]["fromBlock"], 16) + 1)
        return error(-32000, "not now") if len(sizes) < 3 else None

    faulty.fault = fault
    book = book_at(world, faulty.url)
    with pytest.raises(RpcUnavailable):
        book.poll()
    book.poll()
    assert sizes[:6] == [4, 1, 1, 2, 4, 4]


def test_what_came_and_went_between_two_looks_is_never_told(world: World, faulty: FaultyEndpoint) -> None:
    node = committing(world)
    book = book_at(world, faulty.url)
    book.poll()
    cursor = book.changes_since(0).cursor
    submitting(world, node, 0)
    book.poll()
    world.anvil.request("anvil_reorg", 1, [])
    book.poll()
    changes = book.changes_since(cursor)
    assert (changes.submissions, changes.gone_submissions) == ([], [])
    assert changes.cursor > cursor


def twice(logs: Logs) -> Logs:
    return [*logs, *logs]


def backwards(logs: Logs) -> Logs:
    return logs[::-1]


def with_strangers(logs: Logs) -> Logs:
    others = [{**entry, "address": "0x" + "11" * 20} for entry in logs]
    other_runs = [{**entry, "topics": [entry["topics"][0], "0x" + "77" * 32, *entry["topics"][2:]]} for entry in logs]
    return [*others, *logs, *other_runs]


@pytest.mark.parametrize("change", [twice, backwards, with_strangers])
def test_repeated_mixed_up_and_foreign_events_change_nothing(
    world: World, faulty: FaultyEndpoint, change: Callable[[Logs], Logs]
) -> None:
    node = committing(world)
    submitting(world, node, 0, 1, 2)
    right = Book(world.chain, world.run)
    right.poll()
    faulty.fault = changing(world, change)
    book = book_at(world, faulty.url)
    book.poll()
    assert book.changes_since(0) == right.changes_since(0)


def word_too_large(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "data": "0x" + "ff" * 32 + entry["data"][66:]}


def byte_too_few(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "data": entry["data"][:-2]}


def word_too_many(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "data": entry["data"] + "00" * 32}


def no_address(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "topics": [*entry["topics"][:2], "0x" + "01" * 32, *entry["topics"][3:]]}


def topic_missing(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "topics": entry["topics"][:-1]}


def not_hexadecimal(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "data": entry["data"][:-4] + " +1_"}


def no_block(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key != "blockNumber"}


def another_block(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "blockNumber": "0xffffff"}


def of_text(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "logIndex": None}


def taken_back(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "removed": True}


@pytest.mark.parametrize(
    "spoil",
    [word_too_large, byte_too_few, word_too_many, no_address, topic_missing, not_hexadecimal, no_block, another_block,
     of_text, taken_back],
)  # fmt: skip
def test_a_malformed_event_spoils_the_answer_and_the_next_endpoint_is_asked(
    world: World, faulty: FaultyEndpoint, spoil: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    node = committing(world)
    submitting(world, node, 0, 1)
    faulty.fault = changing(world, lambda logs: [*logs[:-1], *map(spoil, logs[-1:])])
    alone = book_at(world, faulty.url)
    with pytest.raises(RpcUnavailable, match="nonsense"):
        alone.poll()
    assert sequences(submissions_of(alone, node.address, 0)) in ([], [0])
    beside = book_at(world, faulty.url, world.anvil.rpc)
    beside.poll()
    assert sequences(submissions_of(beside, node.address, 0)) == [0, 1]


def test_an_answer_that_is_no_list_of_events_is_nonsense(world: World, faulty: FaultyEndpoint) -> None:
    committing(world)
    for answer in ("0x", {"a": 1}, [7], [None], None):
        faulty.fault = changing(world, lambda logs, answer=answer: answer)  # type: ignore[misc]
        book = book_at(world, faulty.url)
        with pytest.raises(RpcUnavailable):
            book.poll()


def test_an_endpoint_that_lags_takes_nothing_back(world: World, faulty: FaultyEndpoint) -> None:
    node = committing(world)
    book = book_at(world, faulty.url)
    submitting(world, node, 0, 1)
    head = book.poll()
    behind = head.number - 1

    def lagging(method: str, params: Any) -> bytes | None:
        if method == "eth_getBlockByNumber" and (params[0] == "latest" or int(params[0], 16) > behind):
            if params[0] != "latest":
                return result(None)
            body = {"jsonrpc": "2.0", "id": 0, "method": method, "params": [hex(behind), False]}
            return requests.post(world.anvil.rpc, json=body, timeout=10).content
        return None

    faulty.fault = lagging
    assert book.poll() == head
    assert sequences(submissions_of(book, node.address, 0)) == [0, 1]
    assert book.rows("SELECT count(*) FROM removed") == [(0,)]


@pytest.mark.parametrize("chain_id", [999, 31337])
def test_an_endpoint_that_becomes_another_chain_is_refused_and_nothing_foreign_enters(
    world: World, faulty: FaultyEndpoint, tmp_path: Path, chain_id: int
) -> None:
    """Also one that says the same chain id and has the same contracts at the same addresses."""
    node = committing(world)
    submitting(world, node, 0)
    book = book_at(world, faulty.url)
    book.poll()
    before = book.changes_since(0)
    other = Anvil(tmp_path / "other", chain_id=chain_id)
    try:
        foreign = World.another(other)
        committing(foreign)
        other.request("anvil_mine", "0x80")

        def swap(method: str, params: Any) -> bytes:
            body = {"jsonrpc": "2.0", "id": 0, "method": method, "params": params}
            return requests.post(other.rpc, json=body, timeout=10).content

        faulty.fault = swap
        with pytest.raises(WrongChain):
            book.poll()
        # A book that has not begun to follow in this process asks first.
        asked: list[str] = []

        def swap_late(method: str, params: Any) -> bytes | None:
            asked.append(method)
            return swap(method, params) if "eth_getLogs" in asked else None

        faulty.fault = swap_late
        submitting(world, node, 1)
        late = book_at(world, faulty.url)
        late.poll()
        assert late.changes_since(0).submissions == []
        with pytest.raises(WrongChain):
            late.poll()
    finally:
        other.stop()
    assert book.changes_since(0) == before
    faulty.fault = lambda method, params: None
    book.poll()
    late.poll()
    assert sequences(submissions_of(book, node.address, 0)) == [0, 1]
    assert late.changes_since(0).submissions == book.changes_since(0).submissions


def test_events_are_decoded_from_a_canned_answer_without_asking_anybody() -> None:
    """The vector of one submission: words as the contract emits them."""
    runs = "0x5FbDB2315678afecb367f032d93F642f64180aa3"
    node = "0x1c959d815d7Ef94C2642cd7E4c8C72b1f6112471"
    topic = "0x" + keccak(text="Submitted(uint256,address,bytes32,uint32,uint32,uint32)").hex()
    entry = {
        "address": runs.lower(), "blockHash": "0x" + "0b" * 32, "blockNumber": "0x10", "logIndex": "0x2", "removed": False,
        "transactionHash": "0x" + "0c" * 32, "transactionIndex": "0x0", "data": "0x" + "".join(f"{n:064x}" for n in (3, 9, 77)),
        "topics": [topic, f"0x{5:064x}", "0x" + "0" * 24 + node[2:].lower(), "0x" + "0d" * 32],
    }  # fmt: skip
    (log,) = Decoder(5, {runs: "Runs"}).decode(json.loads(json.dumps([entry])), 0, 16)
    assert log.kind(*log.values) == Submitted(5, node, b"\x0d" * 32, 3, 9, 77)  # type: ignore[arg-type]
    assert (log.block, log.log_index, log.block_hash) == (16, 2, b"\x0b" * 32)
    assert Decoder(6, {runs: "Runs"}).decode([entry], 0, 16) == []
