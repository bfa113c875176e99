"""Replacing the calibration of a running run: what its owner has asked for, and what goes into the manifests of later versions.

`murmur trainer recalibrate` leaves a request beside the hub's files; the hub's process, which signs manifests, takes it up with the first version that it publishes
from then on. From that version on each manifest repeats the notice. The request changes nothing that is published, so no version is judged by two calibrations.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.calibration import Calibration
from protocol.calibration_notice import CalibrationNotice, require_allowed
from protocol.errors import ConfigError, ProtocolViolation, UsageError
from protocol.notice_book import FILE, NoticeBook
from protocol.runspec import RunSpec
from protocol.shell.home import read_json, write_json

log = logging.getLogger("hub")

_REQUEST = "recalibration.json"
_BEYOND = (
    "what it allows stands in its [spec.verification.recalibration], for as long as the run; a new run may allow more"
)


@dataclass(frozen=True)
class RequestedCalibration:
    """`content` is that of a notice; it is to hold from version `earliest` on, or from a later one."""

    earliest: int
    content: dict[str, Any]

    def notice(self, number: int, since: int) -> CalibrationNotice:
        """Raises Malformed or Oversized for what is none."""
        return CalibrationNotice.parse({**self.content, "number": number, "since": since})


class Recalibrations:
    """Of one run, in the hub's folder."""

    def __init__(self, spec: RunSpec, folder: Path) -> None:
        self._spec = spec
        self.folder = folder
        self._request = folder / _REQUEST
        self.book = NoticeBook(folder / FILE)
        """What published versions say."""

    # ---- the owner's side --------------------------------------------------------------------------------------------------

    @property
    def requested(self) -> RequestedCalibration | None:
        """What waits to be published."""
        value = read_json(self._request)
        if (
            not isinstance(value, dict)
            or type(value.get("earliest")) is not int
            or type(value.get("content")) is not dict
        ):
            return None
        found = RequestedCalibration(value["earliest"], value["content"])
        newest = self.book.newest
        return None if newest is not None and newest.content == found.content else found

    def notice(self, calibration: Calibration, earliest: int, head: int) -> CalibrationNotice:
        """How a calibration would be told from version `earliest` on, `head` being the newest. Raises ConfigError for one that the run does not allow, UsageError
        for versions that are published, or where it is in force."""
        if earliest <= head:
            raise UsageError(
                f"version {earliest} is published: a new calibration holds for later versions only",
                hint=f"--from-version {head + 1} is the earliest",
            )
        newest = self.book.newest
        in_force = self._spec.verification.calibration if newest is None else newest.calibration
        if calibration.digest == in_force:
            raise UsageError(f"calibration {in_force[:12]} is in force already")
        asked = RequestedCalibration(earliest, _content(self._spec, calibration))
        try:
            notice = asked.notice(1 if newest is None else newest.number + 1, earliest)
            require_allowed(self._spec, notice)
        except ProtocolViolation as error:
            raise ConfigError(str(error), hint=_BEYOND) from error
        return notice

    def request(self, notice: CalibrationNotice) -> None:
        """Has it published with the first version from its own on that is published now."""
        write_json(self._request, {"earliest": notice.since, "content": notice.content})

    def withdraw(self) -> bool:
        """Takes back what waits to be published; whether there was anything."""
        waited = self.requested is not None
        self._request.unlink(missing_ok=True)
        return waited

    # ---- the hub's side ----------------------------------------------------------------------------------------------------

    def of(self, step: int) -> CalibrationNotice | None:
        """What the manifest of version `step` is to say."""
        before, request = self.book.of(step), self.requested
        if step <= self.book.last or step < 1 or request is None or step < request.earliest:
            return before
        try:
            notice = request.notice(1 if before is None else before.number + 1, step)
            require_allowed(self._spec, notice)
        except ProtocolViolation as error:  # the file was edited by hand
            log.error("the calibration that was asked for is not published: %s", error)
            return before
        return notice

    def published(self, step: int, notice: CalibrationNotice | None) -> None:
        """Notes what the manifest of version `step` says. Raises Malformed where that contradicts an earlier one."""
        if notice is not None and notice != self.book.newest:
            log.info("published with version %d: %s", step, notice)
        self.book.take(step, notice)


def _content(spec: RunSpec, calibration: Calibration) -> dict[str, Any]:
    """What a notice says of a calibration: those of its limits that the run spec has one of."""
    verification = spec.verification
    limits: dict[str, dict[str, Any]] = {}
    for rule, of in (("computation", calibration.computation), ("sampling", calibration.sampling)):
        own = getattr(verification, rule)
        limits[rule] = {name: value for name, value in of.items() if getattr(own, name, None) is not None}
    noise = calibration.noise if verification.noise is not None else None
    return {"calibration": calibration.digest, **limits, **({} if noise is None else {"noise": noise})}
