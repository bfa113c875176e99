"""How a relay, or a node that serves, is reached, and what it gives. Imports nothing heavy: every command reads settings."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from pydantic import Field, field_validator

from protocol.errors import ConfigError
from protocol.settings import Settings

if TYPE_CHECKING:
    from protocol.shardcast.server import ServerLimits


class ServingSettings(Settings):
    host: str = "0.0.0.0"  # noqa: S104  whoever serves is there to be reached
    """Address to serve HTTP on."""
    port: int = Field(default=8460, ge=0, le=65535)
    public_url: str | None = None
    """How others reach it (http://host:port); needed where it listens on all addresses."""
    upload_rate: int | None = Field(default=None, ge=64 << 10)
    """Most bytes a second that leave; none: as fast as the line goes."""
    connections: int = Field(default=256, ge=1)
    """Connections at once."""
    connections_per_peer: int = Field(default=64, ge=1)
    """Of them from one IPv4 address or one IPv6 /64; many nodes may share one."""
    allow: tuple[str, ...] = ()
    """Networks (10.0.0.0/8) that are served; all if none is named."""
    deny: tuple[str, ...] = ()
    """Networks that are not served, even if allowed."""

    @field_validator("allow", "deny")
    @classmethod
    def _are_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for network in networks:
            ipaddress.ip_network(network)
        return networks

    def limits(self) -> ServerLimits:
        from protocol.shardcast.server import ServerLimits

        return ServerLimits(
            connections=self.connections, per_address=self.connections_per_peer, allow=self.allow, deny=self.deny
        )

    def require_reachable(self) -> None:
        """Raises ConfigError where it would listen on all addresses and announce none that others can use."""
        try:
            everywhere = ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            everywhere = not self.host
        if everywhere and not self.public_url:
            raise ConfigError(
                f"one that serves on all addresses ({self.host}) must be told how others reach it",
                hint="give --public-url http://HOST:PORT (serve.public_url), or one address as --host",
            )
