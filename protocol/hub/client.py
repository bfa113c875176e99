"""Client of a run's hub: uploads, receipts, opinions, vouchers, within deadlines. The routes: wire.py."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx

from protocol import canonical, runspec
from protocol.clock import SYSTEM, Clock
from protocol.constants import SPEC_BYTES_MAX
from protocol.deadline import Deadline, Transport, why, within
from protocol.errors import HashMismatch, Malformed, MurmurationError, Oversized, Unavailable
from protocol.hub.challenges import ORDER, Message
from protocol.hub.elsewhere import RATE_MIN, Elsewhere, Link
from protocol.hub.listing import Mark
from protocol.hub.need import SignedNeed
from protocol.hub.wire import NEED_TAG_LENGTH, PAGE, WAIT_MAX, Refused, Stored, TryAgain, sign_write
from protocol.identity import Key
from protocol.retry import Backoff
from protocol.runspec import PinnedFile, RunSpec
from protocol.signing import Domain
from protocol.voucher import SignedVoucher

log = logging.getLogger(__name__)
T = TypeVar("T")

_JSON_BYTES_MAX = 32 << 20
_REASON_BYTES_MAX = 4096
_PIECE_BYTES = 64 << 20  # of a task file: a hub ends requests that take minutes
_ELSEWHERE_REST = 600.0  # seconds for which a hub is not asked where its files lie, after that was of no use
_SECONDS = re.compile("[0-9]{1,6}")  # of a Retry-After; a date is none that our hub says
_PAGES_MAX = 64  # per call: whoever reads a listing that never ends would do nothing else
LISTED_MOST = _PAGES_MAX * PAGE
"""Entries of a listing that one call gives: after as many there may be more. Entries."""


@dataclass(frozen=True)
class News:
    """What concerns a node: receipts by number, the dialogue in which it is challenged (empty: none), and what the trainer needs with the
    hub's name for it."""

    receipts: list[tuple[int, bytes]]
    challenge: str
    tag: str
    need: SignedNeed | None


@dataclass(frozen=True)
class Heard:
    """A page of everybody's receipts and one of requests for second opinions (submission ids), by number."""

    receipts: list[tuple[int, bytes]]
    opinions: list[tuple[int, bytes]]


class HubClient:
    """One hub and one run. `now` gives block time, for the expiry of writes; safe to share between threads.

    A call may take `timeout` seconds, besides the wait it asks for and a second for every 64 KiB that it moves; then it
    raises Unavailable. What the hub asks to send again a little later is sent again within another `timeout` seconds, else TryAgain
    is raised; a call that waits for news raises it at once.
    """

    def __init__(
        self,
        url: str,
        run: int,
        domain: Domain,
        *,
        key: Key | None = None,
        now: Callable[[], int] | None = None,
        timeout: float = 20.0,
        clock: Clock = SYSTEM,
    ) -> None:
        self.run = run
        self._domain = domain
        self._key = key
        self._now = now
        self._timeout = timeout
        self._clock = clock
        plain = {"Accept-Encoding": "identity"}  # nothing a hub sends is worth a decompression bomb
        self._http = httpx.Client(
            base_url=url, timeout=timeout + WAIT_MAX, follow_redirects=False, headers=plain, transport=Transport()
        )
        self._elsewhere = Elsewhere(timeout)
        self._useless = Backoff(_ELSEWHERE_REST, clock=clock)  # the places that the hub names

    def close(self) -> None:
        self._http.close()
        self._elsewhere.close()

    def spec(self, digest: bytes) -> RunSpec:
        """The run spec with this digest. Raises HashMismatch when the hub holds another one."""
        return runspec.from_bytes(self._get("spec", cap=SPEC_BYTES_MAX), digest)

    def status(self) -> dict[str, Any]:
        return self._json("status")

    def upload(self, submission: bytes, root: bytes, path: Path, hub: str) -> Stored:
        """Uploads a committed file; `hub` is the address whose storage receipt counts.

        Raises Malformed for a receipt of anything else than this file of this submission.
        """
        data = path.read_bytes()
        stored = self._stored(self._write("PUT", f"submissions/{submission.hex()}", data, root), submission, hub)
        if (stored.receipt.root, stored.receipt.size) != (root, len(data)):
            raise Malformed("the hub's storage receipt is of another file")
        return stored

    def stored(self, submission: bytes, hub: str) -> Stored | None:
        """The storage receipt of a submission, None while its file is not there."""
        try:
            return self._stored(self._json(f"submissions/{submission.hex()}"), submission, hub)
        except Refused as error:
            if error.status == httpx.codes.NOT_FOUND:
                return None
            raise

    def _stored(self, answer: Any, submission: bytes, hub: str) -> Stored:
        stored = Stored.parse(answer, self._domain, hub)
        if (stored.receipt.run, stored.receipt.submission) != (self.run, submission):
            raise Malformed("the hub's storage receipt is of another submission")
        return stored

    def download(self, root: bytes, target: Path, *, cap: int) -> bool:
        """Writes the file of a root to `target`; False when the hub has none. Raises HashMismatch for other bytes.

        The hub may say where else it lies (elsewhere.py). What goes wrong there is no fault of the file: then the hub sends it itself.
        """
        partial = target.with_suffix(".part")
        try:
            if self._fetch(f"files/{root.hex()}", root, partial, cap) != root:
                raise HashMismatch(f"the hub's file for {root.hex()} holds other bytes")
            os.replace(partial, target)
        except Refused as error:
            if error.status == httpx.codes.NOT_FOUND:
                return False
            raise
        finally:
            partial.unlink(missing_ok=True)
        return True

    def _fetch(self, path: str, root: bytes, partial: Path, cap: int) -> bytes:
        """Writes a file to `partial`, from wherever the hub says, and returns its SHA-256."""
        if not self._useless.left():
            found = self._patiently(lambda: self._send(f"{path}?direct=1", partial, cap, leads=True))
            if isinstance(found, bytes):
                return found
            try:
                with partial.open("wb") as file:
                    if self._elsewhere.fetch(found, file, cap=cap) == root:
                        return root
                log.warning("the place that the hub named for %s holds other bytes; asking the hub itself", root.hex())
            except MurmurationError as error:
                log.info("%s; asking the hub itself", error)
            self._useless.failed()
        found = self._patiently(lambda: self._send(path, partial, cap))
        assert isinstance(found, bytes)
        return found

    def _send(self, path: str, partial: Path, cap: int, *, leads: bool = False) -> bytes | Link:
        hashed = hashlib.sha256()
        with self._call("GET", path, leads=leads) as (response, deadline), partial.open("wb") as file:
            if response.status_code == httpx.codes.TEMPORARY_REDIRECT:
                return Link.of(response)
            for part in _parts(response, deadline, cap):
                hashed.update(part)
                file.write(part)
        return hashed.digest()

    def download_pinned(self, file: PinnedFile, target: Path) -> None:
        """Writes a file that the spec names to `target`, in pieces; after Unavailable the same call goes on. Raises HashMismatch."""
        partial = target.with_suffix(".part")
        with partial.open("ab") as sink:
            while (start := sink.tell()) < file.size:
                end = min(start + _PIECE_BYTES, file.size)
                piece = {"Range": f"bytes={start}-{end - 1}"}
                with self._call("GET", f"tasks/{file.sha256}", headers=piece) as (response, deadline):
                    for part in _parts(response, deadline, end - start):
                        sink.write(part)
                if sink.tell() != end:
                    raise Unavailable("the hub broke a file off")
        with partial.open("rb") as whole:
            found = hashlib.file_digest(whole, "sha256").hexdigest()
        if found != file.sha256:
            partial.unlink()
            raise HashMismatch(f"the hub's file for {file.sha256} holds other bytes")
        os.replace(partial, target)

    def post_receipt(self, receipt: bytes) -> None:
        self._write("POST", "receipts", receipt, hashlib.sha256(receipt).digest())

    def receipts(self, after: int | Mark, *, wait: int = 0) -> Iterator[tuple[int, bytes]]:
        """(cursor, receipt bytes) of everybody's receipts after a cursor, all but for a bound; they still have to be checked."""
        for cursor, value in self._listing("receipts", after, wait):
            yield cursor, _reencode(value)

    def ask_opinion(self, submission: bytes) -> None:
        body = canonical.encode({"submission": submission.hex()})
        self._write("POST", "opinions", body, hashlib.sha256(body).digest())

    def opinions(self, after: int | Mark, *, wait: int = 0) -> Iterator[tuple[int, bytes]]:
        """(cursor, submission id) of requests for a second opinion."""
        for cursor, value in self._listing("opinions", after, wait):
            yield cursor, _asked_about(value)

    def heard(self, receipts: Mark, opinions: Mark, *, wait: int = 0) -> Heard:
        """A page of both listings, each after a mark; with `wait` once one of them has something."""
        where = f"{_place(receipts, 'receipts')}&{_place(opinions, 'opinions')}&wait={wait}"
        answer = self._json(f"listings?{where}", wait=wait)
        if not isinstance(answer, dict):
            raise Malformed("the hub's listings make no sense")
        said = _entries(answer.get("receipts"), "receipts", receipts)
        asked = _entries(answer.get("opinions"), "opinions", opinions)
        return Heard(
            [(number, _reencode(value)) for number, value in said],
            [(number, _asked_about(value)) for number, value in asked],
        )

    def need(self, trainer: str) -> SignedNeed | None:
        """What the run's trainer still wants, by its own word; None where it says nothing. Whether that still holds is for the caller."""
        try:
            answer = self._json("need")
        except Refused as error:
            if error.status == httpx.codes.NOT_FOUND:
                return None
            raise
        return SignedNeed.parse(answer, self._domain, self.run, trainer)

    def voucher(self, validator: str, trainer: str) -> SignedVoucher | None:
        """What the run has promised a validator, signed by its trainer; None while nothing is."""
        try:
            answer = self._json(f"vouchers/{validator}")
        except Refused as error:
            if error.status == httpx.codes.NOT_FOUND:
                return None
            raise
        return SignedVoucher.parse(answer, self._domain, self.run, validator, trainer)

    def news(
        self, node: str, mark: Mark, *, trainer: str, also: Sequence[str] = (), challenge: str = "", tag: str = "", wait: int = 0
    ) -> News:  # fmt: skip
        """What concerns a node, once that is other than it was: see wire.py. Raises Malformed, and BadSignature for a need that `trainer` did
        not sign."""
        known = f"&also={'+'.join(also)}&challenge={challenge}&need={tag}&wait={wait}"
        answer = self._json(f"nodes/{node}?{_place(mark)}{known}", wait=wait)
        entries = [(number, _reencode(value)) for number, value in _entries(answer, "a node's receipts", mark)]
        try:
            challenge, tag, need = answer["challenge"], answer["tag"], answer["need"]
        except (KeyError, TypeError) as error:
            raise Malformed("the hub's news make no sense") from error
        for name, digits in ((challenge, 64), (tag, NEED_TAG_LENGTH)):
            if not isinstance(name, str) or not re.fullmatch(f"([0-9a-f]{{{digits}}})?", name):
                raise Malformed("the hub's news have a name that is none")
        signed = None if need is None else SignedNeed.parse(need, self._domain, self.run, trainer)
        return News(entries, challenge, tag, signed)

    def say(self, node: str, value: dict[str, Any]) -> None:
        """Says the next message of a seat's challenge."""
        body = canonical.encode(value)
        self._write("POST", f"challenges/{node}", body, hashlib.sha256(body).digest())

    def said(self, node: str, after: int, *, wait: int = 0) -> list[tuple[str, dict[str, Any]]]:
        """(signer, body) of the messages of a seat's challenge but for the first `after`. Raises BadSignature where one says what nobody
        signed, or is too old."""
        assert self._now is not None
        answer = self._json(f"challenges/{node}?after={after}&wait={wait}", wait=wait)
        listed = answer.get("messages") if isinstance(answer, dict) else None
        if not isinstance(listed, list) or len(listed) > len(ORDER):
            raise Malformed("the hub's messages make no sense")
        if not listed:
            return []
        messages, now = [Message.parse(one) for one in listed], self._now()
        path = self._path(f"challenges/{node}")
        return [(message.signer(self._domain, self.run, path, now), message.value) for message in messages]

    # ---- HTTP ----------------------------------------------------------------------------------------------------------

    def _path(self, path: str) -> str:
        return f"/v1/runs/{self.run}/{path}"

    def _listing(self, what: str, after: int | Mark, wait: int) -> Iterator[tuple[int, Any]]:
        mark = after if isinstance(after, Mark) else Mark(after)
        for _ in range(_PAGES_MAX):
            page = self._json(f"{what}?{_place(mark)}&wait={wait}", wait=wait)
            entries = _entries(page, what, mark)
            yield from entries
            if len(entries) < PAGE:
                return
            mark, wait = Mark(entries[-1][0]), 0

    def _json(self, path: str, *, wait: int = 0) -> Any:
        return canonical.parse(self._get(path, cap=_JSON_BYTES_MAX, wait=wait), f"the hub's answer to {path}")

    def _get(self, path: str, *, cap: int, wait: int = 0) -> bytes:
        def once() -> bytes:
            with self._call("GET", path, seconds=wait) as (response, deadline):
                return b"".join(_parts(response, deadline, cap))

        return once() if wait else self._patiently(once)  # who waits for news has better to do than to wait here

    def _write(self, method: str, path: str, data: bytes, digest: bytes) -> Any:
        return self._patiently(lambda: self._write_once(method, path, data, digest))

    def _patiently(self, action: Callable[[], T]) -> T:
        """Does it again when the hub says so, where that is within the timeout."""
        until = self._clock.monotonic() + self._timeout
        level = logging.DEBUG  # once is usual: what it is asked about is newer than what it has read
        while True:
            try:
                return action()
            except TryAgain as error:
                pause = error.pause
                if self._clock.monotonic() + pause > until:
                    raise
                log.log(level, "%s; trying again after %.1f s", error, pause)
                level = logging.INFO
                self._clock.sleep(pause)

    def _write_once(self, method: str, path: str, data: bytes, digest: bytes) -> Any:
        if self._key is None or self._now is None:
            raise ValueError("this client has no key to write with")
        headers = sign_write(
            self._key, self._domain, run=self.run, method=method, path=self._path(path), body=digest, now=self._now()
        )
        with self._call(method, path, data, headers, seconds=len(data) / RATE_MIN) as (response, deadline):
            answer = b"".join(_parts(response, deadline, _JSON_BYTES_MAX))
        return canonical.parse(answer, f"the hub's answer to {path}") if answer else None

    @contextmanager
    def _call(
        self, method: str, path: str, data: bytes | None = None, headers: Mapping[str, str] | None = None, *,
        seconds: float = 0.0, leads: bool = False,
    ) -> Iterator[tuple[httpx.Response, Deadline]]:  # fmt: skip
        """An answer that says yes, and the deadline for reading it; `seconds` are granted on top of the timeout. `leads`: it may also
        say where else to go."""
        try:
            with (
                within(self._timeout + seconds) as deadline,
                self._http.stream(method, self._path(path), content=data, headers=headers) as response,
            ):
                if not (leads and response.status_code == httpx.codes.TEMPORARY_REDIRECT):
                    _require_ok(response, deadline)
                yield response, deadline
        except httpx.HTTPError as error:
            raise Unavailable(f"the hub did not answer {path}: {why(error)}") from error
        except ValueError as error:
            raise Malformed(f"the hub's answer to {path} makes no sense") from error


def _require_ok(response: httpx.Response, deadline: Deadline) -> None:
    if response.is_success:
        return
    try:
        reason = str(b"".join(_parts(response, deadline, _REASON_BYTES_MAX)), "utf-8", "replace")
    except Oversized:
        reason = "for a reason too long to read"
    after = response.headers.get("retry-after", "")
    if response.status_code == httpx.codes.SERVICE_UNAVAILABLE and _SECONDS.fullmatch(after):
        raise TryAgain(f"the hub cannot say yet: {reason[:300]}", max(1, int(after)))
    if response.status_code >= 500 or response.status_code == httpx.codes.TOO_MANY_REQUESTS:
        raise Unavailable(f"the hub cannot answer now ({response.status_code}): {reason[:300]}")
    raise Refused(f"the hub refused ({response.status_code}): {reason[:300]}", response.status_code)


def _parts(response: httpx.Response, deadline: Deadline, cap: int) -> Iterator[bytes]:
    """The body as it was sent: raw, for a hub that compresses what nobody asked it to could make one byte a thousand."""
    size = 0
    for part in response.iter_raw():
        size += len(part)
        if size > cap:
            raise Oversized(f"the hub's answer has more than {cap} bytes")
        deadline.extend(len(part) / RATE_MIN)
        yield part


def _place(mark: Mark, listing: str = "") -> str:
    """`listing`: which, where a request names two."""
    after, digest = (listing, f"{listing}_mark") if listing else ("after", "mark")
    return f"{after}={mark.number}" + (f"&{digest}={mark.digest.hex()}" if mark.digest else "")


def _asked_about(value: Any) -> bytes:
    try:
        return bytes.fromhex(value["submission"])
    except (KeyError, TypeError, ValueError) as error:
        raise Malformed("the hub lists a request that is none") from error


def _entries(page: Any, what: str, mark: Mark) -> list[tuple[int, Any]]:
    """Of one page of a listing, which goes on after `mark` or begins from the start. Raises Malformed."""
    try:
        entries = [(int(entry["id"]), entry["value"]) for entry in page["entries"]]
        before = int(page["from"]) if mark.digest else mark.number
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise Malformed(f"the hub's listing of {what} makes no sense") from error
    if before not in (mark.number, 0):
        raise Malformed(f"the hub's listing of {what} begins anywhere")
    for number, _ in entries:
        if not before < number < 1 << 63:
            raise Malformed(f"the hub's listing of {what} goes backwards")
        before = number
    if len(entries) > PAGE:
        raise Malformed(f"the hub's listing of {what} has more than a page")
    return entries


def _reencode(value: Any) -> bytes:
    try:
        return canonical.encode(value)
    except ValueError as error:
        raise Malformed("the hub lists a receipt that is none") from error
