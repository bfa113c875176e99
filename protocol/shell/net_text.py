"""What `murmur net` prints for a person: 80 columns, and whatever a peer may have written goes through `plain`."""

from __future__ import annotations

import textwrap
import time
from typing import Any

import typer

from protocol.errors import MurmurationError, Unavailable
from protocol.p2p.address import Address, peer_text
from protocol.p2p.explorer import Dialled
from protocol.p2p.kademlia import LookupStep
from protocol.p2p.wire import KademliaAnswer
from protocol.shell.acquaintances import Acquaintances
from protocol.shell.calling import PeerCall
from protocol.shell.cli import plain
from protocol.shell.endpoint_check import EndpointCheck
from protocol.shell.lookups import Claimant, WayIn, Whereabouts, Word, chain_address
from protocol.shell.reachability import Reachability
from protocol.shell.remedy import of_dial
from protocol.shell.trace import Step, Trace

_WIDTH = 80
_GOOD, _BAD, _NEITHER = "✓", "✗", "–"


def _say(text: str, indent: int = 0, hang: int = 2) -> None:
    """A sentence within the width; what has no space in it is never cut."""
    first, then = " " * indent, " " * (indent + hang)
    lines = textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=then, break_long_words=False, break_on_hyphens=False
    )
    typer.echo("\n".join(lines))


def _item(mark: str, what: str, *details: str) -> None:
    """A line of a list: what it is about, and what there is to say of it, on the same line where there is room."""
    more = "; ".join(detail for detail in details if detail)
    line = f"  {mark} {what}" + (f"   {more}" if more else "")
    if len(line) <= _WIDTH or not more:
        typer.echo(line)
    else:
        typer.echo(f"  {mark} {what}")
        _say(more, 6, 0)


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 0.1 else f"{1000 * seconds:.0f} ms"


def _count(number: object, what: str) -> str:
    return f"{plain(number)} {what}{'s' * (number != 1)}"


def _ago(seconds: float) -> str:
    for size, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {name}"
    return f"{max(0.0, seconds):.0f} s"


def _why(problem: MurmurationError) -> str:
    return plain(problem, 400)


def print_status(found: Reachability) -> None:
    _print_role(found)
    _print_announced(found)
    _print_ways(found)
    if found.outside is not None:
        typer.echo("\nWhere others say this role is")
        _print_whereabouts(found.outside)
    _print_served(found)
    if found.here.chain is not None and not found.answered:
        typer.echo("\nHub and relays\n  – nobody could be asked")
        for word in found.words:
            _print_word(word)
    elif found.here.chain is not None:
        _print_hub(found)
        _print_relays(found)
        _print_weights(found)
    typer.echo()
    _print_problems(found)


def _print_announced(found: Reachability) -> None:
    if found.announced:
        typer.echo("\nWhat it announces")
    for place, tried in found.announced_by_place.items():
        if tried.problem is None:
            _item(_GOOD, str(place), f"answers from here, {_milliseconds(tried.seconds)}")
        else:
            _item(_BAD, str(place), _why(tried.problem))


def _print_ways(found: Reachability) -> None:
    typer.echo("\nWays in")
    advised: set[str] = set()
    for way in found.ways:
        _print_way(way, advised)
    if not found.ways:
        typer.echo(f"  {_BAD} none")
    elif found.asked:
        typer.echo(f"  {found.answered} of {found.asked} questions to peers were answered")
        _print_seen(found)


def _print_problems(found: Reachability) -> None:
    if not found.problems and any(each.serves_others for each in found.served_at):
        _say(f"{_NEITHER} nothing is found wrong, and whether it serves weights cannot be judged from here")
    elif not found.problems:
        typer.echo(f"{_GOOD} nothing is wrong")
    for what, advised in found.problems:
        _say(f"{_BAD} {plain(what, 400)}")
        if advised:
            _say(f"try: {plain(advised, 600)}", 2, 5)
    for what, advised in found.notes:
        _say(f"{_NEITHER} {plain(what, 400)}")
        _say(f"try: {plain(advised, 600)}", 2, 5)


def _print_served(found: Reachability) -> None:
    if found.served_at:
        typer.echo("\nWhere it serves weights")
    for each in found.served_at:
        took = f"answers from here, {_milliseconds(each.seconds)}" if each.answers and not each.serves_others else ""
        more = _why(each.problem) if each.problem else each.detail
        _item(_mark(each), plain(each.url), took, more)


def _mark(check: EndpointCheck | None) -> str:
    """Of who serves weights. One that answers may be fetching what it does not have yet."""
    if check is None or (check.answers and check.problem):
        return _NEITHER
    return _GOOD if check.answers else _BAD


def _print_seen(found: Reachability) -> None:
    """What the ways in say of where this machine is."""
    for ip, count in found.seen_as.most_common(4):
        typer.echo(f"  {_count(count, 'peer')} saw this machine at {plain(ip)}")
    if found.behind_nat:
        own = sorted({way.greeting.local for way in found.ways if way.greeting.local})
        _say(f"which is not its own address ({', '.join(own[:4])}): it is behind NAT", 2)


def _print_role(found: Reachability) -> None:
    here, said = found.here, found.here.said
    run = f" of run {here.chain.run}" if here.chain else ""
    state = "does not run" + ("" if here.age is None else f"; it last spoke {_ago(here.age)} ago")
    if here.running:
        state = f"runs (process {plain(said.get('pid'))}, heard {_ago(here.age or 0)} ago)"
    typer.echo(f"{here.role or 'a stranger'}{run}: {state}")
    _field("PeerID", here.peer or "not known before its first start")
    if here.key:
        _field("address", here.key)
    _field("listens", said.get("listen") if here.running else here.peers.listen)
    for place in here.peers.announce or ("nothing; others use the address they see",):
        _field("announces", place)
    if not here.running:
        return
    if isinstance(versions := found.doing.get("versions"), list):
        has = f"version {max(versions)}" if versions else "no version yet"
        _field("has", has + (f"; the chain is at version {found.head.step}" if found.head else ""))
    for each in said.get("provides") or []:
        _field("serves", f"{each.get('role')} at {each.get('http')}, known to {_count(each.get('holders'), 'peer')}")
    connections = f"{_count(said.get('outbound'), 'connection')} out, {said.get('inbound')} in"
    _field("knows", f"{_count(said.get('known'), 'peer')}; {connections}")
    _field("visited", f"{_count(said.get('welcomed'), 'connection')} came in from other machines")
    if isinstance(gossip := said.get("gossip"), dict):
        near = f"{_count(gossip.get('neighbours'), 'peer')}, {gossip.get('mesh')} of them in the mesh"
        _field("gossips", f"with {near}; heard {_count(gossip.get('heard'), 'message')}")
    if counts := {name: count for name, count in (said.get("counts") or {}).items() if count}:
        _say("refused    " + ", ".join(f"{count} {plain(name)}" for name, count in sorted(counts.items())), 2, 11)


def _field(name: str, value: object) -> None:
    typer.echo(f"  {name:<10} {plain(value)}")


def _print_hub(found: Reachability) -> None:
    typer.echo("\nHub")
    hub, others = found.hub, [each for each in found.services.get("hub", []) if each.trusted is False]
    if hub is None and found.hub_peer:
        known = found.hub_peer
        by = f"named by {_count(len(known.named_by), 'peer')}" if known.named_by else ""
        why = _why(known.problem) if known.problem else "it was not asked"
        _item(
            _BAD, peer_text(known.contact.peer), f"the trainer's peer, {_named(by, known)}", f"does not answer: {why}"
        )
    elif hub is None:
        typer.echo(f"  {_BAD} not found")
    else:
        by = f"named by {_count(len(hub.named_by), 'peer')}" if hub.named_by else ""
        check = found.hub_check if found.hub_check and found.hub_check.url == hub.url else None
        _item(
            _BAD if check and check.problem else _GOOD,
            plain(hub.url),
            f"through the DHT, {_named(by, hub)}, proven by the trainer's key",
            _why(check.problem)
            if check and check.problem
            else f"answers, {_milliseconds(check.seconds)}"
            if check
            else "",
        )
    for word in found.words:
        _print_word(word)
    if others:
        typer.echo(
            f"  {_NEITHER} claimed by {_count(len(others), 'stranger')} without the trainer's key, who fool nobody"
        )


def _named(by: str, each: Claimant) -> str:
    """Who told of it, and whether its signed notice helped."""
    if not each.notice:
        return by
    kept = "this role kept" if each.notice == "kept here" else "peers have"
    return f"{by}; a signed notice that {kept} says so too" if by else f"by a signed notice alone, which {kept}"


def _print_word(word: Word) -> None:
    if not word.url:
        _item(_NEITHER, f"{word.whose} does not say where it is")
        return
    says = f"{word.says} {plain(word.url)}"
    if word.check and word.check.problem:
        silent = "does not answer" if isinstance(word.check.problem, Unavailable) else ""
        _item(_BAD, says, silent, "a role goes there" if word.used else "not needed now", _why(word.check.problem))
    else:
        _item(_GOOD if word.used else _NEITHER, says, "a role goes there" if word.used else "not needed now")


def _print_relays(found: Reachability) -> None:
    typer.echo("\nRelays")
    for relay in found.relays:
        who, check = relay.address or "", relay.check
        if peer_text(relay.contact.peer) == found.here.peer:
            who = "this role"
        if check is None:
            state = "not tried"
        else:
            state = _why(check.problem) if check.problem else f"answers, {_milliseconds(check.seconds)}"
        _item(_mark(check), plain(relay.url), who, state)
    silent = len(found.services.get("relay", [])) - len(found.relays)
    if silent:
        typer.echo(f"  {_NEITHER} {silent} more named, without an answer")
    if not found.relays:
        typer.echo(f"  {_NEITHER} none found; weights then come from the origin")


def _print_weights(found: Reachability) -> None:
    if not found.here.running or found.here.role == "trainer":
        return
    typer.echo("\nWeights since its start")
    if found.fetched is None:
        typer.echo(f"  {_NEITHER} not told: set [metrics] port, and this shows from whom they came")
        return
    total = sum(found.fetched.values())
    for source, count in sorted(found.fetched.items()):
        typer.echo(f"    {count / 1e6:>12,.1f} MB from {plain(source)} ({100 * count / max(1, total):.0f} %)")
    if not found.fetched:
        typer.echo(f"  {_NEITHER} none fetched")
    if found.served:
        typer.echo(f"    {found.served / 1e6:>12,.1f} MB served to others")


def _print_way(way: WayIn, advised: set[str]) -> None:
    """With what to do about it under it, each advice once: `advised` are those that stand already."""
    what = f"{way.known.address}" + ("" if way.what == "bootnode" else f" ({way.what})")
    if way.problem is None:
        _item(_GOOD, what, f"answers, {_milliseconds(way.seconds)}")
    else:
        _item(_BAD, what, _why(way.problem))
        if (more := of_dial(way.problem)) and more not in advised:
            advised.add(more)
            _say(more, 6, 0)


def _print_whereabouts(found: Whereabouts) -> None:
    if not found.told:
        typer.echo(f"  {_NEITHER} nobody says")
    tried: dict[Address, Dialled] = {
        each.named.address: each for each in (found.greeting.dialled if found.greeting else ())
    }
    for place, by in found.told.items():
        told, dialled = f"told by {len(by)}", tried.get(place)
        if dialled is None or dialled.problem is not None:
            why = _why(dialled.problem) if dialled and dialled.problem else "not tried"
            _item(_BAD, str(place), told, f"from here: {why}")
        else:
            _item(_GOOD, str(place), told, f"answers from here, {_milliseconds(dialled.seconds)}")


def print_peers(found: Acquaintances) -> None:
    listed = found.listed()
    for each in listed:
        if each.answers:
            seen = "answers"
        elif each.answers is False:
            seen = "no answer"
        else:
            seen = "not asked" if each.seen is None else f"seen {_ago(time.time() - each.seen)} ago"
        typer.echo(f"{peer_text(each.peer)}  {each.role}, {seen}")
        typer.echo(f"  {each.address or 'a key of no chain'}")
        for place in each.addresses:
            typer.echo(f"  {place}")
    answering = sum(bool(each.answers) for each in listed)
    typer.echo(("\n" if listed else "") + f"{len(listed)} known, {answering} answered just now")
    if found.hint:
        _say(f"{_NEITHER} {found.hint}")
    for note in found.notes:
        _say(f"{_BAD} {plain(note, 400)}")
    if found.problem:
        what, advised = found.problem
        _say(f"{_BAD} {what}")
        _say(f"try: {advised}", 2, 5)


def print_call(made: PeerCall) -> None:
    greeting = made.greeting
    typer.echo(peer_text(made.peer))
    _say(f"{chain_address(made.peer) or 'a key of no chain'}, addresses {made.found}", 2, 0)
    for each in greeting.dialled:
        at = f" ({each.ip.host})" if each.ip and each.ip != each.named.address else ""
        if each.problem is None:
            _item(_GOOD, f"{each.named.address}{at}", f"connected and proven in {_milliseconds(each.seconds)}")
        else:
            _item(_BAD, f"{each.named.address}{at}", _why(each.problem))
            if not greeting.answered and (more := of_dial(each.problem)):
                _say(more, 6, 0)
    if not greeting.answered:
        return
    trips = greeting.round_trips
    if trips:
        least, mean, most = min(trips), sum(trips) / len(trips), max(trips)
        typer.echo(
            f"  {_count(len(trips), 'round trip')}: least {_milliseconds(least)}, mean {_milliseconds(mean)}, most {_milliseconds(most)}"
        )
    if greeting.lost:
        _say(f"{_BAD} a ping was not answered: it is busy, or gone", 2)
    typer.echo(
        f"  agent      {plain(greeting.agent, 60) if greeting.agent else 'not told: ' + plain(greeting.unidentified, 50)}"
    )
    for place, protocol in enumerate(greeting.protocols):
        typer.echo(f"  {'speaks' if not place else '':<10} {plain(protocol, 66)}")
    if greeting.seen_as:
        typer.echo(f"  {'sees you':<10} {plain(greeting.seen_as)}")
    for role, url in made.provides.items():
        typer.echo(f"  {'serves':<10} {role} at {plain(url)}")


class TracePrinter:
    """Prints a lookup as it goes on, with a heading before the first line of each part."""

    def __init__(self) -> None:
        self._part = ""
        self._advised: set[str] = set()

    def _begin(self, part: str) -> None:
        if part != self._part:
            typer.echo(("\n" if self._part else "") + part)
            self._part = part

    def tell(self, step: Step) -> None:
        if isinstance(step, WayIn):
            self._begin("1. The way in")
            _print_way(step, self._advised)
        elif isinstance(step, LookupStep):
            self._begin("2. Who was asked, and what each answered")
            self._print_step(step)
        elif isinstance(step, Claimant):
            self._begin("3. Who is said to provide it")
            self._print_claimant(step)
        elif isinstance(step, EndpointCheck):
            self._begin("4. What it serves")
            if step.problem is None:
                _item(_GOOD, plain(step.url), f"{_milliseconds(step.seconds)}; {step.detail}")
            else:
                _item(_BAD, plain(step.url), _why(step.problem))
        elif isinstance(step, Word):
            self._begin("5. What others than peers say")
            _print_word(step)
        else:
            self._begin("3. Where it is said to be")
            _print_whereabouts(step)

    @staticmethod
    def _print_step(step: Any) -> None:
        place = str(step.contact.addresses[0]) if step.contact.addresses else "no address"
        who = f"…{peer_text(step.contact.peer)[-8:]} {place}"
        if isinstance(step.outcome, KademliaAnswer):
            answer = step.outcome
            named = f", {_count(len(answer.providers), 'provider')}" if answer.providers else ""
            _item(_GOOD, who, f"{_milliseconds(step.seconds)}: {_count(len(answer.closer), 'peer')}{named}")
        else:
            _item(_BAD, who, _why(step.outcome))

    @staticmethod
    def _print_claimant(each: Claimant) -> None:
        if each.trusted is False:
            _item(_NEITHER, peer_text(each.contact.peer), "not the trainer's key; not asked")
            return
        key = "the trainer's key" if each.trusted else each.address or "a key of no chain"
        names = ", ".join("…" + peer_text(peer)[-8:] for peer in each.named_by[:4])
        by = _named(f"named by {names}" if names else "", each)
        if each.url:
            _item(_GOOD, peer_text(each.contact.peer), f"{key}; {by}; it serves at {plain(each.url)}")
        else:
            why = _why(each.problem) if each.problem else "it was not asked"
            _item(_BAD, peer_text(each.contact.peer), f"{key}; {by}", why)

    @staticmethod
    def end(found: Trace) -> None:
        typer.echo()
        if found.stopped:
            _say(f"{_BAD} It stops here: {plain(found.stopped, 400)}")
            if found.advice:
                _say(f"try: {found.advice}", 2, 5)
        else:
            _say(f"{_GOOD} {plain(found.found, 400)}")
