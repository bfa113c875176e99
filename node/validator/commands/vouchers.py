"""`murmur validator vouchers` and `redeem`: what the run has promised this validator, and cashing it.

A voucher names the whole of what was ever promised, and the contract pays what it has not paid yet: sending one again, from
here or from a process that was killed, pays nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.validator.commands.context import DEFAULT_HOME, HomeOption, open_home, validator_sender
from protocol.errors import InsufficientFunds
from protocol.shell.cli import Json, PasswordFile, Yes, confirm, emit
from protocol.shell.home import Home
from protocol.shell.money import in_json, tokens

if TYPE_CHECKING:
    from node.validator.settings import ValidatorSettings
    from protocol.chain import Chain
    from protocol.chain.vouchers import Vouchers
    from protocol.hub.client import HubClient
    from protocol.identity import Key
    from protocol.voucher import SignedVoucher

_Hub = Annotated[
    str | None, typer.Option(help="URL of the run's hub; looked up through the bootnodes, when not given.")
]


def register(app: typer.Typer) -> None:
    app.command("vouchers")(show)
    app.command()(redeem)


@dataclass(frozen=True)
class Pay:
    """Amounts in wei. `owed` is what the voucher still promises, `payable` what of it the pot can pay now."""

    promised: int
    redeemed: int
    pot: int

    @property
    def owed(self) -> int:
        return max(0, self.promised - self.redeemed)

    @property
    def payable(self) -> int:
        return min(self.owed, self.pot)


def look(vouchers: Vouchers, run: int, validator: str, signed: SignedVoucher | None) -> Pay:
    promised = 0 if signed is None else signed.voucher.total
    return Pay(promised, vouchers.redeemed(run, validator), vouchers.pot(run))


@contextmanager
def _hub(
    settings: ValidatorSettings, place: Home, key: Key | None, chain: Chain, url: str | None
) -> Iterator[HubClient]:
    """The run's hub. A voucher proves itself, so a hub that was named needs no key and no look-up."""
    from protocol.hub.client import HubClient
    from protocol.shell.connection import connect

    if url is not None:
        with closing(HubClient(url, settings.chain.run, chain.domain)) as client:
            yield client
        return
    assert key is not None
    with connect(settings.chain, settings.peers, key, peers_file=place.data / "peers.json") as connection:
        yield connection.hub


def _open(path: Path) -> tuple[Home, ValidatorSettings, Chain, Vouchers]:
    from protocol.chain.vouchers import Vouchers

    place, settings = open_home(path)
    chain = settings.chain.open()
    return place, settings, chain, Vouchers(chain, settings.chain.vouchers)


def show(
    home: HomeOption = DEFAULT_HOME, hub: _Hub = None, password_file: PasswordFile = None, as_json: Json = False
) -> None:
    """Show what the run has promised this validator, what was paid, and what is left in the run's pot."""
    place, settings, chain, vouchers = _open(home)
    run, address = settings.chain.run, place.address("validator")
    key = None if hub is not None else place.open_key("validator", password_file)
    with _hub(settings, place, key, chain, hub) as client:
        found = look(vouchers, run, address, client.voucher(address, chain.trainer(run)))
    data = {
        "validator": address, "promised": found.promised, "redeemed": found.redeemed, "owed": found.owed, "pot": found.pot,
    }  # fmt: skip

    def text() -> None:
        typer.echo(f"promised  {tokens(found.promised)} in all, for submissions that are final")
        typer.echo(f"redeemed  {tokens(found.redeemed)}\nowed      {tokens(found.owed)}")
        typer.echo(f"pot       {tokens(found.pot)}, which the run's owner fills")
        if found.payable:
            typer.echo("next: murmur validator redeem", err=True)

    emit(in_json(data, "promised", "redeemed", "owed", "pot"), as_json, text)


def redeem(
    home: HomeOption = DEFAULT_HOME, hub: _Hub = None, password_file: PasswordFile = None, yes: Yes = False
) -> None:
    """Have what the run has promised paid to this validator's key. Redeeming nothing sends nothing."""
    place, settings, chain, vouchers = _open(home)
    sender = validator_sender(place, settings, chain, password_file)
    run, key = settings.chain.run, sender.key
    with _hub(settings, place, key, chain, hub) as client:
        signed = client.voucher(key.address, chain.trainer(run))
    found = look(vouchers, run, key.address, signed)
    if signed is None or not found.owed:
        typer.echo("nothing is owed that was not paid")
        return
    if not found.pot:
        raise InsufficientFunds(
            f"the pot of run {run} is empty; {tokens(found.owed)} stay owed",
            hint="ask the run's owner for `murmur run fund-vouchers`",
        )
    confirm("Redeem?", [f"pays {tokens(found.payable)} to {key.address}"], yes)
    sender.send(vouchers.redeem(signed.voucher, signed.signature))
    paid = look(vouchers, run, key.address, signed)
    typer.echo(f"redeemed {tokens(paid.redeemed - found.redeemed)}")
    if paid.owed:
        typer.echo(f"{tokens(paid.owed)} stay owed until the pot holds more", err=True)
