"""What the commands of a run's owner share: their options, whose key or which contract is going to send, and what the run's file names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protocol.errors import ConfigError, InsufficientFunds, UsageError
from protocol.shell.cli import calldata_option, parse_address
from protocol.shell.home import PASSWORD_VARIABLE
from protocol.shell.money import allow_to_take, tokens, whose_word

if TYPE_CHECKING:
    from eth_typing import ChecksumAddress

    from protocol.chain import Chain, Sender
    from protocol.chain.calls import Call
    from protocol.chain.vouchers import Vouchers
    from protocol.shell.proposal import Proposal

File = Annotated[str, typer.Argument(help="The run's file, as @run.toml.")]
Keystore = Annotated[Path | None, typer.Option(help="Keystore of the run's owner.")]
Calldata = Annotated[bool, calldata_option("owner")]
OwnerAddress = Annotated[
    str | None,
    typer.Option("--owner", help="With --calldata: the account that is going to send; else the run's owner."),
]


def owner_sender(
    file: Path, keystore: Path | None, password_file: Path | None, calldata: bool = False, owner: str | None = None
) -> Sender | Proposal:
    """What an earlier command of this key began is ended before it is returned: read the chain afterwards. With `calldata` nothing
    is sent by what is returned, and no key is asked for."""
    from protocol.identity import load_keystore, read_password
    from protocol.shell import runfile
    from protocol.shell.proposal import Proposal, Proposer
    from protocol.shell.sending import command_sender

    if calldata == (keystore is not None):
        raise UsageError("give either --keystore or --calldata", hint="--calldata needs no key: it sends nothing")
    chain = open_chain(file)
    if keystore is None:
        who = parse_address(owner) if owner else chain.policy(run_of(file)).owner
        return Proposal(chain, Proposer(who))
    password = read_password(file=password_file, variable=PASSWORD_VARIABLE, what=str(keystore))
    key = load_keystore(keystore, password)
    return command_sender(chain, key, keystore, runfile.client(file)[0].limits, scope=file)


def open_chain(file: Path) -> Chain:
    from protocol.shell import runfile

    settings, chain_id = runfile.client(file)
    return settings.connect(chain_id)


def word_on(file: Path, sender: Sender | Proposal) -> list[str]:
    from protocol.chain.agreement import require_same_run

    return whose_word(sender.chain, run_of(file), require_same_run(sender.chain, run_of(file)))


def vouchers_of(file: Path, chain: Chain) -> Vouchers:
    from protocol.chain.vouchers import Vouchers
    from protocol.settings import read_toml

    return Vouchers(chain, read_toml(file).get("chain", {}).get("vouchers"))


def run_of(file: Path) -> int:
    from protocol.settings import read_toml

    run = read_toml(file).get("chain", {}).get("run")
    if not isinstance(run, int):
        raise ConfigError(
            f"{file} does not say which run it is", hint="put `run = N` under [chain], as `murmur run create` printed"
        )
    return run


def require_owner(chain: Chain, run: int, address: str) -> None:
    """Raises UsageError unless this is the address of the run's owner."""
    if address != (owner := chain.policy(run).owner):
        raise UsageError(f"{address} is not the owner of run {run}", hint=f"give the keystore of {owner}")


def require_tokens(sender: Sender | Proposal, call: Call, wei: int) -> None:
    """Raises InsufficientFunds where a call that moves the owner's tokens cannot be made."""
    owner = sender.key.address
    if not sender.is_done(call) and (has := sender.chain.token_balance(owner)) < wei:
        raise InsufficientFunds(f"{owner} holds {tokens(has)}, fewer than {tokens(wei)}")


def allow(sender: Sender | Proposal, call: Call, spender: ChecksumAddress, wei: int) -> None:
    """Lets `spender` take what the call is about to move."""
    if not sender.is_done(call):
        allow_to_take(sender, spender, wei)
