"""`node stake`, `leave`, `unstake`, `rebond`, `withdraw` and `claim`: the operator's money, sent with the cold key.

Each shows what it does and what follows before it asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.contributor.commands.context import (
    CALLDATA_CONSENT_SECONDS,
    CONSENT_SECONDS,
    DEFAULT_HOME,
    Calldata,
    HomeOption,
    OperatorAddress,
    OperatorKeystore,
    SpecFile,
    open_chain,
    open_home,
    open_operation,
    operator_sender,
    proposal,
    read_spec,
    settings,
)
from protocol.chain.types import Role, Seat
from protocol.constants import NOBODY
from protocol.errors import InsufficientFunds, Malformed, UsageError
from protocol.shell.cli import CalldataJson, Json, PasswordFile, Yes, confirm, emit
from protocol.shell.money import deposit, duration, parse_tokens, require_tokens, tokens, whose_word
from protocol.shell.proposal import is_shown

if TYPE_CHECKING:
    from eth_typing import ChecksumAddress

    from node.contributor.settings import NodeSettings
    from node.engine import EngineSettings
    from protocol.chain import Chain, Sender
    from protocol.chain.agreement import RunAgreement
    from protocol.chain.types import Policy
    from protocol.identity import Key
    from protocol.invite import SignedInvite
    from protocol.runspec import RunSpec
    from protocol.shell.home import Home
    from protocol.shell.proposal import Proposal

Hardware = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=255,
        help="Hardware class of this machine; not given, the run's table and a measurement decide, else 0.",
    ),
]

InviteOption = Annotated[
    str | None, typer.Option("--invite", help="Word of the run's gate, where it has one; or a file that holds it.")
]


def register(app: typer.Typer) -> None:
    for command in (stake, leave, unstake, rebond, withdraw, claim):
        app.command()(command)


def stake(
    amount: Annotated[str | None, typer.Argument(help="Tokens to stake; what the seat needs, when not given.")] = None,
    hardware: Hardware = None,
    invite: InviteOption = None,
    spec: SpecFile = None,
    home: HomeOption = DEFAULT_HOME,
    operator_keystore: OperatorKeystore = None,
    password_file: PasswordFile = None,
    yes: Yes = False,
    calldata: Calldata = False,
    operator: OperatorAddress = None,
    as_json: CalldataJson = False,
) -> None:
    """Deposit stake and take a seat in the run; where the run has a gate, with an invite of its owner."""
    from protocol.chain.agreement import require_same_run

    place, asked = open_home(home), None if amount is None else parse_tokens(amount)
    node = settings(place).value
    chain, run = open_chain(node), node.chain.run
    node_key = place.open_key("node", password_file)
    sender: Sender | Proposal = (
        proposal(chain, operator, operator_keystore)
        if calldata
        else operator_sender(place, node, chain, password_file, operator_keystore)
    )
    require_not_banned(chain, run, node_key.address)
    agreed = require_same_run(chain, run, node=node_key.address)
    seat = look_for_seat(place, node, chain, node_key, agreed, hardware, invite, spec)
    missing = seat.missing(chain, sender.key.address)
    wei = missing if asked is None else asked
    if wei < missing:
        raise InsufficientFunds(
            f"a seat needs {tokens(seat.policy.node_stake)} of free stake; {tokens(missing)} are missing"
        )
    if seat.is_taken and not wei:
        sender.let_go(chain.deposit(seat.node, wei).doing)
        typer.echo(f"{node_key.address} is seated in run {run} already; next: {place.command('node start')}")
        return
    require_tokens(sender, sender.key.address, wei)
    confirm(
        "Stake and take the seat?",
        whose_word(chain, run, agreed)
        + seat.consequences(chain, f"{tokens(wei)} from {sender.key.address} (the operator)"),
        yes or calldata,
    )
    take_seat(sender, node_key, seat, wei, CALLDATA_CONSENT_SECONDS if calldata else CONSENT_SECONDS)
    if is_shown(sender, as_json):
        return
    typer.echo(f"{node_key.address} is seated in run {run} on {tokens(seat.policy.node_stake)}")
    typer.echo(f"next: {place.command('node start')}", err=True)


@dataclass(frozen=True)
class SeatSought:
    """A seat as it is going to be taken, or as it is held already: `is_taken`."""

    run: int
    node: str
    policy: Policy
    is_taken: bool
    hardware: int
    class_words: str = ""
    """How the hardware class was found."""
    invite: SignedInvite | None = None

    def missing(self, chain: Chain, operator: str) -> int:
        """Tokens, in wei, that `operator` has to deposit for it."""
        if self.is_taken:
            return 0
        held = chain.seat(self.run, self.node)
        own = held.locked if held.operator == operator else 0
        return max(0, self.policy.node_stake - own - chain.account(operator).free)

    def consequences(self, chain: Chain, deposited: str) -> list[str]:
        words = f"{self.node} in run {self.run}, hardware class {self.hardware}{self.class_words}"
        return [
            *([f"deposits  {deposited}"] if deposited else []),
            f"seats     {words}" if not self.is_taken else "seat      already taken",
            f"at risk   {tokens(self.policy.penalty)} on a hard verdict; a wrong proof or wrong sampling is one",
            f"comes back {duration(self.policy.span)} after leaving, and {duration(chain.withdrawal_delay())} after unstaking",
        ]


def require_not_banned(chain: Chain, run: int, node: str) -> None:
    """Raises Banned."""
    from protocol.chain.reverts import banned

    if chain.seat(run, node).role == Role.BANNED:
        raise banned(node)


def look_for_seat(
    place: Home, node: NodeSettings, chain: Chain, key: Key, told: RunAgreement, hardware: int | None, invite: str | None, spec: Path | None
) -> SeatSought:  # fmt: skip
    """The seat that this machine can fill, under the policy that all endpoints told. Raises, before anything is sent, what it lacks for that, or the node lacks of the gate's word."""
    from protocol.sandbox.programs import survey

    run = node.chain.run
    policy, seat = told.policy, chain.seat(run, key.address)
    if seat.role == Role.ACTIVE and hardware in (None, seat.hardware):
        return SeatSought(run, key.address, policy, True, seat.hardware)
    invited = _require_invite(chain, run, policy.gate, key.address, invite)
    agreed = read_spec(place, node, chain, key, spec)
    survey.require_for(agreed.environments)
    number, words = _hardware_class(agreed, node.engine, hardware)
    agreed.require_hardware(number)
    return SeatSought(run, key.address, policy, False, number, words, invited)


def take_seat(sender: Sender | Proposal, key: Key, seat: SeatSought, wei: int, patience: int) -> None:
    """Deposits `wei` and joins; `patience` is for how many seconds the node's consent is good."""
    from eth_utils import keccak

    from protocol.signing import Join

    chain, operator, invited = sender.chain, sender.key.address, seat.invite
    if wei:
        deposit(sender, operator, wei)
    else:
        sender.let_go(chain.deposit(operator, wei).doing)
    if seat.is_taken:
        return
    deadline = invited.invite.deadline if invited else chain.block().time + patience
    join = Join(seat.run, operator, key.address, keccak(key.peer), seat.hardware, deadline)
    consent, word = join.sign(key, chain.domain), invited.signature if invited else b""
    sender.send(chain.join(seat.run, key.address, key.peer, seat.hardware, deadline, consent, word))


def _hardware_class(spec: RunSpec, engine: EngineSettings, given: int | None) -> tuple[int, str]:
    """The class of the seat, and words on how it was found: by hand, by the spec's table and a measurement of this machine, or 0 where
    the run has no table. Raises PreflightError for a machine that is of none of the table's."""
    if given is not None or not spec.hardware:
        return given or 0, ""
    from node.contributor import seat_class
    from node.engine.hardware import measure_of

    typer.echo("measuring this machine; give --hardware where another one will do the work", err=True)
    found = measure_of(engine)
    needs = seat_class.require_class(spec, found)
    name = f" ({needs.name})" if needs.name else ""
    return needs.number, f"{name}: the first of the run's that {found.device} reaches"


def _require_invite(chain: Chain, run: int, gate: ChecksumAddress, node: str, given: str | None) -> SignedInvite | None:
    """The invite that a gated run asks for, checked as the contract will, before any stake is deposited; None where anyone
    may join. Raises UsageError."""
    from protocol.invite import SignedInvite

    if gate == NOBODY:
        return None
    ask = f"ask the run's owner for the word of `murmur run invite @run.toml {node} --keystore GATE.json`, then give this command again with --invite WORD"
    if given is None:
        raise UsageError(f"run {run} takes invited nodes only", hint=ask)
    try:
        word = given if given.count(":") == 3 else Path(given).read_text()
        signed = SignedInvite.parse(word)
    except OSError as error:
        raise UsageError(f"{given[:80]!r} is neither an invite nor a file of one", hint=ask) from error
    except (Malformed, ValueError) as error:  # ValueError: a file that is no text
        raise UsageError(str(error), hint=ask) from error
    i, now = signed.invite, chain.block().time
    if i.run != run:
        raise UsageError(f"the invite is to run {i.run}, not to run {run}", hint=ask)
    if i.node != node:
        raise UsageError(f"the invite is for {i.node}, and this node is {node}", hint=ask)
    if i.deadline <= now:
        raise UsageError(f"the invite expired {duration(now - i.deadline)} ago", hint=ask)
    if not chain.signed(i, signed.signature, gate):
        raise UsageError(f"the invite is not signed by {gate}, the gate of run {run}", hint=ask)
    return signed


def leave(
    home: HomeOption = DEFAULT_HOME,
    operator_keystore: OperatorKeystore = None,
    password_file: PasswordFile = None,
    yes: Yes = False,
    calldata: Calldata = False,
    operator: OperatorAddress = None,
    as_json: CalldataJson = False,
) -> None:
    """Give up the seat; what was earned stays claimable, and the stake stays locked for as long as work can be challenged."""
    o = open_operation(home, password_file, operator_keystore, calldata, operator)
    locked = duration(o.chain.policy(o.run).span)
    confirm(
        "Leave the run?",
        [f"{o.node} stops working for run {o.run}", f"its stake stays locked for {locked}"],
        yes or calldata,
    )
    o.sender.send(o.chain.leave(o.run, o.node))
    if is_shown(o.sender, as_json):
        return
    typer.echo(f"left; next, in {locked}: node unstake AMOUNT, then node withdraw")


def unstake(
    amount: Annotated[str, typer.Argument(help="Tokens to take out of stake.")],
    home: HomeOption = DEFAULT_HOME,
    operator_keystore: OperatorKeystore = None,
    password_file: PasswordFile = None,
    yes: Yes = False,
    calldata: Calldata = False,
    operator: OperatorAddress = None,
    as_json: CalldataJson = False,
) -> None:
    """Start the way out for free stake, which backs no seat and cannot be slashed."""
    wei, o = parse_tokens(amount), open_operation(home, password_file, operator_keystore, calldata, operator)
    chain, run, sender, address = o.chain, o.run, o.sender, o.node
    delay = duration(chain.withdrawal_delay())
    free, seat, now = chain.account(sender.key.address).free, chain.seat(run, address), chain.block().time
    own = seat.locked if seat.operator == sender.key.address else 0
    call = chain.unbond(wei)
    lacks = wei > free and not sender.is_done(call)
    if lacks and own and not seat.serves(now):
        _require_released(chain, run, seat)
    if lacks and wei > free + (0 if seat.serves(now) else own):
        raise InsufficientFunds(
            f"{tokens(free)} are free to leave; the rest of {sender.key.address}'s stake backs seats",
            hint="node leave" if seat.serves(now) else "",
        )
    confirm(
        "Unstake?", [f"{tokens(wei)} can be withdrawn in {delay}; unstaking more restarts that clock"], yes or calldata
    )
    if lacks:
        sender.send(chain.release(run, address))
    sender.send(call)
    if is_shown(sender, as_json):
        return
    typer.echo(f"unstaked {tokens(wei)}; next, in {delay}: node withdraw")


def _require_released(chain: Chain, run: int, seat: Seat) -> None:
    """Raises InsufficientFunds while something can still be held against a seat that was given up."""
    until = seat.until + chain.policy(run).span
    wait = until - chain.block().time
    if seat.open_cases or wait > 0:
        why = (
            f"{seat.open_cases} cases are open"
            if seat.open_cases
            else f"work can be challenged for {duration(wait)} more"
        )
        raise InsufficientFunds(
            f"the seat's {tokens(seat.locked)} are still locked: {why}", hint="give the same command again then"
        )


def rebond(
    amount: Annotated[str, typer.Argument(help="Tokens to leave in stake after all.")],
    home: HomeOption = DEFAULT_HOME,
    operator_keystore: OperatorKeystore = None,
    password_file: PasswordFile = None,
    yes: Yes = False,
) -> None:
    """Take unstaked tokens that were not withdrawn back into stake, where they can back a seat again."""
    wei, o = parse_tokens(amount), open_operation(home, password_file, operator_keystore)
    operator = o.sender.key.address
    leaving, call = o.chain.account(operator).leaving, o.chain.rebond(wei)
    if wei > leaving and not o.sender.is_done(call):
        raise InsufficientFunds(f"{tokens(leaving)} of {operator} are leaving", hint="node status")
    confirm("Rebond?", [f"{tokens(wei)} stay staked; the rest can be withdrawn as before"], yes)
    o.sender.send(call)
    typer.echo(f"{tokens(o.chain.account(operator).free)} of stake are free to back a seat")


def withdraw(
    home: HomeOption = DEFAULT_HOME,
    operator_keystore: OperatorKeystore = None,
    password_file: PasswordFile = None,
    calldata: Calldata = False,
    operator: OperatorAddress = None,
    as_json: CalldataJson = False,
) -> None:
    """Pay out unstaked tokens whose time has come."""
    from protocol.chain.events import Withdrawn

    o = open_operation(home, password_file, operator_keystore, calldata, operator)
    sent = o.sender.send(o.chain.withdraw())
    if is_shown(o.sender, as_json) or sent is None:
        return
    typer.echo(f"withdrew {tokens(sent.event(Withdrawn).amount)}")


def claim(
    home: HomeOption = DEFAULT_HOME,
    operator_keystore: OperatorKeystore = None,
    password_file: PasswordFile = None,
    as_json: Json = False,
) -> None:
    """Pay the operator what has vested, from whichever key sends it. Claiming nothing is not an error and sends nothing."""
    from protocol.chain.events import Claimed

    place = open_home(home)
    node = settings(place).value
    chain, run, address = open_chain(node), node.chain.run, place.address("node")
    reward = chain.policy(run).reward
    ready, pending = chain.claimable(run, address)
    claimed = None
    if ready:
        sender = operator_sender(place, node, chain, password_file, operator_keystore)
        sent = sender.send(chain.claim(run, address))
        claimed = sent.event(Claimed)
    data = {
        "units": claimed.units if claimed else 0,
        "amount": str(claimed.amount if claimed else 0),
        "operator": claimed.operator if claimed else chain.seat(run, address).operator,
        "pending_units": pending,
        "transaction": "0x" + sent.hash.hex() if claimed else None,
    }

    def text() -> None:
        if claimed:
            typer.echo(f"claimed {tokens(claimed.amount)} for {claimed.units} units, paid to {claimed.operator}")
        else:
            typer.echo("nothing to claim yet")
        if pending:
            typer.echo(f"{pending} units ({tokens(pending * reward)}) still wait for the verification window", err=True)

    emit(data, as_json, text)
