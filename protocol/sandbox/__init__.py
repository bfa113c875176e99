"""One bounded child process per service, for everything that touches a stranger's bytes or runs a stranger's code.

Rollout files are decoded, and environments draw, ask and score, in the child: it has no secrets in its environment, a cap on
memory, may not write files, and is killed when it misses a deadline; the next call starts a fresh one. The parent
(`process.py`, `environments.py`, `client.py`) trusts nothing it answers beyond what it re-checks; the child is `child.py`, what
it gives up is in `confinement.py`, whose filters of system calls `bpf.py` builds, `wire.py` is what passes between them, and
`readiness.py` waits for that. Strangers' programs run beside it, in `programs/`; `programs_wire.py` is how the child asks for
that. `inspection/` examines an environment in several such children, of which `watch.py` notes what a verifier sets off.
"""

from protocol.sandbox.client import Reading, Sandbox
from protocol.sandbox.environments import EnvironmentSandbox

__all__ = ["EnvironmentSandbox", "Reading", "Sandbox"]
