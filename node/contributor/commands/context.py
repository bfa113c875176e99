"""What the commands of this package share: home, settings, chain and keys."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protocol.errors import PreflightError, Unavailable, UsageError
from protocol.shell.cli import calldata_option, parse_address
from protocol.shell.home import Home, default_home

if TYPE_CHECKING:
    from node.contributor.settings import NodeSettings
    from protocol.chain import Chain, Sender
    from protocol.identity import Key
    from protocol.runspec import RunSpec
    from protocol.settings import Loaded
    from protocol.shell.proposal import Proposal

HomeOption = Annotated[
    Path, typer.Option("--home", help="Folder of keys, settings and data.", envvar="MURMUR_HOME", readable=False)
]
OperatorKeystore = Annotated[
    Path | None, typer.Option(help="Keystore of the operator's cold key, if it lies elsewhere.")
]
Calldata = Annotated[bool, calldata_option("operator")]
OperatorAddress = Annotated[
    str | None, typer.Option("--operator", help="With --calldata: the operator, which is going to send.")
]
SpecFile = Annotated[
    Path | None, typer.Option("--spec", help="The run's spec.json, while its hub cannot be asked for it.")
]
DEFAULT_HOME = default_home("node")
CONSENT_SECONDS = 3600
"""How long a node key's consent to a seat is good for, in block time."""
CALLDATA_CONSENT_SECONDS = 7 * 86_400
"""The same where an operator that is a contract has to gather signatures first."""


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
    sender: Sender | Proposal

    @property
    def node(self) -> str:
        """Address of the node's present key."""
        return self.home.address("node")


def open_operation(
    home: Path, password_file: Path | None, keystore: Path | None, calldata: bool = False, operator: str | None = None
) -> Operation:
    place = open_home(home)
    node = settings(place).value
    chain = open_chain(node)
    if calldata:
        return Operation(place, chain, node.chain.run, proposal(chain, operator, keystore))
    return Operation(place, chain, node.chain.run, operator_sender(place, node, chain, password_file, keystore))


def proposal(chain: Chain, operator: str | None, keystore: Path | None) -> Proposal:
    """Stands where the cold key's sender does, for an operator that is a contract: it sends nothing."""
    from protocol.shell.proposal import Proposal, Proposer

    if operator is None or keystore is not None:
        raise UsageError("whose calls are they to be?", hint="give --operator ADDRESS with --calldata, and no keystore")
    return Proposal(chain, Proposer(parse_address(operator)))


def operator_sender(
    home: Home, node: NodeSettings, chain: Chain, password_file: Path | None, keystore: Path | None
) -> Sender:
    """The cold key's sender. What an earlier command began is ended before it is returned: read the chain afterwards."""
    from protocol.shell.sending import command_sender

    path = keystore or home.keystore("operator")
    key = home.open_key("operator", password_file, path)
    return command_sender(chain, key, path, node.chain.limits, scope=home.path)
