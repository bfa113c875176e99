"""`murmur wallet …`: the money of one address, ETH and the run's token."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protocol.chain import networks
from protocol.errors import InsufficientFunds, UsageError
from protocol.shell.cli import Json, PasswordFile, Yes, confirm, emit, group, parse_address
from protocol.shell.home import PASSWORD_VARIABLE
from protocol.shell.money import duration, ether, in_json, parse_tokens, tokens

if TYPE_CHECKING:
    from protocol.chain import Chain
    from protocol.chain.calls import Call
    from protocol.chain.command import CommandSender

app = group("Look at an address's money and send some of it.")
Network = Annotated[
    networks.Name | None, typer.Option(help="Which chain it is to be; else that of the addresses file, else anvil.")
]
Rpc = Annotated[
    list[str] | None,
    typer.Option(help="JSON-RPC endpoint, instead of the network's public one; may be given several times."),
]
Addresses = Annotated[Path | None, typer.Option(help="Addresses file that `murmur chain deploy` wrote.")]
Contract = Annotated[str | None, typer.Option(help="Address of the Runs contract, without an addresses file.")]


def _connect(
    deployment: Path | None, contract: str | None, network: networks.Name | None, rpc: list[str] | None
) -> tuple[Chain, bool]:
    """(the chain, whether contracts were named); those are checked."""
    from protocol.chain.deploy import Deployment

    known = Deployment.load(deployment) if deployment else None
    urls, chain_id = networks.endpoints(network, rpc or [], known.chain_id if known else None)
    runs = known.runs if known else contract and parse_address(contract)
    chain = networks.connect(urls, chain_id, runs or None)
    if runs:
        chain.check(chain_id)
    return chain, bool(runs)


@app.command()
def balance(
    address: Annotated[str, typer.Argument(help="Whose money.")],
    deployment: Addresses = None,
    contract: Contract = None,
    network: Network = None,
    rpc: Rpc = None,
    as_json: Json = False,
) -> None:
    """Show the ETH of an address, and with --deployment or --contract its tokens and stake."""
    address = parse_address(address)
    chain, has_contracts = _connect(deployment, contract, network, rpc)
    wei = chain.balance(address)
    data: dict[str, object] = {"address": address, "chain_id": chain.chain_id, "eth": wei}
    lines = [f"{address} on chain {chain.chain_id}", f"  gas money  {ether(wei)}"]
    if has_contracts:
        held, stake, now = chain.token_balance(address), chain.account(address), chain.block().time
        data |= {
            "tokens": held, "stake": stake.active, "locked": stake.locked, "leaving": stake.leaving,
            "ready_at": stake.ready_at if stake.leaving else None,
        }  # fmt: skip
        lines += [
            f"  tokens     {tokens(held)}",
            f"  stake      {tokens(stake.active)}, {tokens(stake.locked)} of it locked",
        ]
        if stake.leaving:
            left = max(0, stake.ready_at - now)
            lines.append(f"  leaving    {tokens(stake.leaving)}, " + (f"in {duration(left)}" if left else "ready now"))
    amounts = "eth", "tokens", "stake", "locked", "leaving"
    emit(in_json(data, *amounts), as_json, lambda: typer.echo("\n".join(lines)))


@app.command()
def send(
    to: Annotated[str, typer.Argument(help="Address to send to.")],
    amount: Annotated[str, typer.Argument(help="Tokens, or with --eth ETH.")],
    keystore: Annotated[Path, typer.Option(help="Keystore of the key that pays.")],
    is_eth: Annotated[bool, typer.Option("--eth", help="Send ETH instead of tokens.")] = False,
    deployment: Addresses = None,
    contract: Contract = None,
    network: Network = None,
    rpc: Rpc = None,
    password_file: PasswordFile = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Send tokens of the contracts' token, or ETH, to an address. It cannot be taken back."""
    from protocol.chain.agreement import require_agreement
    from protocol.chain.sender import SendLimits
    from protocol.identity import load_keystore, read_password
    from protocol.shell.sending import command_sender

    to, wei = parse_address(to), parse_tokens(amount)
    if not is_eth and not (deployment or contract):
        raise UsageError("of which token?", hint="give --deployment or --contract; or --eth, to send ETH")
    chain, _ = _connect(deployment, contract, network, rpc)
    password = read_password(file=password_file, variable=PASSWORD_VARIABLE, what=str(keystore))
    key = load_keystore(keystore, password)
    sender = command_sender(chain, key, keystore, SendLimits())
    call = chain.transfer_ether(to, wei) if is_eth else chain.transfer_tokens(to, wei)
    shown = ether(wei) if is_eth else tokens(wei)
    cost = _cost(sender, call, wei, is_eth)
    confirm(
        "Send it?", [f"{shown} from {key.address} to {to} on chain {chain.chain_id}, for good; gas up to {cost}"], yes
    )
    if not is_eth:
        require_agreement(chain)
    sent = sender.send(call)
    has = chain.balance(to) if is_eth else chain.token_balance(to)
    data = {"transaction": "0x" + sent.hash.hex(), "to": to, "amount": wei, "has": has, "eth": is_eth}
    emit(
        in_json(data, "amount", "has"), as_json, lambda: typer.echo(f"{to} has {ether(has) if is_eth else tokens(has)}")
    )


def _cost(sender: CommandSender, call: Call, wei: int, is_eth: bool) -> str:
    """What the gas may cost. Raises InsufficientFunds where the key cannot pay that or what is sent."""
    if sender.is_done(call):
        return "nothing: it was sent already"
    who, chain = sender.key.address, sender.chain
    if not is_eth and (held := chain.token_balance(who)) < wei:
        raise InsufficientFunds(f"{who} holds {tokens(held)}, fewer than {tokens(wei)}")
    has, needed = chain.balance(who), wei if is_eth else 0
    if has < needed:
        raise InsufficientFunds(f"{who} has {ether(has)}, less than {ether(wei)}")
    _, gas = sender.estimate(call)
    if has < needed + gas:
        raise InsufficientFunds(f"{who} has {ether(has)}, and with the gas this takes up to {ether(needed + gas)}")
    return ether(gas)
