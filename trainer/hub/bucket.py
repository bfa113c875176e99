"""An S3-compatible bucket through the package obstore: objects by name, a deadline for every call, our errors for its own.

Endpoint, region and credentials come from the environment, as other S3 tools take them (AWS_ENDPOINT_URL, AWS_REGION,
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, …), or from the machine's role; never from run.toml. An object appears whole or not
at all: S3 shows neither a PUT nor a multipart upload before it is complete. What came of an upload that was broken off is for
the bucket's lifecycle rules to remove.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from protocol import extras
from protocol.errors import ConfigError, MurmurationError, Unavailable
from trainer.location import Location

_CONNECT_SECONDS = 10
_RETRIES = 2  # of one call; who calls tries again later
_PART_BYTES = 5 << 20  # the least that S3 takes as a part of an upload
_PARTS_AT_ONCE = 4
_RANGE_BYTES = 8 << 20
_PAGE = 1000
_LINK_SECONDS = 300  # for which a signed URL is good, by the bucket's clock
_METADATA_SERVICE = "169.254.169.254"


@dataclass(frozen=True)
class Object:
    name: str
    size: int
    modified: float
    """Seconds since the epoch, by the bucket's clock."""


class Bucket:
    """Every call raises Unavailable for what passes by itself and ConfigError for what somebody must put right."""

    def __init__(self, location: Location, *, timeout: float) -> None:
        """`timeout`: seconds that one request may take, of at most 8 MiB."""
        self.location = location
        self._api, self._store = _connect(location, timeout)
        self.is_encrypted = not _endpoint().startswith("http://")
        """Whether everybody may be sent there, not only this machine and its neighbours."""

    def require_writable(self) -> None:
        with self._errors():
            self._api.put(self._store, "probe", b"")
            self._api.delete(self._store, "probe")

    def objects(self) -> Iterator[Object]:
        with self._errors():
            for page in self._api.list(self._store, chunk_size=_PAGE):
                for one in page:
                    yield Object(one["path"], one["size"], one["last_modified"].timestamp())

    def put(self, name: str, source: Path) -> None:
        with source.open("rb") as file, self._errors():
            self._api.put(self._store, name, file, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE)

    def get(self, one: Object, target: Path) -> bool:
        """Writes an object to `target`; False when it is not there."""
        with target.open("wb") as sink:
            for start in range(0, one.size, _RANGE_BYTES):
                part = self._range(one.name, start, min(start + _RANGE_BYTES, one.size))
                if part is None:
                    return False
                sink.write(part)
        return True

    def read(self, name: str, start: int, end: int) -> bytes | None:
        """Bytes of an object from one place to before another; None when it is not there."""
        part = self._range(name, start, end)
        return None if part is None else bytes(part)

    def link(self, name: str) -> str:
        """A URL with which anybody reads this object, and nothing else, for some minutes; whether it is there is not looked at.

        obstore signs the method, the name and the time: no header. So nothing bounds what a signed PUT would bring, and there is none.
        """
        with self._errors():
            return str(self._api.sign(self._store, "GET", name, timedelta(seconds=_LINK_SECONDS)))

    def delete(self, names: Sequence[str]) -> None:
        with self._errors():
            for start in range(0, len(names), _PAGE):
                self._api.delete(self._store, names[start : start + _PAGE])

    def _range(self, name: str, start: int, end: int) -> Any:
        with self._errors():
            try:
                return self._api.get_range(self._store, name, start=start, end=end)
            except FileNotFoundError as error:
                if "NoSuchBucket" in str(error):
                    raise
                return None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            raise _ours(
                type(error).__name__, str(error), self.location
            ) from None  # its own text holds signed requests and whole answers


def _connect(location: Location, timeout: float) -> tuple[Any, Any]:
    try:
        import obstore
        from obstore.store import S3Store
    except ImportError:
        raise ConfigError("a bucket needs the package obstore", hint=extras.how_to_install("s3")) from None
    endpoint = _endpoint()
    plain = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true")
    if endpoint.startswith("http://") and not plain:
        raise ConfigError(
            "AWS_ENDPOINT_URL is not https: rollouts would travel unencrypted",
            hint="AWS_ALLOW_HTTP=true allows it, on a network of your own",
        )
    store = S3Store(
        location.bucket,
        prefix=location.prefix or None,
        client_options={
            "timeout": timedelta(seconds=timeout), "connect_timeout": timedelta(seconds=min(timeout, _CONNECT_SECONDS)),
            "allow_http": plain,
        },
        retry_config={"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=timeout)},
    )  # fmt: skip
    return obstore, store


def _endpoint() -> str:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""


def _ours(kind: str, text: str, location: Location) -> MurmurationError:
    """What an error of obstore means, without its text: that quotes requests and answers."""
    match = re.search(r"<Code>(\w{1,64})</Code>", text) or re.search(r"status code: (\d{3})", text)
    said = match[1] if match else "no answer in time" if "error sending request" in text else kind
    if _METADATA_SERVICE in text:
        return ConfigError(
            f"there are no credentials for {location}", hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if "NoSuchBucket" in text:
        return ConfigError(
            f"there is no bucket {location.bucket} ({said})",
            hint="create it, or correct hub.store, AWS_ENDPOINT_URL or AWS_REGION",
        )
    if "configured region" in text or said in ("301", "PermanentRedirect", "AuthorizationHeaderMalformed"):
        return ConfigError(f"the bucket {location.bucket} is in another region ({said})", hint="set AWS_REGION")
    if "403 Forbidden" in text or "401 Unauthorized" in text:
        return ConfigError(
            f"{location} refuses these credentials ({said})",
            hint="check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: they must list, read, write and delete there",
        )
    return Unavailable(f"{location} cannot be used now ({said})", hint="it is tried again")
