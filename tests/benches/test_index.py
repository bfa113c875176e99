"""The recorded endpoint is like a real one, and a book reads all of it."""

from __future__ import annotations

import json

from benches.index import _measure
from benches.recorded import BATCH, NODES, Recording
from swarm.world import World

from protocol.identity import Key


def test_recorded_events_have_the_form_of_anvils(world: World) -> None:
    node = Key.generate()
    world.seat_node(Key.generate(), node)
    world.publish(0)
    world.submit(node, 0, 0, b"\x01" * 32)
    query = {"fromBlock": "0x0", "toBlock": "latest", "address": list(world.chain.places)}
    real = {entry["topics"][0]: entry for entry in world.anvil.request("eth_getLogs", query)}
    recorded = list(map(json.loads, Recording(BATCH).logs(0, 9)))
    assert len(recorded) == NODES + 1 + BATCH
    for entry in recorded:
        known = real[entry["topics"][0]]
        assert entry.keys() == known.keys()
        assert (len(entry["topics"]), len(entry["data"])) == (len(known["topics"]), len(known["data"]))


def test_a_book_reads_a_recording_to_its_end() -> None:
    assert _measure(200)["cold"] > 0
