"""How a relay, or a node that serves, is reached, and what it gives. Imports nothing heavy: every command reads settings."""

from __future__ import annotations

import ipaddress
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import Field, field_validator, model_validator

from protocol.errors import ConfigError
from protocol.http_url import typed_url
from protocol.settings import Settings

if TYPE_CHECKING:
    from protocol.shardcast.server import ServerLimits


class ServingSettings(Settings):
    host: str = "0.0.0.0"  # noqa: S104  whoever serves is there to be reached
    """Address to serve HTTP on."""
    port: int = Field(default=8460, ge=0, le=65535)
    """Port to serve HTTP on; 0 takes a free one."""
    public_url: str | None = None
    """How others reach it (http://host:port or https://host); needed where it listens on all addresses."""
    tls_certificate: Path | None = None
    """PEM file of a certificate and those that vouch for it, to serve https; with `tls_key`. A reverse proxy does as well."""
    tls_key: Path | None = None
    """PEM file of its key, without a password."""
    upload_rate: int | None = Field(default=None, ge=64 << 10)
    """Most bytes a second that leave; none: as fast as the line goes."""
    connections: int = Field(default=256, ge=1)
    """Connections at once."""
    connections_per_peer: int = Field(default=64, ge=1)
    """Of them from one IPv4 address or one IPv6 /64; many nodes may share one."""
    allow: tuple[str, ...] = ()
    """Networks (10.0.0.0/8) that are served; all if none is named. Behind a reverse proxy all come from its address."""
    deny: tuple[str, ...] = ()
    """Networks that are not served, even if allowed."""

    @field_validator("public_url")
    @classmethod
    def _can_be_announced(cls, url: str | None) -> str | None:
        return typed_url(url) if url else None

    @field_validator("allow", "deny")
    @classmethod
    def _are_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for network in networks:
            ipaddress.ip_network(network)
        return networks

    @model_validator(mode="after")
    def _speaks_what_it_announces(self) -> Self:
        if self.tls_certificate and self.public_url and self.public_url.startswith("http://"):
            raise ValueError("with tls_certificate it speaks https only: let public_url begin with https://")
        return self

    @property
    def needs_proxy(self) -> bool:
        """Whether others are told https, and this process speaks http."""
        return bool(self.public_url and self.public_url.startswith("https://") and not self.tls_certificate)

    def require_ready(self) -> None:
        """Raises ConfigError for what would show only once it serves: an address that nobody is told, certificate files that are none."""
        self.require_reachable()
        self.tls()

    def tls(self) -> ssl.SSLContext | None:
        """Raises ConfigError for files that are none."""
        if self.tls_certificate is None or self.tls_key is None:
            if self.tls_certificate or self.tls_key:
                raise ConfigError(
                    "https needs both a certificate and its key", hint="set serve.tls_certificate and serve.tls_key"
                )
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.tls_certificate, self.tls_key, password=lambda: b"")
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot serve by {self.tls_certificate} and {self.tls_key}: {error}") from error
        return context

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
                hint="set serve.public_url to http://HOST:PORT (--public-url of `relay init`), or serve.host to one address",
            )
