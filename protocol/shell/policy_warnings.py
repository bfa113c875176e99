"""What `murmur run create` says of a policy's game before it is on chain for good: how many liars a bench bears, what pays, what there is no time for.

Sentences alone; the numbers are those of protocol/chain/deviations.py, which tests hold against the contracts.
"""

from __future__ import annotations

from fractions import Fraction

from protocol.chain.deviations import Deviation, cheating_pays, deviations, pays_by_bench
from protocol.chain.types import Policy
from protocol.shell.money import duration, tokens

_BENCHES = (3, 4, 5, 7, 9)
_LOOKS = 4  # at the chain, in which a role sees what happened, has its transaction mined, and may fail once
_MOST = 15  # validators: of larger benches nothing else is true


def bench_lines(policy: Policy) -> list[str]:
    """How many validators may lie, by how many there are."""
    if not policy.appeal:
        return ["bench     verdicts are final at once, and no validator may lie"]
    borne = ", ".join(f"{policy.liars_borne(many)} of {many}" for many in _BENCHES)
    return [f"bench     may lie, be silent or be bribed: {borne} validators"]


def policy_warnings(policy: Policy, share: Fraction, answers: int) -> list[str]:
    """What the policy makes pay, each in a sentence. `share`: probability that a validator checks one of the `answers` of a submission."""
    return [
        *(_by_liars(found) for found in pays_by_bench(policy, _MOST).values()),
        *_by_luck(policy, deviations(policy, policy.jury or 1), share, answers),
    ]


def hasty_windows(policy: Policy, poll_seconds: float) -> list[str]:
    """What there is hardly time for where roles look at the chain every `poll_seconds`, each in a sentence."""
    if not policy.appeal:
        return []
    least = round(_LOOKS * poll_seconds)
    windows = (("appeal", policy.appeal, "nodes appeal"), ("vote", policy.vote, "jurors vote"))
    return [
        f"{name} is {duration(seconds)}, and roles look at the chain every {poll_seconds:g} s: below {duration(least)} few {who} in time"
        for name, seconds, who in windows
        if seconds < least
    ]


def _by_liars(found: list[tuple[int, Deviation]]) -> str:
    sizes, first = [validators for validators, _ in found], found[0][1]
    most = max(each.gains for _, each in found)
    if sizes[-1] == _MOST:
        bench, advice = "any bench" if len(sizes) > 1 else f"a bench of {_MOST}", ""
    else:
        bench, advice = f"a bench of {' or '.join(map(str, sizes))}", f"; approve {sizes[-1] + 1} validators or more"
    liars = _liars(first.needs)
    return f"{first.name} pays with {liars} on {bench}: up to {tokens(most)} ({first.gains_by}){advice}"


def _by_luck(policy: Policy, table: list[Deviation], share: Fraction, answers: int) -> list[str]:
    said = []
    for each in table:
        if each.luck == "found" and each.name != "false accept" and cheating_pays(policy, each.loses, share, answers):
            lost = f"costs {tokens(each.loses)}" if each.loses else "costs nothing"
            said.append(
                f"{each.name} pays with no liar at all: it is worth {tokens(each.gains)} a submission, and {lost} if it is found"
                f" ({each.loses_by}), of whose answers {float(share):.0%} are checked"
            )
        if each.luck == "answered" and each.gains > each.loses:
            liars = 1 + policy.co_signers if "accusation" in each.name else 1
            said.append(
                f"{each.name} pays with {_liars(liars)} unless {float(each.even):.0%} of nodes appeal in"
                f" time: it takes {tokens(each.gains)} ({each.gains_by}) or loses {tokens(each.loses)} ({each.loses_by})"
            )
    return said


def _liars(many: int) -> str:
    return "one liar" if many == 1 else f"{many} liars"
