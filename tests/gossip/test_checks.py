"""What is taken and handed on, what is passed over, and for what somebody is blamed."""

from __future__ import annotations

import json
import random
import threading

import pytest

from protocol import canonical
from protocol.errors import MurmurationError, ProtocolViolation
from protocol.gossip.checks import AHEAD_STEPS
from protocol.gossip.heard import HeardWords, NewsPause
from protocol.gossip.messages import KINDS, VerdictWord, Word, parse
from protocol.hub.need import AHEAD_SECONDS, NEED_SECONDS
from protocol.identity import Key
from protocol.p2p import MESSAGE_BYTES_MAX, Fate, GossipLimits, Ruling
from protocol.p2p.gossip_frames import Frame
from protocol.p2p.mesh import Mesh
from tests.gossip.run import HEAD, NOW, RUN, GossipRun
from tests.p2p.gossip_world import PlainRules


@pytest.fixture
def run() -> GossipRun:
    return GossipRun()


def words(run: GossipRun) -> dict[str, bytes]:
    return {
        "manifest": run.version(kind="manifest", step=HEAD + 1),
        "head": run.version(),
        "need": run.need(),
        "verdict": run.verdict(),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_word_of_who_may_give_it_is_taken_and_reads_as_it_was_written(run: GossipRun, kind: str) -> None:
    data = words(run)[kind]
    assert run.rule(data).fate is Fate.ACCEPT
    assert parse(data, RUN).kind == kind
    assert parse(data, RUN).encode() == data
    assert len(data) <= MESSAGE_BYTES_MAX // 4


@pytest.mark.parametrize("kind", KINDS)
def test_the_word_of_a_stranger_is_blamed_on_who_hands_it_on(run: GossipRun, kind: str) -> None:
    stranger = Key.generate()
    forged = {
        "manifest": run.version(kind="manifest", key=stranger),
        "head": run.version(key=stranger),
        "need": run.need(key=stranger),
        "verdict": run.verdict(key=stranger),
    }[kind]
    assert run.rule(forged).fate is (Fate.DISOWN if kind == "verdict" else Fate.REJECT)


@pytest.mark.parametrize("kind", KINDS)
def test_a_word_that_was_changed_is_refused(run: GossipRun, kind: str) -> None:
    """Of a verdict all that is known then is that somebody unknown signed it."""
    value = json.loads(words(run)[kind])
    for name in value.keys() - {"kind", "signature"}:
        other = value[name] + 1 if isinstance(value[name], int) else value[name][:-1] + "01"[value[name][-1] == "0"]
        if (name, kind) == ("outcome", "verdict"):
            other = 3
        assert run.rule(canonical.encode(value | {name: other})).fate not in (Fate.ACCEPT, Fate.ASK), name
    assert run.rule(canonical.encode(value | {"more": 1})).fate is Fate.REJECT
    assert run.rule(canonical.encode(value | {"signature": "00" * 65})).fate is Fate.REJECT
    assert run.rule(canonical.encode(value | {"signature": value["signature"].upper()})).fate is Fate.REJECT
    assert run.rule(json.dumps(value).encode()).fate is Fate.REJECT, "not canonical"


def test_who_knows_a_manifest_cannot_say_that_the_chain_has_it(run: GossipRun) -> None:
    """Else the true word, bytes for bytes the same, would come too late to be news."""
    for kind, other in (("manifest", "head"), ("head", "manifest")):
        said = json.loads(run.version(kind=kind))
        assert run.rule(canonical.encode(said)).fate is Fate.ACCEPT
        assert run.rule(canonical.encode(said | {"kind": other})).fate is Fate.REJECT


def test_a_kind_that_a_later_version_may_know_is_passed_over_and_nobody_is_blamed(run: GossipRun) -> None:
    for more in (
        {"kind": "pause", "run": RUN, "until": 5},
        {"kind": "head-of-two"},
        {"kind": "head"},
        {"kind": 7},
        {"kind": "x" * 33},
    ):
        expected = Fate.IGNORE if more["kind"] in ("pause", "head-of-two") else Fate.REJECT
        assert run.rule(canonical.encode(more)).fate is expected, more


def test_a_node_is_no_validator(run: GossipRun) -> None:
    assert run.rule(run.verdict(key=run.node)).fate is Fate.DISOWN


def test_a_validator_that_has_left_is_passed_over_and_nobody_is_blamed(run: GossipRun) -> None:
    left = run.chain.seat_validator(Key.generate(), serves=False)
    assert run.rule(run.verdict(key=left)).fate is Fate.IGNORE


def test_while_the_chain_does_not_answer_nobody_is_blamed_and_nothing_is_taken(run: GossipRun) -> None:
    run.chain.is_down = True
    assert run.rule(run.verdict()).fate is Fate.ASK
    run.chain.is_down = False
    assert run.rule(run.verdict()).fate is Fate.ACCEPT


def test_the_chain_is_asked_about_a_signer_once_in_a_while(run: GossipRun) -> None:
    for sequence in range(20):
        run.rule(run.verdict(sequence=sequence))
    assert run.chain.asked == [run.validator.address]
    run.clock.advance(601)
    run.rule(run.verdict(sequence=20))
    assert run.chain.asked == [run.validator.address] * 2


def test_who_has_no_seat_yet_is_looked_up_again_soon_and_less_often_the_longer_it_has_none(run: GossipRun) -> None:
    early = Key.generate()
    pauses = []
    for sequence in range(8):
        assert run.rule(run.verdict(key=early, sequence=sequence)).fate is Fate.DISOWN
        before = run.clock.monotonic()
        while run.authority.stake(early.address) is not None:
            run.clock.advance(1)
        pauses.append(run.clock.monotonic() - before)
    assert pauses == [15, 30, 60, 120, 240, 480, 600, 600]
    run.chain.seat_validator(early)
    assert run.rule(run.verdict(key=early, sequence=12)).fate is Fate.ACCEPT


def test_a_stake_counts_until_the_chain_has_been_asked_again(run: GossipRun) -> None:
    run.rule(run.verdict())
    run.clock.advance(601)
    assert run.authority.stake(run.validator.address) is None
    assert run.authority.weight(run.validator.address) == 1.0
    run.chain.validators.clear()
    run.authority.look_up(run.validator.address)
    assert run.authority.weight(run.validator.address) == 0.0


def test_what_is_old_is_passed_over(run: GossipRun) -> None:
    assert run.rule(run.version(step=HEAD - 4)).fate is Fate.IGNORE
    assert run.rule(run.verdict(step=HEAD - 4)).fate is Fate.IGNORE
    assert run.rule(run.need(until=NOW - 1)).fate is Fate.IGNORE


class Listener(PlainRules):
    """Hears by the rules of a run."""

    def __init__(self, run: GossipRun) -> None:
        super().__init__()
        self.run = run
        self.mesh = Mesh("t", self, GossipLimits(), now=run.clock.monotonic, send=lambda peer, frame: None)
        for number, peer in enumerate((b"one", b"other")):
            self.mesh.opened(peer, f"10.0.{number}.0/24", outbound=True)

    def rule(self, data: bytes) -> Ruling:
        return self.run.rule(data)

    def told(self, peer: bytes, data: bytes) -> bool:
        self.mesh.received(peer, Frame(messages=(data,)).encode("t"))
        return data in self.taken


def test_what_a_signer_said_too_often_is_heard_when_it_is_told_again(run: GossipRun) -> None:
    listener = Listener(run)
    heard = [listener.told(b"one", run.verdict(sequence=number)) for number in range(70)]
    assert sum(heard) < 70
    late = run.verdict(sequence=1000)
    assert not listener.told(b"one", late)
    run.clock.advance(60)
    assert listener.told(b"other", late)


def test_what_came_early_is_heard_when_it_is_told_again(run: GossipRun) -> None:
    listener, ahead = Listener(run), run.version(step=HEAD + AHEAD_STEPS + 1)
    assert not listener.told(b"one", ahead)
    run.chain.head_step = HEAD + AHEAD_STEPS + 1
    run.authority.refresh()
    assert listener.told(b"other", ahead)


def test_what_is_of_a_time_to_come_is_passed_over(run: GossipRun) -> None:
    assert run.rule(run.version(step=HEAD + AHEAD_STEPS + 1)).fate is Fate.LATER
    assert run.rule(run.verdict(step=HEAD + AHEAD_STEPS + 1)).fate is Fate.LATER
    assert run.rule(run.need(until=NOW + 2 * AHEAD_SECONDS + 1)).fate is Fate.LATER


def test_a_need_that_is_replayed_after_a_newer_one_is_passed_over(run: GossipRun) -> None:
    earlier, later = run.need(until=NOW + 60), run.need(until=NOW + 90)
    assert run.rule(earlier).fate is Fate.ACCEPT
    assert run.rule(later).fate is Fate.ACCEPT
    assert run.rule(earlier).fate is Fate.IGNORE
    assert run.rule(run.need(step=HEAD + 1, until=NOW + 70)).fate is Fate.ACCEPT
    assert run.rule(run.need(until=NOW + NEED_SECONDS)).fate is Fate.IGNORE


def test_a_trainer_names_few_manifests_for_one_step(run: GossipRun) -> None:
    fates = [run.rule(run.version(digest=bytes([number]) * 32)).fate for number in range(5)]
    assert fates == [Fate.ACCEPT] * 2 + [Fate.IGNORE] * 3


def test_a_validator_says_more_the_more_it_has_at_stake_and_no_more_than_four_times_as_much(run: GossipRun) -> None:
    def taken(key: Key) -> int:
        run.clock.advance(600)
        return sum(run.rule(run.verdict(key=key, sequence=number)).fate is Fate.ACCEPT for number in range(300))

    plain, twice, rich = (run.chain.seat_validator(Key.generate(), stakes=stakes) for stakes in (1, 2, 1000))
    assert taken(plain) == 64
    assert taken(twice) == 128
    assert taken(rich) == 256
    run.clock.advance(10)
    assert sum(run.rule(run.verdict(key=plain, sequence=1000 + n)).fate is Fate.ACCEPT for n in range(20)) > 0


def test_one_chatty_validator_leaves_room_for_the_trainer(run: GossipRun) -> None:
    for number in range(300):
        run.rule(run.verdict(sequence=number))
    assert run.rule(run.version()).fate is Fate.ACCEPT
    assert run.rule(run.need()).fate is Fate.ACCEPT


def test_a_verdict_cannot_be_hung_on_another_submission(run: GossipRun) -> None:
    word = parse(run.verdict(), RUN)
    assert isinstance(word, VerdictWord)
    assert word.signer(run.chain.domain) == run.validator.address
    value = json.loads(run.verdict()) | {"sequence": 1}
    other = parse(canonical.encode(value), RUN)
    assert other.signer(run.chain.domain) != run.validator.address


def test_a_word_of_another_run_or_chain_is_refused(run: GossipRun) -> None:
    value = json.loads(run.version())
    assert run.rule(canonical.encode(value | {"run": RUN + 1})).fate is Fate.REJECT
    elsewhere = GossipRun()
    elsewhere.trainer = run.trainer
    elsewhere.chain.domain = type(run.chain.domain)(1, run.chain.domain.contract)
    assert run.rule(elsewhere.version()).fate is Fate.REJECT


def test_the_newest_of_each_kind_is_kept_and_who_listens_is_called(run: GossipRun) -> None:
    heard = HeardWords()
    called: list[Word] = []
    heard.on("head", called.append)
    for step in (HEAD, HEAD + 1, HEAD):
        heard.take(parse(run.version(step=step), RUN))
    heard.take(parse(run.need(), RUN))
    assert heard.head is not None
    assert heard.head.step == HEAD + 1
    assert heard.need is not None
    assert len(called) == 3


def test_an_alarm_ends_a_pause_when_it_rings_or_when_all_is_to_end(run: GossipRun) -> None:
    stop = threading.Event()
    alarm = NewsPause(HeardWords(run.clock), clock=run.clock)
    assert alarm.wait(stop, 10) is False
    assert sum(run.clock.waits) == 10
    run.clock.meanwhile = alarm.ring
    assert alarm.wait(stop, 10) is True
    assert sum(run.clock.waits) == 10.5
    assert alarm.wait(stop, 0) is False
    run.clock.meanwhile = stop.set
    assert alarm.wait(stop, 10) is False
    assert sum(run.clock.waits) == 11


def test_what_is_waited_for_is_asked_for_less_often_only_while_gossip_flows(run: GossipRun) -> None:
    heard, stop = HeardWords(run.clock), threading.Event()
    alarm = NewsPause(heard, "head", clock=run.clock)

    def waited(seconds: float, *, seldom: bool) -> float:
        before = run.clock.monotonic()
        alarm.wait(stop, seconds, seldom=seldom)
        return run.clock.monotonic() - before

    assert waited(2, seldom=True) == 2  # nothing was heard yet
    heard.take(parse(run.need(), RUN))
    assert waited(2, seldom=False) == 2
    assert waited(2, seldom=True) == 10
    heard.take(parse(run.version(), RUN))
    assert waited(2, seldom=True) == 0  # there is news
    assert waited(2, seldom=True) == 2  # which an endpoint of the chain may have in a moment
    run.clock.sleep(40)
    assert waited(2, seldom=True) == 10
    run.clock.sleep(200)
    assert waited(2, seldom=True) == 2  # gossip has fallen silent


def fuzzed(run: GossipRun, cases: int, seed: int) -> None:
    """Messages that are nearly right: none is taken but those that were signed, and nothing but a ProtocolViolation is raised."""
    chance = random.Random(seed)
    whole = [*words(run).values()]
    for _ in range(cases):
        data = bytearray(chance.choice(whole))
        for _ in range(chance.choice((1, 1, 2, 5))):
            place = chance.randrange(len(data))
            kind = chance.random()
            if kind < 0.6:
                data[place] = chance.choice(b'{}[]":,0123456789abcdefx\xff\x00')
            elif kind < 0.8:
                del data[place : place + chance.randrange(1, 9)]
            else:
                data[place:place] = chance.choice((b"0", b"-", b"1e9", b'"a":1,', b"null", b"[" * 70, b"\xc3"))
        if bytes(data) in whole:
            continue
        try:
            parse(bytes(data), RUN)
        except MurmurationError as error:
            assert isinstance(error, ProtocolViolation)
        ruling = run.checks.rule(bytes(data))
        assert ruling.fate is not Fate.ACCEPT, bytes(data)


@pytest.mark.parametrize("cases", [5_000, pytest.param(200_000, marks=[pytest.mark.long, pytest.mark.timeout(600)])])
def test_messages_that_are_nearly_right_are_not_taken(run: GossipRun, cases: int) -> None:
    fuzzed(run, cases, seed=14)
