"""What every role of a run has in common: which chain and run, how it finds peers, and the connections that follow.

A role knows an RPC endpoint, a contract, a run and bootnodes. Everything else is found: the policy on chain, the hub and
relays through the DHT, the run spec at the hub (it must hash to the chain's digest).

The hub and the origin are where the settings say; else where peers do, signed notices included; else where the run's owner says on
chain (location.py), which also names bootnodes beside those of the settings and of memory, as the spec does once it is read. Peers prove that the trainer's key says so, settings and
chain do not: what is served there proves itself in either case.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from eth_typing import ChecksumAddress

from protocol import probe
from protocol.chain import Chain, Sender
from protocol.chain.settings import ChainSettings
from protocol.chain.sync import Book
from protocol.chain.transaction_log import TransactionLog
from protocol.chain.types import Policy
from protocol.clock import SYSTEM, Clock
from protocol.environments.taskfile import partial_of, path_of
from protocol.errors import (
    ConfigError,
    FeeTooHigh,
    HashMismatch,
    Malformed,
    MurmurationError,
    PreflightError,
    ProtocolViolation,
    RpcUnavailable,
    Unavailable,
)
from protocol.folders import TASKS_VARIABLE
from protocol.gossip.heard import NewsPause
from protocol.gossip.run_gossip import ROLE as GOSSIP
from protocol.gossip.run_gossip import RunGossip
from protocol.hub.client import HubClient
from protocol.hub.wire import Refused, TryAgain
from protocol.identity import Key
from protocol.p2p import Directory, Endpoint, Host, Provider, Service
from protocol.p2p.address import Address, PeerAddress
from protocol.probe import Probe
from protocol.retry import retry
from protocol.runspec import MAX_LAG_MOST, PinnedFile, RunSpec, TaskFile
from protocol.sandbox import Sandbox
from protocol.shardcast.connection import nearest
from protocol.shardcast.source import Source
from protocol.shell import spec_file
from protocol.shell.location import RunLocation, check_url, located_if_told
from protocol.shell.peers import PeerSettings

log = logging.getLogger(__name__)
T = TypeVar("T")

RELAY, SEEDER = "relay", "seeder"
"""Roles under which weights are served: by relays, and by nodes that lend some of their line."""

# Of the time for a look-up, what peers get where the chain says where to go: at first, and while they did not find it the last time.
_SHARE_OF_LOST_ORIGIN = 0.25  # of the time that a look-up may take, while relays are there without it
_SHARE_OF_PEERS, _SHARE_OF_LOST_PEERS = 0.25, 0.05
_TRAINER_SECONDS = 60.0  # for which the trainer's key is not asked for again
_NAMES_SECONDS = 5.0  # to look up the names of origin and bootnodes
_SPARE_BYTES = 256 << 20  # that stay free on the disk beside a task file


class Connection:
    """A role's connection to one run: chain, peers, hub. Opened with `connect`."""

    def __init__(
        self,
        chain: Chain,
        settings: ChainSettings,
        peers: PeerSettings,
        key: Key,
        host: Host,
        *,
        kept_spec: Path | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        """`kept_spec` is where the run spec of an earlier start lies, or is kept for the next."""
        self.chain = chain
        self.settings = settings
        self.peers = peers
        self.run = settings.run
        self.key = key
        self.gossip: RunGossip | None = None
        """What the run's peers tell each other, once this role has joined them."""
        self._host = host
        self._directory = Directory(host)
        self._clock = clock
        self._kept_spec = kept_spec
        self._trainer: ChecksumAddress | None = None  # as it was seen last
        self._replaced: tuple[ChecksumAddress, ...] = ()
        self._trainer_until = float("-inf")
        self._hub: HubClient | None = None
        self._located: RunLocation | None = None
        self._peers_lost = False
        self._origin_lost = False  # while relays were there
        self._book: Book | None = None

    @cached_property
    def policy(self) -> Policy:
        return self.chain.policy(self.run)

    @property
    def trainer(self) -> ChecksumAddress:
        """The key that publishes, and signs manifests, storage receipts and vouchers. Asked for again after _TRAINER_SECONDS, for the
        owner may appoint another; while nobody answers, as it was."""
        now = self._clock.monotonic()
        if now >= self._trainer_until:
            try:
                found = self.chain.trainer(self.run)
                if found != self._trainer:
                    self._replaced = self.chain.replaced_trainers(self.run)
                self._trainer = found
            except RpcUnavailable:
                if self._trainer is None:
                    raise
            self._trainer_until = now + _TRAINER_SECONDS
        assert self._trainer is not None
        return self._trainer

    @property
    def former_trainers(self) -> tuple[ChecksumAddress, ...]:
        """Keys that were the trainer's before: what they signed is still served."""
        present = self.trainer
        return tuple(dict.fromkeys(key for key in self._replaced if key != present))

    @cached_property
    def spec(self) -> RunSpec:
        """The run spec: the one that was kept here, where it hashes to the chain's digest, else the hub's; waits for a hub for as long as a
        look-up may take. From then on its bootnodes are this role's too."""
        digest = self.chain.spec_digest(self.run)
        spec = self._kept_spec and spec_file.kept(self._kept_spec, digest)
        if not spec:
            spec = self.retry(lambda: self.hub.spec(digest), "fetching the run spec")
            if self._kept_spec:
                spec_file.keep(self._kept_spec, spec)
        self._host.add_bootnodes(bootnodes_agreed(spec, self.peers))
        return spec

    def sender(self, journal: TransactionLog | None = None) -> Sender:
        """A sender for this role's key, within the limits of its settings."""
        return Sender(self.chain, self.key, journal, self.settings.limits)

    def fetch_task(self, file: TaskFile, sandbox: Sandbox) -> None:
        """Brings one of the run's task files onto this machine, where it is not here; it is read in the sandbox before any role here
        trusts it."""
        if not path_of(file).exists():
            self._fetch(file, sandbox.require_task_file)

    def fetch_probe(self) -> Probe | None:
        """The run's reference probe, brought onto this machine where it is not here; None where the run pins none.

        Raises HashMismatch for a file that was changed, ConfigError for one that no node can use.
        """
        file = self.spec.verification.probe
        if file is None:
            return None
        if not path_of(file).exists():
            self._fetch(file, lambda _: None)
        data = path_of(file).read_bytes()
        if sha256(data).hexdigest() != file.sha256:
            raise HashMismatch(f"{path_of(file)} was changed", hint="remove it: it is fetched again")
        try:
            return probe.decode(data)
        except ProtocolViolation as error:
            raise ConfigError(f"the run's reference probe cannot be used: {error}") from error

    def _fetch(self, file: PinnedFile, check: Callable[[Path], object]) -> None:
        arriving = partial_of(f"{file.sha256}{file.suffix}")
        if shutil.disk_usage(arriving.parent).free < file.size + _SPARE_BYTES:
            raise PreflightError(
                f"no room for a file of {file.size >> 20} MiB in {arriving.parent}",
                hint=f"free some space, or name another folder with {TASKS_VARIABLE}",
            )
        log.info("fetching a file of %d KiB that the run names", file.size >> 10)
        try:
            self.retry(lambda: self.hub.download_pinned(file, arriving), "fetching a file that the run names")
            check(arriving)
            os.replace(arriving, path_of(file))
        finally:
            for left in (arriving, arriving.with_suffix(".part")):
                left.unlink(missing_ok=True)

    def book(self, path: Path | None = None) -> Book:
        """A book of the run that this role keeps, in memory or in a file; it is its only writer."""
        s = self.settings
        self._book = Book(self.chain, self.run, path, first_block=s.first_block, confirmations=s.confirmations)
        return self._book

    def service(self, role: str) -> Service:
        return Service(self.settings.chain_id, self.chain.runs.address, self.run, role)

    def join_gossip(self) -> RunGossip:
        """From now on this role hears what the run's peers tell each other, and can tell them something."""

        def max_lag() -> int:
            spec = self.__dict__.get("spec")  # no gossip waits for a hub
            return MAX_LAG_MOST if spec is None else spec.max_lag

        services = tuple(self.service(role) for role in (GOSSIP, "hub", RELAY))
        self.gossip = RunGossip(self._host, self.chain, self.run, services, max_lag=max_lag, clock=self._clock)
        self.gossip.start()
        return self.gossip

    def news(self, *kinds: str, clock: Clock = SYSTEM) -> NewsPause:
        """Pauses that end when gossip of these kinds is heard; without gossip, plain ones."""
        return NewsPause(self.gossip.heard_words if self.gossip else None, *kinds, clock=clock)

    def announce(self, role: str, url: str) -> None:
        self._directory.announce(self.service(role), Endpoint(role=role, run=self.run, http=url))

    @property
    def hub(self) -> HubClient:
        """The run's hub: the provider whose PeerID is the run's trainer key."""
        hub = self._hub  # once: another thread may forget it meanwhile
        if hub is None:
            found = self._trusted("hub")
            hub = HubClient(found.endpoint.http, self.run, self.chain.domain, key=self.key, now=self.block_time)
            self._hub = hub
            log.info(
                "hub found at %s, %s", found.endpoint.http, "through peers" if found.peer_id else "on another's word"
            )
        return hub

    def forget_hub(self) -> None:
        """Looks the hub up again at its next use: it may have moved."""
        self._hub = None

    def sources(self) -> list[Source]:
        """Where weights can be fetched: all relays and nodes that serve, and the trainer's origin. Strangers among them are gone to no
        nearer to this machine than the origin is, or a bootnode of the settings: else they could lead it to services of its own network.

        Without the origin relays that have a version do. Raises Unavailable where neither is found."""
        origin, lost = self._origin_if_found()
        bootnodes = [PeerAddress.parse(text).address for text in self.peers.bootnodes]
        told = [(each.host, each.port) for each in bootnodes]
        with suppress(Malformed):  # it fails where it is asked, alone
            told += [origin.address()] if origin else []
        reach = nearest(told, time.monotonic() + _NAMES_SECONDS)
        found = [provider for role in (RELAY, SEEDER) for provider in self._serving(role)]
        relays = [Source(p.endpoint.http, name=p.address, is_relay=True, reach=reach) for p in found]
        if lost is not None and not relays:
            raise lost
        self._origin_lost = origin is None
        return [*relays, origin] if origin else relays

    def _origin_if_found(self) -> tuple[Source, None] | tuple[None, Unavailable]:
        try:
            return self.origin(), None
        except Unavailable as error:
            log.info("%s; relays may have what is wanted", error)
            return None, error

    def relay_urls(self) -> list[str]:
        """Where the run's relays say that they serve."""
        return [provider.endpoint.http for provider in self._serving(RELAY)]

    def _serving(self, role: str) -> list[Provider]:
        """Those who provide a role that anybody may; none where no peer can be asked and the trainer's own is known without them."""
        share = _SHARE_OF_LOST_PEERS if self._peers_lost else 0.25
        try:
            return self._directory.find(self.service(role), self.peers.find_seconds * share, at_least=0)
        except Unavailable as error:
            if not (self._peers_lost or self.peers.origin):
                raise
            log.info("no %s can be looked for: %s", role, error)
            return []

    def origin(self) -> Source:
        """The trainer's own end of SHARDCAST."""
        share = _SHARE_OF_LOST_ORIGIN if self._origin_lost else 1.0
        self._origin_lost = False  # until `sources` has relays without it again, whatever fails before
        origin = self._trusted("origin", share)
        return Source(origin.endpoint.http, name=origin.address, is_relay=False)

    def _trusted(self, role: str, share: float = 1.0) -> Provider:
        """The provider of `role` that holds the trainer key; anybody may claim to be one. Without a PeerID where another than peers
        named it. Peers get this `share` of the usual time."""
        trainer = self.trainer
        if configured := self.peers.hub if role == "hub" else self.peers.origin:
            return Provider("", trainer, Endpoint(role, self.run, configured))
        self._located = located_if_told(self.chain, self.run, otherwise=self._located)
        url, seconds = self._located.of(role) if self._located else "", self.peers.find_seconds * share
        if url:
            seconds *= _SHARE_OF_LOST_PEERS if self._peers_lost else _SHARE_OF_PEERS
        try:
            found = self._directory.find(self.service(role), seconds, among=[trainer])[0]
        except Unavailable as error:
            if not url:
                raise
            self._peers_lost = True
            log.info("peers do not find the %s (%s); the run's owner says on chain that it is at %s", role, error, url)
            return Provider("", trainer, Endpoint(role, self.run, url))
        self._peers_lost = False
        return found

    def block_time(self) -> int:
        """Now; where this role keeps a book, as that has it: by no single endpoint of several."""
        return self.chain.block().time if self._book is None else self._book.now()

    def retry(self, action: Callable[[], T], doing: str) -> T:
        """Repeats `action` while peers are unavailable, or refuse what may pass, within the look-up deadline; then raises the last error."""

        def failed(error: Exception) -> None:
            log.info("%s: %s; trying again", doing, error)
            if isinstance(error, TryAgain):
                self._clock.sleep(error.pause)
            else:
                self.forget_hub()

        return retry(
            action, on=(Unavailable, Refused), unless=lambda error: isinstance(error, Refused) and not error.may_pass,
            within=self.peers.find_seconds, pause=min(1.0, self.settings.poll_seconds), failed=failed, clock=self._clock,
        )  # fmt: skip


def host_of(key: Key, peers: PeerSettings, peers_file: Path | None, report_file: Path | None = None) -> Host:
    """The libp2p host that a role's settings describe, not yet started. Raises ConfigError."""
    return Host(
        key, peers.listen, peers.bootnodes, announce=peers.announce, peers_file=peers_file, report_file=report_file
    )


@contextmanager
def connect(
    settings: ChainSettings,
    peers: PeerSettings,
    key: Key,
    *,
    peers_file: Path | None = None,
    report_file: Path | None = None,
    kept_spec: Path | None = None,
) -> Iterator[Connection]:
    """Checks the chain and brings up the libp2p host; `kept_spec` as of Connection; `report_file` is the running role's to name, and no command's beside it. Raises WrongChain, RpcUnavailable or ConfigError."""
    for role, url in (("hub", peers.hub), ("origin", peers.origin)):
        try:
            if url:
                check_url(role, url)
        except ValueError as error:
            raise ConfigError(f"peers.{error}") from error
    chain = settings.open()
    told = located_if_told(chain, settings.run)
    bootnodes = (*peers.bootnodes, *bootnodes_told(told, peers))
    if not (bootnodes or peers.hub or (told and told.hub) or (peers_file and peers_file.exists())):
        raise ConfigError(
            "no bootnode is configured", hint="put peers.bootnodes into the config file, or give --bootnode"
        )
    with host_of(key, peers.model_copy(update={"bootnodes": bootnodes}), peers_file, report_file) as host:
        yield Connection(chain, settings, peers, key, host, kept_spec=kept_spec)


def bootnodes_told(told: RunLocation | None, peers: PeerSettings) -> list[str]:
    """Bootnodes that the chain names and the settings do not."""
    return [str(known) for known in _beside_settings(told.bootnodes if told else (), peers)]


def bootnodes_agreed(spec: RunSpec, peers: PeerSettings) -> list[PeerAddress]:
    """Bootnodes that the run spec names and the settings do not."""
    found = []
    for text in spec.bootnodes:
        try:
            found.append(PeerAddress.parse(text))
        except Malformed as error:  # nobody can mend a spec that is on chain
            log.warning("a bootnode of the run spec is none: %s", error)
    return _beside_settings(found, peers)


def _beside_settings(named: Iterable[PeerAddress], peers: PeerSettings) -> list[PeerAddress]:
    """Those that the settings do not name; in this machine's interior only for who lives there."""
    texts = (peers.listen, *peers.announce, *(text.partition("/p2p/")[0] for text in peers.bootnodes))
    try:
        inside = any(Address.parse(text).is_loopback for text in texts)
    except Malformed as error:
        raise ConfigError(f"p2p: {error}") from error
    usable = [known for known in named if inside or not known.address.is_loopback]
    return [known for known in usable if str(known) not in peers.bootnodes]


def is_fatal(error: MurmurationError) -> bool:
    """Whether a running role must stop for this error; peers, hubs that refuse, endpoints that fail and dear gas are waited for."""
    return not isinstance(error, Unavailable | RpcUnavailable | FeeTooHigh | ProtocolViolation | Refused)
