"""An engine in a process of its own: what a role generates with beside work that must not wait for it, nor end with it.

Covers: any engine by its settings; prompts go in, token ids come out. A process that crashes, is killed, runs out of memory or does not
answer in time is an error of the job that it had; the next `load` starts another, after a pause that grows. It ends with `close`, and
with the role, however that ends. The other end is separate_server.py, what passes between them separate_messages.py. Does not cover:
logprobs, proofs and prefill, which whoever needs them has an engine of his own for; a second try at a job.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, RLock
from typing import Any

from node.engine import separate_messages as messages
from node.engine.interface import Completion, Prompt, no_version
from node.engine.process import Hangs, Lost, Process, is_memory
from node.engine.settings import EngineSettings
from node.engine.version_files import VersionFiles
from protocol import errors
from protocol.clock import SYSTEM, Clock
from protocol.errors import DeadlineExceeded, MurmurationError, Unavailable
from protocol.retry import Backoff

log = logging.getLogger(__name__)

_REST_SECONDS, _REST_MOST_SECONDS = 1.0, 300.0  # before another process is started
_SECONDS = 3600.0  # for a job, where nobody says
_TRANSFER_SECONDS = 30.0  # in which some part of a message must come through
_CLOSING_SECONDS = 60.0  # for a job whose process was killed to notice
_SERVER = "node.engine.separate_server"


class SeparateEngine:
    """A `Generator` without proofs. One job at a time; `close` may come from another thread."""

    def __init__(self, compute_dtype: str, settings: EngineSettings, *, clock: Clock = SYSTEM) -> None:
        """`compute_dtype` as the run spec names it."""
        self._dtype = compute_dtype
        self._settings = settings
        self._clock = clock
        self._backoff = Backoff(_REST_SECONDS, _REST_MOST_SECONDS, clock=clock)
        self._left: Callable[[], float] = lambda: _SECONDS
        self._process: Process | None = None
        self._has_engine = False
        self._holds_version = False
        self._closed = Event()
        self._busy = RLock()

    @property
    def pid(self) -> int | None:
        """Of the process, where there is one."""
        return None if self._process is None else self._process.pid

    @contextmanager
    def within(self, left: Callable[[], float]) -> Iterator[None]:
        """What is asked for in the block is done, or given up, while `left` gives seconds. One such block at a time."""
        before, self._left = self._left, left
        try:
            yield
        finally:
            self._left = before

    def begin(self) -> None:
        """Starts the process where there is none, and waits for nothing: it imports meanwhile."""
        with self._busy:
            if self._process is None and not self._closed.is_set():
                self._process = Process(_SERVER, os.environ, _TRANSFER_SECONDS)
                with suppress(Lost):  # what is lost is found to be by who asks it for something
                    self._process.write(messages.encode({"job": "import", "name": self._settings.name}))

    def close(self) -> None:
        """Ends the process for good, whatever it is doing."""
        self._closed.set()
        if (process := self._process) is not None:
            process.kill()
        if self._busy.acquire(timeout=_CLOSING_SECONDS):
            try:
                self._bury()
            finally:
                self._busy.release()

    # ---- as a Generator ------------------------------------------------------------------------------------------------

    def load(self, folder: Path) -> None:
        """Loads a version (node/engine/interface.py), in a new process where the one before was lost.

        Raises what the engine raises, IntegrityError for a version that is gone or not the same when it has been read, Unavailable
        where the process is lost, DeadlineExceeded where the time is over.
        """
        with self._busy:
            self._holds_version = False
            files = VersionFiles.of(folder)
            self._live()
            self._ask("load", folder=str(folder), files=files.as_json())
            self._holds_version = True

    def generate(
        self, prompts: Sequence[Prompt], *, temperature: float, max_new_tokens: int, end_tokens: frozenset[int],
        top_k: int = 0, top_p: float = 1.0, prove: bool = False,
    ) -> list[list[Completion]]:  # fmt: skip
        """Completions per prompt and key, in order, of tokens alone. Raises as `load`; ValueError where the weights compute no numbers."""
        if prove:
            raise ValueError("an engine in a process of its own makes no proofs")
        with self._busy:
            if not self._holds_version:
                raise no_version()
            sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "max_new_tokens": max_new_tokens}
            head, arrays = messages.of_prompts(prompts)
            answer = self._ask("generate", arrays, **head, sampling=sampling, end_tokens=sorted(end_tokens))
            try:
                made = messages.completions(answer, prompts, max_new_tokens)
            except messages.WireError as error:
                raise self._give_up(Lost(f"its answer makes no sense: {error}")) from error
            self._backoff.succeeded()
            return made

    # ---- the process ---------------------------------------------------------------------------------------------------

    def _live(self) -> None:
        """Has a process with an engine in it."""
        if self._process is not None and self._process.has_ended:
            log.warning("the engine's process has ended meanwhile: %s", self._process.lost())
            self._bury()
        if self._process is None:
            pause = self._backoff.left()
            if pause >= self._left():
                raise DeadlineExceeded(f"the engine's process was lost, and rests for {pause:.0f} s more")
            if pause > 0:
                self._clock.wait(self._closed, pause)
        self.begin()
        if not self._has_engine:
            self._ask("start", compute_dtype=self._dtype, settings=self._settings.model_dump(mode="json"))
            self._has_engine = True

    def _ask(self, job: str, arrays: messages.Arrays | None = None, **head: Any) -> messages.Answer:
        """One job, and its answer. Raises what the engine has raised; Unavailable, DeadlineExceeded where the process is lost by it."""
        process, left = self._process, self._left()
        if self._closed.is_set() or process is None:
            raise Unavailable("the engine's process was ended")
        if left <= 0:
            raise DeadlineExceeded("no time is left")
        until = self._clock.monotonic() + left
        try:
            process.write(messages.encode({"job": job, **head}, arrays))
            while True:
                answer = messages.decode(process.read(max(0.0, until - self._clock.monotonic())))
                if "log" not in answer.head:
                    break
                log.log(answer.number("level"), "%s", answer.text("log"))
        except (Lost, messages.WireError) as error:
            raise self._give_up(error) from error
        if "error" in answer.head:
            raise self._raised(answer.text("error"), answer.text("message"), answer.text("hint"))
        return answer

    def _raised(self, name: str, message: str, hint: str) -> Exception:
        """What the engine has raised. After anything that is not of ours the process is lost: nobody knows what state it is in."""
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, MurmurationError) and kind is not errors.TransactionReverted:
            return kind(message, hint=hint or None)
        if name == ValueError.__name__:
            return ValueError(message)
        return self._give_up(Lost(f"{name}: {message}", is_memory=is_memory(f"{name}: {message}")))

    def _give_up(self, error: Exception) -> Unavailable:
        """Ends a process that is lost; what there is to say of it."""
        self._bury()
        if self._closed.is_set():
            return Unavailable("the engine's process was ended", hint="")
        rest = self._backoff.failed()
        log.info("the engine's process was lost; another is started no sooner than in %.0f s", rest)
        kind = DeadlineExceeded if isinstance(error, Hangs) else Unavailable
        full = isinstance(error, Lost) and error.is_memory
        hint = "give it less memory, or another device" if full else ""
        return kind(f"the engine's process was lost: {error}", hint=hint)

    def _bury(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None
        self._has_engine = self._holds_version = False
