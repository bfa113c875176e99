"""`--watch`: what a command prints, printed anew now and then, until Ctrl-C."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from threading import Event
from typing import Any

from protocol.clock import SYSTEM, Clock
from protocol.errors import MurmurationError, UsageError
from protocol.shell.signals import until_signalled

EVERY_SECONDS = 15.0
"""Between looks: as long as a role's own at a public chain."""


def repeat(
    look: Callable[[], Any],
    show: Callable[[Any], None],
    *,
    as_json: bool,
    clock: Clock = SYSTEM,
    stop: Event | None = None,
) -> None:
    """Shows what `look` returns, again and again: on the whole terminal, as far as there is room, or as JSON, an object a line. What cannot be looked at
    now leaves the last look on the screen, with the reason. Raises UsageError where there is no terminal to draw on, and what the first look raises."""
    if not as_json and not sys.stdout.isatty():
        raise UsageError(
            "--watch draws on a terminal, and standard output is none", hint="add --json, or leave --watch out"
        )
    with until_signalled() as ending:
        over = stop or ending
        (_as_lines if as_json else _on_the_screen)(look, show, clock, over)


def _as_lines(look: Callable[[], Any], _: Callable[[Any], None], clock: Clock, over: Event) -> None:
    import json

    print(json.dumps(look()), flush=True)
    while not clock.wait(over, EVERY_SECONDS):
        try:
            print(json.dumps(look()), flush=True)
        except MurmurationError as error:
            print(json.dumps({"error": str(error)}), flush=True)


def _on_the_screen(look: Callable[[], Any], show: Callable[[Any], None], clock: Clock, over: Event) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    text, problem = _printed(show, look()), ""
    with console.screen() as screen:
        while True:
            looked = time.strftime("%H:%M:%S", time.localtime(clock.wall()))
            state = problem or f"as of {looked}; looked at every {EVERY_SECONDS:.0f} s; Ctrl-C ends"
            screen.update(
                Text("\n".join(fitting(text.splitlines(), state, console.width, console.height)), no_wrap=True)
            )
            if clock.wait(over, EVERY_SECONDS):
                return
            try:
                text, problem = _printed(show, look()), ""
            except MurmurationError as error:
                problem = problem or f"as of {looked}; since then: {error}"


def fitting(lines: list[str], state: str, width: int, height: int) -> list[str]:
    """These lines with a last one that says what state they are in, none wider than the terminal and no more than it has rows."""
    room = max(1, height - 2)
    if len(lines) > room:
        lines = [*lines[: room - 1], f"… {len(lines) - room + 1} more lines"]
    return [line if len(line) <= width else f"{line[: width - 1]}…" for line in (*lines, "", state)]


def _printed(show: Callable[[Any], None], data: Any) -> str:
    with redirect_stdout(io.StringIO()) as printed:
        show(data)
    return printed.getvalue()
