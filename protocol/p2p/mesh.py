"""The mesh: to whom messages of one topic are pushed, who is only told of them, and who is let go. GossipSub 1.1's rules.

No sockets, no clock and no chain in here: frames come in by `received`, go out by `send`, time is what `now` says, and what a message is worth
is for `SubjectRules` to say. So hundreds of them run in virtual time (tests/p2p/test_gossip_mesh.py); gossip.py is what ties one to connections.

Differences: a message whose signer is not known yet waits until the chain was asked (`Fate.ASK`); who has a stake in the run comes before who
has none; points for misconduct count by network too (reputation.py); there is no peer exchange, because the DHT does that.
"""

from __future__ import annotations

import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from protocol.errors import ProtocolViolation
from protocol.p2p.gossip_frames import MESSAGES_MAX, NAMES_MAX, Frame, name_of
from protocol.p2p.message_cache import MessageCache
from protocol.p2p.reputation import BROKEN_PROMISE, FLOOD, FORGED, RUDE, STAKELESS, Reputation
from protocol.p2p.settings import GossipLimits
from protocol.p2p.subject import Fate, Ruling, SubjectRules

_KNOWN_MOST = 512  # names that a neighbour is remembered to know
_OFFERS_MOST = 16  # who else is remembered to have a message, besides those that were dialled from here


class MessageBudget:
    """A token bucket of whatever time `now` tells."""

    def __init__(self, burst: float, rate: float, now: Callable[[], float]) -> None:
        self._burst, self._rate, self._now = burst, rate, now
        self._left, self._since = burst, now()

    def spend(self, amount: float = 1.0) -> bool:
        """Takes `amount` if it is there; False when it is not."""
        now = self._now()
        self._left = min(self._burst, self._left + (now - self._since) * self._rate)
        self._since = now
        if self._left < amount:
            return False
        self._left -= amount
        return True


@dataclass
class Neighbour:
    """A peer that gossips with us. `outbound`: dialled from here."""

    peer: bytes
    network: str
    outbound: bool
    budget: MessageBudget
    subscribes: bool = False
    meshed: bool = False
    not_before: float = 0.0
    """When it may be asked to be in the mesh again, or may ask."""
    knows: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    served: int = 0
    """Messages it asked for and got since the last heartbeat."""

    def learns(self, name: bytes) -> None:
        self.knows[name] = None
        if len(self.knows) > _KNOWN_MOST:
            self.knows.popitem(last=False)


@dataclass
class _Promise:
    """Of a message that `peer` has offered and was asked for: it has time `until` then, and `others` have offered it too."""

    peer: bytes
    until: float
    others: list[bytes] = field(default_factory=list)


class Mesh:
    def __init__(
        self,
        topic: str,
        rules: SubjectRules,
        limits: GossipLimits,
        *,
        now: Callable[[], float],
        send: Callable[[bytes, bytes], None],
        cut: Callable[[bytes], None] = lambda peer: None,
        ask: Callable[[str], None] = lambda about: None,
        chance: random.Random | None = None,
    ) -> None:
        """`send` gives a frame to a peer, `cut` ends what there is with one, `ask` has the chain asked: `settled` says when it was."""
        self.counts: Counter[str] = Counter()
        self.neighbours: dict[bytes, Neighbour] = {}
        self.reputation = Reputation(now, limits.cut)
        self._topic, self._rules, self._limits = topic, rules, limits
        self._now, self._send, self._cut, self._ask = now, send, cut, ask
        self._chance = chance or random.Random()
        self._cache = MessageCache(limits, now)
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._recent: deque[list[bytes]] = deque([[]], maxlen=limits.history)
        self._promises: dict[bytes, _Promise] = {}  # by message
        self._parked: dict[
            str, list[tuple[bytes, str, bytes]]
        ] = {}  # peer, network, data; by whom the chain is asked about
        self._questions: dict[str, MessageBudget] = {}  # by network
        self._budgets: dict[bytes, MessageBudget] = {}  # by peer

    @property
    def meshed(self) -> list[Neighbour]:
        return [each for each in self.neighbours.values() if each.meshed]

    # ---- peers ---------------------------------------------------------------------------------------------------------

    def admits(self, peer: bytes, network: str) -> bool:
        """Whether to gossip with `peer`; over the caps, one that has a stake is worth one that has none."""
        stake = self._rules.weight(peer)
        if self.reputation.refuses(peer, network, has_stake=stake > 0):
            return False
        if len(self.neighbours) < min(self._limits.neighbours, self._limits.neighbours_per_network):
            return True
        crowd = Counter(each.network for each in self.neighbours.values())
        if crowd[network] >= self._limits.neighbours_per_network:
            return False
        if len(self.neighbours) < self._limits.neighbours:
            return True
        spare = [each for each in self.neighbours.values() if not each.outbound and not self._rules.weight(each.peer)]
        if not stake or not spare:
            return False
        self._cut(max(spare, key=lambda each: (crowd[each.network], not each.meshed)).peer)
        return True

    def opened(self, peer: bytes, network: str, *, outbound: bool) -> None:
        """There is a way to send frames to `peer`."""
        budget = self._budgets.pop(peer, None) or MessageBudget(self._limits.burst, self._limits.rate, self._now)
        self._budgets[peer] = budget  # of who comes again, the same
        while len(self._budgets) > self._limits.cached:
            del self._budgets[next(iter(self._budgets))]
        self.neighbours[peer] = Neighbour(peer, network, outbound, budget)
        self._say(peer, Frame(subscribes=True))

    def repeat(self, peer: bytes) -> None:
        """What was said to `peer` may be lost: its connection was changed for another."""
        neighbour = self.neighbours[peer]
        neighbour.knows.clear()
        self._say(peer, Frame(subscribes=True, graft=neighbour.meshed))

    def began_anew(self, peer: bytes) -> None:
        """What `peer` has said until now counts no more, and it may know nothing of us."""
        neighbour = self.neighbours[peer]
        neighbour.subscribes = neighbour.meshed = False
        self.repeat(peer)

    def closed(self, peer: bytes) -> None:
        self.neighbours.pop(peer, None)

    # ---- messages ------------------------------------------------------------------------------------------------------

    def publish(self, data: bytes) -> None:
        """Hands on a message of our own; also by who is in nobody's mesh yet."""
        name = name_of(data)
        if name in self._seen:
            return
        ruling = self._rules.rule(data)
        if ruling.fate not in (Fate.ACCEPT, Fate.ASK):  # others would rule as we do
            self.counts[f"not published: {ruling.reason}"] += 1
            return
        self._keep(name, data, ruling, network="")
        self.counts["published"] += 1
        others = [each for each in self.neighbours.values() if each.subscribes and not each.meshed]
        flooded = self._chance.sample(others, min(len(others), self._limits.flooded))
        self._push(name, data, [*self.meshed, *flooded])

    def received(self, peer: bytes, data: bytes) -> None:
        """A frame of `peer`'s, who may be cut off for it."""
        neighbour = self.neighbours.get(peer)
        if neighbour is None:
            return
        try:
            frame = Frame.decode(data, self._topic)
        except ProtocolViolation:
            self._blame(neighbour, FORGED, "malformed frame")
            return
        if not neighbour.budget.spend(1 + len(frame.messages) + (len(frame.have) + len(frame.want)) / 4):
            self._blame(neighbour, FLOOD, "too many messages of one peer")
            return
        if frame.subscribes is not None:
            self._subscribed(neighbour, frame.subscribes)
        for message in frame.messages:
            self._take(neighbour, message)
            if peer not in self.neighbours:
                return
        if frame.have:
            self._offered(neighbour, frame.have)
        if frame.want:
            self._wanted(neighbour, frame.want)
        if frame.graft:
            self._grafted(neighbour)
        if frame.prune is not None:
            self._pruned(neighbour, frame.prune)

    def settled(self, about: str, *, answered: bool = True) -> None:
        """The chain was asked about `about`, or did not answer: what waits for that is looked at again. By an answer of earlier nobody is blamed."""
        for peer, network, data in self._parked.pop(about, []):
            name, ruling = name_of(data), self._rules.rule(data)
            if ruling.fate is Fate.DISOWN and not answered:
                self.counts[f"refused: {ruling.reason}"] += 1
            elif name not in self._seen and ruling.fate is not Fate.ASK:
                self._decide(peer, network, name, data, ruling)

    def _take(self, neighbour: Neighbour, data: bytes) -> None:
        name = name_of(data)
        neighbour.learns(name)
        self._promises.pop(name, None)
        if name in self._seen:
            self.counts["duplicates"] += 1
            return
        ruling = self._rules.rule(data)
        if ruling.fate in (Fate.ASK, Fate.DISOWN):  # who had no stake at the last look may have taken a seat since
            self._park(neighbour, ruling.about, data)
        else:
            self._decide(neighbour.peer, neighbour.network, name, data, ruling)

    def _decide(self, peer: bytes, network: str, name: bytes, data: bytes, ruling: Ruling) -> None:
        if ruling.fate is Fate.ACCEPT:
            self._keep(name, data, ruling, network)
            self.counts["heard"] += 1
            self._rules.heard(data)
            self._push(name, data, self.meshed)
            return
        self.counts[f"refused: {ruling.reason}"] += 1
        if ruling.fate is Fate.LATER:
            return
        if ruling.fate is Fate.IGNORE:
            self._note_seen(name)
        elif neighbour := self.neighbours.get(peer):
            self._blame(neighbour, FORGED if ruling.fate is Fate.REJECT else STAKELESS)
        else:  # it left while the chain was asked
            points = FORGED if ruling.fate is Fate.REJECT else STAKELESS
            self.reputation.blame(peer, network, points, has_stake=self._rules.weight(peer) > 0)

    def _park(self, neighbour: Neighbour, about: str, data: bytes) -> None:
        waiting = [network for queue in self._parked.values() for _, network, _ in queue]
        is_full = len(waiting) >= self._limits.parked
        if is_full or waiting.count(neighbour.network) >= self._limits.parked_per_network:
            self.counts["refused: too many of unknown signers"] += 1
            return
        if about not in self._parked:
            if not self.may_ask(neighbour.network):
                self.counts["refused: too many unknown signers"] += 1
                return
            self._parked[about] = []
            self._ask(about)
        if all(data != other for _, _, other in self._parked[about]):
            self._parked[about].append((neighbour.peer, neighbour.network, data))

    def may_ask(self, network: str) -> bool:
        """Whether peers of `network` may cause one more question to the chain."""
        limits = self._limits
        if len(self._questions) > limits.cached:
            self._questions.clear()
        if network not in self._questions:
            self._questions[network] = MessageBudget(limits.questions_burst, limits.questions_rate, self._now)
        return self._questions[network].spend()

    def _keep(self, name: bytes, data: bytes, ruling: Ruling, network: str) -> None:
        self._note_seen(name)
        self._cache.put(name, data, ruling.slot, ruling.most, network)
        self._recent[-1].append(name)

    def _note_seen(self, name: bytes) -> None:
        self._seen[name] = None
        if len(self._seen) > self._limits.seen:
            self._seen.popitem(last=False)

    def _push(self, name: bytes, data: bytes, to: Iterable[Neighbour]) -> None:
        for each in to:
            if name not in each.knows:
                each.learns(name)
                self.counts["forwarded"] += 1
                self._say(each.peer, Frame(messages=(data,)))

    # ---- what peers say of messages and of the mesh ----------------------------------------------------------------------

    def _subscribed(self, neighbour: Neighbour, subscribes: bool) -> None:
        if subscribes and not neighbour.subscribes and (names := self._cache.newest(NAMES_MAX)):
            self._say(neighbour.peer, Frame(have=tuple(names)))
        neighbour.subscribes = subscribes
        neighbour.meshed = neighbour.meshed and subscribes

    def _offered(self, neighbour: Neighbour, names: tuple[bytes, ...]) -> None:
        until = self._now() + self._limits.promise
        wanted = []
        for name in names:
            neighbour.learns(name)
            if name in self._seen:
                continue
            if promise := self._promises.get(name):
                is_new = neighbour.peer != promise.peer and neighbour.peer not in promise.others
                if is_new and (neighbour.outbound or len(promise.others) < _OFFERS_MOST):
                    promise.others.append(neighbour.peer)
            elif len(self._promises) < self._limits.seen:
                self._promises[name] = _Promise(neighbour.peer, until)
                wanted.append(name)
        if wanted:
            self._say(neighbour.peer, Frame(want=tuple(wanted)))

    def _wanted(self, neighbour: Neighbour, names: tuple[bytes, ...]) -> None:
        found = []
        for name in names:
            data = self._cache.get(name)
            if data is not None and neighbour.served < 2 * NAMES_MAX:
                neighbour.served += 1
                neighbour.learns(name)
                found.append(data)
        for start in range(0, len(found), MESSAGES_MAX):
            self._say(neighbour.peer, Frame(messages=tuple(found[start : start + MESSAGES_MAX])))

    def _grafted(self, neighbour: Neighbour) -> None:
        if neighbour.meshed:
            return
        now = self._now()
        if now < neighbour.not_before:
            self._blame(neighbour, RUDE, "asked again too soon")
        elif neighbour.subscribes and (len(self.meshed) < self._limits.degree_most or self._makes_room(neighbour)):
            neighbour.meshed = True
            return
        self._let_go(neighbour)

    def _makes_room(self, newcomer: Neighbour) -> bool:
        """Lets go of one without a stake that came by itself, for one that has one."""
        spare = [each for each in self.meshed if not each.outbound and not self._rules.weight(each.peer)]
        if not spare or not self._rules.weight(newcomer.peer):
            return False
        self._let_go(self._chance.choice(spare))
        return True

    def _pruned(self, neighbour: Neighbour, seconds: int) -> None:
        neighbour.meshed = False
        neighbour.not_before = self._now() + max(seconds, self._limits.prune)

    def _let_go(self, neighbour: Neighbour) -> None:
        neighbour.meshed = False
        # One more second for who waits exactly as long as it is told to, by a clock of its own.
        neighbour.not_before = self._now() + self._limits.prune - 1
        if neighbour.peer in self.neighbours:
            self._say(neighbour.peer, Frame(prune=int(self._limits.prune)))

    # ---- from time to time -------------------------------------------------------------------------------------------------

    def heartbeat(self) -> None:
        limits = self._limits
        self._ask_others()
        for each in self.neighbours.values():
            each.served = 0
        self._fill(meshed := self.meshed)
        if len(meshed) > limits.degree_most:
            ranked = sorted(meshed, key=lambda each: (each.outbound, self._rules.weight(each.peer)), reverse=True)
            for each in ranked[limits.degree :]:
                self._let_go(each)
        self._cache.tidy()
        self._tell_others()

    def _ask_others(self) -> None:
        """Who offers a message first and does not send it keeps nobody from it: others that have it are asked, those that we have chosen first."""
        now, wanted = self._now(), defaultdict[bytes, list[bytes]](list)
        for name, promise in [*self._promises.items()]:
            if promise.until >= now:
                continue
            if offered_by := self.neighbours.get(promise.peer):
                self._blame(offered_by, BROKEN_PROMISE, "offered and not sent")
            there = [self.neighbours[peer] for peer in promise.others if peer in self.neighbours]
            if not there:
                del self._promises[name]
                continue
            best = max(there, key=lambda each: (each.outbound, self._rules.weight(each.peer)))
            others = [each.peer for each in there if each is not best]
            self._promises[name] = _Promise(best.peer, now + self._limits.promise, others)
            wanted[best.peer].append(name)
        for peer, names in wanted.items():
            for start in range(0, len(names), NAMES_MAX):
                self._say(peer, Frame(want=tuple(names[start : start + NAMES_MAX])))

    def _fill(self, meshed: list[Neighbour]) -> None:
        """Asks others to be in the mesh where it has too few peers, or too few that were chosen from here."""
        limits, now = self._limits, self._now()
        lacking = limits.degree - len(meshed) if len(meshed) < limits.degree_least else 0
        outbound = limits.outbound - sum(each.outbound for each in meshed)
        if max(lacking, outbound) <= 0:
            return
        able = [
            each
            for each in self.neighbours.values()
            if each.subscribes and not each.meshed and each.not_before <= now
        ]  # fmt: skip
        if lacking <= 0:
            able = [each for each in able if each.outbound]
            lacking = min(outbound, limits.degree_most - len(meshed))
        crowd = Counter(each.network for each in meshed)
        self._chance.shuffle(able)
        while lacking > 0 and able:
            # Of who is left: those of networks that are not there yet, who have a stake, whom we have dialled.
            best = min(able, key=lambda e: (crowd[e.network], -min(self._rules.weight(e.peer), 1.0), not e.outbound))
            able.remove(best)
            best.meshed = True
            crowd[best.network] += 1
            lacking -= 1
            self._say(best.peer, Frame(subscribes=True, graft=True))  # whether or not it has heard the former

    def _tell_others(self) -> None:
        """Names what came lately to those to whom it was not pushed: to each of them once, to some at each of the next heartbeats, since most
        will have it from somebody else by then. Who came into the mesh meanwhile is one of them."""
        names = [name for batch in self._recent for name in batch][-NAMES_MAX:]
        last = set(self._recent[0]) if len(self._recent) == self._limits.history else set()
        self._recent.append([])
        if not names:
            return
        for each in self.neighbours.values():
            if not each.subscribes:
                continue
            fresh = [name for name in names if name not in each.knows]
            if fresh and (not last.isdisjoint(fresh) or self._chance.random() < 1 / self._limits.history):
                for name in fresh:
                    each.learns(name)
                self._say(each.peer, Frame(have=tuple(fresh)))

    def _blame(self, neighbour: Neighbour, points: float, reason: str = "") -> None:
        if reason:
            self.counts[f"refused: {reason}"] += 1
        has_stake = self._rules.weight(neighbour.peer) > 0
        if not self.reputation.blame(neighbour.peer, neighbour.network, points, has_stake=has_stake):
            return
        for each in [*self.neighbours.values()]:
            stake = self._rules.weight(each.peer) > 0
            if self.reputation.refuses(each.peer, each.network, has_stake=stake):
                self.counts["cut off"] += 1
                self.closed(each.peer)
                self._cut(each.peer)

    def _say(self, peer: bytes, frame: Frame) -> None:
        self.counts["frames"] += 1
        self._send(peer, frame.encode(self._topic))


def summary(mesh: Mesh) -> dict[str, int | dict[str, int]]:
    """What a running mesh says of itself."""
    refused: defaultdict[str, int] = defaultdict(int)
    for name, count in mesh.counts.items():
        if name.startswith("refused: "):
            refused[name.removeprefix("refused: ")] += count
    return {
        "neighbours": len(mesh.neighbours),
        "mesh": len(mesh.meshed),
        **{name: mesh.counts[name] for name in ("heard", "published", "forwarded", "duplicates", "cut off")},
        "refused": dict(refused),
    }
