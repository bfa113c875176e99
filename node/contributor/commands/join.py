"""`node join`: from a run's card to a seat, in one command that may be interrupted and given again."""

from __future__ import annotations

import json
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
from node.contributor.commands.init import home_tables, make_home, make_settings
from node.contributor.commands.stake import Hardware, InviteOption, look_for_seat, require_not_banned, take_seat
from protocol.chain.types import Role
from protocol.errors import ConfigError, UsageError
from protocol.http_url import without_secrets
from protocol.shell.cli import PasswordFile, Rpc, Yes, confirm

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
    rpc: Rpc = None,
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
    from node.contributor.joining import Spending, gather
    from protocol.chain.agreement import require_same_run
    from protocol.shell import run_card
    from protocol.shell.money import tokens, whose_word

    place, told = open_home(home), run_card.read(card) if card else None
    place.require_own()
    if told is None and not place.config.exists():
        raise UsageError("which run?", hint="give the run's card, a file that its owner hands out: node join CARD")
    if rpc is not None and place.config.exists():
        _require_asked(place, rpc)
    if card and told and place.config.exists():
        _take_correction(place, told, card)
    place.ask_once(password_file)
    if told and not place.config.exists():
        make_home(place, run_card.chain_table(told, rpc), told.bootnodes, listen, password_file, card)
        run_card.keep(place.path, told)
    told = told or run_card.kept(place.path)
    node = settings(place).value
    chain, key = open_chain(node), place.open_key("node", password_file)
    typer.echo(f"node key      {key.address}  (signs work)", err=True)
    if not place.keystore("operator").exists() and chain.seat(node.chain.run, key.address).role == Role.ACTIVE:
        require_same_run(chain, node.chain.run, node=key.address)
        _say_seated(place, key.address, node.chain.run)  # its operator's key was moved to a safe place
        return
    sender = operator_sender(place, node, chain, password_file, None)
    operator = sender.key.address
    typer.echo(f"operator key  {operator}  (holds the stake, receives rewards; send everything here)", err=True)
    require_not_banned(chain, node.chain.run, key.address)
    agreed = require_same_run(chain, node.chain.run, node=key.address)
    seat = look_for_seat(place, node, chain, key, agreed, hardware, invite, spec)
    spending = Spending.planned(
        chain, key.address, operator, stake=seat.missing(chain, operator), is_seated=seat.is_taken,
        faucet=told.faucet if told else "", fee_max=node.chain.limits.fee,
    )  # fmt: skip
    if spending.gas:
        source = "the run's faucet" if spending.faucet else "the operator"
        deposited = f"{tokens(spending.stake)} from {source}" if spending.stake else ""
        lines = seat.consequences(chain, deposited) if not seat.is_taken else []
        question = f"Join run {node.chain.run}?" if lines else "Pass ETH to the node key?"
        confirm(question, [*whose_word(chain, node.chain.run, agreed), *lines, *spending.consequences()], yes)
        gather(sender, spending, patience=minutes * 60, say=lambda line: typer.echo(line, err=True))
        take_seat(sender, key, seat, spending.stake, CONSENT_SECONDS)
    _say_seated(place, key.address, node.chain.run)


def _say_seated(place: Home, node: str, run: int) -> None:
    typer.echo(f"{node} is seated in run {run}")
    typer.echo(f"next: {place.command('node start')}", err=True)


def _require_asked(place: Home, rpc: str) -> None:
    """Raises UsageError where the home asks other endpoints than `rpc`."""
    if settings(place).value.chain.rpc not in (rpc, (rpc,)):
        raise UsageError(
            f"{place.config} names other endpoints than {without_secrets(rpc)}",
            hint=f"write chain.rpc into {place.config}",
        )


def _take_correction(place: Home, card: RunCard, file: Path) -> None:
    """A home takes what a newer card of its run says, unless its settings were changed by hand.

    Raises ConfigError where the home belongs to another run.
    """
    from protocol.settings import read_toml
    from protocol.shell import run_card

    node = settings(place).value
    ours = (node.chain.chain_id, node.chain.contract.lower(), node.chain.run)
    if ours != (card.chain_id, card.contract.lower(), card.run):
        raise ConfigError(
            f"{place.path} belongs to run {node.chain.run} of {node.chain.contract} on chain {node.chain.chain_id}, and the card is of another",
            hint="give another --home",
        )
    before = run_card.kept(place.path)
    if card == before:
        return
    tables = read_toml(place.config)
    if before and home_tables(before, tables) == home_tables(card, tables):
        typer.echo(f"the faucet is {card.faucet or 'none'} now, as the card says", err=True)
    elif before and tables == home_tables(before, tables):
        make_settings(place, run_card.chain_table(card), card.bootnodes, tables["peers"]["listen"], file)
        typer.echo(f"the card's endpoints and bootnodes were written to {place.config}", err=True)
    elif tables != home_tables(card, tables):
        said = {"chain.rpc": card.rpc, "peers.bootnodes": card.bootnodes, "chain.first_block": card.first_block}
        typer.echo(f"{place.config} is not as a card made it, and is left as it is; the card says", err=True)
        for name, value in said.items():
            typer.echo(f"  {name} = {json.dumps(value)}", err=True)
    run_card.keep(place.path, card)
