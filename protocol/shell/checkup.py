"""A check-up: a list of checks, run in order, each with a deadline, each told as it ends; and mended, where that is safe.

A role lists its checks once (role_checks.py has what all roles share, and `node/*/checks.py`, `trainer/commands/checks.py` the lists). A check
that cannot run, because one before it failed, is skipped and says so: it is never a pass.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Generic, Protocol, TypeVar

import typer

from protocol.errors import DeadlineExceeded, MurmurationError
from protocol.http_url import secrets_of
from protocol.logs import LoggingSettings, set_up_logging
from protocol.shell import machine
from protocol.shell.cli import emit

_NAME, _OUTCOME = 10, 8  # letters of the columns
_NARROWEST = 40  # columns; a terminal that says less is not believed


class CheckOutcome(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class CheckResult:
    name: str
    health: CheckOutcome
    detail: str
    hint: str = ""
    """What to do next."""
    exit_code: int = 0
    mended: str = ""
    """What was done about it."""


@dataclass(frozen=True)
class NotChecked:
    """An answer of a check that has nothing to look at."""

    why: str


Answer = str | tuple[str, str] | NotChecked
"""What is well; or a warning and what to do about it."""


class Examined(Protocol):
    """What is looked at: a role in its home."""

    @property
    def urls(self) -> Iterable[str]:
        """URLs with secrets, which nobody is shown."""
        ...

    @property
    def role(self) -> str: ...

    @property
    def then(self) -> str:
        """What to do where nothing is wrong."""
        ...


S = TypeVar("S", bound=Examined)
S_contra = TypeVar("S_contra", bound=Examined, contravariant=True)


class Look(Protocol[S_contra]):
    def __call__(self, subject: S_contra, /) -> Answer: ...


@dataclass(frozen=True)
class Check(Generic[S_contra]):
    name: str
    look: Look[S_contra]
    """Raises MurmurationError for what keeps the role from working, with the next step as its hint."""
    needs: tuple[str, ...] = ()
    """Checks without whose success this one cannot run."""
    starts: bool = False
    """Whether `start` looks first: it takes no network and a few milliseconds, and where it fails the role would end anyway."""
    seconds: float = 10.0
    mend: Callable[[S_contra], str] | None = None
    """Does what is safe about what was found, and says what it did; nothing where there is nothing that it may do."""


def examine(
    checks: Sequence[Check[S]], subject: S, *, fix: bool = False, began: Callable[[str], None] = lambda _: None
) -> Iterator[CheckResult]:
    """Runs the checks and tells of each as it ends; `began` hears the name of the next. With `fix` what may be mended is, and looked at again."""
    missing: set[str] = set()
    for check in checks:
        lacking = next((name for name in check.needs if name in missing), None)
        if lacking is not None:
            result = CheckResult(check.name, CheckOutcome.SKIPPED, f"not checked: it needs {lacking}")
        else:
            began(check.name)
            result = _examined(check, subject)
            if fix and check.mend is not None and result.health in (CheckOutcome.WARNING, CheckOutcome.FAILED):
                result = _mended(check, subject, result)
        if result.health in (CheckOutcome.FAILED, CheckOutcome.SKIPPED):
            missing.add(check.name)
        yield _without_secrets(result, subject)


def require_startable(checks: Sequence[Check[S]], subject: S) -> None:
    """What `start` looks at before it asks for a password or anybody else. Raises what the first failed check does; warnings go to stderr."""
    for check in checks:
        if not check.starts:
            continue
        answer = check.look(subject)
        if isinstance(answer, tuple):
            detail, hint = answer
            typer.echo(f"warning: {check.name}: {detail}" + (f"\n  try: {hint}" if hint else ""), err=True)


def ran(name: str, look: Callable[..., Answer], *arguments: object) -> CheckResult:
    """What a look says, as a result."""
    try:
        answer = look(*arguments)
    except MurmurationError as error:
        return CheckResult(name, CheckOutcome.FAILED, str(error), error.hint, error.exit_code)
    if isinstance(answer, NotChecked):
        return CheckResult(name, CheckOutcome.SKIPPED, f"not checked: {answer.why}")
    if isinstance(answer, tuple):
        return CheckResult(name, CheckOutcome.WARNING, *answer)
    return CheckResult(name, CheckOutcome.OK, answer)


def _examined(check: Check[S], subject: S) -> CheckResult:
    return ran(check.name, lambda: _within(check.seconds, lambda: check.look(subject)))


def _mended(check: Check[S], subject: S, before: CheckResult) -> CheckResult:
    assert check.mend is not None
    mend, done = check.mend, ""

    def tried() -> Answer:
        nonlocal done
        done = mend(subject)
        return done

    refused = ran(check.name, lambda: _within(check.seconds, tried))
    if not done:
        if refused.health == CheckOutcome.FAILED:
            return replace(before, detail=f"{before.detail}; not mended: {refused.detail}")
        return before
    return replace(_examined(check, subject), mended=done)


T = TypeVar("T")


def _within(seconds: float, work: Callable[[], T]) -> T:
    """Does `work` beside this thread. Raises DeadlineExceeded where it takes longer, and goes on by itself until the process ends."""
    ended: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def do() -> None:
        try:
            ended.put((work(), None))
        except BaseException as error:  # noqa: BLE001  it is raised where somebody waits for it
            ended.put((None, error))

    Thread(target=do, name="check", daemon=True).start()
    try:
        value, error = ended.get(timeout=seconds)
    except Empty:
        raise DeadlineExceeded(f"no answer within {seconds:g} s") from None
    if error is None:
        return value  # type: ignore[return-value]
    if isinstance(error, MurmurationError):
        raise error
    raise machine.trouble(error) or MurmurationError(
        f"this should not happen: {type(error).__name__}: {error}", hint="report it, with what this command printed"
    ) from error


def _without_secrets(result: CheckResult, subject: Examined) -> CheckResult:
    def shown(text: str) -> str:
        for secret in (secret for url in subject.urls for secret in secrets_of(url)):
            text = text.replace(secret, "…")
        return text

    return replace(result, detail=shown(result.detail), hint=shown(result.hint), mended=shown(result.mended))


# ---- what a person sees ----------------------------------------------------------------------------------------------------------


def report(checks: Sequence[Check[S]], subject: S, *, fix: bool, as_json: bool) -> None:
    """The whole of a role's `doctor`: prints each check as it ends, and what to do next. Raises typer.Exit with 1 where a check failed."""
    set_up_logging(LoggingSettings(level="ERROR"))  # what else goes wrong, a check says
    progress = _Progress()
    results = []
    for result in examine(checks, subject, fix=fix, began=progress.show):
        progress.clear()
        results.append(result)
        if not as_json:
            tell(result)
    failed = [result for result in results if result.health == CheckOutcome.FAILED]
    then = _next(results) or ("" if failed else subject.then)
    table: dict[str, Any] = {
        "role": subject.role, "ok": not failed, "checks": [asdict(result) for result in results], "next": then,
    }  # fmt: skip
    emit(table, as_json, lambda: typer.echo(_ending(results, then)))
    if failed:
        raise typer.Exit(1)


def tell(result: CheckResult) -> None:
    """One result: outcome, name, what was found; and under it the next step, in one piece, so that it can be copied."""
    begin = f"{result.health:<{_OUTCOME}} {result.name:<{_NAME}} "
    typer.echo(_wrapped(begin, result.detail))
    if result.mended:
        typer.echo(_wrapped(" " * len(begin), f"mended: {result.mended}"))
    if result.hint and result.health in (CheckOutcome.WARNING, CheckOutcome.FAILED):
        typer.echo(f"{'':<{_OUTCOME}}   try: {result.hint}")


def _wrapped(begin: str, text: str) -> str:
    """In the width of the terminal; in one line where there is none."""
    if not sys.stdout.isatty():
        return begin + text
    width, margin = max(_NARROWEST, shutil.get_terminal_size().columns), " " * (_OUTCOME + _NAME + 2)
    return textwrap.fill(text, width, initial_indent=begin, subsequent_indent=margin, break_on_hyphens=False)


def _next(results: Sequence[CheckResult]) -> str:
    """Of the first that failed, else of the first warning."""
    for health in (CheckOutcome.FAILED, CheckOutcome.WARNING):
        for result in results:
            if result.health == health and result.hint:
                return result.hint
    return ""


def _ending(results: Sequence[CheckResult], then: str) -> str:
    counts = {
        health: sum(result.health == health for result in results)
        for health in (CheckOutcome.FAILED, CheckOutcome.WARNING, CheckOutcome.SKIPPED)
    }
    said = ", ".join(f"{count} {health}" for health, count in counts.items() if count)
    if not counts[CheckOutcome.FAILED] and not counts[CheckOutcome.WARNING]:
        said = f"nothing is wrong{f' ({said})' if said else ''}"
    return f"\n{said}" + (f"\nnext: {then}" if then else "")


class _Progress:
    """The name of the check that is running, on the last line of a terminal."""

    def __init__(self) -> None:
        self._is_dirty = False
        self._is_shown = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def show(self, name: str) -> None:
        if self._is_shown:
            typer.echo(f"\r{name} …", nl=False, err=True)
            self._is_dirty = True

    def clear(self) -> None:
        if self._is_dirty:
            typer.echo("\r\x1b[K", nl=False, err=True)
            self._is_dirty = False
