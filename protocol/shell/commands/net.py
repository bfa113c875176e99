"""`murmur net …`: parse, call, print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from protocol.shell.cli import Json, emit, group

if TYPE_CHECKING:
    from protocol.shell.trace import Step

app = group("Find out what is wrong with the network: who is found, who answers, and where a lookup stops.")
HomeOption = Annotated[
    str | None,
    typer.Option("--home", help="Home of the role, or its @run.toml for the trainer's hub.", envvar="MURMUR_HOME"),
]
Bootnode = Annotated[
    list[str] | None,
    typer.Option(help="Multiaddr of a bootnode, in place of those in the settings; may be given several times."),
]
Seconds = Annotated[float, typer.Option(min=1, max=600, help="Longest time to ask around.")]


@app.command()
def status(home: HomeOption = None, bootnode: Bootnode = None, seconds: Seconds = 30, as_json: Json = False) -> None:
    """Show what is wrong with this role in its network.

    What it says itself, and what a stranger sees. Exit code 0: nothing is found wrong.

    Needs no password and disturbs no running role.
    """
    from protocol.logs import only_warnings
    from protocol.shell import diagnosis, net_text, reachability, standpoint

    only_warnings()
    here = standpoint.find(home, bootnode)
    found = reachability.look(here, seconds=seconds, progress=lambda what: typer.echo(f"{what} …", err=True))
    diagnosis.judge(found)
    emit(found.as_json(), as_json, lambda: net_text.print_status(found))
    if found.exit_code:
        raise typer.Exit(found.exit_code)


@app.command()
def peers(
    home: HomeOption = None,
    bootnode: Bootnode = None,
    lookup: Annotated[bool, typer.Option(help="Ask around who answers, besides what the role knows.")] = True,
    seconds: Seconds = 30,
    as_json: Json = False,
) -> None:
    """List the peers that this role knows or a lookup meets. The chain says what each of them is."""
    from protocol.logs import only_warnings
    from protocol.shell import net_text, standpoint
    from protocol.shell.acquaintances import Acquaintances
    from protocol.shell.trace import require_way_in

    only_warnings()
    here = standpoint.find(home, bootnode)
    found = Acquaintances(here)
    if lookup:
        require_way_in(here)
        typer.echo("asking around …", err=True)
        found.look_around(seconds=seconds)
    found.ask_chain()
    found.judge()
    problems = [{"what": what, "try": advised} for what, advised in (found.problem,)] if found.problem else []
    data = {"peers": [each.as_json() for each in found.listed()], "notes": found.notes, "problems": problems}
    emit(data, as_json, lambda: net_text.print_peers(found))
    if found.exit_code:
        raise typer.Exit(found.exit_code)


@app.command()
def ping(
    peer: Annotated[
        str,
        typer.Argument(help="A PeerID, a multiaddr that ends in /p2p/PEERID, or the chain address of a peer's key."),
    ],
    count: Annotated[int, typer.Option(min=1, max=100, help="Round trips to measure.")] = 4,
    home: HomeOption = None,
    bootnode: Bootnode = None,
    seconds: Seconds = 30,
    as_json: Json = False,
) -> None:
    """Dial a peer, measure round trips, and ask who it is. It is dialled at every address it is known by."""
    from protocol.logs import only_warnings
    from protocol.shell import calling, net_text, standpoint

    only_warnings()
    here = standpoint.find(home, bootnode, needed=False, which="/" not in peer)
    made = calling.call(here, peer, count=count, seconds=seconds)
    emit(made.as_json(), as_json, lambda: net_text.print_call(made))
    if made.problem is not None:
        raise typer.Exit(made.problem.exit_code)


@app.command()
def trace(
    what: Annotated[
        str, typer.Argument(help="hub, origin, relay or seeder: a service of the run; me: this role; or a PeerID.")
    ] = "hub",
    home: HomeOption = None,
    bootnode: Bootnode = None,
    seconds: Seconds = 30,
    as_json: Json = False,
) -> None:
    """Follow one lookup, step by step, to where it stops. Shows who is asked, what each answers, and whether what is found is the chain's."""
    from protocol.logs import only_warnings
    from protocol.shell import standpoint
    from protocol.shell.net_text import TracePrinter
    from protocol.shell.trace import trace as follow

    only_warnings()
    here = standpoint.find(home, bootnode)
    printer = TracePrinter()

    def tell(step: Step) -> None:
        if not as_json:
            printer.tell(step)

    found = follow(here, what, seconds=seconds, tell=tell)
    emit(found.as_json(), as_json, lambda: printer.end(found))
    if found.exit_code:
        raise typer.Exit(found.exit_code)
