"""What the hub accepts: committed files from their own nodes, receipts from seated validators, within quotas.

Knows the chain through a book of it that service.py keeps polling, and decides by nothing else: what a request costs in calls to
the chain is bounded in looks.py. Every refusal is one of our errors and is counted.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eth_utils import is_checksum_address

from protocol import canonical, metrics
from protocol.chain import Chain
from protocol.chain.events import Appointed
from protocol.chain.sync import Book
from protocol.chain.view import Submission
from protocol.clock import SYSTEM, Clock
from protocol.constants import UPLOAD_SECONDS_MAX
from protocol.environments.taskfile import path_of
from protocol.errors import Malformed, MurmurationError, Oversized, Unavailable
from protocol.hub import challenges as challenge_wire
from protocol.hub.challenges import Message
from protocol.hub.need import NEED_SECONDS, REPEATED_SECONDS, SignedNeed
from protocol.hub.wire import (
    ADDRESS,
    EXPIRY,
    NEED_TAG_LENGTH,
    NONCE,
    OPINIONS_OPEN_MAX,
    PAGE,
    SIGNATURE,
    Refused,
    Stored,
    check_write,
)
from protocol.identity import Key
from protocol.runspec import RunSpec
from protocol.shell.home import read_json
from protocol.signing import Need, StorageReceipt
from protocol.verdict import Outcome, Receipt
from trainer.hub.bells import Bells
from trainer.hub.challenges import Challenges
from trainer.hub.database import Database
from trainer.hub.looks import Looks
from trainer.hub.store import Store

_UPLOADED = metrics.counter("murmur_hub_uploaded_bytes_total", "Bytes of rollout files that were taken.")
_RECEIPTS = metrics.counter("murmur_hub_receipts_total", "Verdict receipts that were taken, by outcome.", "outcome")
_RECEIPTS.from_zero(*(outcome.name.lower() for outcome in Outcome))
_NEED_SECONDS = 0.25  # between looks at what the trainer needs, while nodes wait to hear it
_TOLD_AT_ONCE = 12  # nodes, after each look: so many answers a second, however often that changes
_PAGES_KEPT = 16  # of listings, for those who follow them; the newest
FORBIDDEN, NOT_FOUND, CONFLICT, TOO_MANY = 403, 404, 409, 429


@dataclass(frozen=True)
class Quota:
    """Per seat."""

    writes_per_minute: int = 600
    bytes_per_hour: int = 4 << 30


@dataclass
class Allowance:
    """Token buckets of one seat: refilled as time passes, spent by writing."""

    quota: Quota
    writes: float = field(init=False)
    size: float = field(init=False)
    clock: Clock = SYSTEM
    last: float = field(init=False)

    def __post_init__(self) -> None:
        self.last = self.clock.monotonic()
        self.writes, self.size = float(self.quota.writes_per_minute), float(self.quota.bytes_per_hour)

    def spend(self, size: int) -> bool:
        now = self.clock.monotonic()
        passed, self.last = now - self.last, now
        self.writes = min(self.quota.writes_per_minute, self.writes + passed * self.quota.writes_per_minute / 60)
        self.size = min(self.quota.bytes_per_hour, self.size + passed * self.quota.bytes_per_hour / 3600)
        if self.writes < 1 or self.size < size:
            return False
        self.writes -= 1
        self.size -= size
        return True


class Hub:
    """All methods are called from the server's event loop, except `learn`, which any thread may call."""

    def __init__(
        self, chain: Chain, run: int, spec: RunSpec, book: Book, store: Store, database: Database, key: Key,
        quota: Quota | None = None, *, looks_per_minute: int = 30, clock: Clock = SYSTEM,
    ) -> None:  # fmt: skip
        """`looks_per_minute`: how many looks at the chain requests may cause, in all (looks.py)."""
        self.run = run
        self.spec = spec
        self.refused: Counter[str] = Counter()
        self.challenges = Challenges(clock)
        self._chain = chain
        self._book = book
        self._store = store
        self._db = database
        self._key = key
        self._quota = quota or Quota()
        self._clock = clock
        self._allowances: dict[str, Allowance] = {}
        self._looks = Looks(book, looks_per_minute, clock)
        self.bells = Bells()
        self._pages: dict[tuple[str, int], tuple[tuple[int, int], bytes]] = {}
        self._writing: set[bytes] = set()
        self._need: tuple[Any, SignedNeed] | None = None
        self._watching: asyncio.Task[None] | None = None

    # ---- the chain -----------------------------------------------------------------------------------------------------

    def learn(self) -> None:
        """Reads new events of the chain."""
        self._looks.take()

    @property
    def now(self) -> int:
        """Block time."""
        return self._book.head.time if self._book.head else 0

    async def commitment(self, submission: bytes) -> Submission:
        """What was committed to. A node uploads right after its transaction was mined: so look once more."""
        found = await self._looks.find(lambda: self._book.submission(submission))
        if found is None:
            raise Refused("no such commitment on chain", NOT_FOUND)
        return found

    # ---- writing -------------------------------------------------------------------------------------------------------

    async def upload(self, submission: bytes, request: Signed, parts: AsyncIterator[bytes]) -> dict[str, Any]:
        """Stores the file of a committed submission. A file that is there already is answered with its receipt again."""
        submitted = await self.commitment(submission)
        address, nonce = self._signer(request, submitted.root)
        if address != submitted.node:
            raise Refused("this submission is another node's", FORBIDDEN)
        committed_at = await asyncio.to_thread(self._book.time, submitted)
        known = self._kept(submission)
        if known is not None:
            return known
        if self.now > committed_at + self.spec.upload_grace_seconds:
            raise Refused(f"uploaded more than {self.spec.upload_grace_seconds} s after the commitment", FORBIDDEN)
        if submission in self._writing:  # perhaps over a connection that is dead and does not know it yet
            raise Unavailable("this file is being uploaded already")
        cap = self._declared_size(request)
        self._admit(address, nonce, request, cap)
        self._writing.add(submission)
        try:
            async with asyncio.timeout(UPLOAD_SECONDS_MAX):
                size = await self._store.receive(submitted.root, parts, cap=cap)
        except TimeoutError as error:
            raise Unavailable(f"the upload took longer than {UPLOAD_SECONDS_MAX} s") from error
        finally:
            self._writing.discard(submission)
        receipt = StorageReceipt(self.run, submission, submitted.root, size, self.now)
        stored = Stored(receipt, receipt.sign(self._key, self._chain.domain)).as_json()
        text = json.dumps(stored)
        self._store.put("stored", f"{submission.hex()}.json", text.encode())
        self._db.add_stored(submission, submitted.root, size, text, receipt.time)
        _UPLOADED.add(size)
        self.bells.ring(("file", submitted.root))
        return stored

    async def add_receipt(self, data: bytes, request: Signed) -> None:
        """Takes a verdict of a seated validator; its first word on a submission stands."""
        address = await self._validator(request, data)
        receipt = Receipt.parse(data, self._chain.domain, self.run)
        if receipt.validator != address:
            raise Refused("this receipt is another validator's", FORBIDDEN)
        submitted = await self.commitment(receipt.submission)
        if await asyncio.to_thread(self._book.time, submitted) < self._db.since:  # else it could be paid for again
            raise Refused("so old a submission is not judged any more", FORBIDDEN)
        if not self._db.has_receipt(receipt.submission, address):
            self._store.note_arrival(data, self.now)  # before it is listed: pay looks it up there
        if self._db.add_receipt(receipt.submission, address, data, self.now, receipt.details.node):
            self._store.put("receipts", f"{hashlib.sha256(data).hexdigest()}.json", data)
            _RECEIPTS.add(outcome=receipt.outcome.name.lower())
            self.bells.ring("receipts")
            self.bells.ring(("receipts", receipt.details.node))

    async def add_opinion(self, data: bytes, request: Signed) -> None:
        """A validator asks the others to check a submission as well."""
        address = await self._validator(request, data)
        value = canonical.decode(data, cap=256, what="request")
        if not isinstance(value, dict) or set(value) != {"submission"} or not isinstance(value["submission"], str):
            raise Malformed("a request names a submission")
        submission = bytes32(value["submission"])
        await self.commitment(submission)
        if self._db.open_opinions(address) >= OPINIONS_OPEN_MAX:
            raise Refused(f"asked about {OPINIONS_OPEN_MAX} submissions without a receipt of its own on them", CONFLICT)
        if self._db.add_opinion(submission, address, self.now):
            self.bells.ring("opinions")

    async def add_message(self, node: str, data: bytes, request: Signed) -> None:
        """Takes the next message of a challenge: of a seated validator, or of the seat that one has asked."""
        value = challenge_wire.read(data)
        if value["say"] == challenge_wire.RESULT:
            challenge_wire.outcome_of(value)
        if request.headers.get(ADDRESS) == node:  # only where a dialogue with it is open
            speaker, nonce = self._signer(request, hashlib.sha256(data).digest())
            self.challenges.require_turn(node, speaker, value)
            self._admit(speaker, nonce, request, len(data))
        else:
            speaker = await self._validator(request, data)
            self.challenges.require_turn(node, speaker, value)
        headers = {name: request.headers[name] for name in (ADDRESS, NONCE, EXPIRY, SIGNATURE)}
        self.challenges.say(node, speaker, Message(headers, value), self.now)
        self.bells.ring(("challenge", node))

    def _declared_size(self, request: Signed) -> int:
        """Bytes the upload may have: what it declares, at most the run's cap."""
        declared = request.headers.get("content-length", "")
        size = int(declared) if declared.isdecimal() else self.spec.file_bytes_max
        if size > self.spec.file_bytes_max:
            raise Oversized(f"{size} bytes, more than {self.spec.file_bytes_max}")
        return size

    async def _validator(self, request: Signed, data: bytes) -> str:
        address, nonce = self._signer(request, hashlib.sha256(data).digest())
        if not await self._looks.find(lambda: address in self._book.validators(self.now) or None):
            raise Refused(f"{address} holds no validator seat", FORBIDDEN)
        self._admit(address, nonce, request, len(data))
        return address

    def _signer(self, request: Signed, body: bytes) -> tuple[str, bytes]:
        return check_write(
            request.headers,
            self._chain.domain,
            run=self.run,
            method=request.method,
            path=request.path,
            body=body,
            now=self.now,
        )

    def _admit(self, address: str, nonce: bytes, request: Signed, size: int) -> None:
        """Spends nonce and quota. Only seated keys get here, so nobody else can fill these tables."""
        if not self._db.use_nonce(nonce, int(request.headers[EXPIRY]), self.now):
            raise Refused("this write was sent before", CONFLICT)
        if not self._allowances.setdefault(address, Allowance(self._quota, self._clock)).spend(size):
            raise Refused("quota of this seat is used up; wait a little", TOO_MANY)

    # ---- reading -------------------------------------------------------------------------------------------------------

    def stored(self, submission: bytes) -> dict[str, Any]:
        kept = self._kept(submission)
        if kept is None:
            raise Refused("not uploaded", NOT_FOUND)
        return kept

    def _kept(self, submission: bytes) -> dict[str, Any] | None:
        """The storage receipt of a file that is here; signed anew where it came while another key was the trainer's."""
        text = self._db.stored(submission)
        if text is None:
            return None
        stored, domain = Stored.read(json.loads(text)), self._chain.domain
        if stored.receipt.signer(stored.signature, domain) != self._key.address:
            stored = Stored(stored.receipt, stored.receipt.sign(self._key, domain))
        return stored.as_json()

    def need(self, path: Path) -> dict[str, Any]:
        """As `signed_need`, as JSON."""
        return self.signed_need(path).as_json()

    def signed_need(self, path: Path) -> SignedNeed:
        """What the trainer has written there that it needs, signed; the same statement again until it says something else. One that it has not
        said again for so long that it may have ended is refused, and nodes work as without advice; that nothing more is wanted stays true."""
        is_renewed, said = self._is_renewed(path), read_json(path)
        if said is None or not (is_renewed or said["step"] == said["last"]):
            raise Refused("the trainer has not said what it needs", NOT_FOUND)
        known = self._need
        if known is None or known[0] != said or known[1].need.until < self.now + NEED_SECONDS // 2:
            need = Need(run=self.run, **said, until=self.now + NEED_SECONDS)
            known = self._need = said, SignedNeed.issue(need, self._key, self._chain.domain)
        return known[1]

    def _is_renewed(self, path: Path) -> bool:
        try:
            age = self._clock.wall() - path.stat().st_mtime
        except OSError:
            return False
        return abs(age) <= REPEATED_SECONDS  # a time to come is of a clock that was set back: it must not hold for ever

    def voucher(self, validator: str) -> dict[str, Any]:
        """What the run has promised a validator so far (vouchers.py)."""
        text = self._store.get("vouchers", f"{validator}.json")
        if text is None:
            raise Refused("nothing is owed to this validator yet", NOT_FOUND)
        return json.loads(text)

    def promised(self, validator: str) -> int:
        """Wei that the voucher of now is worth in all; 0 where there is none."""
        text = self._store.get("vouchers", f"{validator}.json")
        return 0 if text is None else int(json.loads(text)["total"])

    async def link(self, root: bytes, wait: float, *, near: bool) -> str | None:
        """Where else the file can be read, see Store.link."""
        await self.bells.wait((("file", root),), lambda: self._store.holds(root), wait)
        return await self._store.link(root, near=near)

    async def file(self, root: bytes, wait: float) -> Path:
        await self.bells.wait((("file", root),), lambda: self._store.holds(root), wait)
        path = await self._store.fetch(root)
        if path is None:
            raise Refused("no such file", NOT_FOUND)
        return path

    def pinned_file(self, digest: bytes) -> Path:
        """A file that the run spec names, as it lies on this machine."""
        for file in self.spec.pinned_files:
            if file.sha256 == digest.hex() and path_of(file).exists():
                return path_of(file)
        raise Refused("no such file", NOT_FOUND)

    async def page(self, listing: str, after: int, mark: bytes, wait: float) -> bytes:
        """JSON of a page of `receipts` or `opinions`; many who ask for the same page share one. `mark`: see Database.start."""
        start = self._db.start(listing, after, mark)
        await self.bells.wait((listing,), lambda: self._db.has_more(listing, start), wait)
        return self._page(listing, start)

    async def pages(self, marks: Mapping[str, tuple[int, bytes]], wait: float) -> bytes:
        """JSON of a page of each of several listings, once one of them has something; `marks`: (after, mark) of each."""
        starts = {listing: self._db.start(listing, *mark) for listing, mark in marks.items()}

        def is_new() -> bool:
            return any(self._db.has_more(listing, start) for listing, start in starts.items())

        await self.bells.wait(tuple(starts), is_new, wait)
        fields = (b'"%b":%b' % (listing.encode(), self._page(listing, start)) for listing, start in starts.items())
        return b"{%b}" % b",".join(fields)

    def _page(self, listing: str, start: int) -> bytes:
        state = self._db.newest(listing), self._db.since
        made = self._pages.get((listing, start))
        if made is None or made[0] != state:
            if len(self._pages) >= _PAGES_KEPT:
                self._pages.clear()
            entries = (self._db.receipts if listing == "receipts" else self._db.opinions)(start, PAGE)
            if listing == "opinions":
                entries = [(number, b'{"submission":"%b"}' % data.hex().encode()) for number, data in entries]
            made = self._pages[listing, start] = state, b"{%b}" % self._listed(entries, start)
        return made[1]

    async def news(
        self, nodes: Sequence[str], after: int, mark: bytes, challenge: str, said: str, wait: float, need_file: Path
    ) -> bytes:
        """JSON of what concerns one node: receipts of its submissions, whether it is challenged, and what the trainer needs. Held back
        until one of them is other than what it names."""
        start = self._db.start("receipts", after, mark)

        def is_new() -> bool:
            return (
                bool(self._db.receipts_of(nodes, start, 1))
                or self.challenges.name(nodes[0]) not in ("", challenge)
                or self._needs(need_file)[0] != said
            )

        self._watch(need_file)
        topics = (*(("receipts", node) for node in nodes), ("challenge", nodes[0]), "need")
        await self.bells.wait(topics, is_new, wait)
        tag, need = self._needs(need_file)
        listed = self._listed(self._db.receipts_of(nodes, start, PAGE), start)
        told = json.dumps({"challenge": self.challenges.name(nodes[0]), "need": need, "tag": tag})
        return b"{%b,%b" % (listed, told[1:].encode())

    def _listed(self, entries: Sequence[tuple[int, bytes]], start: int) -> bytes:
        """The fields of a listing, whose values are JSON already."""
        listed = b",".join(b'{"id":%d,"value":%b}' % entry for entry in entries)
        return b'"entries":[%b],"from":%d,"since":%d' % (listed, start, self._db.since)

    def _needs(self, path: Path) -> tuple[str, dict[str, Any] | None]:
        """What the trainer needs, and a name of what it said: the same while only its time is renewed."""
        try:
            need = self.need(path)
        except Refused:
            return "", None
        said = {name: value for name, value in need.items() if name not in ("until", "signature")}
        return hashlib.sha256(canonical.encode(said)).hexdigest()[:NEED_TAG_LENGTH], need

    def _watch(self, path: Path) -> None:
        """Rings when the trainer says something else, for as long as somebody waits for that."""
        if self._watching is not None and not self._watching.done():
            return

        async def watch() -> None:
            tag = self._needs(path)[0]
            await asyncio.sleep(_NEED_SECONDS)
            while self.bells.waits("need"):
                before, tag = tag, self._needs(path)[0]
                if tag != before:
                    self.bells.ring("need", at_once=_TOLD_AT_ONCE)
                await asyncio.sleep(_NEED_SECONDS)

        self._watching = asyncio.create_task(watch())

    async def messages(self, node: str, after: int, wait: float) -> list[Message]:
        """What was said in the challenge of a seat, after so many messages."""
        await self.bells.wait((("challenge", node),), lambda: bool(self.challenges.said(node, after)), wait)
        return self.challenges.said(node, after)

    # ---- rebuilding ----------------------------------------------------------------------------------------------------

    def rebuild(self) -> tuple[int, int]:
        """Fills an empty database from store and chain; returns (files, receipts) found. The chain decides what counts."""
        self.learn()
        appointed = (event.data.trainer for event in self._book.events(Appointed))
        trainers = {self._chain.policy(self.run).trainer, self._key.address, *appointed}
        files = receipts = 0
        for _, data in self._store.objects("stored"):
            try:
                stored = Stored.read(json.loads(data))
                if stored.receipt.signer(stored.signature, self._chain.domain) not in trainers:
                    continue
            except (MurmurationError, ValueError):
                continue
            r = stored.receipt
            if self._book.submission(r.submission) is not None and self._store.holds(r.root):
                self._db.add_stored(r.submission, r.root, r.size, data.decode(), r.time)
                files += 1
        for _, data in self._store.objects("receipts"):
            try:
                receipt = Receipt.parse(data, self._chain.domain, self.run)
            except MurmurationError:
                continue
            if self._book.submission(receipt.submission) is not None:
                arrived = self._store.arrival(data)
                time = self.now if arrived is None else arrived
                node = receipt.details.node
                receipts += self._db.add_receipt(receipt.submission, receipt.validator, data, time, node)
        return files, receipts


@dataclass(frozen=True)
class Signed:
    """The signed parts of a request."""

    method: str
    path: str
    headers: Mapping[str, str]


def address(text: str) -> str:
    if not is_checksum_address(text):
        raise Malformed("no address")
    return text


def bytes32(text: str) -> bytes:
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    if len(value) != 32:
        raise Malformed("expected 64 hex digits")
    return value
