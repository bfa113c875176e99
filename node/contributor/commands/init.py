"""`node init` and `node config show`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from node.contributor.commands.context import DEFAULT_HOME, HomeOption, open_home, settings
from protocol.shell.cli import Bootnodes, Contract, Json, PasswordFile, Rpc, RunCardFile, emit, group

if TYPE_CHECKING:
    from pathlib import Path

    from protocol.chain import Chain
    from protocol.identity import Key
    from protocol.shell.home import Home
    from protocol.shell.run_card import RunCard

config = group("The node's settings.")


def register(app: typer.Typer) -> None:
    app.command()(init)
    app.add_typer(config, name="config")


def init(
    card: RunCardFile = None,
    rpc: Rpc = None,
    contract: Contract = None,
    run: Annotated[int | None, typer.Option(help="Number of the run to work for.")] = None,
    bootnode: Bootnodes = None,
    home: HomeOption = DEFAULT_HOME,
    listen: Annotated[str, typer.Option(help="libp2p address to listen on.")] = "/ip4/0.0.0.0/tcp/0",
    first_block: Annotated[int, typer.Option(help="Block of the contracts' deployment.")] = 0,
    operator: Annotated[bool, typer.Option(help="Also create the operator's cold key here.")] = True,
    password_file: PasswordFile = None,
    as_json: Json = False,
) -> None:
    """Create a node's keys and settings.

    The node key signs work and must be online; the operator key holds the stake and receives the rewards. Keep the
    operator's keystore somewhere safe: the running node never needs it.
    """
    from protocol.shell import run_card

    place = open_home(home)
    asked, bootnodes = run_card.run_told(
        card, rpc=rpc, contract=contract, run=run, bootnodes=bootnode, first_block=first_block
    )
    chain, node_key, operator_key = make_home(
        place, asked, bootnodes, listen, password_file, card, has_operator=operator
    )
    if card:
        run_card.keep(place.path, run_card.read(card))
    made = {
        "home": str(home),
        "node": node_key.address,
        "peer": node_key.peer_id,
        "operator": operator_key.address if operator_key else None,
    }

    def text() -> None:
        typer.echo(f"node key      {made['node']}  (signs work; PeerID {made['peer']})")
        if operator_key:
            typer.echo(f"operator key  {made['operator']}  (holds the stake, receives rewards)")
        typer.echo(f"settings      {place.config}")
        if operator_key:
            first = _first_need(chain, node_key.address, operator_key.address, asked["run"])
            then = f"{place.command('node join')}, which takes the seat and passes on what the node key needs"
        else:
            first = "send some ETH to the node key"
            then = f"{place.command('node stake')} --operator-keystore FILE, the keystore that holds the tokens"
        typer.echo(f"\nnext: {first}, then: {then}")

    emit(made, as_json, text)


def _first_need(chain: Chain, node: str, operator: str, run: int) -> str:
    from node.contributor.joining import Spending
    from protocol.chain.sender import SendLimits

    return Spending.planned(
        chain, node, operator, stake=chain.policy(run).node_stake, is_seated=False, faucet="", fee_max=SendLimits.fee
    ).lacks(chain)


def make_home(
    place: Home, asked: dict[str, Any], bootnodes: Sequence[str], listen: str, password_file: Path | None, card: Path | None, *, has_operator: bool = True
) -> tuple[Chain, Key, Key | None]:  # fmt: skip
    """A new home, with keys and settings, once the chain has shown that the run is there; `asked` is its [chain], as `card` has it.

    Raises ConfigError where the home is not new, WrongChain where chain or contract are others.
    """
    place.require_new()
    chain, tables = _settings_told(asked, bootnodes, listen, card)
    made = [
        place.new_key(name, chain_id=chain.chain_id, password_file=password_file)
        for name in ("node", "operator")
        if name == "node" or has_operator
    ]
    _write(place, tables)
    return chain, made[0], made[1] if has_operator else None


def make_settings(place: Home, asked: dict[str, Any], bootnodes: Sequence[str], listen: str, card: Path) -> None:
    """Settings anew for a home that has them, as `make_home` makes them."""
    _write(place, _settings_told(asked, bootnodes, listen, card)[1])


def home_tables(card: RunCard, now: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that `node join` writes for a card, where the home listens as it does `now`."""
    from eth_utils import to_checksum_address

    from protocol.shell.run_card import chain_table

    chain = chain_table(card) | {"contract": to_checksum_address(card.contract)}
    return {"chain": chain, "peers": {"listen": now.get("peers", {}).get("listen"), "bootnodes": list(card.bootnodes)}}


def _settings_told(
    asked: dict[str, Any], bootnodes: Sequence[str], listen: str, card: Path | None
) -> tuple[Chain, dict[str, Any]]:
    from node.contributor.settings import NodeSettings
    from protocol.p2p.host import read_addresses
    from protocol.settings import checked
    from protocol.shell import run_card

    read_addresses(listen, bootnodes, ())
    chain, _ = run_card.open_run(asked, card)
    tables = {
        "chain": asked | {"contract": chain.runs.address, "chain_id": chain.chain_id},
        "peers": {"listen": listen, "bootnodes": list(bootnodes)},
    }
    checked(NodeSettings, tables)
    return chain, tables


def _write(place: Home, tables: dict[str, Any]) -> None:
    place.write_config(tables, "Settings of a Murmuration node; `node config show` lists all of them.")


@config.command("show")
def show(
    home: HomeOption = DEFAULT_HOME,
    origin: Annotated[bool, typer.Option("--origin", help="Also say where each value came from.")] = False,
    as_json: Json = False,
) -> None:
    """Print every setting and its value."""
    lines = list(settings(open_home(home)).lines())

    def text() -> None:
        for path, value, where in lines:
            typer.echo(f"{path} = {value!r}" + (f"    # {where}" if origin else ""))

    emit({path: {"value": value, "origin": where} for path, value, where in lines}, as_json, text)
