"""What the commands of this package share: home, settings, chain and keys."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protocol.errors import PreflightError, Unavailable
from protocol.shell.cli import until_end
from protocol.shell.home import Home, default_home

if TYPE_CHECKING:
    from node.contributor.settings import NodeSettings
    from protocol.chain import Chain, Sender
    from protocol.identity import Key
    from protocol.runspec import RunSpec
    from protocol.settings import Loaded

HomeOption = Annotated[Path, typer.Option("--home", help="Folder of keys, settings and data.", envvar="MURMUR_HOME")]
OperatorKeystore = Annotated[
    Path | None, typer.Option(help="Keystore of the operator's cold key, if it lies elsewhere.")
]
SpecFile = Annotated[
    Path | None, typer.Option("--spec", help="The run's spec.json, while its hub cannot be asked for it.")
]
DEFAULT_HOME = default_home("node")
CONSENT_SECONDS = 3600
"""How long a node key's consent to a seat is good for, in block time."""


def open_home(path: Path) -> Home:
    return Home(path, "node")


def settings(home: Home) -> Loaded[NodeSettings]:
    from node.contributor.settings import NodeSettings
    from protocol.settings import load

    return load(NodeSettings, home.require_config())


def read_spec(home: Home, node: NodeSettings, chain: Chain, key: Key, given: Path | None) -> RunSpec:
    """The run's spec, which hashes to the chain's digest: `given`, else what an earlier command kept here, else the hub's.

    Raises HashMismatch or Malformed for another one that was given, PreflightError where no hub can be found.
    """
    from protocol.shell import spec_file

    spec = spec_file.find(home, chain.spec_digest(node.chain.run), given) or _spec_of_hub(node, key)
    spec_file.keep(spec_file.path_in(home), spec)
    return spec


def _spec_of_hub(node: NodeSettings, key: Key) -> RunSpec:
    from protocol.shell.connection import connect

    peers = node.peers.model_copy(update={"listen": "/ip4/0.0.0.0/tcp/0"})  # a running node has the other port
    try:
        with connect(node.chain, peers, key) as connection:
            return connection.spec
    except Unavailable as error:
        raise PreflightError(
            f"the run's spec cannot be read: {error}",
            hint="wait until the run's hub is up, or give --spec with the owner's spec.json",
        ) from error


def open_chain(node: NodeSettings) -> Chain:
    return node.chain.open()


@dataclass(frozen=True)
class Operation:
    """What a command has at hand that the cold key sends."""

    home: Home
    chain: Chain
    run: int
    sender: Sender

    @property
    def node(self) -> str:
        """Address of the node's present key."""
        return self.home.address("node")


def open_operation(home: Path, password_file: Path | None, keystore: Path | None) -> Operation:
    place = open_home(home)
    node = settings(place).value
    chain = open_chain(node)
    return Operation(place, chain, node.chain.run, operator_sender(place, node, chain, password_file, keystore))


def operator_sender(
    home: Home, node: NodeSettings, chain: Chain, password_file: Path | None, keystore: Path | None
) -> Sender:
    """The cold key's sender. What an earlier command began is ended before it is returned: read the chain afterwards."""
    from protocol.chain.command import open_sender

    path = keystore or home.keystore("operator")
    key = home.open_key("operator", password_file, path)
    return until_end(open_sender(chain, key, path, node.chain.limits))
