"""The console script `node`, the short form of `murmur node` that contributors type.

Node.js also calls itself `node`. No argument, --help or an exact command of ours is ours; everything else (a file,
--version, -e) is handed to the next `node` on PATH, so that npx and every `#!/usr/bin/env node` keep working inside the
virtual environment. Only the standard library is imported before that is decided.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

COMMANDS = frozenset(
    {
        "accept", "appeal", "claim", "config", "hardware", "init", "leave", "offer", "rebond", "rotate", "stake", "start", "status",
        "submissions", "unstake", "withdraw",
    }
)  # fmt: skip
"""Commands of node/contributor/commands; a test holds the two together."""


def main() -> None:
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in COMMANDS or arguments[0] == "--help":
        from node.contributor.commands import app
        from protocol.shell.cli import run

        run(app, "node")
    other = next_node(os.environ.get("PATH", ""))
    if other is None:
        print(f"error: {arguments[0]!r} is no command of ours, and Node.js is not installed", file=sys.stderr)
        print("  try: node --help", file=sys.stderr)
        sys.exit(2)
    os.execv(other, [other, *arguments])  # noqa: S606  the very purpose


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
