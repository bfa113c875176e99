"""The table of deviations is what the contracts do: each row is played on them, where it fails and where it succeeds, and every balance compared.

The liars and the honest are keys that send what their programs would; whether work is false is up to who votes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from swarm.anvil import Anvil
from swarm.processes import wait_until
from swarm.settings import SwarmSettings, run_file
from swarm.world import DAY, TOKEN, World

from protocol.chain.calls import Call
from protocol.chain.deviations import Deviation, Move, deviations
from protocol.chain.types import Policy, Stage
from protocol.chain.vouchers import Vouchers
from protocol.identity import Key
from protocol.shell.runfile import PolicyTable
from protocol.signing import Verdict, Voucher
from protocol.submission import SubmissionRef
from tests.chain.test_vouchers import opened, signed

SINK = "0x" + "51" * 20
NOBODY = ("0x" + "0" * 40, 0, bytes(32), b"")
SAMPLES = 1
"""The sample of a file that is false, or that was checked, as bits."""


def demo() -> Policy:
    """That of scripts/demo."""
    where = {"rpc": "", "contract": "", "chain_id": 1, "run": None, "bootnode": "", "first_block": 0}
    table = run_file(SwarmSettings(), (), trainer="0x" + "1" * 40, **where)["policy"]  # type: ignore[arg-type]
    return PolicyTable.model_validate(table).policy("0x" + "2" * 40)


DEMO = demo()
ODD = Policy(
    # no co-signer, and numbers that nothing divides; the bond of the largest submission is more than the least
    owner=DEMO.owner, trainer=DEMO.trainer, gate=DEMO.gate, fee=7, reward=3, notice=60, grace=60, max_units=1000, bond=101, jury_fee=40,
    bond_bps=1234, finder_bps=3333, co_signers=0, strikes=3, leverage=2, window=DAY, appeal=3600, vote=7200, max_per_step=2, node_stake=6007,
    penalty=2503, validator_stake=2000, voucher_cap=900,
)  # fmt: skip
INSTANT = Policy(
    owner=DEMO.owner, trainer=DEMO.trainer, gate=DEMO.gate, fee=7, reward=3, notice=60, grace=60, max_units=1000, bond=101, jury_fee=0,
    bond_bps=0, finder_bps=3333, co_signers=1, strikes=3, leverage=2, window=DAY, appeal=0, vote=0, max_per_step=2, node_stake=6007,
    penalty=2503, validator_stake=2000, voucher_cap=900,
)  # fmt: skip
SETTINGS = {"demo-3": (DEMO, 3), "odd-7": (ODD, 7), "instant-3": (INSTANT, 3), "demo-5": (DEMO, 5), "odd-2": (ODD, 2)}
LONG = ("demo-5", "odd-2")


class Impersonated:
    """Sends as anybody, in one request instead of a Sender's ten: Anvil signs, mines and, where the contracts refuse, says so."""

    def __init__(self, anvil: Anvil, key: Key) -> None:
        self._anvil, self.key = anvil, key

    def send(self, call: Call) -> None:
        made = call.function
        what = {"from": self.key.address, "to": made.address, "data": "0x" + made.data.hex(), "gas": hex(5_000_000)}
        sent = self._anvil.request("eth_sendTransaction", what)
        wait_until(
            lambda: self._anvil.request("eth_getTransactionReceipt", sent), deadline=10, what="mined a moment later"
        )
        assert self._anvil.request("eth_getTransactionReceipt", sent)["status"] == "0x1"


class Theatre:
    """A run with a node and so many validators, at which plays begin again and again."""

    def __init__(self, anvil: Anvil, policy: Policy, validators: int) -> None:
        changes = {name: value for name, value in vars(policy).items() if name not in ("owner", "trainer")}
        self.policy, self._anvil = policy, anvil
        self.world = world = World.another(anvil, **changes)
        self.operator, self.node, self.finder = Key.generate(), Key.generate(), Key.generate()
        self.validators = [Key.generate() for _ in range(validators)]
        world.seat_node(self.operator, self.node)
        for validator in self.validators:
            world.seat_validator(validator)
        opened(world, pot=1 + 2 * policy.voucher_cap // TOKEN)
        world.publish(0)
        anvil.request("anvil_autoImpersonateAccount", True)
        world.trainer = Impersonated(anvil, world.trainer.key)  # type: ignore[assignment]
        world.senders = {key.address: Impersonated(anvil, key) for key in self.people}  # type: ignore[misc]
        for key in self.people:
            anvil.give(key.address, TOKEN)
        self._saved = anvil.request("evm_snapshot")

    def begin(self) -> None:
        """As it was when everybody had been seated and one version published."""
        assert self._anvil.request("evm_revert", self._saved)
        self._saved = self._anvil.request("evm_snapshot")
        self._anvil.advance(max(0, int(time.time()) - self.world.chain.block().time))

    @property
    def people(self) -> list[Key]:
        return [self.world.trainer.key, self.operator, self.node, self.finder, *self.validators]


@dataclass
class Play:
    """One deviation, with everybody's balances before it."""

    theatre: Theatre
    units: int
    cast: dict[str, list[str]] = field(default_factory=dict)
    """By the part that they have in `Move.who`: addresses. `idle`: jurors that lie and are paid nothing."""
    deserved: int = 0
    claimed: int = 0
    _step: int = 0
    _sequence: int = 0

    def __post_init__(self) -> None:
        theatre = self.theatre
        self.world, self.chain, self.policy = theatre.world, theatre.world.chain, theatre.policy
        self.node, self.operator, self.finder = theatre.node, theatre.operator, theatre.finder
        self.people = theatre.validators
        self.tracked = [each.address for each in (self.operator, self.finder, *self.people)] + [SINK]
        self.cast["operator"], self.cast["sink"] = [self.operator.address], [SINK]
        self._before, self._funds, self._pot = self._stakes(), self._budget(), self._in_pot()
        self.brought = self.people[:1]

    # ---- deeds ------------------------------------------------------------------------------------------------------

    def submit(self, *, honest: bool, units: int | None = None) -> SubmissionRef:
        if self._sequence == self.policy.max_per_step:
            self._step, self._sequence = self._step + 1, 0
            self.world.publish(self._step)
        units = self.units if units is None else units
        root = bytes([self._step, self._sequence]) * 16
        ref = self.world.submit(self.node, self._step, self._sequence, root, units)
        self._sequence += 1
        self.deserved += self.policy.reward * units * honest
        return ref

    def challenge(self, *refs: SubmissionRef) -> None:
        self.cast["challenger"] = [self.people[0].address]
        self._send(self.people[0], self.chain.challenge(self.world.run, refs, b"\x0e" * 32))

    def accuse(self, ref: SubmissionRef) -> None:
        self.cast["challenger"], second = [self.people[0].address], NOBODY
        if self.policy.co_signers:
            self.brought = self.people[:2]
            self.cast["co-signer"] = [self.people[1].address]
            second = self._receipt(self.people[1], ref, 3)
        self._send(self.people[0], self.chain.accuse(self.world.run, ref, SAMPLES, b"\x0e" * 32, second))

    def appeal(self, number: int = 1, by: Key | None = None) -> None:
        self._send(by or self.node, self.chain.appeal(self.world.run, self.node.address, number))

    @property
    def jury(self) -> list[Key]:
        return self.people[len(self.brought) :]

    def vote(self, part: str, jurors: Sequence[Key], found: int, *, hard: bool = False, number: int = 1) -> None:
        """`part`: of those who vote before all is decided; those who come later are not asked."""
        for juror in jurors:
            if self._case(number).stage != Stage.APPEALED:
                return
            call = self.chain.vote(self.world.run, self.node.address, number, found, found * hard, bytes(32))
            self._send(juror, call)
            if juror.address not in self.cast.setdefault(part, []):
                self.cast[part].append(juror.address)

    def settle(self, number: int = 1) -> None:
        case = self._case(number)
        if case.stage in (Stage.OPEN, Stage.APPEALED, Stage.UNDECIDED):
            self.world.anvil.advance(max(0, case.deadline - self.chain.block().time))
            self._send(self.finder, self.chain.settle(self.world.run, self.node.address, number))

    def impeach(self, ref: SubmissionRef, number: int = 1) -> None:
        self.cast["validator"], self.cast["finder"] = [self.people[-1].address], [self.finder.address]
        receipt = self._receipt(self.people[-1], ref, 1)
        self._send(self.finder, self.chain.impeach(self.world.run, ref, number, receipt))

    def redeem(self, total: int) -> None:
        friend = self.people[-1]
        self.cast["validator"] = [friend.address]
        voucher = Voucher(self.world.run, friend.address, total)
        vouchers = Vouchers(self.chain, self.world.vouchers)
        self._send(friend, vouchers.redeem(voucher, signed(self.world, voucher)))

    # ---- what came of it --------------------------------------------------------------------------------------------

    def changes(self) -> dict[str, int]:
        """By address, and for work, budget and pot: once all that can be claimed has been."""
        self.world.anvil.advance(2 * self.policy.window)
        self._send(self.finder, self.chain.claim(self.world.run, self.node.address))
        claimed = self.chain.token_balance(self.operator.address)
        after = {who: stake - self._before[who] for who, stake in self._stakes().items()}
        budget = self._budget() - self._funds + self.deserved
        return after | {"work": claimed - self.deserved, "budget": budget, "pot": self._in_pot() - self._pot}

    def expected(self, moves: Sequence[Move]) -> dict[str, int]:
        wei = dict.fromkeys([*self.tracked, "work", "budget", "pot"], 0)
        for move in moves:
            accounts = self.cast.get(move.who, [move.who])
            assert len(accounts) == move.many, (move, accounts)
            for account in accounts:
                wei[account] += move.wei
        return wei

    def _case(self, number: int = 1) -> Any:
        return self.chain.case(self.world.run, self.node.address, number)

    def _stakes(self) -> dict[str, int]:
        """With the tokens of validators, which vouchers pay in."""
        held = {who.address: self.chain.token_balance(who.address) for who in self.people}
        return {who: self.chain.account(who).active + held.get(who, 0) for who in self.tracked}

    def _budget(self) -> int:
        funds = self.chain.funds(self.world.run)
        return funds.free + funds.reserved

    def _in_pot(self) -> int:
        return Vouchers(self.chain, self.world.vouchers).pot(self.world.run)

    def _receipt(self, by: Key, ref: SubmissionRef, outcome: int) -> tuple[object, ...]:
        details = b"\x0d" * 32
        verdict = Verdict(self.world.run, ref.submission_id(self.world.run), outcome, SAMPLES, details)
        return by.address, SAMPLES, details, verdict.sign(by, self.chain.domain)

    def _send(self, by: Key, call: Call) -> None:
        self.world.sender(by).send(call)


def found_soft(play: Play, *, honest: bool) -> None:
    play.challenge(play.submit(honest=honest))
    play.settle()


def found_hard(play: Play, *, honest: bool) -> SubmissionRef:
    ref = play.submit(honest=honest)
    play.accuse(ref)
    play.settle()
    return ref


def tried(play: Play, *, honest: bool, hard: bool, liars: int = 0, found: int = 1) -> None:
    """A case that the node appeals: the first jurors lie, the others find `found` and as much hard as is brought."""
    ref = play.submit(honest=honest)
    if hard:
        play.accuse(ref)
    else:
        play.challenge(ref)
    play.appeal()
    play.vote("liar", play.jury[:liars], 1 - found, hard=hard)
    play.vote("juror", play.jury[liars:], found, hard=hard)


def bundle(play: Play) -> None:
    play.challenge(play.submit(honest=False), play.submit(honest=True))
    play.appeal()
    play.vote("juror", play.jury, 0b01)


def away(play: Play, *, hard: bool, answers: bool) -> None:
    refs = [play.submit(honest=True, units=1) for _ in range(1 if hard else play.policy.strikes)]
    if hard:
        play.accuse(refs[0])
    else:
        play.challenge(*refs)
    if answers:
        play.appeal()
        play.vote("juror", play.jury, 0)
    elif play.policy.appeal:
        play.settle()


def silent_juror(play: Play) -> None:
    play.challenge(play.submit(honest=True))
    play.appeal()
    idle, *others = play.jury
    play.cast["idle"] = [idle.address]
    if not others:
        play.cast["silent"] = play.cast["idle"]
    play.vote("juror", others, 0)
    play.settle()
    play.settle()


def withheld(play: Play, silent: int) -> None:
    play.accuse(play.submit(honest=False))
    play.appeal()
    play.cast["silent"] = play.cast["idle"] = [who.address for who in play.jury[:silent]]
    play.vote("juror", play.jury[silent:], 1, hard=True)
    play.settle()
    play.settle()


def bribed(play: Play, liars: int) -> None:
    """Those who take the bribe vote first."""
    tried(play, honest=False, hard=True, liars=liars)
    if play._case().stage == Stage.UPHELD:
        play.cast["idle"] = play.cast.pop("liar", [])


def accepted(play: Play) -> None:
    play.impeach(found_hard(play, honest=False))


def overcharged(play: Play) -> None:
    play.accuse(play.submit(honest=False))
    play.appeal()
    play.vote("juror", play.jury, 1)


def framed(play: Play, *, heard: bool) -> None:
    """`heard`: one of those who accepted the work stands by it, each time."""
    refs = [play.submit(honest=True, units=1) for _ in range(play.policy.validator_stake // play.policy.bond)]
    for ref in refs:
        play.accuse(ref)
    *others, last = play.jury
    for number, ref in enumerate(refs, 1):
        if heard:
            play.cast["appellant"] = [last.address]
            play.appeal(number, last)
            play.vote("juror", others, 0, number=number)
        else:
            play.settle(number)
            play.impeach(ref, number)


def copied(play: Play) -> None:
    """What the first juror has judged the others follow."""
    play.challenge(play.submit(honest=True))
    play.appeal()
    play.vote("juror", play.jury[:1], 0)
    found = play.chain.ballots(play.world.run, play.node.address, 1)[0].found_false if play.jury[1:] else 0
    play.vote("juror", play.jury[1:], found)


def borne(play: Play) -> int:
    return play.policy.liars_borne(len(play.people))


def of_hard(play: Play) -> int:
    return len(play.people) - 1 - play.policy.co_signers


FAILS: dict[str, Callable[[Play], Any]] = {
    "junk": lambda play: found_soft(play, honest=False),
    "junk, challenged by a friend": lambda play: found_soft(play, honest=False),
    "cheating": lambda play: found_hard(play, honest=False),
    "cheating, accused by a friend": lambda play: found_hard(play, honest=False),
    "silence of a node": lambda play: found_soft(play, honest=True),
    "silence of a node, accused": lambda play: found_hard(play, honest=True),
    "false appeal": lambda play: tried(play, honest=False, hard=False),
    "false appeal of a hard case": lambda play: tried(play, honest=False, hard=True),
    "bundle": bundle,
    "friend's case": lambda play: tried(play, honest=True, hard=True, found=0),
    "false challenge": lambda play: tried(play, honest=True, hard=False, found=0),
    "false challenge of who is away": lambda play: away(play, hard=False, answers=True),
    "false accusation of who is away": lambda play: away(play, hard=True, answers=True),
    "false accusation": lambda play: tried(play, honest=True, hard=True, found=0),
    "overcharge": overcharged,
    "framed validator": lambda play: framed(play, heard=True),
    "false accept": accepted,
    "copied vote": copied,
    "silence of a juror": silent_juror,
    "withheld vote": lambda play: withheld(play, borne(play)),
    "bribe": lambda play: bribed(play, borne(play)),
}
SUCCEEDS: dict[str, Callable[[Play], Any]] = {
    "junk": lambda play: play.submit(honest=False),
    "cheating": lambda play: play.submit(honest=False),
    "false accept": lambda play: play.submit(honest=False),
    "framed validator": lambda play: framed(play, heard=False),
    "false challenge": lambda play: tried(
        play, honest=True, hard=False, liars=(len(play.people) - 1) // 2 + 1, found=0
    ),
    "false accusation": lambda play: tried(play, honest=True, hard=True, liars=of_hard(play) // 2 + 1, found=0),
    "false challenge of who is away": lambda play: away(play, hard=False, answers=False),
    "false accusation of who is away": lambda play: away(play, hard=True, answers=False),
    "withheld vote": lambda play: withheld(play, of_hard(play) - of_hard(play) // 2),
    "bribe": lambda play: bribed(play, of_hard(play) - of_hard(play) // 2),
    "vouchers for a friend": lambda play: play.redeem(2 * play.policy.voucher_cap),
}
INSTANTLY: dict[str, Callable[[Play], Any]] = {
    "false challenge": lambda play: away(play, hard=False, answers=False),
    "false accusation": lambda play: play.accuse(play.submit(honest=True)),
}
"""What succeeds by itself where verdicts are final at once."""

ROWS = [(setting, deviation) for setting, (policy, many) in SETTINGS.items() for deviation in deviations(policy, many)]


@pytest.fixture(scope="module")
def theatre_of(anvil: Anvil) -> Iterator[Callable[[str], Theatre]]:
    """By setting; the last one stays as it is, for the next row."""
    standing: dict[str, Theatre] = {}

    def get(setting: str) -> Theatre:
        if setting not in standing:
            standing.clear()
            standing[setting] = Theatre(anvil, *SETTINGS[setting])
        return standing[setting]

    yield get
    anvil.request("anvil_autoImpersonateAccount", False)


def row(setting: str, deviation: Deviation) -> Any:
    return pytest.param(
        setting, deviation, id=f"{setting} {deviation.name}", marks=[pytest.mark.long] * (setting in LONG)
    )


@pytest.mark.parametrize("setting, deviation", [row(*each) for each in ROWS])
def test_what_a_deviation_moves_is_what_the_contracts_move(
    theatre_of: Callable[[str], Theatre], setting: str, deviation: Deviation
) -> None:
    theatre = theatre_of(setting)
    instant = theatre.policy.appeal == 0
    ends = [(deviation.fails, FAILS.get(deviation.name))] if deviation.fails else []
    if deviation.succeeds:
        ends.append(
            (deviation.succeeds, (INSTANTLY if instant else {}).get(deviation.name) or SUCCEEDS[deviation.name])
        )
    assert ends
    for moves, act in ends:
        theatre.begin()
        play = Play(theatre, theatre.policy.max_units)
        assert act is not None
        act(play)
        changed = play.changes()
        assert changed == play.expected(moves)
        assert sum(changed.values()) == 0
        if moves is deviation.fails and deviation.forgone:
            voted = changed[play.cast["juror"][0]] if "juror" in play.cast else deviation.forgone
            assert deviation.forgone == voted * len(play.cast["idle"])
