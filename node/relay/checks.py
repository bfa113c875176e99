"""What `murmur relay doctor` looks at: what all roles do (protocol/shell/role_checks.py), and whether others can be told where it serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.shell.checkup import Answer, Check
from protocol.shell.role_checks import CHAIN, LOCAL, NETWORK
from protocol.shell.role_subject import RoleSubject

if TYPE_CHECKING:
    from node.relay.service import RelaySettings


class RelaySubject(RoleSubject):
    settings: RelaySettings

    @property
    def plays_environments(self) -> bool:
        return False

    def _read(self) -> RelaySettings:
        from node.relay.service import RelaySettings
        from protocol.settings import load

        return load(RelaySettings, self.place.require_config()).value


def look_at_serving(s: RelaySubject) -> Answer:
    """Raises ConfigError for what would show only once it serves."""
    serve = s.settings.serve
    serve.require_ready()
    return f"others are told {serve.public_url or f'http://{serve.host}:{serve.port}'}"


CHECKS: tuple[Check[RelaySubject], ...] = (
    *LOCAL,
    Check("serving", look_at_serving, ("settings",), starts=True),
    *CHAIN,
    *NETWORK,
)
