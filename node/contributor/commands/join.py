"""`node join`: from a run's card to a seat, in one command that may be interrupted and given again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.contributor.commands.context import (
    CONSENT_SECONDS,
    DEFAULT_HOME,
    HomeOption,
    SpecFile,
    open_chain,
    open_home,
    operator_sender,
    settings,
)
from node.contributor.commands.init import make_home
from node.contributor.commands.stake import Hardware, InviteOption, look_for_seat, require_not_banned, take_seat
from protocol.errors import ConfigError, UsageError
from protocol.shell.cli import PasswordFile, Yes, confirm

if TYPE_CHECKING:
    from protocol.shell.home import Home
    from protocol.shell.run_card import RunCard


def register(app: typer.Typer) -> None:
    app.command()(join)


def join(
    card: Annotated[
        Path | None,
        typer.Argument(help="The run's card, a file that its owner hands out; after `node init` not needed."),
    ] = None,
    listen: Annotated[str, typer.Option(help="libp2p address to listen on.")] = "/ip4/0.0.0.0/tcp/0",
    minutes: Annotated[float, typer.Option("--wait", min=0, help="Minutes to wait for ETH and tokens to arrive.")] = 60,
    hardware: Hardware = None,
    invite: InviteOption = None,
    spec: SpecFile = None,
    home: HomeOption = DEFAULT_HOME,
    password_file: PasswordFile = None,
    yes: Yes = False,
) -> None:
    """Make keys and settings where there are none, wait for gas money and tokens, deposit the stake and take a seat.

    Everything is sent to one address, the operator's. Where the run has a faucet, the tokens come from it. Interrupted at any
    point, the same command goes on.
    """
    from node.contributor.joining import gather
    from protocol.shell import run_card
    from protocol.shell.money import tokens

    place, told = open_home(home), run_card.read(card) if card else None
    if told is None and not place.config.exists():
        raise UsageError("which run?", hint="give the run's card, a file that its owner hands out: node join CARD")
    if told and place.config.exists():
        _require_same_run(place, told)
    place.ask_once(password_file)
    if told and not place.config.exists():
        make_home(place, told.chain_table, told.bootnodes, listen, password_file)
    node, faucet = settings(place).value, told.faucet if told else ""
    chain, key = open_chain(node), place.open_key("node", password_file)
    typer.echo(f"node key      {key.address}  (signs work)", err=True)
    sender = operator_sender(place, node, chain, password_file, None)
    operator = sender.key.address
    typer.echo(f"operator key  {operator}  (holds the stake, receives rewards; send everything here)", err=True)
    require_not_banned(chain, node.chain.run, key.address)
    seat = look_for_seat(place, node, chain, key, hardware, invite, spec)
    missing = seat.missing(chain, operator)
    if not seat.is_taken:
        source = "the run's faucet" if faucet and chain.token_balance(operator) < missing else "the operator"
        confirm(f"Join run {node.chain.run}?", seat.consequences(chain, f"{tokens(missing)} from {source}"), yes)
    gather(sender, key.address, missing, faucet, patience=minutes * 60, say=lambda line: typer.echo(line, err=True))
    take_seat(sender, key, seat, missing, CONSENT_SECONDS)
    typer.echo(f"{key.address} is seated in run {node.chain.run}")
    typer.echo(f"next: {place.command('node start')}", err=True)


def _require_same_run(place: Home, card: RunCard) -> None:
    """Raises ConfigError where a home that is there belongs to another run."""
    node = settings(place).value
    ours = (node.chain.chain_id, node.chain.contract.lower(), node.chain.run)
    if ours != (card.chain_id, card.contract.lower(), card.run):
        raise ConfigError(
            f"{place.path} belongs to run {node.chain.run} of {node.chain.contract} on chain {node.chain.chain_id}, and the card is of another",
            hint="give another --home",
        )
