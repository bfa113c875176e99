"""Deploys the contracts from the shipped bytecode, without a compiler, and remembers where they are.

The addresses file (JSON) is what people hand around: chain id, the contracts and the block to index from. Runs names the
address of Court before Court is there (the next transaction's of the same key), and Court refuses to live anywhere else.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from eth_utils import keccak, to_checksum_address

from protocol.chain import artifacts
from protocol.chain.access import Code
from protocol.chain.agreement import first_block
from protocol.chain.calls import Call
from protocol.chain.client import Chain
from protocol.chain.contract import creation
from protocol.chain.ethereum import created_by
from protocol.chain.sender import Sender, Sent
from protocol.chain.transaction_log import TransactionLog
from protocol.errors import ChainError, ConfigError, TransactionReverted
from protocol.identity import Key

log = logging.getLogger(__name__)

GAS = 26_000_000
"""Enough for all transactions of a deployment, head-room included."""

DEVELOPMENT_SUPPLY = 10**9 * 10**18
"""Development tokens minted to the deployer, in wei."""
_ATTEMPTS = 3


@dataclass(frozen=True)
class Deployment:
    chain_id: int
    runs: str
    bonds: str
    court: str
    vouchers: str
    token: str
    block: int
    """Block of deployment: events need not be looked for before it."""
    faucet: str = ""
    """Of development tokens; empty: there is none."""
    compiler: str = ""
    """What made the bytecode, and how: with the sources of that version it can be made again, to the last byte."""
    settings: dict[str, Any] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        partial.write_text(json.dumps(asdict(self), indent=1) + "\n")
        partial.replace(path)

    @classmethod
    def load(cls, path: Path) -> Deployment:
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{path} is no addresses file: {error}") from error


def plan(chain: Chain, key: str, *, withdrawal_delay: int, sink: str, token: str | None) -> str:
    """Names a deployment by what goes into it, the chain's own first block included: only the same one is gone on with. Raises as `first_block`."""
    return keccak(
        text=json.dumps([chain.chain_id, first_block(chain).hex(), key, withdrawal_delay, sink, token])
    ).hex()[:8]


def refuse_overwriting(out: Path) -> None:
    """An addresses file is the only thing that says where contracts with people's money are."""
    if out.exists():
        raise ConfigError(
            f"{out} exists and names contracts that are there", hint="move it away, or give another --out"
        )


def deploy_to(
    out: Path, chain: Chain, key: Key, *, withdrawal_delay: int, sink: str, token: str | None = None
) -> Deployment:
    """Like `deploy`, and writes the addresses file. A journal beside it lets the same command go on after a kill."""
    refuse_overwriting(out)
    name = plan(chain, key.address, withdrawal_delay=withdrawal_delay, sink=sink, token=token)
    path = out.with_name(f"{out.stem}.{name}.journal")
    if path.exists():
        log.info("going on with the deployment that %s tells of", path)
    sender = Sender(chain, key, TransactionLog(path))
    try:
        deployment = deploy(sender, withdrawal_delay=withdrawal_delay, sink=sink, token=token)
    finally:
        sender.close()
    deployment.save(out)
    for leftover in (path, path.with_suffix(".lock"), *(path.with_name(path.name + end) for end in ("-wal", "-shm"))):
        leftover.unlink(missing_ok=True)
    return deployment


def deploy(sender: Sender, *, withdrawal_delay: int, sink: str, token: str | None = None) -> Deployment:
    """Deploys Runs (which brings Bench, Bonds and Weights), Court (which brings Policies and Locations) and Vouchers over `token`, or over a new development token.

    `withdrawal_delay` in seconds. With a sender whose journal outlives this process, the same call goes on where an earlier
    one stopped and deploys nothing twice; a Runs whose Court can never come, because the key did something else in between,
    is left behind and replaced. Raises ChainError when that happens again and again.
    """
    chain = sender.chain
    if token is None:
        token = str(_create(sender, "Token", 0, DEVELOPMENT_SUPPLY).contract)
    for attempt in range(_ATTEMPTS):
        court = _address_of_next(sender, after=1)
        sent = _create(
            sender, "Runs", attempt, to_checksum_address(token), withdrawal_delay, to_checksum_address(sink), court
        )
        runs = Chain(chain.endpoints, str(sent.contract))
        if not _create_court(sender, runs, attempt):
            log.warning(
                "something else was sent with %s between Runs (%s) and its Court, which can no longer come; deploying both anew",
                sender.key.address,
                runs.runs.address,
            )
            continue
        vouchers = str(_create(sender, "Vouchers", attempt, runs.runs.address).contract)
        runs.check()
        return Deployment(
            chain.chain_id,
            runs.runs.address,
            runs.bonds.address,
            runs.court.address,
            vouchers,
            token,
            sent.block,
            compiler=artifacts.build().compiler,
            settings=artifacts.build().settings,
        )
    raise ChainError(
        f"something else keeps using the key of {sender.key.address} while the contracts are deployed",
        hint="stop it, or deploy with a key of its own",
    )


def _create_court(sender: Sender, runs: Chain, attempt: int) -> bool:
    """Creates Court where Runs looks for it; False when that address cannot be had any more."""
    if runs.code_at(runs.court.address, "Court") is Code.SHIPPED:
        return True  # an earlier life of this deployment did it: no Court lives where its Runs does not look for it
    if _address_of_next(sender, after=0) != runs.court.address:
        return False
    try:
        _create(sender, "Court", attempt, runs.runs.address)
    except TransactionReverted as error:
        if error.reason != "WrongAddress":
            raise
        return False
    return True


def _address_of_next(sender: Sender, *, after: int) -> str:
    """Where the transaction that follows `after` others of this key will create a contract."""
    return created_by(sender.key.address, sender.next_nonce() + after)


def _create(sender: Sender, name: str, attempt: int, *arguments: object) -> Sent:
    """Once per name and attempt, whatever the arguments: what an earlier life of this deployment created is returned."""
    artifact = artifacts.load(name)
    constructor = creation(sender.chain.ethereum, artifact.abi, artifact.bytecode, *arguments)
    return sender.send(Call(f"deploying {name}", constructor), name=f"{name}/{attempt}")
