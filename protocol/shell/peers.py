"""How a role finds its peers: the settings of every role. Imports nothing of libp2p: commands that only read need these too."""

from __future__ import annotations

from pydantic import Field

from protocol.logs import LoggingSettings
from protocol.metrics import MetricsSettings
from protocol.settings import Settings


class PeerSettings(Settings):
    listen: str = "/ip4/0.0.0.0/tcp/0"
    """libp2p listening address (multiaddr)."""
    bootnodes: tuple[str, ...] = ()
    """Multiaddrs, each ending in /p2p/PEERID."""
    announce: tuple[str, ...] = ()
    """Up to four addresses others shall dial instead of `listen`: the forwarded port of a router, a DNS name, IPv4 and IPv6."""
    hub: str = ""
    """Where the run's hub is, as https://hub.example; otherwise it is found through peers, or where the run's owner says on chain."""
    origin: str = ""
    """The same of the origin of the weights."""
    find_seconds: float = Field(default=60.0, gt=0)
    """How long a look-up may take before it is an error."""
    gossip: bool = True
    """Whether to hear from the run's peers what is new, and to hand it on. Without it, chain and hub are asked more often."""


class BootnodeSettings(Settings):
    """Of a bootnode, which belongs to no run."""

    listen: str = "/ip4/0.0.0.0/tcp/4001"
    """libp2p listening address (multiaddr)."""
    bootnodes: tuple[str, ...] = ()
    """Other bootnodes of the same network."""
    announce: tuple[str, ...] = ()
    """Up to four addresses others shall dial instead of `listen`: a DNS name, IPv4 and IPv6."""
    logging: LoggingSettings = LoggingSettings()
    metrics: MetricsSettings = MetricsSettings()
