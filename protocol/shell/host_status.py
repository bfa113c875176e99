"""`murmur relay status` and `murmur bootnode status`: can others reach it, whom does it know, what does it have, and what next.

What the running role says in its files, and what `murmur net status` finds out (reachability.py) and judges (diagnosis.py), in a dozen lines.
Of a role that does not run only the files are read: nobody is asked.
"""

from __future__ import annotations

import time
from typing import Any

import typer

from protocol.shell import diagnosis, reachability
from protocol.shell.cli import emit, plain
from protocol.shell.money import duration
from protocol.shell.reachability import Reachability
from protocol.shell.standpoint import Standpoint, find

SECONDS = 10.0
"""To ask around, for a command that is typed often."""
BOOTNODE = "bootnode"
YES, NO, UNKNOWN = "yes", "no", "unknown"


def report(home: str, *, as_json: bool) -> None:
    """The whole of the command."""
    from protocol.logs import only_warnings

    only_warnings()
    table = collect(find(home))
    emit(table, as_json, lambda: show(table))


def collect(here: Standpoint, seconds: float = SECONDS) -> dict[str, Any]:
    """Bytes and times are integers, times in seconds of this machine's clock."""
    found = reachability.look(here, seconds=seconds) if here.running else Reachability(here)
    diagnosis.judge(found)
    reachable, why = _reachable(found)
    said = here.said if here.running else {}
    table = {
        "role": here.role, "home": str(here.home), "running": here.running, "heard": _seconds(here.said.get("at")),
        "peer": here.peer, "address": here.key, "listen": said.get("listen") or _listen(here), "announced": said.get("announced") or list(here.peers.announce),
        "reachable": reachable, "why": why, "joined": said.get("joined"), "peers": said.get("known"), "inbound": said.get("inbound"),
        "outbound": said.get("outbound"), "visited": said.get("welcomed"), "metrics": found.doing.get("metrics_url"),
        "problems": [{"what": what, "try": advice} for what, advice in found.problems],
        "next": found.problems[0][1] if found.problems else "",
    }  # fmt: skip
    return table | (_of_bootnode(said) if here.role == BOOTNODE else _of_relay(found, said))


def _of_bootnode(said: dict[str, Any]) -> dict[str, Any]:
    return {"records": said.get("records")}


def _of_relay(found: Reachability, said: dict[str, Any]) -> dict[str, Any]:
    here, doing = found.here, found.doing
    versions = doing.get("versions")
    return {
        "run": here.chain.run if here.chain else None, "serves": [each for each in said.get("provides") or () if isinstance(each, dict)],
        "announced_at": _seconds(said.get("provided")), "versions": versions if isinstance(versions, list) else [],
        "head": found.head.step if found.head else None, "behind": found.behind, "bytes_served": doing.get("bytes_served"),
    }  # fmt: skip


def _listen(here: Standpoint) -> str:
    return here.peers.listen


def _seconds(at: object) -> int | None:
    return int(at) if isinstance(at, int | float) else None


def _reachable(found: Reachability) -> tuple[str, str]:
    """In one word, and by what that is known."""
    here, tried = found.here, found.announced_by_place
    if not here.running:
        return NO, "it does not run"
    silent = [each for each in found.served_at if not each.answers]
    if silent:
        return NO, f"{silent[0].url}, where others fetch weights: {silent[0].problem}"
    failed = [(place, each) for place, each in tried.items() if each.problem]
    if failed:
        place, each = failed[0]
        return NO, f"{place}, where it says that it is: {each.problem}"
    greeting = found.outside.greeting if found.outside else None
    if greeting is not None and greeting.answered:
        return YES, "peers tell where it is, and it answers this machine there"
    if greeting is not None and greeting.dialled:
        return NO, "peers tell where it is, and it does not answer this machine there"
    if here.said.get("welcomed"):
        return YES, "others have connected to it"
    if tried:
        return UNKNOWN, "it answers this machine where it says that it is, and nobody has come from elsewhere yet"
    return UNKNOWN, "nobody could be asked, and nobody has come yet"


# ---- what a person sees ----------------------------------------------------------------------------------------------------------


def show(d: dict[str, Any]) -> None:
    run = f" of run {d['run']}" if d.get("run") is not None else ""
    typer.echo(f"{d['role']}{run}: {_state(d)}")
    _line("reachable", f"{d['reachable']}: {d['why']}")
    _line("PeerID", d["peer"] or "not known before its first start")
    _line("listens", d["listen"])
    for address in d["announced"]:
        _line("announces", address)
    if d["running"]:
        _show_peers(d)
        if d["role"] != BOOTNODE:
            _show_weights(d)
        _line("metrics", d["metrics"] or "not served; [metrics] port in its settings switches them on")
    for problem in d["problems"][1:] if d["running"] else ():
        _line("also wrong", problem["what"])
    if d["problems"]:
        typer.echo(f"\nwrong: {plain(d['problems'][0]['what'], 400)}")
    if d["next"]:
        typer.echo(f"{'' if d['problems'] else chr(10)}next: {plain(d['next'], 600)}")


def _state(d: dict[str, Any]) -> str:
    if d["running"]:
        return "runs"
    return "does not run" + ("" if d["heard"] is None else f"; it last spoke {_ago(d['heard'])}")


def _show_peers(d: dict[str, Any]) -> None:
    _line("knows", f"{_count(d['peers'], 'peer')}; {_count(d['outbound'], 'connection')} out, {plain(d['inbound'])} in")
    _line("visited", f"{_count(d['visited'], 'connection')} came in from other machines")
    if d["role"] == BOOTNODE:
        _line("keeps", f"{_count(d['records'], 'record')} of who provides what")


def _show_weights(d: dict[str, Any]) -> None:
    at = "not yet" if d["announced_at"] is None else _ago(d["announced_at"])
    _line("told peers", at if d["serves"] else "nothing yet")
    for each in d["serves"]:
        _line("serves at", f"{each.get('http')}, known to {_count(each.get('holders'), 'peer')}")
    held = ", ".join(str(step) for step in d["versions"]) or "none yet"
    _line("versions", held + (f"; the chain is at version {d['head']}" if d["head"] is not None else ""))
    if isinstance(d["bytes_served"], int):
        _line("served", f"{d['bytes_served'] / 1e6:,.1f} MB since its start")


def _line(name: str, value: object) -> None:
    typer.echo(f"  {name:<10} {plain(value, 400)}")


def _count(number: object, what: str) -> str:
    return f"{plain(number)} {what}{'s' * (number != 1)}"


def _ago(at: int) -> str:
    return f"{duration(max(0, int(time.time()) - at))} ago"
