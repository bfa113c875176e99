"""The researcher's own settings: [trainer], [hub] and [pay] of run.toml, beside [chain] and [peers] that every role has.

Nothing here is hashed or agreed upon: contributors and validators never see it. Defaults are INTELLECT-2's recipe
(arXiv 2505.07291, section 3 and the numbers in its appendix) where it names one.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator

from protocol.errors import UsageError
from protocol.money import parse_tokens
from protocol.role import ChainSettings, PeerSettings
from protocol.settings import Loaded, Settings, load


class OptimizerSettings(Settings):
    lr: float = Field(default=3e-7, gt=0)
    warmup_steps: int = Field(default=25, ge=0)
    """Rollout steps over which the learning rate climbs linearly."""
    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 0.01
    gradient_clip: float = Field(default=0.1, gt=0)
    """Largest norm of the gradient."""


class LossSettings(Settings):
    clip: float = Field(default=0.2, gt=0)
    """ε: the ratio is clipped to [1 - ε, 1 + ε]."""
    delta: float = Field(default=4.0, gt=1)
    """δ: upper bound of the ratio where the advantage is negative (two-sided clipping)."""
    entropy: float = Field(default=1e-4, ge=0)
    """Weight of the entropy bonus."""


class TrainSettings(Settings):
    model: str = "policy"
    """Folder of the policy before training, beside run.toml."""
    output: str = "output"
    """Folder of checkpoints, outgoing weights, metrics and status, beside run.toml."""
    steps: int = Field(ge=1)
    """Rollout steps to train."""
    groups_per_step: int = Field(default=256, ge=1)
    """Groups with unequal rewards that a step needs."""
    optimizer_steps: int = Field(default=8, ge=1)
    """Optimizer steps on the rollouts of one step."""
    pack_tokens: int = Field(default=32_768, ge=8)
    """Tokens of a packed training row; longer samples get a row of their own length."""
    rows_per_forward: int = Field(default=1, ge=1)
    """Packed rows that go through the model at once."""
    optimizer: OptimizerSettings = OptimizerSettings()
    loss: LossSettings = LossSettings()
    seed: int = 0
    threads: int = Field(default=1, ge=1)
    """Torch threads on the CPU."""
    evaluate_every: int = Field(default=10, ge=1)
    checkpoint_every: int = Field(default=10, ge=1)
    checkpoints_kept: int = Field(default=2, ge=1)
    rollout_wait_seconds: float = Field(default=3600, gt=0)
    """Longest wait for a full batch before the trainer gives up, naming what is missing."""


class HubSettings(Settings):
    keystore: str = "trainer.json"
    """Keystore of the run's trainer key, beside run.toml: publishes weights, signs manifests and storage receipts."""
    host: str = "0.0.0.0"  # noqa: S104  a hub is there to be reached
    port: int = Field(default=8450, ge=0, le=65535)
    """HTTP port for rollouts and receipts; 0 takes a free one."""
    origin_port: int = Field(default=8451, ge=0, le=65535)
    """HTTP port of the SHARDCAST origin; 0 takes a free one."""
    public_host: str | None = None
    """Name or address under which others reach both ports, when that is not `host`."""
    writes_per_minute: int = Field(default=600, ge=1)
    bytes_per_hour: int = Field(default=4 << 30, ge=1)
    """Quotas per seat."""


class PaySettings(Settings):
    per_work: str = "0"
    """Tokens owed to a validator for each work it judged in time and not against the chain's verdict; 0 promises nothing."""
    works_per_step: int = Field(default=1000, ge=1)
    """Most works of one step that one validator is paid for."""

    @field_validator("per_work")
    @classmethod
    def _is_amount(cls, text: str) -> str:
        try:
            parse_tokens(text, least=0)
        except UsageError as error:
            raise ValueError(str(error)) from error
        return text

    @property
    def wei_per_work(self) -> int:
        return parse_tokens(self.per_work, least=0)


class RunSettings(Settings):
    chain: ChainSettings
    peers: PeerSettings = PeerSettings()
    trainer: TrainSettings
    hub: HubSettings = HubSettings()
    pay: PaySettings = PaySettings()


def load_run(file: Path) -> Loaded[RunSettings]:
    """Reads run.toml; [spec] and [policy] belong to protocol/runfile.py."""
    return load(RunSettings, file, tables=("spec", "policy"))


class Layout:
    """Where a run's files lie, all beside run.toml."""

    def __init__(self, file: Path, settings: RunSettings) -> None:
        root = file.resolve().parent
        self.file = file
        self.model = root / settings.trainer.model
        self.output = root / settings.trainer.output
        self.keystore = root / settings.hub.keystore
        self.checkpoints = self.output / "checkpoints"
        self.outgoing = self.output / "outgoing"
        self.hub = self.output / "hub"
        self.status = self.output / "status.json"
        self.hub_status = self.hub / "status.json"
        self.metrics = self.output / "metrics.jsonl"
