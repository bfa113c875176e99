"""The running hub: HTTP server, SHARDCAST origin, publisher and libp2p host, in one process that holds the trainer key.

Eight kinds of threads: uvicorn's event loop answers requests, one follows the chain, one publishes, one counts validators' pay,
two remove files and entries that nobody needs any more, one looks for relays, the origin's serve bytes. Where a bucket is the store,
a ninth fills it; while somebody looks at the run's page, another makes it (trainer/page).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from protocol.chain import Chain
from protocol.chain.sync import Book
from protocol.chain.transaction_log import TransactionLog
from protocol.chain.types import Policy
from protocol.chain.view import Submission
from protocol.clock import SYSTEM, Clock
from protocol.environments.taskfile import path_of
from protocol.errors import IntegrityError, MurmurationError, PreflightError
from protocol.exporter import Exporter
from protocol.gossip.run_gossip import RunGossip
from protocol.history import kept_seconds
from protocol.hub.need import SignedNeed
from protocol.hub.wire import Refused
from protocol.identity import Key
from protocol.runspec import RunSpec
from protocol.shardcast.origin import Origin
from protocol.shardcast.precedence import RelaysFirst
from protocol.shardcast.server import ShardServer
from protocol.shardcast.store import VersionStore
from protocol.shardcast.uplink import Uplink
from protocol.shell import gas, machine
from protocol.shell.connection import Connection, bootnodes_agreed, host_of, is_fatal
from protocol.shell.home import PEERS, REPORT, write_json
from protocol.shell.manifest_lookup import manifest_of
from trainer.config import Layout, RunSettings
from trainer.hub.app import create_app
from trainer.hub.archive import ArchivedStore
from trainer.hub.bucket import Bucket
from trainer.hub.database import Database, remove_database
from trainer.hub.hub import Hub, Quota
from trainer.hub.load import RequestKind
from trainer.hub.outbox import Outbox
from trainer.hub.publisher import Publisher
from trainer.hub.recalibration import Recalibrations
from trainer.hub.relays import RelayTallies
from trainer.hub.server import HubServer, connections_within_limits
from trainer.hub.store import CATALOGUE, Store
from trainer.hub.vouchers import Ledger
from trainer.page.app import beside
from trainer.page.keeper import PageKeeper
from trainer.page.sources import PageSources
from trainer.seats import may_have_seats

log = logging.getLogger("hub")

_RETRY_SECONDS = 1.0
_TIDY_SECONDS = 600.0
_RELAYS_SECONDS = 15.0
_NEED_SECONDS = 1.0
_ARCHIVE_SECONDS = 1.0
_MANIFEST_SECONDS = 10.0


def require_own_run(chain: Chain, run: int, key: str, spec: RunSpec) -> None:
    """Raises PreflightError where another key trains the run, IntegrityError where it has another spec."""
    if (trainer := chain.trainer(run)) != key:
        raise PreflightError(
            f"run {run} is trained by {trainer}, and the key here is {key}", hint="check hub.keystore in run.toml"
        )
    if chain.spec_digest(run) != spec.digest:
        raise IntegrityError(f"spec.json is not the spec of run {run} on chain", hint="check chain.run in run.toml")


class HubService:
    def __init__(
        self, settings: RunSettings, layout: Layout, spec: RunSpec, key: Key,
        exporter: Exporter | None = None, *, clock: Clock = SYSTEM,
    ) -> None:  # fmt: skip
        """`exporter` shows the hub's metrics and is told of every look at the chain."""
        self._settings = settings
        self._layout = layout
        self._spec = spec
        self._key = key
        self._stop = threading.Event()
        self._exporter = exporter
        self._clock = clock
        self._failed: MurmurationError | None = None
        self._need_told: SignedNeed | None = None

    def stop(self) -> None:
        self._stop.set()

    def run(self) -> None:
        """Serves until stopped. Raises what it cannot go on with."""
        c, h = self._settings.chain, self._settings.hub
        chain = c.open()
        policy = self._require_own_run(chain)
        # No confirmations here: a node uploads right after it committed, and a commitment that a reorg takes back costs
        # some disk at most. The trainer's own book decides what is learnt from.
        book = Book(chain, c.run, _book(self._layout), first_block=c.first_block)
        database = Database(_database(self._layout))
        quota = Quota(h.writes_per_minute, h.bytes_per_hour)
        files = open_store(self._settings, self._layout)
        hub = Hub(
            chain, c.run, self._spec, book, files, database, self._key, quota, looks_per_minute=h.looks_per_minute
        )
        hub.learn()
        kept = self._spec.versions_kept
        store = VersionStore(self._layout.hub / "weights", kept, pinned=self._spec.versions_pinned)
        relays = RelaysFirst()
        sent = RelayTallies(relays, self._clock)
        transactions = TransactionLog(self._layout.hub / "transactions.sqlite")
        with (
            store,
            closing(transactions),
            ShardServer(
                store,
                host=h.host,
                port=h.origin_port,
                uplink=Uplink(h.origin_upload_rate),
                is_first=relays.is_first,
                elsewhere=relays.elsewhere,
                sent_to=sent.sent,
            ) as origin_server,
            host_of(self._key, self._settings.peers, self._layout.hub / PEERS, self._layout.hub / REPORT) as host,
        ):
            host.add_bootnodes(bootnodes_agreed(self._spec, self._settings.peers))
            connection = Connection(chain, c, self._settings.peers, self._key, host)
            publisher = Publisher(
                connection.sender(transactions), book, Origin(store, self._key, chain.domain, c.run, anchor_every=h.anchor_every),
                Outbox(self._layout.outgoing, self._layout.model), kept, self._teller(connection),
                None if self._spec.verification.recalibration is None else Recalibrations(self._spec, self._layout.hub),
                lambda step, digest: manifest_of(connection, step, digest, _MANIFEST_SECONDS),
                has_workers=lambda: may_have_seats(book),
            )  # fmt: skip
            connections = connections_within_limits(h.connections)
            if connections < h.connections:
                log.warning(
                    "the system lets this process hold %d connections, not %d: see ulimit -n",
                    connections,
                    h.connections,
                )
            sources = PageSources(
                chain, c.run, self._spec, self._layout, _book(self._layout), lambda: Database.reader(_database(self._layout)),
                sent.told, hub.promised, lambda: http.load.refuses(RequestKind.PAGE), c.vouchers,
            )  # fmt: skip
            keeper = PageKeeper(sources, self._clock)
            app = create_app(hub, self._layout.status, self._layout.need)
            http = HubServer(
                beside(app, keeper, c.run, h), h.host, h.port, connections=connections,
                per_address=h.connections_per_address, requests=h.requests,
            )  # fmt: skip
            with keeper, http:
                local = self._announce(connection, http, origin_server)
                turns: list[tuple[str, Callable[[], object], float]] = [
                    ("chain", lambda: self._learn(hub), c.poll_seconds),
                    ("publish", publisher.turn, min(0.1, c.poll_seconds)),
                    ("relays", lambda: relays.learn(connection.relay_urls()), _RELAYS_SECONDS),
                    ("tidy", lambda: self._tidy(book, policy, files), _TIDY_SECONDS),
                    ("forget", lambda: self._forget(book, policy, database, transactions), _TIDY_SECONDS),
                ]
                if connection.gossip is not None:
                    gossip = connection.gossip
                    turns.append(("gossip", lambda: self._tell_need(hub, gossip), _NEED_SECONDS))
                if self._settings.vouchers.wei_per_submission:
                    ledger = Ledger(chain, c.run, book, files, database, self._key, self._settings.vouchers)
                    turns.append(("vouchers", ledger.turn, max(1.0, c.poll_seconds)))
                if self._exporter is not None and self._exporter.url is not None:
                    turns.append(("gas", lambda: gas.look(chain, self._key.address), gas.LOOK_SECONDS))
                if isinstance(files, ArchivedStore):
                    turns.append(("bucket", files.turn, _ARCHIVE_SECONDS))
                followers = [
                    threading.Thread(target=self._repeat, args=(turn, pause), name=name, daemon=True)
                    for name, turn, pause in turns
                ]
                for thread in followers:
                    thread.start()
                while not self._stop.is_set():
                    self._tell(local, publisher, origin_server, files, hub)
                    self._clock.wait(self._stop, 0.5)
                for thread in followers:
                    thread.join(10)
        database.close()
        files.close()
        book.close()
        if self._failed is not None:
            raise self._failed

    def _require_own_run(self, chain: Chain) -> Policy:
        policy = chain.policy(self._settings.chain.run)
        require_own_run(chain, self._settings.chain.run, self._key.address, self._spec)
        probe = self._spec.verification.probe
        if probe is not None and not path_of(probe).exists():
            raise PreflightError(
                f"the run's reference probe is not on this machine: {path_of(probe)}",
                hint="bring it back from where `murmur run create` ran: nodes start by it",
            )
        return policy

    def _announce(self, connection: Connection, http: HubServer, origin: ShardServer) -> str:
        """Tells peers where hub and origin are; returns where the hub is for this machine."""
        h = self._settings.hub
        public, local = h.public_host or h.host, url_of(h.host, http.port)
        if is_everywhere(public):
            log.warning(
                "nobody elsewhere can reach hub and origin: others are told %s; set hub.public_host to this machine's name or address",
                url_of(public, http.port),
            )
        connection.announce("hub", url_of(public, http.port))
        connection.announce("origin", url_of(public, origin.port))
        log.info("hub at %s, origin on port %d", local, origin.port)
        return local

    def _learn(self, hub: Hub) -> None:
        hub.learn()
        if self._exporter is not None:
            self._exporter.progress()

    def _teller(self, connection: Connection) -> Callable[[str, int, bytes], object]:
        """Joins the run's gossip, where the settings say so; what tells peers of a version."""
        if not self._settings.peers.gossip:
            return lambda kind, step, digest: None
        gossip = connection.join_gossip()
        return lambda kind, step, digest: gossip.tell_version(kind, step, digest, self._key)

    def _tell_need(self, hub: Hub, gossip: RunGossip) -> None:
        """Tells peers what the trainer needs, once it says something else or its time is renewed."""
        try:
            signed = hub.signed_need(self._layout.need)
        except Refused:
            return
        if signed != self._need_told:
            gossip.tell_need(signed)
            self._need_told = signed

    def _tidy(self, book: Book, policy: Policy, files: Store) -> None:
        """Removes rollout files whose submission can neither be disputed nor trained on any more, and packs what is too old to be trained on."""
        before = out_of_reach(book, policy, self._spec, self._now(book), spans=1)

        def is_needed(root: bytes) -> bool:
            """By the chain's time: this machine's clock may have been behind when the file came."""
            newest = book.newest_of(root)
            return newest is not None and (book.time(newest) >= (before or 0) or book.is_disputed(root))

        removed = set() if before is None else files.remove_files_before(before, is_needed)
        if removed:
            log.info("%d rollout files are out of reach of challenge and training, and were removed", len(removed))
        past = out_of_reach(book, policy, self._spec, self._now(book), spans=0)
        packed = 0 if past is None else files.pack(past)
        if packed:
            log.info("%d small objects of past steps were packed", packed)

    def _forget(self, book: Book, policy: Policy, database: Database, transactions: TransactionLog) -> bool:
        """Forgets what is listed of submissions for which, besides, no validator answers any more, and transactions of that age,
        whose versions are long in the book; whether there is more."""
        transactions.prune(self._now(book) - 2 * policy.span)
        kept = kept_seconds(
            policy.span, self._spec.verification.history
        )  # receipts make the sums of those that come later
        before = out_of_reach(book, policy, self._spec, self._now(book) + policy.span - kept, spans=2)
        pays = self._settings.vouchers.wei_per_submission > 0
        return before is not None and database.forget_before(int(before), pays=pays, disputed=disputed(book))

    def _now(self, book: Book) -> float:
        """A file's age is this machine's to say, deadlines are the chain's: a chain that stood still has moved none of them."""
        return min(self._clock.wall(), book.head.time if book.head else 0)

    def _repeat(self, turn: Callable[[], object], pause: float) -> None:
        """Calls `turn` until stopped; what passes is tried again, what does not stops the service."""
        while not self._stop.is_set():
            try:
                again = turn()
            except Exception as error:
                fatal = error if isinstance(error, MurmurationError) and is_fatal(error) else machine.trouble(error)
                if fatal is not None:
                    self._failed = fatal
                    self._stop.set()
                    return
                if isinstance(error, MurmurationError):
                    log.warning("%s; trying again", error)
                else:  # a hub that serves on and publishes nothing would look healthy
                    log.exception("%s failed; trying again", threading.current_thread().name)
                again = False
                self._clock.wait(self._stop, _RETRY_SECONDS)
            if not again:
                self._clock.wait(self._stop, pause)

    def _tell(self, url: str, publisher: Publisher, origin: ShardServer, files: Store, hub: Hub) -> None:
        status = {
            "pid": os.getpid(),
            "url": url,
            "page": None if self._settings.hub.page == "off" else f"{url}/run/{self._settings.chain.run}/",
            "published": publisher.published,
            "bytes_served": origin.counts.bytes_served,
            "waiting_for_bucket": files.waiting if isinstance(files, ArchivedStore) else 0,
            "matrix_challenges": hub.challenges.results,
            "metrics_url": None if self._exporter is None else self._exporter.url,
        }
        write_json(self._layout.hub_status, status)


def is_everywhere(host: str) -> bool:
    """Whether `host` stands for all addresses of this machine, so that it names none."""
    return host.removeprefix("[").removesuffix("]") in ("", "0.0.0.0", "::")  # noqa: S104


def url_of(host: str, port: int) -> str:
    """`host`: a name or an address, an IPv6 one with or without brackets; one that stands for all is this machine's own."""
    bare = host.removeprefix("[").removesuffix("]").lower()
    bare = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(bare, bare)  # noqa: S104
    return f"http://[{bare}]:{port}" if ":" in bare else f"http://{bare}:{port}"


def out_of_reach(book: Book, policy: Policy, spec: RunSpec, now: float, *, spans: int) -> float | None:
    """Block time before which submissions are too old to be trained on, and by so many spans of the policy; None: none is.

    A submission may be in a case for one span (window, appeal, vote); a validator's stake answers for its verdict for another.
    """
    newest = book.newest_publication()
    oldest = None if newest is None else book.publication(newest.data.step - spec.max_lag)
    if oldest is None:
        return None
    return min(now - spans * policy.span, book.time(oldest))


def disputed(book: Book) -> set[bytes]:
    """Submissions that an open case names."""
    return {ref.submission_id(book.run) for case in book.open_cases() for ref in case.refs}


@dataclass(frozen=True)
class Rebuilt:
    """What a rebuilt hub has, and what it should have and does not."""

    files: int
    receipts: int
    lost: tuple[Submission, ...]
    """This hub signed a storage receipt for their files, and they can still be disputed or trained on."""
    absent: tuple[Submission, ...]
    """Such submissions of which nothing here says that they were ever uploaded."""
    lost_receipts: tuple[str, ...]
    """SHA-256 of verdict receipts that came and are gone."""


def rebuild(settings: RunSettings, layout: Layout, spec: RunSpec, key: Key) -> Rebuilt:
    """Recreates the hub's database from chain and store."""
    c = settings.chain
    chain = c.open()
    remove_database(layout.store / CATALOGUE)
    files = open_store(settings, layout)
    if isinstance(files, ArchivedStore):
        files.require_open()  # before the old database goes
    book = Book(
        chain, c.run, _book(layout), first_block=c.first_block
    )  # before the old database goes: it may be in use
    database = Database.anew(_database(layout))
    try:
        found, receipts = Hub(chain, c.run, spec, book, files, database, key).rebuild()
        missing = [s for s in _needed(book, chain.policy(c.run), spec) if not files.holds(s.root)]
        lost = tuple(s for s in missing if files.get("stored", f"{s.id.hex()}.json") is not None)
        absent = tuple(s for s in missing if s not in lost)
        return Rebuilt(found, receipts, lost, absent, tuple(files.lost_receipts()))
    finally:
        database.close()
        files.close()
        book.close()


def _needed(book: Book, policy: Policy, spec: RunSpec) -> Iterator[Submission]:
    """Submissions whose files can still be disputed or trained on, newest first."""
    before = out_of_reach(book, policy, spec, 0 if book.head is None else book.head.time, spans=1)
    named = disputed(book)
    for s in book.newest_submissions():
        if before is None or book.time(s) >= before:
            named.discard(s.id)
            yield s
        else:
            break
    yield from (found for id in sorted(named) if (found := book.submission(id)) is not None)


def open_store(settings: RunSettings, layout: Layout) -> Store:
    """Where hub.store says. Raises ConfigError for a bucket that refuses."""
    hub, chain = settings.hub, settings.chain
    if hub.bucket is None:
        return Store(layout.store)
    # Runs may share a bucket and even a prefix: neither removes what is the other's.
    location = hub.bucket.below(str(chain.chain_id), chain.contract.lower(), str(chain.run))
    bucket = Bucket(location, timeout=hub.store_timeout_seconds)
    return ArchivedStore(layout.store, bucket, cache_bytes=hub.store_cache_bytes, links=hub.store_links)


def _book(layout: Layout) -> Path:
    layout.hub.mkdir(parents=True, exist_ok=True)
    return layout.book


def _database(layout: Layout) -> Path:
    layout.hub.mkdir(parents=True, exist_ok=True)
    return layout.hub / "hub.sqlite"
