"""What each party of a run can gain and lose by not playing along: computed from a policy, without a chain.

A deviation has two ends. Where it *fails*, everybody else does what a running client does: nodes appeal what is not false, validators find what
is, jurors vote the truth in time. Where it *succeeds*, either so many validators lie that the others are no majority (`needs`), or
nobody happened to look. Both ends say whose money moves, to the unit, as the contracts do it (Court._close, Bench.payOut, Runs.settle):
tests/chain/test_deviations.py plays both on the deployed contracts, and docs/deviations.md is made of them.

Money is what stake, budget and pots lose or gain against everybody's honest conduct: honest work that is not paid is a loss, junk that is paid a
gain. Gas, machines, and what a bad name costs are not in it; nor is what the trainer could do to nodes by weights that no two machines compute alike
(docs/threats.md), for it gains nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from protocol.chain.types import Policy

_WHOLE = 10_000  # hundredths of a per cent


@dataclass(frozen=True)
class Move:
    """Wei that each of `many` accounts of one kind gains or loses."""

    who: str
    """operator, challenger, co-signer, juror (honest, one that votes), liar (a juror), silent (a juror), validator, finder: their stake.
    work: what the operator is paid beyond what its honest work is worth. sink, budget, pot: where the rest goes or comes from."""
    wei: int
    many: int = 1
    ours: bool = False
    """Whether it is one of those who deviate together."""


@dataclass(frozen=True)
class Deviation:
    name: str
    party: str
    does: str
    against: str
    """Whose loss its gain would be."""
    gains_by: str
    """Where the gain comes from, in the policy's words; empty: there is none to be had."""
    loses_by: str
    fails: tuple[Move, ...]
    succeeds: tuple[Move, ...] = ()
    """Empty: it never does."""
    needs: int = 0
    """How many validators have to lie so that it succeeds; 0: it is luck, of the kind that `luck` says."""
    luck: str = ""
    forgone: int = 0
    """Wei that those who deviate would have been paid, and are not, where it fails."""

    @property
    def gains(self) -> int:
        """Wei, by all who deviate together, where it succeeds."""
        return max(0, sum(move.wei * move.many for move in self.succeeds if move.ours))

    @property
    def loses(self) -> int:
        """Wei, by all who deviate together, where it fails."""
        return self.forgone - sum(move.wei * move.many for move in self.fails if move.ours)

    @property
    def even(self) -> Fraction:
        """How often it has to fail so that it does not pay, where it is luck whether it does."""
        together = self.gains + self.loses
        return Fraction(self.gains, together) if together else Fraction(0)

    def pays(self, liars: int) -> bool:
        """Whether so many lying validators gain by it. What luck decides pays where nothing is lost."""
        if not self.needs and self.loses > 0:
            return False
        return self.gains > 0 and liars >= self.needs


def deviations(policy: Policy, validators: int, units: int | None = None) -> list[Deviation]:
    """Every deviation in a run with so many validators, by submissions of so many units (None: the largest there are).

    At least as many as a jury takes: with fewer no weights are published.
    """
    table = _Table(policy, max(validators, policy.jury), policy.max_units if units is None else units)
    return [*table.of_nodes(), *(table.of_validators() if policy.appeal else table.without_appeals()), table.vouchers()]


def pays_by_bench(policy: Policy, most: int) -> dict[str, list[tuple[int, Deviation]]]:
    """By name, the deviations that one lying validator makes pay, or so many as the bench is said to bear: (validators, deviation) for
    each size of the bench up to `most`. The trainer's are left out: it is the owner's own key."""
    found: dict[str, list[tuple[int, Deviation]]] = {}
    for validators in range(max(1, policy.jury), most + 1):
        liars = max(1 + (0 if policy.appeal else policy.co_signers), policy.liars_borne(validators))
        for deviation in deviations(policy, validators):
            if deviation.needs and deviation.party != "trainer" and deviation.pays(liars):
                found.setdefault(deviation.name, []).append((validators, deviation))
    return found


def cheating_pays(policy: Policy, loss: int, share: Fraction, answers: int) -> bool:
    """Whether a node that cheats in some of a submission's `answers` can expect a gain, where each is checked with probability `share`, and one that is found
    costs `loss` and the pay of the whole submission."""
    worth = policy.reward * policy.max_units
    if not worth:
        return False
    if not loss:
        return True  # a cheat that is found can try again, as often as it likes
    for false in range(1, answers + 1):
        unfound = (1 - share) ** false
        gain = Fraction(worth * false, answers)
        if unfound * gain > (1 - unfound) * (loss + worth - gain):
            return True
    return False


class _Table:
    def __init__(self, policy: Policy, validators: int, units: int) -> None:
        self._p = policy
        self._worth = policy.reward * units
        self._bond = policy.bond_for(units)
        self._soft, self._hard = validators - 1, validators - 1 - policy.co_signers
        """Jurors of a case that one validator has brought, and of one that its co-signer has brought with it."""
        self._borne = policy.liars_borne(validators)

    # ---- nodes ------------------------------------------------------------------------------------------------------

    def of_nodes(self) -> Iterator[Deviation]:
        p = self._p
        unfound = (*self._work(self._worth, ours=True),)
        yield Deviation(
            "junk", "node", "hands in work that is false, as a soft rule finds it", "budget",
            "reward × units, where nobody finds it", "fee, at most strikes × fee in a window",
            (*self._fee(ours=True),), unfound, luck="found",
        )  # fmt: skip
        yield Deviation(
            "junk, challenged by a friend", "node and validator", "has a friend challenge it before others do, for the finder's share",
            "nobody", "", "fee × (1 − finder_bps)", (*self._fee(ours=True, friend=True),),
        )  # fmt: skip
        yield Deviation(
            "cheating", "node", "hands in work that is false, as a hard rule finds it", "budget",
            "reward × units, where nobody finds it", "penalty, and all that is unpaid of a window",
            (*self._penalty("challenger", ours=True),), unfound, luck="found",
        )  # fmt: skip
        yield Deviation(
            "cheating, accused by a friend", "node and validator", "has a friend accuse it before others do, for the finder's share",
            "nobody", "", "penalty × (1 − finder_bps)",
            (*self._penalty("challenger", ours=True, friend=True),),
        )  # fmt: skip
        if not p.appeal:
            return
        yield Deviation(
            "silence of a node", "node", "does not appeal a false challenge", "itself", "",
            "reward × units + fee; finder_bps of the fee are the challenger's",
            (*self._work(-self._worth, ours=True), *self._fee(ours=True)),
        )  # fmt: skip
        yield Deviation(
            "silence of a node, accused", "node", "does not appeal a false accusation", "itself", "",
            "penalty, and all that is unpaid of a window; finder_bps of the penalty are the accuser's",
            (*self._work(-self._worth, ours=True), *self._penalty("challenger", ours=True)),
        )  # fmt: skip
        votes = self._soft // 2 + 1
        pay = self._pay(1, self._soft)
        finds, rest = _split(p.bond - votes * pay, p.finder_bps)
        yield Deviation(
            "false appeal", "node", "appeals a soft case that is right", "nobody", "", "fee + bond",
            (
                *self._fee(ours=True), Move("operator", -p.bond, ours=True), Move("challenger", finds),
                Move("juror", pay, votes), Move("sink", rest),
            ),
        )  # fmt: skip
        yield Deviation(
            "false appeal of a hard case", "node", "its key appeals an accusation that is right", "nobody", "",
            "penalty: what the appeal costs comes out of it", (*self._lost_by_key("juror", ours=True),),
        )  # fmt: skip

    # ---- validators, where there are juries -------------------------------------------------------------------------

    def of_validators(self) -> Iterator[Deviation]:
        p, soft, hard = self._p, self._soft, self._hard
        yield self._bundle()
        yield Deviation(
            "friend's case", "node and validators", "have a friend accuse by honest work, so that nobody else may", "nobody", "",
            "1 + co_signers bonds, less the half that the operator gets of what the jury leaves",
            self._cleared(self._bond, 1, 1 + p.co_signers, hard, ours=("challenger", "co-signer", "operator")),
        )  # fmt: skip
        pay, votes = self._pay(1, soft), soft // 2 + 1
        finds, rest = _split(p.bond - votes * pay, p.finder_bps)
        yield Deviation(
            "false challenge", "validator", "challenges honest work of a node that appeals", "node",
            "finder_bps of the fee, and of the lost appeal the jury's pay and finder_bps of the rest", "max(bond, bond_bps × reward × units)",
            self._cleared(self._bond, 1, 1, soft, ours=("challenger",)),
            (
                *self._work(-self._worth), *self._fee(friend=True), Move("operator", -p.bond), Move("sink", rest),
                Move("challenger", finds, ours=True), Move("liar", pay, votes, ours=True),
            ),
            needs=1 + votes,
        )  # fmt: skip
        yield from self._away()
        yield Deviation(
            "false accusation", "validators", "accuse honest work of a node that appeals", "node",
            "finder_bps of the penalty, and the jury's pay out of the lost appeal", "max(bond, bond_bps × reward × units), by each",
            self._cleared(self._bond, 1, 1 + p.co_signers, hard, ours=("challenger", "co-signer")),
            (*self._work(-self._worth), *self._lost_by_key("liar", jury_ours=True)),
            needs=1 + p.co_signers + hard // 2 + 1,
        )  # fmt: skip
        yield self._overcharge()
        yield from self._framed()
        yield self._false_accept()
        yield self._silence()
        yield self._copied()
        yield self._withheld()
        yield self._bribe()

    def _bundle(self) -> Deviation:
        """One false and one honest submission in one case; the node appeals, for the honest one."""
        jurors = self._soft
        pay, votes = self._pay(2, jurors), jurors // 2 + 1
        half, rest = _split(self._bond - votes * pay, _WHOLE // 2)
        moves = (
            *self._fee(ours=True, friend=True), Move("operator", half, ours=True), Move("challenger", -self._bond, ours=True),
            Move("juror", pay, votes), Move("sink", rest),
        )  # fmt: skip
        return Deviation(
            "bundle", "node and validator", "have a friend list junk beside honest work, so that the jury clears both", "budget", "",
            "the bond of the honest part, less the half that the operator gets of what the jury leaves", moves,
        )  # fmt: skip

    def _away(self) -> Iterator[Deviation]:
        """Nobody but the node itself appeals for one that is away. As many of the smallest submissions as there are strikes; or one."""
        p = self._p
        worth = p.strikes * p.reward
        yield Deviation(
            "false challenge of who is away", "validator", "challenges honest work, hoping that the node is away for appeal", "node",
            "finder_bps of strikes × fee", "bond, where the node appeals",
            self._cleared(p.bond_for(p.strikes), p.strikes, 1, self._soft, ours=("challenger",)),
            (*self._work(-worth), *self._fee(p.strikes, friend=True)),
            luck="answered",
        )  # fmt: skip
        yield Deviation(
            "false accusation of who is away", "validators", "accuse honest work, hoping that the node is away for appeal", "node",
            "finder_bps of the penalty", "bond, by each, where the node appeals",
            self._cleared(p.bond_for(1), 1, 1 + p.co_signers, self._hard, ours=("challenger", "co-signer")),
            (*self._work(-p.reward), *self._penalty("challenger", friend=True)),
            luck="answered",
        )  # fmt: skip

    def _overcharge(self) -> Deviation:
        """The node appeals, for it would be convicted; the jury finds the work merely false."""
        p, jurors = self._p, self._hard
        pay, votes, accusers = self._pay(1, jurors), jurors // 2 + 1, 1 + p.co_signers
        return Deviation(
            "overcharge", "validators", "accuse of cheating work that is merely false", "node", "", "jury_fee, by each, and the share of the fee",
            (*_some(
                Move("challenger", -pay * jurors, ours=True), Move("co-signer", -pay * jurors, p.co_signers, ours=True),
                Move("juror", pay, votes), Move("operator", -p.fee), Move("sink", p.fee + pay * (jurors * accusers - votes)),
            ),),
        )  # fmt: skip

    def _framed(self) -> Iterator[Deviation]:
        """By a seat's own work that one validator has accepted: as many submissions as its lock has bonds. It succeeds where nobody appeals; and
        where the only validator beside the accusers may not, for it would be the last juror."""
        p, accusers = self._p, 1 + self._p.co_signers
        others, times = self._soft - p.co_signers, p.validator_stake // max(1, p.bond)
        if not others or not p.bond:
            return
        share, rest = _split(p.bond, p.finder_bps)
        takes = (
            *self._work(-p.reward * times, ours=True), *self._penalty("challenger", ours=True, friend=True),
            Move("validator", -p.bond * times), Move("finder", share * times, ours=True), Move("sink", rest * times),
        )  # fmt: skip
        heard: tuple[Move, ...] = ()
        if p.appeal and others > 1:
            once = self._cleared(
                p.bond_for(1), 1, accusers, others - 1, ours=("challenger", "co-signer", "operator"), appeals=True
            )
            heard = tuple(Move(m.who, m.wei * times, m.many, m.ours) for m in once)
        yield Deviation(
            "framed validator", "node and validators", "convict a node of theirs of honest work, to impeach who has accepted it", "validator",
            "finder_bps of a bond for each submission, of each validator that accepted it (one is counted), less what the conviction costs",
            "1 + co_signers bonds for each submission, where somebody appeals", heard, takes,
            needs=0 if heard else accusers, luck="answered" if heard else "",
        )  # fmt: skip

    def _copied(self) -> Deviation:
        """Of a juror that votes as those before it, who judge. Where they are right nobody is the worse for it."""
        return Deviation(
            "copied vote", "validator", "votes as others have before it, and judges nothing", "jury", "the work of judging, which no policy knows",
            "nothing, where those are right who voted before; its pay, where a majority finds otherwise",
            self._cleared(self._bond, 1, 1, self._soft),
        )  # fmt: skip

    def _silence(self) -> Deviation:
        """Of one juror of a false challenge. The only one there is leaves the case without a majority."""
        jurors = self._soft
        pay = self._pay(1, jurors)
        decided = self._cleared(self._bond, 1, 1, jurors)
        late = (Move("silent", -pay, ours=True), Move("operator", pay))
        return Deviation(
            "silence of a juror", "validator", "does not vote", "jury", "the work of judging, which no policy knows",
            "a juror's pay, jury_fee / jurors, not earned; and once more where the time runs out for want of it",
            decided if jurors > 1 else late, forgone=pay,
        )  # fmt: skip

    def _withheld(self) -> Deviation:
        jurors, pay = self._hard, self._pay(1, self._hard)
        silent = jurors - jurors // 2
        return Deviation(
            "withheld vote", "node and validators", "keep silent as jurors, so that a cheat is not convicted", "budget and challenger",
            "reward × units: what the silent are charged comes back to the operator", "penalty, and the pay of the silent",
            (*self._lost_by_key("juror", ours=True),),
            (
                *self._work(self._worth, ours=True), Move("silent", -pay, silent, ours=True), Move("operator", pay * silent, ours=True),
                *_some(Move("juror", pay, jurors - silent), Move("challenger", -pay * (jurors - silent))),
            ),
            needs=silent, forgone=pay * self._borne,
        )  # fmt: skip

    def _bribe(self) -> Deviation:
        """What is paid as a bribe stays among those who deviate. It is at least a juror's pay, and need not be more."""
        jurors, pay = self._hard, self._pay(1, self._hard)
        votes = jurors - jurors // 2
        cleared = self._cleared(
            self._bond, 1, 1 + self._p.co_signers, jurors, ours=("operator", "liar"), jurors_are="liar"
        )
        return Deviation(
            "bribe", "node and validators", "pay jurors so that they clear a cheat", "budget and challengers",
            "reward × units, the jury's pay, and half of what that leaves of the bonds", "penalty, and the pay of the bribed",
            (*self._lost_by_key("juror", ours=True),), (*self._work(self._worth, ours=True), *cleared),
            needs=votes, forgone=pay * self._borne,
        )  # fmt: skip

    def _false_accept(self) -> Deviation:
        p = self._p
        finds, rest = _split(p.bond, p.finder_bps)
        impeached = (Move("validator", -p.bond, ours=True), Move("finder", finds), Move("sink", rest))
        return Deviation(
            "false accept", "node and validator", "a validator signs that a cheat's work is good", "budget",
            "reward × units, where nobody else finds it", "penalty, and and one bond of the validator for each such submission",
            (*self._penalty("challenger", ours=True), *impeached), (*self._work(self._worth, ours=True),), luck="found",
        )  # fmt: skip

    # ---- where verdicts are final at once ---------------------------------------------------------------------------

    def without_appeals(self) -> Iterator[Deviation]:
        p = self._p
        worth = p.strikes * p.reward
        yield Deviation(
            "false challenge", "validator", "challenges honest work", "node", "finder_bps of strikes × fee, from each seat in each window", "nothing",
            (), (*self._work(-worth), *self._fee(p.strikes, friend=True)), needs=1,
        )  # fmt: skip
        yield Deviation(
            "false accusation", "validators", "accuse honest work", "node", "finder_bps of the penalty, from each seat", "nothing",
            (), (*self._work(-self._worth), *self._penalty("challenger", friend=True)), needs=1 + p.co_signers,
        )  # fmt: skip
        yield from self._framed()
        yield self._false_accept()

    # ---- trainer ----------------------------------------------------------------------------------------------------

    def vouchers(self) -> Deviation:
        cap = self._p.voucher_cap
        return Deviation(
            "vouchers for a friend", "trainer", "signs vouchers for work that a friend with a validator's seat did not do", "owner's pot",
            "voucher_cap in a window, until the owner has appointed another key", "nothing",
            (), (Move("pot", -cap), Move("validator", cap, ours=True)), needs=1,
        )  # fmt: skip

    # ---- what cases move --------------------------------------------------------------------------------------------

    def _pay(self, submissions: int, jurors: int) -> int:
        """Of one juror, for all submissions of a case."""
        return min(self._p.jury_fee * submissions, self._p.bond) // jurors

    def _work(self, wei: int, *, ours: bool = False) -> Iterator[Move]:
        """Pay that the operator gets and does not deserve, or the other way round."""
        yield Move("work", wei, ours=ours)
        yield Move("budget", -wei)

    def _fee(self, strikes: int = 1, *, ours: bool = False, friend: bool = False) -> Iterator[Move]:
        """Of soft verdicts. `ours`: the operator deviates; `friend`: the challenger does."""
        fee = strikes * self._p.fee
        share, rest = _split(fee, self._p.finder_bps)
        yield Move("operator", -fee, ours=ours)
        yield Move("challenger", share, ours=friend)
        yield Move("sink", rest)

    def _penalty(self, finder: str, *, ours: bool = False, friend: bool = False) -> Iterator[Move]:
        """A conviction that nobody appealed. `friend`: the finder is one of those who deviate."""
        share, rest = _split(self._p.penalty, self._p.finder_bps)
        yield Move("operator", -self._p.penalty, ours=ours)
        yield Move(finder, share, ours=friend)
        yield Move("sink", rest)

    def _lost_by_key(self, voters: str, *, ours: bool = False, jury_ours: bool = False) -> Iterator[Move]:
        """A conviction that the seat's key has appealed: the bond pays the jury, and is part of the penalty. `ours`: the operator
        deviates; `jury_ours`: accuser and jury do."""
        p, jurors = self._p, self._hard
        pay, votes = self._pay(1, jurors), jurors // 2 + 1
        of_appeal, rest = _split(p.bond - votes * pay, p.finder_bps)
        of_penalty, more = _split(p.penalty - p.bond, p.finder_bps)
        yield Move("operator", -p.penalty, ours=ours)
        yield Move("challenger", of_appeal + of_penalty, ours=jury_ours)
        yield Move(voters, pay, votes, ours=jury_ours)
        yield Move("sink", rest + more)

    def _cleared(
        self, bond: int, submissions: int, accusers: int, jurors: int, *, ours: tuple[str, ...] = (), jurors_are: str = "juror",
        appeals: bool = False,
    ) -> tuple[Move, ...]:  # fmt: skip
        """A case that a jury has cleared entirely, with as few votes as that takes. `appeals`: a validator has, and is paid like a juror."""
        votes, pay = jurors - jurors // 2, self._pay(submissions, jurors)
        left = bond * accusers - votes * pay
        paid = min(pay, left) if appeals else 0
        half, rest = _split(left - paid, _WHOLE // 2)
        moves = _some(
            Move("challenger", -bond), Move("co-signer", -bond, accusers - 1), Move(jurors_are, pay, votes),
            Move("appellant", paid, int(appeals)), Move("operator", half), Move("sink", rest),
        )  # fmt: skip
        return tuple(Move(m.who, m.wei, m.many, m.who in ours) for m in moves)


def _some(*moves: Move) -> Iterator[Move]:
    """Without those of nobody."""
    return (move for move in moves if move.many)


def _split(wei: int, bps: int) -> tuple[int, int]:
    """So many hundredths of a per cent, rounded down, and the rest."""
    part = wei * bps // _WHOLE
    return part, wei - part
