"""The console script `node`, the short form of `murmur node` that contributors type.

Node.js also calls itself `node`. No argument, --help, a command of ours or a word that can only be one mistyped is ours; everything else
(a file, --version, -e) is handed to the next `node` on PATH, so that npx and every `#!/usr/bin/env node` keep working inside the
virtual environment. Only the standard library is imported before that is decided.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

COMMANDS = frozenset(
    {
        "accept", "appeal", "claim", "config", "doctor", "hardware", "init", "join", "leave", "logs", "notify", "offer", "page", "rebond", "rewards", "rotate", "stake", "start",
        "status", "submissions", "unstake", "version", "withdraw",
    }
)  # fmt: skip
"""Commands of node/contributor/commands; a test holds the two together."""
_THEIRS = "inspect"  # the one word that Node.js takes for a command
_EXTENSIONS = ("", ".js", ".json", ".node")  # with which Node.js looks for a file


def main() -> None:
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in COMMANDS or arguments[0] == "--help" or is_mistyped(arguments[0]):
        from node.contributor.commands import app
        from protocol.shell.cli import run

        run(app, "node")
    other = next_node(os.environ.get("PATH", ""))
    if other is None:
        print(f"error: {arguments[0]!r} is no command of ours, and Node.js is not installed", file=sys.stderr)
        print("  try: node --help", file=sys.stderr)
        sys.exit(2)
    os.execv(other, [other, *arguments])  # noqa: S606  the very purpose


def is_mistyped(word: str) -> bool:
    """Whether a word is neither an option nor a file: Node.js could only say that there is no such module."""
    is_plain = word.isascii() and word[:1].isalpha() and word.replace("-", "").isalnum()
    return is_plain and word != _THEIRS and not any(Path(word + extension).exists() for extension in _EXTENSIONS)


def next_node(path: str) -> str | None:
    """The next `node` on PATH that is not this script."""
    own = Path(sys.argv[0]).resolve()
    for folder in path.split(os.pathsep):
        candidate = Path(folder or ".") / "node"
        if (
            candidate.is_file()
            and os.access(candidate, os.X_OK)
            and candidate.resolve() != own
            and not _is_ours(candidate)
        ):
            return str(candidate)
    return None


def _is_ours(candidate: Path) -> bool:
    """Whether it is this very script, installed in another environment; two of them must not call each other for ever."""
    try:
        with candidate.open("rb") as file:
            return b"node.contributor.main" in file.read(400)
    except OSError:
        return False  # ours can be read by whoever may run it
