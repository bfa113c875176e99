"""The verification of a run spec: what honest work may stray by, and which hardware classes that was measured on."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from protocol.constants import BUILD_CHARS_MAX, NOISE_MAX
from protocol.runspec_part import DecimalText, HexDigest, Part, PinnedFile
from protocol.statistics import ALTERNATIVES

_CHANCE_MAX = 0.05  # of a wrong verdict within a year: a budget above it is a typing error

_MOST_MOST = 1000  # times the spec's limits: beyond, they say nothing

HardwareClass = Annotated[int, Field(ge=0, lt=256)]


def classes(numbers: Sequence[int]) -> str:
    """Hardware classes as a message names them."""
    return f"hardware class{'es' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


class Limit(Part):
    """A measured value above `soft` earns nothing; above `hard` it is cheating. Between them nobody is slashed."""

    soft: DecimalText
    """Above it a submission is rejected."""
    hard: DecimalText
    """Above it a seat is slashed."""

    @model_validator(mode="after")
    def _ordered(self) -> Limit:
        if Decimal(self.hard) < Decimal(self.soft):
            raise ValueError("hard must not be below soft")
        return self


class ComputationLimits(Part):
    """Per chunk of a TOPLOC proof. The first two are shares of the k points."""

    exponents: Limit
    """Points whose exponent differs."""
    signs: Limit
    """Points whose sign differs."""
    mantissa_mean: Limit
    """Mean distance of mantissas, in 128ths, over the points whose exponents agree."""
    mantissa_median: Limit
    """Median of the same."""


class SamplingLimits(Part):
    """Margins are in logits. A token whose margin exceeds `mismatch_above` counts as mismatched."""

    mismatch_above: DecimalText
    """Margin from which on a token counts as mismatched."""
    token_margin: Limit
    """Largest margin of a token."""
    chunk_mismatches: Limit
    """Mismatched tokens of a chunk of 32."""
    sequence_mismatches: Limit
    """Mismatched tokens of a sequence."""
    mean_margin: Limit
    """Mean over a sequence of margins clipped at `margin_clip`."""
    chunk_mean_margin: Limit | None = None
    """The same over each chunk of 32 tokens; calibrations older than this field have none, and nothing is judged by it."""
    margin_clip: DecimalText
    """Most that one margin counts in the means."""
    logprob_error: Limit
    """Largest distance of a claimed logprob from the verifier's."""
    mean_logprob_error: Limit | None = None
    """Mean of these distances over a sequence; calibrations older than this field have none, and nothing is judged by it."""


class HistoryBudget(Part):
    """When the sums over a seat's work decide, and how often they may wrong anybody (docs/decisions/0020)."""

    soft: DecimalText = "0.0001"
    """Probability that within a year work of any honest seat of the run is rejected for its sums."""
    hard: DecimalText = "0.000000001"
    """Probability that within a year any honest seat of the run is slashed for its sums."""
    seats: int = Field(ge=1, le=1_000_000, default=1000)
    """Honest seats that a year may see, for which these probabilities are meant."""
    days: int = Field(ge=1, le=366, default=30)
    """A seat's sums begin anew so often, for all seats at once: at multiples of so many days of block time."""
    alternatives: list[str] = Field(default=list(ALTERNATIVES))
    """What a cheat may have computed with, and validators compute with again (docs/rules.md)."""
    again: DecimalText = "0.1"
    """Of the tokens that a validator prefills, the share that it means to prefill again with an alternative: half for submissions that are drawn, whatever was spent, half for
    seats that something speaks against. Work that is looked at again is prefilled twice. For suspects it may be 65,536 tokens ahead of its share; what a juror measures again comes on top."""

    @field_validator("alternatives")
    @classmethod
    def _known(cls, names: list[str]) -> list[str]:
        if strangers := [name for name in names if name not in ALTERNATIVES]:
            raise ValueError(f"{strangers[0]!r} is no alternative; there are {', '.join(ALTERNATIVES)}")
        if names != sorted(set(names)):
            raise ValueError("name each alternative once, in the order of the alphabet")
        return names

    @field_validator("again")
    @classmethod
    def _a_share(cls, share: str) -> str:
        if Decimal(share) > 1:
            raise ValueError("again is a share of the tokens that are prefilled, at most 1")
        return share

    @model_validator(mode="after")
    def _probabilities(self) -> HistoryBudget:
        if not 0 < float(self.hard) <= float(self.soft) <= _CHANCE_MAX:
            raise ValueError(
                f"soft and hard must be probabilities above 0, soft at most {_CHANCE_MAX}, and hard not above soft"
            )
        return self


class BitwiseSpec(Part):
    """That work is compared bit by bit where a validator's engine is of the build that the file names (docs/decisions/0021)."""

    builds: list[Annotated[str, Field(min_length=1, max_length=BUILD_CHARS_MAX)]] = Field(default=[], max_length=64)
    """Builds that work may be of, as nodes log them when they have loaded a version. None: any, and work of a build that no validator has is held
    to the other limits alone."""


class Recalibration(Part):
    """How far the trainer may move the limits for later versions, while the run goes on (docs/decisions/0023). Of each limit, in multiples of the spec's own."""

    soft_least: DecimalText = "0.5"
    """Least soft limit; below 1, work that the spec would pay may be rejected."""
    hard_least: DecimalText = "1"
    """Least hard limit; below 1, work that the spec would not slash for may be slashed for."""
    most: DecimalText = "4"
    """Largest limit of either kind; 1 lets none rise."""

    @model_validator(mode="after")
    def _multiples(self) -> Recalibration:
        if not all(0 < Decimal(share) <= 1 for share in (self.soft_least, self.hard_least)):
            raise ValueError("soft_least and hard_least are multiples of the spec's limits, above 0 and at most 1")
        if not 1 <= Decimal(self.most) <= _MOST_MOST:
            raise ValueError(f"most is a multiple of the spec's limits, from 1 to {_MOST_MOST}")
        return self


class ProbeFile(PinnedFile):
    """A reference probe (protocol/probe.py)."""

    suffix: ClassVar[str] = ".probe.json"


class VerificationSpec(Part):
    """How submissions are checked."""

    proof: Literal["toploc/1"] = "toploc/1"
    """Kind of the proof of computation."""
    validators_needed: int = Field(ge=1, le=16)
    """Accepting validators a rollout needs before the trainer may learn from it."""
    newcomer_submissions: int = Field(ge=0, default=8)
    """A seat's first submissions get the prefill in full."""
    prefill_share: DecimalText = "1"
    """Share of the samples that get the prefill afterwards."""
    reward_tolerance: DecimalText = "0.000001"
    """Largest distance of a claimed reward from the verifier's."""
    computation: ComputationLimits
    """Limits of the proofs of computation."""
    sampling: SamplingLimits
    """Limits of the check that tokens were drawn as they should be."""
    noise: Limit | None = None
    """What the sums over a seat's history are compared with: how far two tokens' logits may differ between worker and validator, as a
    standard deviation, in shares of the range of a position's logits. Calibrations older than this field have none, and no sums are kept."""
    history: HistoryBudget | None = None
    """When these sums decide. Without it they are kept and shown, and no verdict follows from them."""
    bitwise: BitwiseSpec | None = None
    """Comparison bit by bit between machines of one build; takes `spec.model.batch_invariant`. Without it files name no build."""
    recalibration: Recalibration | None = None
    """That the trainer may replace the calibration for later versions, and within which bounds. Without it the limits stand for as long as the run."""
    calibration: HexDigest
    """Digest of the calibration these limits came from; in run.toml the name of a shipped one, or its file."""
    calibrated: list[HardwareClass] = Field(default=[0])
    """Hardware classes that the calibration covers."""
    uncalibrated: list[HardwareClass] = Field(default=[])
    """Hardware classes that may work as well, though nobody knows how far their honest work strays: no finding is worse than
    soft there, so they are paid and never slashed. A class in neither list cannot work in the run."""
    probe: ProbeFile | None = None
    """In run.toml: the path of what `murmur trainer probe` wrote. A node computes it before its first work, and makes none where it
    lies outside these limits."""

    @field_validator("noise")
    @classmethod
    def _within_reach(cls, noise: Limit | None) -> Limit | None:
        if noise is not None and not (Decimal(noise.soft) > 0 and float(noise.hard) <= NOISE_MAX):
            raise ValueError(f"noise must be above 0, and at most {NOISE_MAX:g} of the range of logits")
        return noise

    @model_validator(mode="after")
    def _sums_to_decide(self) -> VerificationSpec:
        if self.history is not None and self.noise is None:
            raise ValueError("history takes a calibration with noise: without it there are no sums that could decide")
        return self

    @model_validator(mode="after")
    def _in_one_list(self) -> VerificationSpec:
        if both := sorted(set(self.calibrated) & set(self.uncalibrated)):
            raise ValueError(f"hardware class {both[0]} is both calibrated and uncalibrated")
        if not self.hardware:
            raise ValueError("no hardware class may work: calibrated and uncalibrated are both empty")
        return self

    @property
    def hardware(self) -> list[int]:
        """Every hardware class that may work in the run."""
        return sorted({*self.calibrated, *self.uncalibrated})
