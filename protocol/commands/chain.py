"""`murmur chain …`: the contracts themselves."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from protocol.chain import Chain, Sender
from protocol.chain.deploy import Deployment, deploy
from protocol.cli import Json, PasswordFile, Yes, confirm, emit, group
from protocol.home import PASSWORD_VARIABLE
from protocol.identity import load_keystore, read_password
from protocol.money import duration, tokens

app = group("Deploy the contracts and look at them.")
Rpc = Annotated[str, typer.Option(help="JSON-RPC endpoint of the chain.")]
_DAY = 86_400


@app.command("deploy")
def deploy_contracts(
    keystore: Annotated[Path, typer.Option(help="Keystore of the key that pays for it; it gets no rights.")],
    sink: Annotated[str, typer.Option(help="Address that receives what is slashed, less the finder's share.")],
    out: Annotated[Path, typer.Option(help="Addresses file to write.")] = Path("deployment.json"),
    rpc: Rpc = "http://127.0.0.1:8545",
    token: Annotated[
        str | None, typer.Option(help="Token of stakes and rewards; a new development token, when not given.")
    ] = None,
    delay: Annotated[int, typer.Option(help="Seconds from unstaking to withdrawal; must outlast any verdict.")] = 7
    * _DAY,
    password_file: PasswordFile = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Deploy Runs and Bonds (and a development token) from the shipped bytecode; needs no compiler."""
    password = read_password(file=password_file, variable=PASSWORD_VARIABLE, what=str(keystore))
    chain = Chain(rpc, None)
    sender = Sender(chain, load_keystore(keystore, password))
    confirm(
        f"Deploy to chain {chain.chain_id}?",
        [
            f"paid by {sender.key.address}, {chain.balance(sender.key.address) / 1e18:.6f} ETH",
            f"stake can leave after {duration(delay)}",
        ],
        yes,
    )
    deployment = deploy(sender, withdrawal_delay=delay, sink=sink, token=token)
    deployment.save(out)

    def text() -> None:
        typer.echo(f"Runs   {deployment.runs}\nBonds  {deployment.bonds}\ntoken  {deployment.token}\nwritten to {out}")

    emit(asdict(deployment), as_json, text)


@app.command()
def info(
    deployment: Annotated[Path | None, typer.Option(help="Addresses file.")] = None,
    contract: Annotated[
        str | None, typer.Option(help="Address of the Runs contract, without an addresses file.")
    ] = None,
    rpc: Rpc = "http://127.0.0.1:8545",
    as_json: Json = False,
) -> None:
    """Check code and chain id, and list the runs."""
    known = Deployment.load(deployment) if deployment else None
    chain = Chain(rpc, known.runs if known else contract)
    chain.check(known.chain_id if known else None)
    runs: list[dict[str, Any]] = []
    for run in range(1, chain.run_count() + 1):
        policy, funds, head = chain.policy(run), chain.funds(run), chain.head(run)
        runs.append(
            {
                "run": run, "owner": policy.owner, "trainer": policy.trainer, "head": head.step if head else None,
                "free": funds.free, "reserved": funds.reserved, "spec": chain.spec_digest(run).hex(), "policy": asdict(policy),
            }
        )  # fmt: skip
    data = {"chain_id": chain.chain_id, "runs_contract": chain.runs.address, "bonds": chain.bonds.address, "runs": runs}

    def text() -> None:
        typer.echo(f"chain {chain.chain_id}: Runs {chain.runs.address}, Bonds {chain.bonds.address}, code as shipped")
        for r in runs:
            head = "nothing published" if r["head"] is None else f"head step {r['head']}"
            typer.echo(
                f"run {r['run']}: {head}, budget {tokens(r['free'])} free and {tokens(r['reserved'])} owed, owner {r['owner']}"
            )

    emit(data, as_json, text)


@app.command("new-key")
def new_key(
    out: Annotated[Path, typer.Argument(help="Keystore file to write.")],
    rpc: Rpc = "http://127.0.0.1:8545",
    password_file: PasswordFile = None,
) -> None:
    """Create a key in a new keystore file and print its address."""
    from protocol.identity import Key, save_keystore

    password = read_password(file=password_file, variable=PASSWORD_VARIABLE, what=str(out), confirm=True)
    key = Key.generate()
    save_keystore(key, out, password, chain_id=Chain(rpc, None).chain_id)
    typer.echo(key.address)
