"""`murmur bootnode …`: parse, call, print."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from protocol.shell.cli import Fix, Json, PasswordFile, group
from protocol.shell.home import PEERS, REPORT, Home, default_home
from protocol.shell.log_file import LINES, Follow, Lines, LogsJson

app = group("Help others to find each other: the well-known entry to a run's network.")
HomeOption = Annotated[
    Path, typer.Option("--home", help="Folder of key and settings.", envvar="MURMUR_HOME", readable=False)
]
DEFAULT_HOME = default_home("bootnode")


@app.command()
def init(
    home: HomeOption = DEFAULT_HOME,
    listen: Annotated[str, typer.Option(help="libp2p address to listen on.")] = "/ip4/0.0.0.0/tcp/4001",
    announce: Annotated[
        list[str] | None,
        typer.Option(
            help="Address others dial, as /dns4/HOST/tcp/4001; needed where --listen is 0.0.0.0; up to four times."
        ),
    ] = None,
    rpc: Annotated[
        str | None, typer.Option(help="Only to tell a development chain, where keystores may be weak.")
    ] = None,
    password_file: PasswordFile = None,
) -> None:
    """Create a bootnode's key and settings. A key that lies in the home already is used.

    For others: murmur bootnode init --announce /dns4/boot.example.org/tcp/4001
    """
    from protocol.chain import Chain
    from protocol.p2p.host import read_addresses

    place = Home(home, "bootnode")
    place.require_new()
    read_addresses(listen, (), announce or ())
    chain_id = Chain(rpc, None).chain_id if rpc else 1
    key = place.new_key("bootnode", chain_id=chain_id, password_file=password_file)
    place.write_config(
        {"listen": listen} | ({"announce": announce} if announce else {}),
        "Settings of a Murmuration bootnode.",
    )
    typer.echo(f"PeerID    {key.peer_id}\nsettings  {place.config}\n\nnext: {place.command('murmur bootnode start')}")


@app.command()
def doctor(
    home: HomeOption = DEFAULT_HOME, fix: Fix = False, password_file: PasswordFile = None, as_json: Json = False
) -> None:
    """Check home, key, disk, port, what it announces and its network, one by one, and say what to do. Exit code 0: nothing failed.

    Needs no password; with one it is tried. `start` looks at what it can without a network.
    """
    from protocol.shell.bootnode_checks import CHECKS, BootnodeSubject
    from protocol.shell.checkup import report

    subject = BootnodeSubject(Home(home, "bootnode"), password_file=password_file)
    report(CHECKS, subject, fix=fix, as_json=as_json)


@app.command()
def status(home: HomeOption = DEFAULT_HOME, as_json: Json = False) -> None:
    """Show whether others can reach this bootnode, its peers, what it keeps for them, and what to do next.

    One that runs is dialled where it announces itself. Needs no password. `murmur net status` shows more.
    """
    from protocol.shell import host_status

    place = Home(home, "bootnode")
    place.require_config()
    host_status.report(str(place.path), as_json=as_json)


@app.command()
def start(home: HomeOption = DEFAULT_HOME, password_file: PasswordFile = None) -> None:
    """Serve until stopped (Ctrl-C); prints the addresses that others put into their settings."""
    from protocol.exporter import Exporter, Health
    from protocol.logs import set_up_logging
    from protocol.p2p import Host, run_bootnode
    from protocol.p2p.address import PeerAddress
    from protocol.shell import remedy
    from protocol.shell.bootnode_checks import CHECKS, BootnodeSubject
    from protocol.shell.checkup import require_startable
    from protocol.shell.signals import SignalEvent

    place = Home(home, "bootnode")
    subject = BootnodeSubject(place, starting=True)
    require_startable(CHECKS, subject)
    settings = subject.own
    set_up_logging(settings.logging)
    key = place.open_key("bootnode", password_file)
    stop = SignalEvent()
    health = Health("an answer of the p2p host", settings.metrics.progress_seconds)
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, lambda *_: stop.set())

    def ready(host: Host) -> None:
        place.write_status(state="serving", addresses=list(host.addresses))
        for address in host.addresses:
            typer.echo(address)
        silent = [known for known in map(PeerAddress.parse, host.addresses) if not known.address.is_dialable]
        if silent:
            advice = remedy.of_nothing_announced(silent[0].address.port, place.config, is_running=True)
            typer.echo(f"others cannot dial that: {advice}", err=True)

    with place.lock(), Exporter(settings.metrics, health, folder=place.path) as exporter:
        place.metrics_url = exporter.url
        run_bootnode(
            key, settings.listen, bootnodes=settings.bootnodes, announce=settings.announce, peers_file=place.data / PEERS,
            report_file=place.data / REPORT,
            ready=ready, stop=stop, progress=exporter.progress,
        )  # fmt: skip


@app.command()
def logs(
    home: HomeOption = DEFAULT_HOME, lines: Lines = LINES, follow: Follow = False, as_json: LogsJson = False
) -> None:
    """Print the newest lines of this bootnode's log, from the file that logging.file names, also across its rotations."""
    from protocol.settings import load
    from protocol.shell import log_file
    from protocol.shell.peers import BootnodeSettings

    place = Home(home, "bootnode")
    settings = load(BootnodeSettings, place.require_config()).value
    log_file.show(settings.logging, "murmur-bootnode", place.config, lines=lines, follow=follow, as_json=as_json)
