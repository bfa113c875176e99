"""A node's settings (node.toml). Imports nothing heavy: every command reads them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from node.engine.settings import EngineSettings
from protocol.chain.settings import ChainSettings
from protocol.logs import LoggingSettings
from protocol.metrics import MetricsSettings
from protocol.settings import Settings
from protocol.shardcast.settings import ServingSettings
from protocol.shell.notify import NotifySettings
from protocol.shell.peers import PeerSettings


class WorkSettings(Settings):
    """Of node.toml."""

    self_check_share: float = Field(default=0.1, ge=0, le=1)
    """Share of samples whose proofs and sampling the node re-checks by its own prefill before it commits."""
    commit_seconds: float = Field(default=10.0, ge=0)
    """How long a finished file may wait for others of its version, to be committed in one transaction: that costs a third of the gas of each. A
    machine that takes longer for one file commits each at once; 0: every machine does."""
    retry_seconds: float = Field(default=5.0, gt=0)
    """Pause after a peer or endpoint failed."""
    only_wanted: bool = True
    """Whether the node makes only what the trainer says it still wants, and leaves the rest; work is paid alike."""
    progress_minutes: float = Field(default=60.0, ge=0)
    """Of the node's own work, without any of it being accepted, after which the node starts afresh, once, and ends the next time (exit code 5): it says why. At
    least ten times what one submission takes. Waiting for chain, run, hub, weights or validators does not count; 0: it works on for ever."""
    disk_low_gb: float = Field(default=5.0, ge=0)
    """Free gigabytes below which the log warns. Below 1.07 (1 GiB) the node waits for room, whatever is set here."""
    answer_matrix_challenges: bool = True
    """Whether validators may ask this machine for the product of two matrices now and then, to show its speed in status."""


class SeederSettings(ServingSettings):
    enabled: bool = False
    """Whether this node serves the weights it has fetched to others, as a relay does; it must be reachable from outside."""

    @model_validator(mode="after")
    def _can_be_reached(self) -> SeederSettings:
        if self.enabled:
            self.require_reachable()
        return self


class PageSettings(Settings):
    show: Literal["local", "off"] = "local"
    """Whether a running node serves its page to browsers on this machine. It costs nothing while nobody looks."""
    port: int = Field(default=8480, ge=0, le=65535)
    """Port of the page on 127.0.0.1; where another program has it, one of the next sixteen, and 0 takes any that is free. `node status` names
    the address."""


class NodeSettings(Settings):
    chain: ChainSettings
    peers: PeerSettings = PeerSettings()
    work: WorkSettings = WorkSettings()
    engine: EngineSettings = EngineSettings()
    serve: SeederSettings = SeederSettings()
    logging: LoggingSettings = LoggingSettings()
    metrics: MetricsSettings = MetricsSettings()
    page: PageSettings = PageSettings()
    notify: NotifySettings = NotifySettings()
