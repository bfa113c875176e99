"""A validator's settings (validator.toml). Imports nothing heavy."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from node.engine.settings import EngineSettings
from protocol.chain.settings import ChainSettings
from protocol.logs import LoggingSettings
from protocol.metrics import MetricsSettings
from protocol.settings import Settings
from protocol.shell.peers import PeerSettings


class JudgeSettings(Settings):
    """Of validator.toml."""

    fallback_seconds: float = Field(default=60.0, gt=0)
    """How long an assigned validator may be silent before the next in order judges as well."""
    opinion_seconds: float = Field(default=120.0, gt=0)
    """How long a hard finding that is shown at the hub waits for a second validator before it is treated as soft, in block time; it is shown after half
    of that."""
    batch_seconds: float = Field(default=600.0, ge=0)
    """How long a soft finding waits for others on the same seat, in block time: one case and one bond for all of them."""
    retry_seconds: float = Field(default=5.0, gt=0)
    """Pause before a judgement that could not be made is tried again."""
    matrix_challenge_hours: float = Field(default=0.0, ge=0)
    """Mean time between matrix challenges: one seat, drawn by chance, is asked for a matrix product, for status only; 0: never."""
    matrix_challenge_side: Literal[64, 128, 256, 512, 1024, 2048, 4096] = 1024
    """Rows and columns of their matrices."""
    evidence_most: int = Field(default=500, ge=0)
    """Rejected submissions whose evidence is kept after their cases are closed; that of open cases is kept in any case."""
    evidence_days: float = Field(default=90.0, ge=0)
    """How long evidence is kept at most after the judgement, once the case is closed."""


class ValidatorSettings(Settings):
    chain: ChainSettings
    peers: PeerSettings = PeerSettings()
    judge: JudgeSettings = JudgeSettings()
    engine: EngineSettings = EngineSettings()
    logging: LoggingSettings = LoggingSettings()
    metrics: MetricsSettings = MetricsSettings()
