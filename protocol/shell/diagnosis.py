"""What is wrong with a role in its network, and what its operator does about it: a judgement of what was seen (reachability.py)."""

from __future__ import annotations

import time

from protocol.p2p.address import peer_text
from protocol.shell import remedy, spec_file
from protocol.shell.connection import RELAY
from protocol.shell.home import Home
from protocol.shell.reachability import Reachability
from protocol.shell.standpoint import TRAINER

_OPEN_WEIGHTS = (
    "open serve.port, and let serve.public_url lead to it; https needs a reverse proxy or serve.tls_certificate, and a certificate "
    "of a CA that this system knows. Some routers keep a machine from its own outside address: then have somebody else try"
)
_FETCH_SECONDS = 900.0
"""For as long a relay that has the version before may be fetching the newest: the default of serve.fetch_seconds."""


def judge(found: Reachability) -> None:
    """Names what is wrong in the order of causes: what comes first may explain the rest."""
    here = found.here
    if here.role and not here.running:
        found.wrong("the role does not run", here.start)
    judge_network(found)


def judge_network(found: Reachability) -> None:
    """The same, whether or not the role runs."""
    here = found.here
    _judge_announced(found)
    if not found.ways:
        if here.role != "bootnode":  # which others come to
            found.wrong("no bootnode is configured", "put peers.bootnodes into the config file, or give --bootnode")
        return
    _judge_ways(found)
    _judge_hub(found)
    if here.running:
        _judge_running(found)
    _judge_outside(found)


def _judge_announced(found: Reachability) -> None:
    """A bootnode's own addresses: they stand in the settings of others."""
    here, named = found.here, found.here.peers.announce
    file = f"{here.home}/bootnode.toml"
    for place, tried in found.announced_by_place.items():
        if tried.problem and named and str(place) not in named:
            found.wrong(
                f"it announces {place} since its start, and {file} names {', '.join(named)} by now",
                "start it again",
                tried.problem,
            )
        elif not place.is_dialable:
            found.wrong(
                f"it announces nothing, and {place} stands for any address: nobody can dial it",
                remedy.of_nothing_announced(place.port, file, is_running=here.running),
                tried.problem,
            )
        elif tried.problem:
            found.wrong(
                f"{place}, where it says to others that it is: {tried.problem}",
                f"{remedy.of_dial(tried.problem)}. Mend announce in bootnode.toml, or open the port. Some routers keep a machine from "
                f"its own outside address: then let another machine try murmur net ping {place}/p2p/{here.peer}",
                tried.problem,
            )


def _judge_ways(found: Reachability) -> None:
    bootnodes = [way for way in found.ways if way.what == "bootnode"]
    bootnodes = bootnodes or [way for way in found.ways if way.what.startswith("bootnode")]
    dead = [way for way in bootnodes if way.problem]
    if dead and len(dead) == len(bootnodes):
        through = [way for way in found.ways if not way.problem and way.what != "this role"]  # a listener is no network
        what = "no bootnode answers" + (f"; the network is reached through a {through[0].what}" if through else "")
        found.wrong(what, "murmur net ping ADDRESS for each; ask the run's owner for ones that run", dead[0].problem)
    if (late := found.late) is not None:
        found.wrong(f"not everybody was asked: {late}", "give it more time with --seconds", late)


def _judge_hub(found: Reachability) -> None:
    chain_problem = found.chain_problem
    if chain_problem is not None:
        found.wrong(f"the chain does not say who the trainer is: {chain_problem}", chain_problem.hint, chain_problem)
    elif found.here.chain is not None and found.goes_to is None and found.answered:
        trace, peer = found.here.command("murmur net trace hub"), found.hub_peer
        if peer is None:
            found.wrong("the run's hub is not found", f"{trace} shows where the lookup stops")
        else:
            found.wrong(
                f"the run's hub is known to peers, and does not answer: {peer.problem or 'it was not asked'}",
                remedy.of_provider("hub", peer.problem, resume=_resume(found)),
                peer.problem,
            )
    for reserve in found.words:
        if not reserve.used and reserve.check and reserve.check.problem and reserve.url != found.goes_to:
            advice = remedy.of_word(reserve, "hub", reserve.check.problem, by_peers=found.goes_to)
            found.notes.append(
                (f"{reserve.says} {reserve.url}, which is not needed now: {reserve.check.problem}", advice)
            )
    if (hub := found.hub_check) and hub.problem:
        word, resume = next((word for word in found.words if word.used), None), _resume(found)
        found.wrong(
            f"{hub.url}, where {word.says if word else 'peers say'} that the hub is: {hub.problem}",
            remedy.of_word(word, "hub", hub.problem, by_peers=found.hub.url if found.hub else None, resume=resume)
            if word
            else remedy.of_endpoint("hub", hub.problem, peer_answers=True, resume=resume),
            hub.problem,
        )


def _resume(found: Reachability) -> str:
    """What starts the hub: for the trainer itself with its own file."""
    return found.here.start if found.here.role == TRAINER else remedy.RESUME


def _judge_running(found: Reachability) -> None:
    """By what the running role says of itself, and where it says that it serves weights."""
    here = found.here
    if here.said.get("joined") is False and (here.bootnodes or here.role != "bootnode"):
        if here.said.get("joining"):
            found.wrong(
                "the running role is still joining: it waits for its bootnodes' first answer",
                "ask again in ten seconds",
            )
        else:
            found.wrong(
                f"the running role knows nobody: {here.said.get('reason')}",
                "its log says more; it keeps trying by itself",
            )
    if here.role == RELAY and not here.said.get("provides"):
        waits = "its log says what it waits for; it goes on by itself"
        if here.home and not spec_file.path_in(Home(here.home, RELAY)).exists():
            waits = (
                f"at its first start it needs the hub, and gives up after {here.peers.find_seconds:g} s: start it again when the hub is up "
                f"({here.start})"
            )
        found.wrong("the relay serves nothing yet: it has not said to peers where it is", waits)
    if isinstance(problem := found.doing.get("problem"), str):
        found.wrong(f"the {here.role} says: {problem}", "it tries again by itself; its log says more")
    _judge_versions(found)
    for each in found.served_at:
        if not each.answers and each.problem:
            found.wrong(
                f"{each.url}, where others fetch weights from this role: {each.problem}", _OPEN_WEIGHTS, each.problem
            )


def _judge_versions(found: Reachability) -> None:
    head, behind = found.head, found.behind
    if head is None or not behind:
        return
    if behind == 1 and head.step and not found.doing.get("problem") and time.time() - head.time < _FETCH_SECONDS:
        return
    has = "it has none yet" if behind > head.step else f"it has version {head.step - behind}"
    found.wrong(
        f"the relay is {behind} version{'s' * (behind != 1)} behind the chain: {has}, and version {head.step} is published",
        "it fetches the newest by itself; where that takes long, its log says why",
    )


def _judge_outside(found: Reachability) -> None:
    """Only those who serve need to be found."""
    here = found.here
    listen, announce = here.setting("listen"), here.setting("announce")
    reach = f"forward the port of {listen} to this machine" if found.behind_nat else f"open the port of {listen}"
    provides = here.said.get("provides") or []
    if not here.running or not (provides or here.role == "bootnode") or not found.answered:
        return
    if any(each.problem for each in found.announced_by_place.values()):
        return  # said already
    if found.outside is not None and found.outside.told:
        if found.outside.greeting and not found.outside.greeting.answered:
            found.wrong(
                "others are told where this role is, and it does not answer there",
                f"{reach}, and name the address that leads to it ({announce})",
                found.outside.greeting.problem,
            )
    elif here.role != "bootnode" or here.peer not in {peer_text(way.known.peer) for way in found.ways}:
        found.wrong("nobody tells where this role is", f"{reach}, or name the address that leads to it ({announce})")
    lost = [each for each in provides if isinstance(each, dict) and not each.get("holders")]
    if lost:
        found.wrong("no peer holds the record of what this role serves", "it is announced again by itself; see its log")
