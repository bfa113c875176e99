"""`murmur run …`: what a run's owner does on chain."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protocol.constants import NOBODY
from protocol.errors import UsageError
from protocol.shell.cli import CalldataJson, Json, PasswordFile, Yes, confirm, emit, group, parse_address, strip_at
from protocol.shell.commands import pot
from protocol.shell.commands.owner import (
    Calldata,
    File,
    Keystore,
    OwnerAddress,
    allow,
    open_chain,
    owner_sender,
    require_owner,
    require_tokens,
    run_of,
    vouchers_of,
    word_on,
)
from protocol.shell.home import PASSWORD_VARIABLE
from protocol.shell.money import duration, in_json, parse_tokens, policy_in_json, tokens
from protocol.shell.money import send_tokens as move_tokens
from protocol.shell.proposal import is_shown

if TYPE_CHECKING:
    from protocol.chain import Chain


app = group("Create a run, fund it, approve its validators.")


@app.command()
def create(
    file: File, keystore: Keystore = None, password_file: PasswordFile = None, yes: Yes = False, calldata: Calldata = False,
    owner: OwnerAddress = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Complete the spec, write spec.json beside the file, and create the run on chain."""
    from protocol.chain.events import RunCreated
    from protocol.chain.settings import usual_poll_seconds
    from protocol.environments.assignment import mixture
    from protocol.shell import runfile
    from protocol.shell.policy_warnings import bench_lines, hasty_windows, policy_warnings

    path = strip_at(file)
    if calldata and owner is None:
        raise UsageError("whose run is it to be?", hint="give --owner ADDRESS: the account that is going to send this")
    sender = owner_sender(path, keystore, password_file, calldata, owner)
    spec = runfile.complete(path, runfile.model_folder(path))
    policy = runfile.read_policy(path).policy(sender.key.address)
    recalibration = spec.verification.recalibration
    replaceable = "" if recalibration is None else ", but the calibration, within spec.verification.recalibration"
    confirm(
        "Create the run?",
        [
            f"spec      {spec.digest.hex()} ({spec.name})",
            f"problems  {mixture(spec.environments)}",
            f"window    {duration(policy.window)}, appeal {duration(policy.appeal)}, vote {duration(policy.vote)}",
            f"seat      {tokens(policy.node_stake)}, penalty {tokens(policy.penalty)}, reward {tokens(policy.reward)} per unit",
            f"bond      {tokens(policy.bond)}, or {policy.bond_bps / 100:g} % of what a case withholds; jury {tokens(policy.jury_fee)} per submission",
            *bench_lines(policy),
            *(
                f"WARNING   {text}"
                for text in (
                    *policy_warnings(policy, Fraction(spec.verification.prefill_share), spec.samples),
                    *hasty_windows(policy, usual_poll_seconds(sender.chain.chain_id)),
                )
            ),
            f"none of this can be changed later{replaceable}",
        ],
        yes or calldata,
    )
    runfile.write_spec(path, spec)
    sent = sender.send(sender.chain.create(policy, spec.digest))
    if is_shown(sender, as_json) or sent is None:
        return
    run = sent.event(RunCreated).run

    def text() -> None:
        typer.echo(f"run {run} created; put `run = {run}` under [chain] of {path}")
        typer.echo(f"next: murmur run fund @{path} AMOUNT --keystore {keystore}", err=True)
        typer.echo(f"then: murmur run approve @{path} VALIDATOR --keystore {keystore}", err=True)

    emit({"run": run, "spec": spec.digest.hex()}, as_json, text)


@app.command()
def fund(
    file: File, amount: Annotated[str, typer.Argument(help="Tokens.")], keystore: Keystore = None,
    password_file: PasswordFile = None, yes: Yes = False, calldata: Calldata = False, as_json: CalldataJson = False,
) -> None:  # fmt: skip
    """Add to the run's budget for rewards."""
    path = strip_at(file)
    wei, run = parse_tokens(amount), run_of(path)
    sender = owner_sender(path, keystore, password_file, calldata)
    chain, owner = sender.chain, sender.key.address
    call = chain.fund(run, wei)
    require_tokens(sender, call, wei)
    confirm(
        "Fund the run?",
        [
            *word_on(path, sender),
            f"{tokens(wei)} from {owner} to run {run}; what is not owed can be taken back with notice",
        ],
        yes or calldata,
    )
    allow(sender, call, chain.runs.address, wei)
    sender.send(call)
    if is_shown(sender, as_json):
        return
    typer.echo(f"run {run} has {tokens(chain.funds(run).free)} to spend")


pot.register(app)


@app.command("send-tokens")
def send_tokens(
    file: File,
    to: Annotated[str, typer.Argument(help="Address of a node's operator or a validator.")],
    amount: Annotated[str, typer.Argument(help="Tokens.")], keystore: Keystore = None,
    password_file: PasswordFile = None, yes: Yes = False, calldata: Calldata = False,
    owner: OwnerAddress = None, as_json: CalldataJson = False,
) -> None:  # fmt: skip
    """Send tokens of the run's token to whom they are to be stake for."""
    path, to = strip_at(file), parse_address(to)
    wei = parse_tokens(amount)
    sender = owner_sender(path, keystore, password_file, calldata, owner)
    call = sender.chain.transfer_tokens(to, wei)
    require_tokens(sender, call, wei)
    lines = [*word_on(path, sender), f"{tokens(wei)} from {sender.key.address} to {to}, for good"]
    confirm("Send the tokens?", lines, yes or calldata)
    move_tokens(sender, to, wei)
    if is_shown(sender, as_json):
        return
    typer.echo(f"{to} holds {tokens(sender.chain.token_balance(to))}")


@app.command()
def approve(
    file: File, validator: Annotated[str, typer.Argument(help="Address of the validator.")], keystore: Keystore = None,
    password_file: PasswordFile = None,
    off: Annotated[bool, typer.Option("--off", help="Withdraw the approval; it judges earlier submissions to their end.")] = False,
    yes: Yes = False, calldata: Calldata = False, as_json: CalldataJson = False,
) -> None:  # fmt: skip
    """Let a validator take a seat. Contributors trust the run's validators: choose with care."""
    path, validator = strip_at(file), parse_address(validator)
    sender, run = owner_sender(path, keystore, password_file, calldata), run_of(path)
    require_owner(sender.chain, run, sender.key.address)
    confirm(
        "Go on?",
        [f"takes the approval of {validator} back" if off else f"lets {validator} judge work of run {run}"],
        yes or calldata,
    )
    sender.send(sender.chain.approve_validator(run, validator, not off))
    if is_shown(sender, as_json):
        return
    typer.echo(f"{validator} {'is no longer approved' if off else 'is approved'} for run {run}")


@app.command()
def invite(
    file: File,
    node: Annotated[str, typer.Argument(help="Address of the node, as `node init` printed it.")],
    keystore: Annotated[Path, typer.Option(help="Keystore of the run's gate (policy.gate).")],
    days: Annotated[float, typer.Option(min=0.01, max=3650, help="How long the node may use it.")] = 7.0,
    password_file: PasswordFile = None,
    as_json: Json = False,
) -> None:
    """Sign an invite that lets a node take a seat in a gated run. Sends nothing; give the node's operator what it prints."""
    from protocol.identity import load_keystore, read_password
    from protocol.invite import SignedInvite
    from protocol.signing import Invite

    path, address = strip_at(file), parse_address(node)
    chain, run = open_chain(path), run_of(path)
    gate = chain.policy(run).gate
    if gate == NOBODY:
        raise UsageError(f"run {run} has no gate: anyone with stake may join", hint="node stake, without --invite")
    key = load_keystore(keystore, read_password(file=password_file, variable=PASSWORD_VARIABLE, what=str(keystore)))
    if key.address != gate:
        raise UsageError(f"{key.address} is not the gate of run {run}", hint=f"give the keystore of {gate}")
    deadline = chain.block().time + round(days * 86_400)
    signed = SignedInvite.sign(Invite(run, address, deadline), key, chain.domain)

    def text() -> None:
        typer.echo(signed.text)
        typer.echo(f"lets {address} take a seat in run {run} for {duration(round(days * 86_400))}", err=True)
        typer.echo("next, by its operator: node join --invite WORD", err=True)

    emit(signed.as_json(), as_json, text)


@app.command()
def card(
    file: File,
    rpc: Annotated[list[str] | None, typer.Option(help="JSON-RPC endpoint that contributors may ask; else the network's public one.")] = None,
    deployment: Annotated[Path | None, typer.Option(help="Addresses file, which names the faucet, and Vouchers where the run's file does not.")] = None,
) -> None:  # fmt: skip
    """Print the run's card, the one file that a contributor needs for `node join`, and a validator or relay for `init`. Sends nothing; there is no secret in it."""
    from protocol.chain.deploy import Deployment
    from protocol.chain.vouchers import Vouchers
    from protocol.settings import checked, read_toml
    from protocol.shell import runfile
    from protocol.shell.run_card import RunCard, public_endpoints

    path, addresses = strip_at(file), Deployment.load(deployment) if deployment else None
    if addresses is None:
        typer.echo("the card names no faucet: --deployment gives the addresses file of one", err=True)
    settings, tables = runfile.client(path)[0], read_toml(path)
    chain, run = open_chain(path), run_of(path)
    chain.policy(run)
    paid_from = tables["chain"].get("vouchers") or (addresses.vouchers if addresses else "")
    given = {
        "chain_id": chain.chain_id, "contract": chain.runs.address, "run": run,
        "rpc": public_endpoints(rpc or [], chain.chain_id, settings.rpc),
        "bootnodes": tables.get("peers", {}).get("bootnodes", ()), "first_block": tables["chain"].get("first_block", 0),
        "faucet": addresses.faucet if addresses else "",
        "vouchers": Vouchers(chain, paid_from).address if paid_from else "",
    }  # fmt: skip
    typer.echo(checked(RunCard, given).text)


@app.command()
def pause(
    file: File, keystore: Keystore = None, password_file: PasswordFile = None,
    off: Annotated[bool, typer.Option("--off", help="Resume.")] = False, yes: Yes = False, calldata: Calldata = False, as_json: CalldataJson = False,
) -> None:  # fmt: skip
    """Stop taking new work once the run's notice has passed. Verdicts, claims and withdrawals go on."""
    path = strip_at(file)
    sender, run = owner_sender(path, keystore, password_file, calldata), run_of(path)
    notice = duration(sender.chain.policy(run).notice)
    confirm(
        "Go on?", [f"run {run} {'takes new work again' if off else f'takes no new work in {notice}'}"], yes or calldata
    )
    sender.send(sender.chain.pause(run, not off))
    if is_shown(sender, as_json):
        return
    typer.echo(f"run {run} {'resumed' if off else f'is paused in {notice}'}")


@app.command()
def locate(
    file: File,
    hub: Annotated[str, typer.Option(help="Where others reach the hub, as https://hub.example.")] = "",
    origin: Annotated[str, typer.Option(help="Where others reach the origin of the weights.")] = "",
    bootnode: Annotated[list[str] | None, typer.Option(help="Multiaddr of a bootnode; may be given several times.")] = None,
    off: Annotated[bool, typer.Option("--off", help="Take back what was said.")] = False,
    keystore: Annotated[Path | None, typer.Option(help="Keystore of the run's owner, to say something.")] = None,
    password_file: PasswordFile = None, yes: Yes = False, calldata: Calldata = False, as_json: Json = False,
) -> None:  # fmt: skip
    """Say on chain where hub, origin and bootnodes are, for those who do not find them through peers; or show what is said.

    What is given replaces all that was said before. Hub and origin are tried first, and you are warned of what does not answer.
    """
    from protocol.shell.endpoint_check import silent
    from protocol.shell.location import located, wanted

    path = strip_at(file)
    if not (hub or origin or bootnode or off):
        told = located(open_chain(path), run_of(path))
        lines = told.lines if told else ["the run's owner says nothing on chain of where it is"]
        emit(told.as_json() if told else {}, as_json, lambda: typer.echo("\n".join(lines)))
        return
    where = wanted(hub, origin, bootnode or [], off=off)
    if keystore is None and not calldata:
        raise UsageError("whose word is it to be?", hint="give --keystore OWNER.json")
    sender, run = owner_sender(path, keystore, password_file, calldata), run_of(path)
    confirm(
        "Say so?",
        [
            f"run {run}, for everybody to read, and in place of what was said before:",
            *(where.lines if where else ["nothing"]),
            *(f"WARNING: from here, {text}" for text in (silent(sender.chain, run, where) if where else ())),
        ],
        yes or calldata,
    )
    sender.send(sender.chain.locate(run, where.encode() if where else b""))
    if is_shown(sender, as_json):
        return
    emit(
        where.as_json() if where else {},
        as_json,
        lambda: typer.echo(f"said of run {run}: " + (", ".join(where.lines) if where else "nothing")),
    )


@app.command()
def defund(
    file: File, amount: Annotated[str, typer.Argument(help="Tokens; 0 calls an earlier announcement off.")],
    keystore: Keystore = None, password_file: PasswordFile = None, yes: Yes = False, calldata: Calldata = False, as_json: CalldataJson = False,
) -> None:  # fmt: skip
    """Announce that part of the unspent budget is taken out; after the run's notice `murmur run collect` pays it."""
    from protocol.shell.sentences import at

    path = strip_at(file)
    wei, run = parse_tokens(amount, least=0), run_of(path)
    sender = owner_sender(path, keystore, password_file, calldata)
    if wei and not calldata and all(sender.chain.answers("reading the run", lambda one: _is_leaving(one, run, wei))):
        typer.echo(f"announced already; from {at(sender.chain.status(run).defunded_from)} UTC: murmur run collect")
        return  # again would put it off
    notice = duration(sender.chain.policy(run).notice)
    confirm("Announce?", [f"{tokens(wei)} of run {run} back no new work in {notice}"], yes or calldata)
    sender.send(sender.chain.defund(run, wei))
    if is_shown(sender, as_json):
        return
    typer.echo(f"announced; next, in {notice}: murmur run collect" if wei else "the announcement is called off")


def _is_leaving(chain: Chain, run: int, wei: int) -> bool:
    status = chain.status(run)
    return status.leaving == wei and bool(status.defunded_from)


@app.command()
def collect(
    file: File, keystore: Keystore = None, password_file: PasswordFile = None, calldata: Calldata = False, as_json: CalldataJson = False,
) -> None:  # fmt: skip
    """Pay the owner what `murmur run defund` announced, once the notice has passed."""
    from protocol.chain.events import Funded

    path = strip_at(file)
    sender, run = owner_sender(path, keystore, password_file, calldata), run_of(path)
    sent = sender.send(sender.chain.collect(run))
    if is_shown(sender, as_json) or sent is None:
        return
    typer.echo(
        f"collected {tokens(-sent.event(Funded).amount)}; run {run} has {tokens(sender.chain.funds(run).free)} left"
    )


@app.command()
def ban(
    file: File, node: Annotated[str, typer.Argument(help="Address of the node.")], keystore: Keystore = None,
    password_file: PasswordFile = None, yes: Yes = False, calldata: Calldata = False, as_json: CalldataJson = False,
) -> None:  # fmt: skip
    """Bar a node from further work once the run's notice has passed; it keeps its stake and what it earned."""
    path, node = strip_at(file), parse_address(node)
    sender, run = owner_sender(path, keystore, password_file, calldata), run_of(path)
    notice = duration(sender.chain.policy(run).notice)
    confirm("Ban?", [f"{node} works for run {run} no more in {notice}, for good"], yes or calldata)
    sender.send(sender.chain.ban(run, node))
    if is_shown(sender, as_json):
        return
    typer.echo(f"{node} is banned in {notice}")


def _follows(chain: Chain, run: int, trainer: str) -> bool:
    following = chain.next_trainer(run)
    return following is not None and following[0] == trainer


@app.command()
def appoint(
    file: File, trainer: Annotated[str, typer.Argument(help="Address of the key that is to be the trainer's.")], keystore: Keystore = None,
    password_file: PasswordFile = None, yes: Yes = False, calldata: Calldata = False, as_json: CalldataJson = False,
) -> None:  # fmt: skip
    """Make another key the trainer's once the run's notice has passed: for a key that leaked or was lost. Again, yet another."""
    from protocol.shell.sentences import at

    path, trainer = strip_at(file), parse_address(trainer)
    sender, run = owner_sender(path, keystore, password_file, calldata), run_of(path)
    if not calldata and all(sender.chain.answers("reading the trainer", lambda one: _follows(one, run, trainer))):
        _, since = sender.chain.next_trainer(run) or (trainer, 0)
        typer.echo(
            f"appointed already, from {at(since)} UTC; then start the hub with its keystore (hub.keystore in {path})"
        )
        return
    notice = duration(sender.chain.policy(run).notice)
    confirm(
        "Appoint?",
        [
            f"{trainer} publishes the weights of run {run} and signs receipts and vouchers in {notice}",
            f"until then {sender.chain.trainer(run)} does; its vouchers pay nothing afterwards that they have not paid by then",
        ],
        yes or calldata,
    )
    sender.send(sender.chain.appoint(run, trainer))
    if is_shown(sender, as_json):
        return
    typer.echo(f"appointed; in {notice}, start the hub with its keystore (hub.keystore in {path})")


@app.command()
def show(file: File, as_json: Json = False) -> None:
    """Show the run as the chain knows it, and on the hub's machine which calibration its work is judged by."""
    from protocol.chain.settings import usual_poll_seconds
    from protocol.settings import read_toml
    from protocol.shell import runfile
    from protocol.shell.location import located
    from protocol.shell.policy_warnings import hasty_windows

    path = strip_at(file)
    chain, run = open_chain(path), run_of(path)
    policy, funds, head = chain.policy(run), chain.funds(run), chain.head(run)
    where = located(chain, run)
    judged_by = runfile.calibration_in_force(path, head.step if head else 0)
    pays = vouchers_of(path, chain).pot(run) if "vouchers" in read_toml(path).get("chain", {}) else None
    validators, follows, now = chain.seated_validators(run), chain.next_trainer(run), chain.block().time
    data = {
        "trainer": chain.trainer(run), "next_trainer": follows and follows[0],
        "next_trainer_from": follows and follows[1], "liars_borne": policy.liars_borne(validators),
        "run": run, "head": head.step if head else None, "free": funds.free, "reserved": funds.reserved, "pot": pays,
        "paused": chain.paused(run), "validators": validators, "spec": chain.spec_digest(run).hex(), "policy": policy_in_json(policy),
        "located": where.as_json() if where else None, "calibration": judged_by,
        "warnings": (warnings := hasty_windows(policy, usual_poll_seconds(chain.chain_id))),
    }  # fmt: skip

    def text() -> None:
        typer.echo(f"Run {run}: " + ("nothing published yet" if head is None else f"weights at step {head.step}"))
        typer.echo(f"  budget  {tokens(funds.free)} free, {tokens(funds.reserved)} owed")
        if pays is not None:
            typer.echo(f"  pot     {tokens(pays)} to pay validators")
        for line in where.lines if where else []:
            typer.echo(f"  where   {line}")
        jury = f"; weights are published while there are {policy.jury}" if policy.jury else ""
        typer.echo(f"  bench   {data['validators']} validators, of whom {data['liars_borne']} may lie{jury}")
        after = "" if follows is None else f", in {duration(max(0, follows[1] - now))} {follows[0]}"
        typer.echo(f"  trainer {data['trainer']}{after}")
        if judged_by is not None:
            replaced = f"since version {judged_by['since']}, notice {judged_by['notice']}"
            whose = replaced if judged_by["notice"] else "the run spec's"
            typer.echo(f"  judged  by calibration {judged_by['digest'][:12]}, {whose}")
        typer.echo(
            f"  window  {duration(policy.window)}, appeal {duration(policy.appeal)}, vote {duration(policy.vote)}"
        )
        typer.echo(
            f"  seat    {tokens(policy.node_stake)}, penalty {tokens(policy.penalty)}, reward {tokens(policy.reward)} per unit"
        )
        for warning in warnings:
            typer.echo(f"  WARNING {warning}")

    emit(in_json(data, "free", "reserved", "pot"), as_json, text)
