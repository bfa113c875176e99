"""`murmur run fund-vouchers` and `collect-vouchers`: the pot out of which a run's validators are paid, filled and emptied by its owner.

The contract gives the owner nothing back but by a voucher, as to a validator: one that the owner signs to itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protocol.errors import UsageError
from protocol.shell.cli import CalldataJson, PasswordFile, Yes, confirm, strip_at
from protocol.shell.commands.owner import (
    Calldata,
    File,
    Keystore,
    allow,
    owner_sender,
    require_owner,
    require_tokens,
    run_of,
    vouchers_of,
    word_on,
)
from protocol.shell.money import parse_tokens, tokens
from protocol.shell.proposal import Proposal, is_shown

if TYPE_CHECKING:
    from protocol.chain import Chain
    from protocol.signing import Voucher

_SIGNATURE_MAX = 4096  # bytes; that of a contract may be longer than a key's 65


def register(app: typer.Typer) -> None:
    app.command("fund-vouchers")(fund)
    app.command("collect-vouchers")(collect)


def fund(
    file: File, amount: Annotated[str, typer.Argument(help="Tokens.")], keystore: Keystore = None,
    password_file: PasswordFile = None, yes: Yes = False, calldata: Calldata = False, as_json: CalldataJson = False,
) -> None:  # fmt: skip
    """Add to the pot out of which the run's validators are paid."""
    path = strip_at(file)
    wei, run = parse_tokens(amount), run_of(path)
    sender = owner_sender(path, keystore, password_file, calldata)
    chain, owner = sender.chain, sender.key.address
    vouchers = vouchers_of(path, chain)
    chain.policy(run)
    call = vouchers.fund(run, wei)
    require_tokens(sender, call, wei)
    confirm(
        "Fill the pot?",
        [
            *word_on(path, sender),
            f"{tokens(wei)} from {owner} to the pot of run {run}",
            "validators take it out with vouchers; the owner takes back what is left with `murmur run collect-vouchers`",
            *_idle_pot(path),
        ],
        yes or calldata,
    )
    allow(sender, call, vouchers.address, wei)
    sender.send(call)
    if is_shown(sender, as_json):
        return
    typer.echo(f"the pot of run {run} holds {tokens(vouchers.pot(run))}")


def collect(
    file: File,
    leave: Annotated[str, typer.Option(help="Tokens that stay in the pot.")] = "0",
    keystore: Keystore = None, password_file: PasswordFile = None, yes: Yes = False, calldata: Calldata = False,
    signature: Annotated[str | None, typer.Option(help="With --calldata: what the owner, a contract, signed (ERC-1271); without it, what is to be signed is printed.")] = None,
    as_json: CalldataJson = False,
) -> None:  # fmt: skip
    """Take out of the pot what validators are not going to be paid. Their vouchers pay nothing while it is empty: let them redeem first."""
    from protocol.signing import Voucher

    path = strip_at(file)
    wei, run = parse_tokens(leave, least=0), run_of(path)
    if signature is not None and not calldata:
        raise UsageError("--signature is a contract's, and goes with --calldata", hint="an owner's key signs by itself")
    sender = owner_sender(path, keystore, password_file, calldata)
    owner = sender.key.address
    require_owner(sender.chain, run, owner)
    vouchers = vouchers_of(path, sender.chain)
    pot, paid = _least(path, sender.chain, run, owner)
    if pot <= wei:
        typer.echo(f"the pot of run {run} holds {tokens(pot)}: nothing is taken out of it", err=calldata)
        return
    voucher = Voucher(run, owner, paid + pot - wei)
    if isinstance(sender, Proposal):
        if signature is None:
            typer.echo(json.dumps(voucher.typed_data(sender.chain.domain)))
            typer.echo("let the owner sign this (EIP-712), then give the command again with --signature 0x…", err=True)
            return
        signed = _signed(sender.chain, voucher, signature)
    else:
        confirm(
            "Take it out?",
            [
                *word_on(path, sender),
                f"{tokens(pot - wei)} of the {tokens(pot)} in the pot of run {run}, to {owner}",
                "validators who have not redeemed what they were promised are paid nothing until it holds more",
            ],
            yes,
        )
        signed = voucher.sign(sender.key, sender.chain.domain)
    sender.send(vouchers.redeem(voucher, signed))
    if is_shown(sender, as_json):
        return
    typer.echo(f"the pot of run {run} holds {tokens(vouchers.pot(run))}")


def _least(file: Path, chain: Chain, run: int, owner: str) -> tuple[int, int]:
    """(wei in the pot, wei that the owner's vouchers have paid), by the endpoint that says the least of both together. What a voucher promises beyond the pot, anybody
    could have paid to the owner out of what comes later, so no endpoint may make it larger than another says."""

    def said(one: Chain) -> tuple[int, int]:
        vouchers = vouchers_of(file, one)
        return vouchers.pot(run), vouchers.redeemed(run, owner)

    return min(chain.answers("reading the pot", said), key=sum)


def _signed(chain: Chain, voucher: Voucher, text: str) -> bytes:
    """Raises UsageError unless the owner signed it."""
    try:
        signature = bytes.fromhex(text.removeprefix("0x"))
    except ValueError as error:
        raise UsageError("--signature is no hexadecimal number") from error
    if len(signature) > _SIGNATURE_MAX:
        raise UsageError(f"--signature has {len(signature):,} bytes; {_SIGNATURE_MAX:,} are the most")
    if not chain.signed(voucher, signature, voucher.validator):  # type: ignore[arg-type]
        raise UsageError(
            f"{voucher.validator} has not signed that it is paid {tokens(voucher.total)} in all",
            hint="the pot may have changed: without --signature the command prints what is to be signed now",
        )
    return signature


def _idle_pot(file: Path) -> list[str]:
    """A warning where the hub promises nothing out of the pot."""
    from protocol.settings import read_toml

    pay = read_toml(file).get("vouchers", {}).get("per_submission", "0")
    nothing = f'WARNING   the hub signs no vouchers: per_submission under [vouchers] of {file} is not above "0"'
    return [] if parse_tokens(str(pay), least=0) else [nothing]
