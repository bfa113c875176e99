"""What happens in the sandbox's child while answers are scored, for `murmur env check`: who asks for it gets figures and acts.

An act is something that a verifier has no business with: code made of text is run, a process started, a socket made, a file written.
Python reports these itself (audit events), whoever does them. Does not cover: what libraries in C do on their own.

What `same` of protocol/environments/maths/library.py does is no act: it loads math-verify, which makes code of its own texts, and hands an answer to
a bounded fork alone. The fork is not watched: what it may do is that module's business, and its only word is its exit status.

Source: Python's audit events table (docs.python.org/3/library/audit_events.html).
"""

from __future__ import annotations

import os
import resource
import sys
import time
from types import CodeType
from typing import Any

_MOST = 20  # acts that are kept
_ALWAYS = (
    "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "os.kill", "os.killpg", "pty.spawn",
    "subprocess.Popen", "socket.__new__", "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink",
    "os.truncate", "os.putenv", "os.unsetenv", "pickle.find_class", "sys.settrace", "sys.setprofile", "ctypes.dlopen",
)  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Watch:
    """Of what happens while it is entered. Python's audit hooks cannot be taken back, so a process has one."""

    def __init__(self) -> None:
        self._acts: list[str] = []
        self._looks = False
        sys.addaudithook(self._note)

    def __enter__(self) -> None:
        self._looks = True

    def __exit__(self, *_: object) -> None:
        self._looks = False

    def told(self) -> dict[str, Any]:
        """CPU seconds and peak memory in bytes of this process, and the acts since the last time."""
        acts, self._acts = self._acts, []
        unit = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        return {"seconds": time.process_time(), "peak": peak, "acts": acts}

    def _note(self, event: str, of: tuple[Any, ...]) -> None:
        if self._looks and len(self._acts) < _MOST and (act := _act(event, of)) is not None and not _is_math_verifys():
            self._acts.append(act)


def _is_math_verifys() -> bool:
    """Whether our own `same` is at work: by its code, which no name that a stranger gives to something is taken for."""
    same: Any = getattr(sys.modules.get("protocol.environments.maths.library"), "same", None)
    frame = sys._getframe() if same is not None else None
    while frame is not None:
        if frame.f_code is same.__code__:
            return True
        frame = frame.f_back
    return False


def _act(event: str, of: tuple[Any, ...]) -> str | None:
    match event, of:
        case "exec", (CodeType() as code,):
            # Modules have files or are frozen; what else is run was text a moment ago.
            made_of_text = not (code.co_filename.startswith("<frozen ") or os.path.isfile(code.co_filename))
            return f"runs text as code ({', '.join(code.co_names[:4]) or code.co_filename})" if made_of_text else None
        case "open", (path, _, int(flags)) if flags & _WRITING and path != os.devnull:
            return f"opens {str(path)[:80]} for writing"
    return event if event in _ALWAYS else None
