"""One bounded child process per service, for everything that touches a stranger's bytes with large machinery.

Parquet decoding and task verifiers run in the child: it has no secrets in its environment, a cap on memory, may not write
files, and is killed when it misses a deadline; the next call starts a fresh one. The parent (`client.py`) trusts nothing
it answers beyond what it re-checks; the child is `child.py`, and `wire.py` is what passes between them.
"""

from protocol.sandbox.client import Reading, Sandbox

__all__ = ["Reading", "Sandbox"]
