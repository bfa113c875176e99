"""An endpoint that names contracts of its own, and people who have given nobody leave yet."""

from __future__ import annotations

from typing import Any

from swarm.faulty_endpoint import result
from swarm.world import TOKEN, World

from protocol.identity import Key

THEIRS = "0x" + "42" * 20


class Liar:
    """Names THEIRS where Runs is asked for `what`, and says that the right code lies there."""

    def __init__(self, world: World, what: str) -> None:
        chain = world.chain
        right = getattr(chain, what).address
        function = getattr(chain.runs.functions, what)()
        self._selector, self._right, self._world = "0x" + function.data.hex(), right, world

    def __call__(self, method: str, params: Any) -> bytes | None:
        ask = self._world.chain.ethereum
        if (
            method == "eth_call"
            and params[0]["to"].lower() == self._world.chain.runs.address.lower()
            and input_of(params) == self._selector
        ):
            return result("0x" + THEIRS[2:].rjust(64, "0"))
        if method == "eth_getCode" and params[0].lower() == THEIRS:
            return result("0x" + ask.code(self._right).hex())
        if method == "eth_call" and params[0]["to"].lower() == THEIRS:
            return result("0x" + ask.call({**params[0], "to": self._right}).hex())
        return None


def newcomer(world: World) -> Key:
    """With money, whose leave nobody has yet."""
    key = Key.generate()
    world.anvil.give(key.address, TOKEN)
    world.owner.send(world.chain.transfer_tokens(key.address, 1000 * TOKEN))
    return key


def input_of(params: Any) -> str:
    return str(params[0].get("data") or params[0].get("input"))
