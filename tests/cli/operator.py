"""Somebody who runs a relay and looks at the network with `murmur net`."""

from __future__ import annotations

from pathlib import Path

from swarm.world import World

from protocol.p2p import Directory, Endpoint, Host, Service
from protocol.settings import write_toml
from tests.cli.conftest import Console, Ended
from tests.p2p.network import Network

ESCAPE = "\x1b"


class Operator:
    """Somebody with a relay's home."""

    def __init__(self, console: Console, world: World, folder: Path) -> None:
        self.console, self.world, self.home = console, world, folder / "relay"

    def settle(self, *bootnodes: Host | str) -> None:
        world = self.world
        chain = {
            "rpc": world.anvil.rpc, "contract": world.chain.runs.address, "chain_id": world.chain.chain_id, "run": world.run,
        }  # fmt: skip
        addresses = [text for each in bootnodes for text in ([each] if isinstance(each, str) else each.addresses)]
        peers = {"listen": "/ip4/127.0.0.1/tcp/0", "bootnodes": addresses}
        serve = {"public_url": "http://127.0.0.1:8460"}  # a table that belongs to somebody else
        write_toml(self.home / "relay.toml", {"chain": chain, "peers": peers, "serve": serve}, "A relay.")

    def service(self, role: str) -> Service:
        return Service(self.world.chain.chain_id, self.world.chain.runs.address, self.world.run, role)

    def announce(self, host: Host, role: str, url: str) -> None:
        Directory(host).announce(self.service(role), Endpoint(role, self.world.run, url), deadline=20)

    def hub(self, network: Network, url: str) -> tuple[Host, Host]:
        """A bootnode, and behind it the run's hub, announced at `url`."""
        bootnode = network.host()
        hub = network.host(bootnode, key=self.world.trainer.key)
        self.announce(hub, "hub", url)
        return bootnode, hub

    def net(self, *words: object) -> Ended:
        done = self.console.murmur("net", *words, "--home", self.home)
        assert ESCAPE not in done.out + done.err
        return done

    def json(self, *words: object) -> dict[str, object]:
        return self.net(*words, "--json").json
