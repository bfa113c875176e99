"""`murmur validator …`: parse, call, print."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from node.validator.commands import inspection, receipts, seating, vouchers
from node.validator.commands.context import DEFAULT_HOME, HomeOption, open_home, role_of, validator_sender
from protocol.errors import InsufficientFunds, UsageError
from protocol.shell.cli import Bootnodes, Contract, Fix, Json, PasswordFile, Rpc, RunCardFile, Yes, confirm, emit, group
from protocol.shell.home import Home, read_json
from protocol.shell.log_file import LINES, Follow, Lines, LogsJson
from protocol.shell.money import deposit, duration, in_json, parse_tokens, require_tokens, tokens, whose_word

if TYPE_CHECKING:
    from node.validator.settings import ValidatorSettings
    from protocol.chain import Chain, Sender

app = group("Check rollouts, take what is false to court, never punish the honest.")


def _sender(home: Home, settings: ValidatorSettings, password_file: Path | None) -> Sender:
    chain = settings.chain.open()
    return validator_sender(home, settings, chain, password_file)


@app.command()
def init(
    card: RunCardFile = None,
    rpc: Rpc = None,
    contract: Contract = None,
    run: Annotated[int | None, typer.Option(help="Number of the run to validate.")] = None,
    bootnode: Bootnodes = None,
    home: HomeOption = DEFAULT_HOME,
    listen: Annotated[str, typer.Option(help="libp2p address to listen on.")] = "/ip4/0.0.0.0/tcp/0",
    first_block: Annotated[int, typer.Option(help="Block of the contracts' deployment.")] = 0,
    vouchers: Annotated[
        str | None,
        typer.Option(help="Address of the Vouchers contract, to be paid from; not needed where the card names it."),
    ] = None,
    password_file: PasswordFile = None,
    as_json: Json = False,
) -> None:
    """Create a validator's key and settings."""
    from node.validator.settings import ValidatorSettings
    from protocol.chain.vouchers import Vouchers
    from protocol.p2p.host import read_addresses
    from protocol.settings import checked
    from protocol.shell import run_card

    place = Home(home, "validator")
    place.require_new()
    asked, bootnodes = run_card.run_told(
        card, rpc=rpc, contract=contract, run=run, bootnodes=bootnode, first_block=first_block
    )
    read_addresses(listen, bootnodes, ())
    chain, policy = run_card.open_run(asked, card)
    if card and vouchers is None:
        vouchers = run_card.read(card).vouchers or None
    if vouchers is not None:
        vouchers = Vouchers(chain, vouchers).address
    tables: dict[str, dict[str, object]] = {
        "chain": asked | {"contract": chain.runs.address, "chain_id": chain.chain_id},
        "peers": {"listen": listen, "bootnodes": bootnodes},
    }
    if vouchers is not None:
        tables["chain"]["vouchers"] = vouchers
    checked(ValidatorSettings, tables)
    key = place.new_key("validator", chain_id=chain.chain_id, password_file=password_file)
    place.write_config(tables, "Settings of a Murmuration validator.")
    if card:
        run_card.keep(place.path, run_card.read(card))

    def text() -> None:
        typer.echo(f"validator key  {key.address}  (PeerID {key.peer_id})\nsettings       {place.config}")
        typer.echo(
            f"\nnext: ask the run's owner to approve this address, send it {seating.needs(place, chain, policy)},"
            f" then: {place.command('murmur validator stake')}"
        )

    emit({"home": str(home), "validator": key.address, "peer": key.peer_id}, as_json, text)


@app.command()
def stake(
    amount: Annotated[str | None, typer.Argument(help="Tokens to stake; what the seat needs, when not given.")] = None,
    home: HomeOption = DEFAULT_HOME,
    password_file: PasswordFile = None,
    yes: Yes = False,
) -> None:
    """Deposit the stake that backs the seat and the bonds of cases."""
    from protocol.chain.agreement import require_same_run

    asked = None if amount is None else parse_tokens(amount)
    place, settings = open_home(home)
    sender = _sender(place, settings, password_file)
    agreed = require_same_run(sender.chain, settings.chain.run)
    policy = agreed.policy
    account = sender.chain.account(sender.key.address)
    seat = sender.chain.validator(settings.chain.run, sender.key.address)
    missing = max(0, policy.validator_stake - seat.locked - account.free)
    wei = missing if asked is None else asked
    if not wei:
        sender.let_go(sender.chain.deposit(sender.key.address, wei).doing)
        typer.echo("enough is staked already")
        return
    delay = duration(sender.chain.withdrawal_delay())
    address = sender.key.address
    require_tokens(sender, address, wei, hint=lambda: _tokens_first(place, sender.chain, address, wei))
    whose = whose_word(sender.chain, settings.chain.run, agreed)
    lines = [f"deposits  {tokens(wei)} from {sender.key.address}", f"comes back {delay} after unstaking"]
    confirm("Stake?", whose + lines, yes)
    deposit(sender, sender.key.address, wei)
    typer.echo(
        f"staked {tokens(wei)}; next: {place.command('murmur validator ' + ('reinforce' if seat.since else 'enlist'))}"
    )


def _tokens_first(place: Home, chain: Chain, address: str, wei: int) -> str:
    return f"{seating.how_to_get(place, chain, address, wei)}; then give the same command again"


@app.command()
def enlist(
    home: HomeOption = DEFAULT_HOME,
    password_file: PasswordFile = None,
    off: Annotated[bool, typer.Option("--off", help="Give the seat up instead.")] = False,
    yes: Yes = False,
) -> None:
    """Take the validator seat (the run's owner must have approved this address)."""
    place, settings = open_home(home)
    sender = _sender(place, settings, password_file)
    chain, run = sender.chain, settings.chain.run
    seat, policy = chain.validator(run, sender.key.address), chain.policy(run)
    now, address = chain.block().time, sender.key.address
    if not off and not seat.approved:
        raise UsageError(
            f"{address} is not approved for run {run}",
            hint=f"its owner runs: murmur run approve @run.toml {address} --keystore OWNER.json",
        )
    if seat.serves(now) and seat.until:
        raise UsageError(f"the seat was given up and still judges for {duration(seat.until - now)}", hint="")
    if seat.serves(now) != off:
        typer.echo("nothing to do")
        return
    missing = policy.validator_stake - seat.locked
    if not off and chain.account(address).free < missing:
        raise InsufficientFunds(f"a seat needs {tokens(missing)} of free stake", hint="murmur validator stake")
    consequences = (
        [
            f"gives up the seat; it judges for {duration(policy.span)} more, and its stake is free {duration(2 * policy.span)} after that"
        ]
        if off
        else [
            f"takes the seat; {tokens(policy.validator_stake)} of stake back it",
            f"at risk   {tokens(policy.bond)} or {policy.bond_bps / 100:g} % of what a case withholds, for each that a jury rejects;"
            f" {tokens(policy.bond)} for each accepted submission that proves false",
            "silence   as a juror costs the juror's pay, and as much again; an abstention costs the pay alone",
        ]
    )
    confirm("Go on?", consequences, yes)
    sender.send(chain.enlist(run, not off))
    start = place.command("murmur validator start")
    kept = f"seat given up; it judges for {duration(policy.span)} more, so keep `{start}` running until then"
    typer.echo(kept if off else f"seat taken; next: {start}")


@app.command()
def reinforce(
    amount: Annotated[str, typer.Argument(help="Tokens of free stake to lock in the seat as well.")],
    home: HomeOption = DEFAULT_HOME,
    password_file: PasswordFile = None,
    yes: Yes = False,
) -> None:
    """Lock more stake in the seat: every open case puts a bond of it at risk."""
    wei, (place, settings) = parse_tokens(amount), open_home(home)
    sender = _sender(place, settings, password_file)
    free = sender.chain.account(sender.key.address).free
    call = sender.chain.reinforce(settings.chain.run, wei)
    if free < wei and not sender.is_done(call):
        raise InsufficientFunds(f"{tokens(free)} of stake are free", hint=f"murmur validator stake {amount}")
    confirm("Lock?", [f"locks {tokens(wei)} in the seat until it is given up and released"], yes)
    sender.send(call)
    locked = sender.chain.validator(settings.chain.run, sender.key.address).locked
    typer.echo(f"{tokens(locked)} back the seat now")


@app.command()
def unstake(
    amount: Annotated[str, typer.Argument(help="Tokens to take out of stake.")],
    home: HomeOption = DEFAULT_HOME,
    password_file: PasswordFile = None,
    yes: Yes = False,
) -> None:
    """Start the way out for free stake; the stake of a seat that was given up is freed first, when its time has come."""
    wei, (place, settings) = parse_tokens(amount), open_home(home)
    sender = _sender(place, settings, password_file)
    chain, run, address = sender.chain, settings.chain.run, sender.key.address
    free, seat = chain.account(address).free, chain.validator(run, address)
    call = chain.unbond(wei)
    lacks = wei > free and not sender.is_done(call)
    if lacks and seat.until:
        wait = seat.until + 2 * chain.policy(run).span - chain.block().time
        if seat.at_risk or wait > 0:
            why = (
                f"{tokens(seat.at_risk)} are at risk in open cases"
                if seat.at_risk
                else f"it answers for its receipts {duration(wait)} more"
            )
            raise InsufficientFunds(
                f"the seat's {tokens(seat.locked)} are still locked: {why}", hint="give the same command again then"
            )
    if lacks and wei > free + (seat.locked if seat.until else 0):
        raise InsufficientFunds(f"{tokens(free)} are free to leave", hint="murmur validator enlist --off")
    delay = duration(chain.withdrawal_delay())
    confirm("Unstake?", [f"{tokens(wei)} can be withdrawn in {delay}; unstaking more restarts that clock"], yes)
    if lacks:
        sender.send(chain.release_validator(run, address))
    sender.send(call)
    typer.echo(f"unstaked {tokens(wei)}; next, in {delay}: murmur validator withdraw")


@app.command()
def withdraw(home: HomeOption = DEFAULT_HOME, password_file: PasswordFile = None) -> None:
    """Pay out unstaked tokens whose time has come."""
    from protocol.chain.events import Withdrawn

    place, settings = open_home(home)
    sent = (sender := _sender(place, settings, password_file)).send(sender.chain.withdraw())
    typer.echo(f"withdrew {tokens(sent.event(Withdrawn).amount)}")


@app.command()
def doctor(
    home: HomeOption = DEFAULT_HOME, fix: Fix = False, password_file: PasswordFile = None, as_json: Json = False
) -> None:
    """Check home, key, disk, chain, seat, network and device, one by one, and say what to do. Exit code 0: nothing failed.

    Asks before anything is downloaded, and needs no password; with one it is tried. `start` looks at what it can without a network.
    """
    from node.validator.commands.checks import CHECKS, ValidatorSubject
    from protocol.shell.checkup import report

    subject = ValidatorSubject(Home(home, "validator"), password_file=password_file)
    report(CHECKS, subject, fix=fix, as_json=as_json)


@app.command()
def start(
    home: HomeOption = DEFAULT_HOME,
    password_file: PasswordFile = None,
    adopt: Annotated[
        bool,
        typer.Option(
            "--no-other-copy-runs",
            help="Go on with a key that has judged elsewhere. Only where no other copy of this validator runs any more.",
        ),
    ] = False,
) -> None:
    """Judge work until stopped (Ctrl-C); restarts lose nothing."""
    from node.validator.commands.checks import CHECKS, ValidatorSubject
    from node.validator.service import ValidatorService, require_seat
    from protocol.shell.checkup import require_startable
    from protocol.shell.role import role

    place = Home(home, "validator")
    subject = ValidatorSubject(place, starting=True)
    require_startable(CHECKS, subject)
    settings = subject.settings
    with role(place, settings, password_file, what="a turn of the validator") as up:
        require_seat(up.connection)
        service = ValidatorService(
            up.connection, place, settings.judge, up.ending, settings.engine, adopt=adopt, progress=up.progress
        )
        with closing(service):
            service.run()


@app.command()
def logs(
    home: HomeOption = DEFAULT_HOME, lines: Lines = LINES, follow: Follow = False, as_json: LogsJson = False
) -> None:
    """Print the newest lines of this validator's log, from the file that logging.file names, also across its rotations."""
    from protocol.shell import log_file

    place, settings = open_home(home)
    log_file.show(settings.logging, "murmur-validator", place.config, lines=lines, follow=follow, as_json=as_json)


@app.command()
def status(home: HomeOption = DEFAULT_HOME, as_json: Json = False) -> None:
    """Show seat, stake and what the running validator does."""
    place, settings = open_home(home)
    chain = settings.chain.open()
    address = place.address("validator")
    seat, account = chain.validator(settings.chain.run, address), chain.account(address)
    role = role_of(seat, chain.block().time)
    status = place.read_status() or {"state": "never started"}
    data: dict[str, Any] = {
        "validator": address,
        "role": role,
        "at_risk": seat.at_risk,
        "backing": seat.locked,
        "stake": account.active,
        "locked": account.locked,
        "doing": status,
        "matrix_challenges": read_json(place.challenges) or {},
        "next": seating.next_step(
            place, chain, settings.chain.run, address, status["state"], fee_max=settings.chain.limits.fee
        ),
    }

    def text() -> None:
        typer.echo(f"Seat\n  {role} in run {settings.chain.run}, {address}")
        typer.echo(
            f"Stake\n  {tokens(account.active)}, {tokens(seat.locked)} of it back the seat, {tokens(seat.at_risk)} at risk in open cases"
        )
        counts = ", ".join(f"{status[k]} {k}" for k in ("pending", "accept", "soft", "hard") if k in status)
        typer.echo(f"Judging\n  {status['state']}" + (f": {counts}" if counts else ""))
        if data["matrix_challenges"]:
            typer.echo("Matrix challenges (a seat may have had another machine answer)")
        for node, last in data["matrix_challenges"].items():
            tried = ", ".join(f"{count} {outcome}" for outcome, count in last["counts"].items() if count)
            rate = f", {last['operations_per_second'] / 1e12:.3g} int8 TOPS" if last["operations_per_second"] else ""
            ago = duration(int(time.time()) - last["time"])
            typer.echo(f"  {node}  {last['outcome']} {ago} ago{rate}; in all {tried}")
        if data["next"]:
            typer.echo(f"\nnext: {data['next']}")

    emit(in_json(data, "at_risk", "backing", "stake", "locked"), as_json, text)


vouchers.register(app)
inspection.register(app)
receipts.register(app)
