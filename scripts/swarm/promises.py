"""What a run of the swarm must have kept. A broken promise is a sentence; the demo fails when there is one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from cheats.play import PLAYS

from node.judging.rules import available
from protocol.shell.money import tokens
from protocol.verdict import Outcome, Receipt
from swarm.accident import Interrupted
from swarm.ending import Payout
from swarm.mixture import FIRST
from swarm.settings import SwarmSettings
from swarm.swarm import Member, Swarm
from swarm.watch import Watch, submission_of

GAIN_REQUIRED = 0.3
MEMORY_MOST = 8 << 30
"""Bytes that the swarm may take, all its processes together."""
VLLM_MEMORY = 3 << 30
"""More, where a node computes with vLLM: its process takes some 1.7 GiB whatever the model, and a second one while it starts."""
SECONDS_MOST = 360
"""Of two free cores. Running longer breaks no promise: a machine that is slower or busy with something else says nothing about
the swarm. It is shown as a warning."""
VLLM_SECONDS_MORE = 120
"""More, where a node computes with vLLM: the others wait until it has started and made its first work."""


ORIGIN_SHARE_MOST = 0.4
"""Of the bytes of weights that origin and relays have sent."""


def memory_most(settings: SwarmSettings) -> int:
    return MEMORY_MOST + (VLLM_MEMORY if settings.vllm else 0)


def seconds_most(settings: SwarmSettings) -> int:
    return SECONDS_MOST + (VLLM_SECONDS_MORE if settings.vllm else 0)


def held_out(watch: Watch, kind: str) -> list[float]:
    """Held-out score of each evaluation so far, of the environments of one kind; empty where the run has none of it."""
    names = [name for name, of in watch.kinds.items() if of == kind]
    evaluations = watch.trainer["evaluations"] if names else []
    return [sum(e["by_environment"][name] for name in names) / len(names) for e in evaluations]


def gain(scores: Sequence[float]) -> float:
    """Mean of the last three minus the first."""
    last = scores[1:][-3:]
    return sum(last) / len(last) - scores[0] if last else 0.0


def broken(
    swarm: Swarm,
    watch: Watch,
    payouts: list[Payout],
    interrupted: Interrupted | None,
    peak: int | None,
    *,
    require_gain: bool,
) -> Iterator[str]:
    """Each promise that was not kept, in a sentence. `peak` is in bytes, None where memory cannot be measured."""
    trainer = watch.trainer
    if trainer.get("step", 0) < swarm.settings.steps:
        yield f"training ended at step {trainer.get('step')} of {swarm.settings.steps}"
    if require_gain:
        yield from _learning(watch)
    trained = trainer.get("data", {}).get("trained_nodes", {})
    for node in swarm.nodes:
        yield from (_cheat if node.is_cheat else _honest)(swarm, watch, node, trained)
    for payout in payouts:
        if payout.early:
            yield f"{payout.member.name} could claim {tokens(payout.early)} before the window had passed"
        if payout.claimed != payout.expected:
            yield f"{payout.member.name} claimed {tokens(payout.claimed)} instead of {tokens(payout.expected)}"
    if not any(payout.claimed for payout in payouts):
        yield "nobody earned anything"
    yield from verdicts(watch, interrupted)
    share = origin_share(watch)
    if swarm.relays and share > ORIGIN_SHARE_MOST:
        yield f"the origin sent {share:.0%} of all bytes of weights, more than {ORIGIN_SHARE_MOST:.0%}"
    most = memory_most(swarm.settings)
    if peak is not None and peak > most:
        yield f"the swarm took {gibibytes(peak)} of memory, more than {gibibytes(most)}"


def origin_share(watch: Watch) -> float:
    """Of the bytes of weights that were sent, those that the origin sent; 1 if nobody sent any."""
    served = watch.served
    return served["origin"] / sum(served.values()) if any(served.values()) else 1.0


def _learning(watch: Watch) -> Iterator[str]:
    """The first kind is learned; of each environment accepted work came in, and its held-out problems were asked."""
    rose = gain(held_out(watch, FIRST))
    if rose < GAIN_REQUIRED:
        yield f"held-out accuracy of {FIRST} rose by {rose:.3f}, less than {GAIN_REQUIRED}"
    for name, kind in watch.kinds.items():
        tally = watch.trainer["data"]["environments"].get(name)
        if not tally or not tally["samples"]:
            yield f"no accepted answer of {name} ({kind}) came in"
        elif not tally["task_reward"]:
            yield f"no answer of {name} ({kind}) earned anything"
        if any(name not in evaluation["by_environment"] for evaluation in watch.trainer["evaluations"]):
            yield f"{name} ({kind}) was not asked in every evaluation"


def verdicts(watch: Watch, interrupted: Interrupted | None) -> Iterator[str]:
    """One verdict per submission and validator, whatever happened to validators meanwhile, and the one whose judgement was interrupted
    accepts: its submission is an honest node's."""
    verdicts = Counter(
        (submission, r.validator) for submission, receipts in watch.seen.receipts.items() for r in receipts
    )
    for (submission, validator), many in verdicts.items():
        if many > 1:
            yield f"{watch.name(validator)} gave {many} verdicts on {watch.submission_name(submission)}"
    if interrupted is None:
        yield "no validator could be killed while it judged"
        return
    killed = f"{interrupted.validator.name}, killed while it judged {watch.submission_name(interrupted.submission)},"
    if not verdicts[interrupted.submission, interrupted.validator.address]:
        yield f"{killed} never gave its verdict"
    for receipt in watch.seen.receipts.get(interrupted.submission, []):
        if receipt.validator == interrupted.validator.address and receipt.outcome != Outcome.ACCEPT:
            yield f"{killed} found it {receipt.outcome.name.lower()}: {receipt.details.rule} ({receipt.details.detail})"


def _cheat(swarm: Swarm, watch: Watch, node: Member, trained: dict[str, int]) -> Iterator[str]:
    counts, stake = watch.seen.counts(node.address), swarm.chain.account(node.operator).active
    if not counts["submitted"]:
        yield f"{node.name} never submitted anything"
    rules = hard_rules(watch, node)
    if set(rules) != {PLAYS[node.cheat].rule}:
        yield f"{node.name} got hard verdicts by {sorted(rules)}, not by {PLAYS[node.cheat].rule}"
    if node.address not in watch.seen.banned:
        yield f"{node.name} was not banned"
    if not any(s.seat == node.address for _, s in watch.seen.slashed) or stake >= initial_stake(swarm):
        yield f"the operator of {node.name} was not slashed"
    if trained.get(node.address):
        yield f"{trained[node.address]} groups of {node.name} were trained on"


def _honest(swarm: Swarm, watch: Watch, node: Member, trained: dict[str, int]) -> Iterator[str]:
    yield from punished(watch, node)
    if swarm.chain.account(node.operator).active != initial_stake(swarm):
        yield f"the operator of {node.name} is honest and lost stake"
    if not trained.get(node.address):
        yield f"nothing of {node.name} was trained on"


def punished(watch: Watch, node: Member) -> Iterator[str]:
    """Verdicts and upheld cases against an honest node, but for files that did not come in time."""
    against = [
        (submission, receipt)
        for submission, receipts in watch.seen.receipts.items()
        for receipt in receipts
        if receipt.details.node == node.address and receipt.outcome != Outcome.ACCEPT
    ]
    for submission, receipt in against:
        if not is_late(receipt):
            found = f"{receipt.outcome.name.lower()} verdict by {receipt.details.rule} ({receipt.details.detail})"
            yield f"{node.name} is honest and got a {found} on {watch.submission_name(submission)}"
    late = {submission for submission, receipt in against if is_late(receipt)}
    submissions: dict[tuple[str, int], set[bytes]] = defaultdict(set)
    for _, challenged in watch.seen.challenged:
        submissions[challenged.seat, challenged.number].add(submission_of(challenged))
    for case in watch.seen.settled:
        if case.seat != node.address or not case.upheld:
            continue
        if case.convicted or not submissions[case.seat, case.number] <= late:
            kind = "hard" if case.convicted else "soft"
            yield f"{node.name} is honest, and the {kind} case {case.number} against it was upheld"


def is_late(receipt: Receipt) -> bool:
    """Whether a verdict says that a file was not there within the grace time. A slow machine explains that, and a node that is
    stopped before it has uploaded what it committed to; nothing honest explains any other finding."""
    return receipt.outcome == Outcome.SOFT and receipt.details.measured == available.missing(0).measured


def hard_rules(watch: Watch, node: Member) -> Counter[str]:
    """Rules of the hard verdicts on a node."""
    receipts = (r for receipts in watch.seen.receipts.values() for r in receipts)
    return Counter(r.details.rule for r in receipts if r.details.node == node.address and r.outcome == Outcome.HARD)


def soft_verdicts(swarm: Swarm, watch: Watch) -> Iterator[str]:
    """Every soft verdict on an honest node, with its reason."""
    honest = {node.address: node.name for node in swarm.nodes if not node.is_cheat}
    for receipts in watch.seen.receipts.values():
        for receipt in receipts:
            d = receipt.details
            if receipt.outcome == Outcome.SOFT and d.node in honest:
                yield f"{honest[d.node]} step {d.step}.{d.sequence}: {d.rule}, measured {d.measured}, threshold {d.threshold} ({d.detail})"


def gibibytes(number: int) -> str:
    return f"{number / 2**30:.1f} GiB"


def initial_stake(swarm: Swarm) -> int:
    """What every operator staked, in wei: exactly what a seat needs."""
    return swarm.chain.policy(swarm.run).node_stake
