"""What is done about a peer or an endpoint that does not answer, by what went wrong: the same advice wherever it shows."""

from __future__ import annotations

from protocol.errors import MurmurationError, Unavailable
from protocol.shell.lookups import CHAIN, OF_TRAINER, Word

OPERATOR = "its operator: see that the port is open and public_url leads to it"
"""What to try where an endpoint was found, and what it serves is not to be had."""
RESUME = "murmur trainer run @run.toml"

_UNREACHABLE = "a firewall or NAT on the way drops what comes to that port, or the machine is off"
_DIALLED = {
    "connection refused": "nothing listens on that port: its program does not run, or listens elsewhere",
    "no answer within": "the machine is off, or a firewall or router on the way drops what comes to that port",
    "does not resolve": "nobody knows that name: it is mistyped, or its operator sets its DNS record",
    "somebody else answers": "the address leads to another peer by now; ask its operator for the present one",
    "multistream-select": "what listens there is no libp2p peer; is it the port of HTTP?",
    "Noise handshake": "what listens there is no libp2p peer that speaks Noise",
    "negotiat": "what listens there is no libp2p peer",
    "ended after": "something hung up: a proxy, or a peer that has no room for us",
    "broke": "something hung up: a proxy, or a peer that has no room for us",
}


def of_dial(problem: MurmurationError) -> str:
    """About a peer that cannot be dialled."""
    text = str(problem)
    for sign, what in _DIALLED.items():
        if sign in text:
            return what
    return problem.hint


def of_nothing_announced(port: int, file: object, *, is_running: bool) -> str:
    """About a bootnode that announces nothing and listens on every address."""
    then = ", and start it again" if is_running else ""
    return f'put announce = ["/dns4/HOST/tcp/{port}"] into {file}{then}'


def of_provider(role: str, problem: MurmurationError | None, *, resume: str = RESUME) -> str:
    """About a peer that is known to provide `role`, and does not say where: over libp2p, where no URL matters."""
    text = str(problem or "")
    if "connection refused" in text:
        return _not_running(role, resume)
    if problem is None or "no answer within" in text:
        return _UNREACHABLE
    return of_dial(problem)


def of_endpoint(
    role: str, problem: MurmurationError | None, *, peer_answers: bool = False, resume: str = RESUME
) -> str:
    """About a URL at which `role` should be. `peer_answers`: its peer said so just now, so that its program runs."""
    text = str(problem or "").lower()
    if "connection refused" in text and not peer_answers:
        return _not_running(role, resume)
    if "connection refused" in text and role in OF_TRAINER:
        return (
            f"its peer answers: hub.public_host leads elsewhere, or a firewall refuses; or it ended just now ({resume})"
        )
    if "connection refused" in text:
        return "its peer answers: its operator sees that public_url leads to it, and that no firewall refuses"
    if "in time" in text:
        return _UNREACHABLE
    if "does not resolve" in text:
        return "its operator: set the DNS record of that name, or mend the name"
    return (problem.hint if problem else "") or OPERATOR


def of_word(word: Word, role: str, problem: MurmurationError, *, by_peers: str | None, resume: str = RESUME) -> str:
    """About a URL that settings or chain name: `by_peers` is where peers say that the service is. Another word is of use only where the
    service is somewhere else."""
    mend = "the run's owner: murmur run locate" if word.whose == CHAIN else f"mend peers.{role}"
    is_elsewhere = by_peers is not None and by_peers != word.url
    if is_elsewhere or not isinstance(problem, Unavailable) or "does not resolve" in str(problem):
        return mend
    advised = of_endpoint(role, problem, resume=resume)
    return advised if word.whose == CHAIN else f"{advised}; or {mend}, where it is elsewhere by now"


def _not_running(role: str, resume: str) -> str:
    if role in OF_TRAINER:
        return f"the {role} is not running: its operator starts it ({resume})"
    return f"the {role} is not running: its operator starts it"
