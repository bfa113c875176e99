"""`murmur chain …`: the contracts themselves."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protocol.chain import networks
from protocol.errors import ConfigError, InsufficientFunds, UsageError, WrongChain
from protocol.shell.cli import Json, PasswordFile, Yes, confirm, emit, group, parse_address
from protocol.shell.home import PASSWORD_VARIABLE
from protocol.shell.money import duration, in_json, parse_tokens, policy_in_json, send_tokens, tokens

if TYPE_CHECKING:
    from protocol.chain import Chain
    from protocol.chain.command import CommandSender
    from protocol.chain.deploy import Deployment

app = group("Deploy the contracts and look at them.")
Network = Annotated[
    networks.Name, typer.Option(help="Which chain it is to be; another one is refused before anything is sent.")
]
AnyNetwork = Annotated[
    networks.Name | None, typer.Option(help="Which chain it is to be; else that of the addresses file, else anvil.")
]
Rpc = Annotated[
    list[str] | None,
    typer.Option(help="JSON-RPC endpoint, instead of the network's public one; may be given several times."),
]
Addresses = Annotated[Path | None, typer.Option(help="Addresses file that `murmur chain deploy` wrote.")]
Contract = Annotated[str | None, typer.Option(help="Address of the Runs contract, without an addresses file.")]
_DAY = 86_400


@app.command("deploy")
def deploy_contracts(
    keystore: Annotated[Path, typer.Option(help="Keystore of the key that pays for it; it gets no rights.")],
    sink: Annotated[str, typer.Option(help="Address that receives what is slashed, less the finder's share.")],
    out: Annotated[Path, typer.Option(help="Addresses file to write; never overwritten.")] = Path("deployment.json"),
    network: Network = networks.Name.ANVIL,
    rpc: Rpc = None,
    token: Annotated[
        str | None, typer.Option(help="Token of stakes and rewards; a new development token, when not given.")
    ] = None,
    delay: Annotated[int, typer.Option(help="Seconds from unstaking to withdrawal; must outlast any verdict.")] = 7
    * _DAY,
    password_file: PasswordFile = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Deploy Runs, Bonds, Court and Vouchers (and a development token) from the shipped bytecode; needs no compiler.

    A deployment that was interrupted goes on when the same command is given again: a journal lies beside --out until then.
    """
    from protocol.chain import gas
    from protocol.chain.deploy import GAS, deploy_to, refuse_overwriting
    from protocol.identity import load_keystore, read_password
    from protocol.logs import only_warnings

    only_warnings()
    refuse_overwriting(out)
    chain = networks.connect(*networks.endpoints(network, rpc or []))
    password = read_password(file=password_file, variable=PASSWORD_VARIABLE, what=str(keystore))
    key = load_keystore(keystore, password)
    confirm(
        f"Deploy to {network} (chain {chain.chain_id})?",
        [
            f"paid by {key.address}, which has {chain.balance(key.address) / 1e18:.6f} ETH",
            f"needs up to {GAS / 1e6:.0f} million gas, now about {GAS * gas.price(chain) / 1e18:.6f} ETH",
            f"stake can leave after {duration(delay)}; nothing of this can be changed later",
        ],
        yes,
    )
    deployment = deploy_to(out, chain, key, withdrawal_delay=delay, sink=sink, token=token)

    def text() -> None:
        typer.echo(
            f"Runs      {deployment.runs}\nBonds     {deployment.bonds}\nCourt     {deployment.court}\n"
            f"Vouchers  {deployment.vouchers}\ntoken     {deployment.token}\nwritten to {out}; under [chain] of run.toml:\n\n"
            f'contract = "{deployment.runs}"\n'
            f'first_block = {deployment.block}\nvouchers = "{deployment.vouchers}"'
        )

    emit(asdict(deployment), as_json, text)


@app.command()
def info(
    deployment: Addresses = None,
    contract: Contract = None,
    network: AnyNetwork = None,
    rpc: Rpc = None,
    as_json: Json = False,
) -> None:
    """Show the contracts, whether their code is what this version ships, and the runs. Exit code 4 when it is not."""
    from protocol.chain.access import Code
    from protocol.chain.deploy import Deployment

    known = Deployment.load(deployment) if deployment else None
    urls, chain_id = networks.endpoints(network, rpc or [], known.chain_id if known else None)
    chain = networks.connect(urls, chain_id, known.runs if known else contract)
    contracts = _contracts(chain, known)
    as_shipped = all(c["code"] == Code.SHIPPED for name, c in contracts.items() if name != "Token")
    runs = _runs(chain) if as_shipped else []
    data = {"chain_id": chain.chain_id, "contracts": contracts, "as_shipped": as_shipped, "runs": runs}

    def text() -> None:
        typer.echo(f"chain {chain.chain_id}")
        for name, found in contracts.items():
            typer.echo(f"{name:<6} {found['address']}  {found['code']}")
        for r in runs:
            head = "nothing published" if r["head"] is None else f"head step {r['head']}"
            typer.echo(
                f"run {r['run']}: {head}, budget {tokens(int(r['free']))} free and {tokens(int(r['reserved']))} owed, owner {r['owner']}"
            )

    emit(data, as_json, text)
    if not as_shipped:
        raise typer.Exit(WrongChain.exit_code)


def _contracts(chain: Chain, known: Deployment | None) -> dict[str, dict[str, str]]:
    """Address and code of each contract; those that only Runs could name are left out where it is not ours."""
    from protocol.chain.access import Code

    found = {"Runs": {"address": chain.runs.address, "code": chain.code_at(chain.runs.address, "Runs")}}
    if found["Runs"]["code"] == Code.SHIPPED:
        where: dict[str, str] = {
            "Bonds": chain.bonds.address,
            "Policies": chain.policies.address,
            "Bench": chain.bench.address,
            "Weights": chain.weights.address,
            "Court": chain.court.address,
            "Token": chain.token.address,
        }
    else:
        where = {"Bonds": known.bonds, "Court": known.court, "Token": known.token} if known else {}
    if known is not None:
        where["Vouchers"] = known.vouchers
        if known.faucet:
            where["Faucet"] = known.faucet
    for name, address in where.items():
        found[name] = {"address": address, "code": chain.code_at(address, name)}
    if found.get("Token", {}).get("code") == Code.OTHER:
        found["Token"]["code"] = "a token of its own"
    return found


def _runs(chain: Chain) -> list[dict[str, Any]]:
    runs = []
    for run in range(1, chain.run_count() + 1):
        policy, funds, head = chain.policy(run), chain.funds(run), chain.head(run)
        runs.append(
            {
                "run": run, "owner": policy.owner, "trainer": chain.trainer(run), "head": head.step if head else None,
                "free": str(funds.free), "reserved": str(funds.reserved), "spec": chain.spec_digest(run).hex(), "policy": policy_in_json(policy),
            }
        )  # fmt: skip
    return runs


@app.command()
def verify(
    deployment: Addresses = Path("deployment.json"),
    explorer: Annotated[
        str | None, typer.Option(help="URL of the explorer's API; else Etherscan's. Blockscout's ends in /api.")
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option(help="File holding the explorer's API key (else MURMUR_EXPLORER_KEY, else none).")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="Name of a contract; may be given several times.")] = None,
    rpc: Rpc = None,
    as_json: Json = False,
) -> None:
    """Have an explorer show the contracts' sources: it compiles them again and compares. Exit code 4 where it finds something else."""
    from protocol.chain.deploy import Deployment
    from protocol.chain.explorer import ETHERSCAN, SourceExplorer, deployed

    known = Deployment.load(deployment or Path("deployment.json"))
    urls, chain_id = networks.endpoints(None, rpc or [], known.chain_id)
    if explorer is None and chain_id == networks.NETWORKS[networks.Name.ANVIL].chain_id:
        raise UsageError("no explorer knows a development chain", hint="give --explorer")
    chain = networks.connect(urls, chain_id, known.runs)
    chain.check(chain_id)
    found = {each.name: each for each in deployed(chain, known)}
    if unknown := set(only or ()) - found.keys():
        raise UsageError(f"no contract is called {sorted(unknown)[0]!r}", hint=f"they are {', '.join(found)}")
    try:
        key = key_file.read_text().strip() if key_file else os.environ.get("MURMUR_EXPLORER_KEY")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{key_file} cannot be read: {type(error).__name__}") from None
    asked, outcomes = SourceExplorer(explorer or ETHERSCAN, chain_id, key), {}
    for name in only or found:
        outcomes[name] = {"address": found[name].address, "outcome": asked.verify(found[name])}
        if not as_json:
            typer.echo(f"{name:<10} {found[name].address}  {outcomes[name]['outcome']}")
    emit({"chain_id": chain_id, "contracts": outcomes}, as_json, lambda: None)


@app.command()
def doctor(
    deployment: Addresses = None,
    contract: Contract = None,
    run: Annotated[int | None, typer.Option(help="Run to look at as well.")] = None,
    address: Annotated[str | None, typer.Option(help="Whose gas money to look at.")] = None,
    network: AnyNetwork = None,
    rpc: Rpc = None,
    as_json: Json = False,
) -> None:
    """Check sandbox, endpoints, chain, code, run, jury and gas money, one by one, and say what to do. Exit code 0: nothing failed."""
    from protocol.chain.deploy import Deployment
    from protocol.shell.checkup import CheckOutcome, tell
    from protocol.shell.doctor import Subject, examine

    if run is not None and deployment is None and contract is None:
        raise UsageError("--run needs the contracts", hint="give --deployment or --contract")
    known = Deployment.load(deployment) if deployment else None
    urls, chain_id = networks.endpoints(network, rpc or [], known.chain_id if known else None)
    is_public = chain_id != networks.NETWORKS[networks.Name.ANVIL].chain_id
    subject = Subject(urls, chain_id, is_public, contract=contract, deployment=known, run=run, address=address)
    checks = []
    for check in examine(subject):
        checks.append(check)
        if not as_json:
            tell(check)
    failed = [check for check in checks if check.health == CheckOutcome.FAILED]
    emit({"chain_id": chain_id, "ok": not failed, "checks": [asdict(check) for check in checks]}, as_json, lambda: None)
    if failed:
        raise typer.Exit(failed[0].exit_code)


@app.command()
def watch(
    run: Annotated[int, typer.Option(help="Run whose events are told.")],
    deployment: Addresses = None,
    contract: Contract = None,
    from_block: Annotated[
        int | None, typer.Option(min=0, help="First block to tell of; else only what happens from now on.")
    ] = None,
    stakes: Annotated[bool, typer.Option("--stakes", help="Tell of everybody's stake too, of whatever run.")] = False,
    once: Annotated[bool, typer.Option("--once", help="End at the newest block instead of waiting for more.")] = False,
    poll_seconds: Annotated[float, typer.Option(min=0.1, help="Pause between looks at the chain.")] = 15.0,
    network: AnyNetwork = None,
    rpc: Rpc = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line instead of sentences.")] = False,
) -> None:
    """Tell of a run's events as they happen, one sentence each, until it is interrupted. What a reorganisation takes back is said too.

    An endpoint that is gone is waited for. Vouchers are told of where --deployment names their contract.
    """
    from protocol.chain.deploy import Deployment
    from protocol.chain.following import Follower
    from protocol.logs import only_warnings
    from protocol.shell.watch import Teller, follow

    only_warnings()
    known = Deployment.load(deployment) if deployment else None
    urls, chain_id = networks.endpoints(network, rpc or [], known.chain_id if known else None)
    chain = networks.connect(urls, chain_id, known.runs if known else contract)
    chain.check(chain_id)
    chain.policy(run)
    others = {str(chain.locations.address): "Locations"} | ({known.vouchers: "Vouchers"} if known else {})
    first = chain.block_number() + 1 if from_block is None else from_block
    follower = Follower(chain, run, first, others=others, stakes=stakes)
    follow(follower, Teller(as_json), poll_seconds=poll_seconds, once=once)


@app.command()
def faucet(
    account: Annotated[
        str | None, typer.Argument(help="Who is to get tokens; else the keystore's own address.")
    ] = None,
    keystore: Annotated[
        Path | None, typer.Option(help="Keystore of the key that pays the gas; without one the faucet is shown only.")
    ] = None,
    deployment: Addresses = None,
    card: Annotated[
        Path | None,
        typer.Option(help="The run's card, which names faucet and endpoints; in place of an addresses file."),
    ] = None,
    faucet: Annotated[str | None, typer.Option(help="Address of the faucet, without an addresses file.")] = None,
    network: AnyNetwork = None,
    rpc: Rpc = None,
    password_file: PasswordFile = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Get development tokens, or show what the faucet gives: to each account once in a period, and to all together so much."""
    from protocol.chain.deploy import Deployment
    from protocol.chain.faucet import TokenFaucet
    from protocol.shell import run_card

    if card and deployment:
        raise UsageError("--card and --deployment both name a faucet", hint="leave one of them away")
    known = run_card.read(card) if card else Deployment.load(deployment) if deployment else None
    asked = rpc or (list(known.rpc) if isinstance(known, run_card.RunCard) else [])
    chain = networks.connect(*networks.endpoints(network, asked, known.chain_id if known else None))
    if card and known and not known.faucet and not faucet:
        raise ConfigError(f"{card} names no faucet", hint="ask the run's owner for tokens")
    found = TokenFaucet(chain, parse_address(faucet) if faucet else known.faucet if known else None)
    if keystore is None:
        if account is not None:
            raise UsageError("who pays the gas?", hint="give --keystore")
        state = found.state()
        lines = [
            f"faucet {found.address} holds {tokens(state.holds)}",
            f"  gives {tokens(state.amount)} to an account, once in {duration(state.period)}",
            f"  gave {tokens(state.given)} of {tokens(state.most)} in this period; the next begins in {duration(state.renewed - state.now)}",
        ]
        told = in_json({"faucet": found.address, **asdict(state)}, "holds", "amount", "most", "given")
        emit(told, as_json, lambda: typer.echo("\n".join(lines)))
        return
    sender = _sender(chain, keystore, password_file)
    who = parse_address(account) if account else sender.key.address
    call = found.drip(who)
    if not sender.is_done(call):
        found.require_ready(who)
    given = found.state().amount
    confirm("Ask the faucet?", [f"{tokens(given)} for {who}; {sender.key.address} pays the gas"], yes)
    sent = sender.send(call)
    emit(
        {"account": who, "amount": str(given), "transaction": "0x" + sent.hash.hex()},
        as_json,
        lambda: typer.echo(f"{who} got {tokens(given)}"),
    )


@app.command("deploy-faucet")
def deploy_faucet(
    keystore: Annotated[Path, typer.Option(help="Keystore of a key that has tokens; it gets no rights.")],
    deployment: Annotated[Path, typer.Option(help="Addresses file; the faucet is written into it.")] = Path("deployment.json"),
    amount: Annotated[str, typer.Option(help="Tokens that an account gets at a time.")] = "500",
    most: Annotated[str, typer.Option(help="Most tokens that all accounts get in a period.")] = "10000",
    fill: Annotated[str, typer.Option(help="Tokens to put in; more can be sent to it at any time.")] = "100000",
    hours: Annotated[int, typer.Option(min=1, help="Length of a period.")] = 24,
    rpc: Rpc = None,
    password_file: PasswordFile = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Deploy a faucet of the deployment's token and fill it. For development tokens: what is in it is for whoever comes."""
    from dataclasses import replace

    from protocol.chain.deploy import Deployment
    from protocol.chain.faucet import creating

    known = Deployment.load(deployment)
    if known.faucet:
        raise ConfigError(
            f"{deployment} names a faucet already", hint=f"fill it with `murmur wallet send {known.faucet} TOKENS`"
        )
    wei, cap, filling = parse_tokens(amount), parse_tokens(most), parse_tokens(fill)
    if cap < wei:
        raise UsageError("--most is less than --amount: nobody would get anything")
    chain = networks.connect(*networks.endpoints(None, rpc or [], known.chain_id), known.runs)
    chain.check(known.chain_id)
    sender = _sender(chain, keystore, password_file)
    call = creating(chain, known.token, amount=wei, most=cap, period=hours * 3600)
    if chain.token.address.lower() != known.token.lower():
        raise WrongChain(f"{chain.rpc} says that the token is {chain.token.address}, and {deployment} {known.token}")
    if (held := chain.token_balance(sender.key.address)) < filling:
        raise InsufficientFunds(f"{sender.key.address} holds {tokens(held)}, fewer than {tokens(filling)}")
    confirm(
        "Deploy the faucet?",
        [
            f"{tokens(wei)} for each account once in {duration(hours * 3600)}, and {tokens(cap)} for all in that time",
            f"{tokens(filling)} of {sender.key.address} go into it, and nobody can take them back",
        ],
        yes,
    )
    made = str(sender.send(call).contract)
    replace(known, faucet=made).save(deployment)  # before anything goes in, so that it cannot be lost
    send_tokens(sender, made, filling)
    emit({"faucet": made}, as_json, lambda: typer.echo(f"faucet    {made}\nwritten to {deployment}"))


def _sender(chain: Chain, keystore: Path, password_file: Path | None) -> CommandSender:
    """What an earlier command of this key began is ended first."""
    from protocol.chain.sender import SendLimits
    from protocol.identity import load_keystore, read_password
    from protocol.shell.sending import command_sender

    password = read_password(file=password_file, variable=PASSWORD_VARIABLE, what=str(keystore))
    return command_sender(chain, load_keystore(keystore, password), keystore, SendLimits())


@app.command("new-key")
def new_key(
    out: Annotated[Path, typer.Argument(help="Keystore file to write.")],
    network: Network = networks.Name.ANVIL,
    rpc: Rpc = None,
    password_file: PasswordFile = None,
) -> None:
    """Create a key in a new keystore file and print its address.

    Only where an endpoint says that it is Anvil the keystore is weak, and quick to open; for public networks none is asked.
    """
    from protocol.identity import Key, read_password, save_keystore

    chain_id = network.network.chain_id
    if rpc or not network.network.is_public:
        networks.connect(*networks.endpoints(network, rpc or []))
    password = read_password(file=password_file, variable=PASSWORD_VARIABLE, what=str(out), confirm=True)
    key = Key.generate()
    save_keystore(key, out, password, chain_id=chain_id)
    typer.echo(key.address)
