"""`murmur relay …`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from protocol.shell.cli import Bootnodes, Contract, Fix, Json, PasswordFile, Rpc, RunCardFile, emit, group
from protocol.shell.home import Home, default_home
from protocol.shell.log_file import LINES, Follow, Lines, LogsJson

app = group("Lend bandwidth: fetch new weights first and serve them to nodes.")
HomeOption = Annotated[
    Path, typer.Option("--home", help="Folder of key, settings and data.", envvar="MURMUR_HOME", readable=False)
]
DEFAULT_HOME = default_home("relay")


@app.command()
def init(
    card: RunCardFile = None,
    rpc: Rpc = None,
    contract: Contract = None,
    run: Annotated[int | None, typer.Option(help="Number of the run to serve.")] = None,
    bootnode: Bootnodes = None,
    home: HomeOption = DEFAULT_HOME,
    listen: Annotated[str, typer.Option(help="libp2p address to listen on.")] = "/ip4/0.0.0.0/tcp/0",
    host: Annotated[str, typer.Option(help="Address to serve weights on.")] = "0.0.0.0",  # noqa: S104
    port: Annotated[int, typer.Option(help="Port to serve weights on; 0 takes a free one.")] = 8460,
    public_url: Annotated[
        str | None, typer.Option(help="http://HOST:PORT as others reach it; needed unless --host names one address.")
    ] = None,
    password_file: PasswordFile = None,
    as_json: Json = False,
) -> None:
    """Create a relay's key and settings. A relay needs no stake."""
    from node.relay.service import RelaySettings
    from protocol.p2p.host import read_addresses
    from protocol.settings import checked
    from protocol.shardcast.settings import ServingSettings
    from protocol.shell.run_card import open_run, run_told

    place = Home(home, "relay")
    place.require_new()
    serve = checked(ServingSettings, {"host": host, "port": port, "public_url": public_url}, "serve")
    serve.require_reachable()
    asked, bootnodes = run_told(card, rpc=rpc, contract=contract, run=run, bootnodes=bootnode)
    read_addresses(listen, bootnodes, ())
    chain, _ = open_run(asked, card)
    tables = {
        "chain": asked | {"contract": chain.runs.address, "chain_id": chain.chain_id},
        "peers": {"listen": listen, "bootnodes": bootnodes},
        "serve": {"host": serve.host, "port": serve.port, "public_url": serve.public_url},
    }
    checked(RelaySettings, tables)
    key = place.new_key("relay", chain_id=chain.chain_id, password_file=password_file)
    place.write_config(tables, "Settings of a Murmuration relay.")
    emit(
        {"home": str(home), "relay": key.address, "peer": key.peer_id},
        as_json,
        lambda: typer.echo(
            f"PeerID    {key.peer_id}\nsettings  {place.config}\n\nnext: {place.command('murmur relay start')}"
        ),
    )


@app.command()
def doctor(
    home: HomeOption = DEFAULT_HOME, fix: Fix = False, password_file: PasswordFile = None, as_json: Json = False
) -> None:
    """Check home, key, disk, ports, chain and network, one by one, and say what to do. Exit code 0: nothing failed.

    Asks before anything is downloaded, and needs no password; with one it is tried. `start` looks at what it can without a network.
    """
    from node.relay.checks import CHECKS, RelaySubject
    from protocol.shell.checkup import report

    subject = RelaySubject(Home(home, "relay"), password_file=password_file)
    report(CHECKS, subject, fix=fix, as_json=as_json)


@app.command()
def status(home: HomeOption = DEFAULT_HOME, as_json: Json = False) -> None:
    """Show whether others can reach this relay, its peers, the versions it has, what it served, and what to do next.

    Of a relay that runs its network is asked, for some seconds. Needs no password. `murmur net status` shows more.
    """
    from protocol.shell import host_status

    place = Home(home, "relay")
    place.require_config()
    host_status.report(str(place.path), as_json=as_json)


@app.command()
def start(home: HomeOption = DEFAULT_HOME, password_file: PasswordFile = None) -> None:
    """Serve weights until stopped (Ctrl-C)."""
    from node.relay.checks import CHECKS, RelaySubject
    from node.relay.service import RelayService
    from protocol.shell.checkup import require_startable
    from protocol.shell.role import role

    place = Home(home, "relay")
    subject = RelaySubject(place, starting=True)
    require_startable(CHECKS, subject)
    settings = subject.settings
    with role(place, settings, password_file, what="a look at the head", pays_gas=False) as up:
        RelayService(up.connection, place, settings.serve, up.ending, progress=up.progress).run()


@app.command()
def logs(
    home: HomeOption = DEFAULT_HOME, lines: Lines = LINES, follow: Follow = False, as_json: LogsJson = False
) -> None:
    """Print the newest lines of this relay's log, from the file that logging.file names, also across its rotations."""
    from node.relay.service import RelaySettings
    from protocol.settings import load
    from protocol.shell import log_file

    place = Home(home, "relay")
    settings = load(RelaySettings, place.require_config()).value
    log_file.show(settings.logging, "murmur-relay", place.config, lines=lines, follow=follow, as_json=as_json)
