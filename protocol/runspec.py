"""The run spec: everything that all parties of a run must agree on, and its digest, which the chain holds.

A researcher writes it as the `[spec]` table of run.toml. Its canonical JSON (protocol/canonical.py) hashed with SHA-256 is
the *spec digest* of `Runs.create`. Decimals are strings, because nothing hashed contains a float. An unknown key, a
wrong type or a value out of range is refused with its place and what was expected.

Fields are added and never taken away. A field at its default is left out of the canonical JSON, so a spec keeps its digest
when later versions know more fields than it has; a default is therefore as fixed as a field's name. Fields that name a kind
or a version (`Literal`) are always written. A program that meets a field it does not know is too old for the run: it
raises VersionMismatch. Vectors: tests/vectors/spec_digests.json.

runspec_part.py is what all parts have in common; runspec_environments.py, runspec_reward.py, runspec_verification.py and
runspec_hardware.py are parts.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Final, Literal, Self, TypedDict

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from protocol import canonical
from protocol.complaints import complaints, without_tags
from protocol.constants import PROTOCOL_VERSION, SAMPLES_MAX, SPEC_BYTES_MAX, TURNS_MAX
from protocol.errors import ConfigError, HashMismatch, Malformed, PreflightError, VersionMismatch
from protocol.runspec_environments import (
    AnyEnvironment,
    EnvironmentSpec,
    FromFiles,
    Generated,
    Selection,
    TaskFile,
    environment_kind,
    starts,
)
from protocol.runspec_hardware import HardwareNeeds
from protocol.runspec_part import DecimalText, HexDigest, Part, PinnedFile
from protocol.runspec_reward import RewardSpec
from protocol.runspec_verification import (
    BitwiseSpec,
    ComputationLimits,
    HistoryBudget,
    Limit,
    ProbeFile,
    Recalibration,
    SamplingLimits,
    VerificationSpec,
    classes,
)

__all__ = [
    "AnswerSpec", "AnyEnvironment", "BitwiseSpec", "ComputationLimits", "EnvironmentSpec", "FromFiles", "Generated", "HardwareNeeds", "HistoryBudget", "Limit", "ModelSpec", "Part", "PinnedFile", "ProbeFile",
    "Recalibration", "RewardSpec", "RunSpec", "SamplingDistribution", "SamplingLimits", "SamplingSpec", "Selection", "TaskFile", "VerificationSpec", "classes",
    "environment_kind", "from_bytes", "from_canonical", "from_table", "starts",
]  # fmt: skip

MAX_LAG_MOST: Final = 64
"""The most that `max_lag` of a run may be."""

# In form; what is none after all is passed over where it is used. The room of peers is above this one.
_BOOTNODE: Final = r"^/(ip4|ip6|dns|dns4|dns6)/[0-9a-z.:-]{1,127}/tcp/[1-9][0-9]{0,4}/p2p/[1-9A-HJ-NP-Za-km-z]{32,64}$"
_UPGRADE = "upgrade murmuration to the version that the run was created with, or a later one"


class SamplingDistribution(TypedDict):
    """What tokens are drawn from, as protocol/sampling.py defines it; `top_k` 0 and `top_p` 1 cut nothing."""

    temperature: float
    top_k: int
    top_p: float


class ModelSpec(Part):
    """The policy model. Digests are of the files' bytes; every published version carries both files unchanged."""

    config: HexDigest
    """SHA-256 of config.json."""
    tokenizer: HexDigest
    """SHA-256 of tokenizer.json."""
    compute_dtype: Literal["float32", "bfloat16"]
    """What all parties compute in; published weights are bfloat16 in any case."""
    batch_invariant: bool = False
    """Whether all parties compute so that results do not depend on the batch: the engine "torch" on a CPU, on one thread, and "vllm" on
    NVIDIA GPUs of capability 8.0 or above, and nothing else."""
    unlisted: bool = False
    """Whether the model is none of those that have been shown to be computed rightly (docs/models.md): no finding is worse than soft then,
    so seats are paid and never slashed. As its config.json says; `murmur trainer import --unlisted` lets one in."""


class SamplingSpec(Part):
    """How answers are drawn, and how many make a submission."""

    group_size: int = Field(ge=2, le=1024)
    """Samples of one problem."""
    groups_per_submission: int = Field(ge=1, le=4096)
    """Problems of one submission."""
    temperature: DecimalText
    """At most 100; 0 is greedy."""
    top_k: int = Field(default=0, ge=0, lt=2**31)
    """Most likely tokens that are kept; 0: all."""
    top_p: DecimalText = "1"
    """Share of the probability that is kept, of what `top_k` left; "1": all. At least 0.001."""
    max_new_tokens: int = Field(ge=1, le=1 << 20)
    """Longest answer, in tokens."""
    logprobs: bool = True
    """Whether rollout files carry the logprob of each generated token, which trainers may correct for stale weights with."""
    prompt_template: str = "{prompt}"
    """How a problem becomes the model's input; holds `{prompt}` once."""
    turns: int = Field(default=1, ge=1, le=TURNS_MAX)
    """Turns of one sample, at most; above 1, environments that reply to turns are asked to. `max_new_tokens` is for all of them together."""
    reply_tokens: int = Field(default=0, ge=0, le=1 << 20)
    """Tokens of all replies of one sample, at most: the turn before a reply that does not fit is the last."""
    reply_template: str = "{reply}"
    """How a reply becomes what the model goes on from; holds `{reply}` once. With a chat model, what its chat template puts between
    the end token of one turn and the first token of the next."""

    @model_validator(mode="after")
    def _one_place(self) -> SamplingSpec:
        if self.prompt_template.count("{prompt}") != 1:
            raise ValueError("prompt_template must hold {prompt} exactly once")
        if self.reply_template.count("{reply}") != 1:
            raise ValueError("reply_template must hold {reply} exactly once")
        return self

    @model_validator(mode="after")
    def _replies_have_room(self) -> SamplingSpec:
        if (self.turns > 1) != (self.reply_tokens > 0):
            raise ValueError("give both turns (above 1) and reply_tokens, or neither")
        return self

    @field_validator("temperature")
    @classmethod
    def _not_boundless(cls, text: str) -> str:
        if Decimal(text) > 100:
            raise ValueError("expected at most 100")
        return text

    @field_validator("top_p")
    @classmethod
    def _a_share(cls, text: str) -> str:
        if not Decimal("0.001") <= Decimal(text) <= 1:
            raise ValueError("expected a share between '0.001' and '1'")
        return "1" if Decimal(text) == 1 else text

    @model_validator(mode="after")
    def _greedy_has_no_cut(self) -> SamplingSpec:
        if float(self.temperature) == 0 and (self.top_k or self.top_p != "1"):
            raise ValueError("temperature 0 is greedy: leave out top_k and top_p")
        return self

    @property
    def longest(self) -> int:
        """Tokens after a prompt, at most: generated ones, and those of replies."""
        return self.max_new_tokens + self.reply_tokens

    @property
    def is_cut(self) -> bool:
        """Whether `top_k` or `top_p` keep tokens from being drawn."""
        return bool(self.top_k or self.top_p != "1")

    @property
    def distribution(self) -> SamplingDistribution:
        """Keyword arguments of whatever draws or scores."""
        return {"temperature": float(self.temperature), "top_k": self.top_k, "top_p": float(self.top_p)}


def _is_unknown(error: ErrorDetails) -> bool:
    """Whether pydantic complains of a name that this program does not know: of a field, a kind or a version."""
    named = error["type"] == "literal_error" and isinstance(error["input"], str)
    return named or error["type"] in ("extra_forbidden", "union_tag_invalid")


class AnswerSpec(Part):
    """How answers come about and what they earn: all that generating, scoring and evaluating need to know of a run."""

    model: ModelSpec
    sampling: SamplingSpec
    reward: RewardSpec = RewardSpec()
    environments: list[AnyEnvironment] = Field(default=[], max_length=256)
    """None where questions are somebody's own rows, or a benchmark's."""

    @model_validator(mode="after")
    def _budgets_in_reach(self) -> Self:
        for place, reward in self.rewards.items():
            reward.require_reach(self.sampling.max_new_tokens, place)
        return self

    def reward_of(self, environment: int) -> RewardSpec:
        """What answers to an environment's problems earn besides their task reward, by its number in `Problem.environment`."""
        own = self.environments[environment].reward if environment < len(self.environments) else None
        return self.reward if own is None else own

    @property
    def rewards(self) -> dict[str, RewardSpec]:
        """All that stand in the spec, by their place in it."""
        own = {f"environments.{i}.reward": of.reward for i, of in enumerate(self.environments) if of.reward is not None}
        return {"reward": self.reward, **own}

    def canonical(self) -> bytes:
        return canonical.encode(self.model_dump(mode="json"))

    @property
    def digest(self) -> bytes:
        return canonical.digest(self.model_dump(mode="json"))


class RunSpec(AnswerSpec):
    """What all parties agree on: its digest goes on chain. Decimals stand in quotes."""

    protocol: Literal[1] = PROTOCOL_VERSION
    """Version of the protocol."""
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    """Lower-case letters, digits and hyphens; for people."""
    environments: list[AnyEnvironment] = Field(min_length=1, max_length=256)
    verification: VerificationSpec
    hardware: list[HardwareNeeds] = Field(default=[], max_length=256)
    max_lag: int = Field(ge=0, le=MAX_LAG_MOST)
    """Oldest weights a rollout may come from, in steps behind the trainer's."""
    upload_grace_seconds: int = Field(ge=1, le=86_400)
    """From commitment to upload, in block time."""
    file_bytes_max: int = Field(ge=1 << 10, le=1 << 30)
    """Largest rollout file, in bytes."""
    bootnodes: list[Annotated[str, Field(pattern=_BOOTNODE)]] = Field(default=[], max_length=16)
    """Multiaddrs, each ending in /p2p/PEERID, that roles go to beside those of their settings, once they have read the spec. For good: what may
    move belongs on chain (`murmur run locate`)."""

    @model_validator(mode="after")
    def _budgets_for_every_class(self) -> RunSpec:
        for place, reward in self.rewards.items():
            reward.require_classes(self.verification.hardware, place)
        return self

    @model_validator(mode="after")
    def _hardware_of_every_class(self) -> RunSpec:
        """A class without needs would be a way around those of the others."""
        described, listed = [needs.number for needs in self.hardware], self.verification.hardware
        if twice := sorted({number for number in described if described.count(number) > 1}):
            raise ValueError(f"hardware describes class {twice[0]} twice")
        if left_out := sorted(set(listed) - set(described)) if described else []:
            raise ValueError(f"hardware leaves out {classes(left_out)}: describe every class or none")
        if unknown := sorted(set(described) - set(listed)):
            raise ValueError(f"hardware describes {classes(unknown)}, which verification does not list")
        return self

    @model_validator(mode="after")
    def _require_receipts_to_fit(self) -> RunSpec:
        if self.samples > SAMPLES_MAX:
            raise ValueError(f"group_size x groups_per_submission is {self.samples}, more than {SAMPLES_MAX}")
        return self

    @model_validator(mode="after")
    def _no_sums_of_cut_draws(self) -> RunSpec:
        if self.verification.noise is not None and self.sampling.is_cut:
            raise ValueError(
                "verification.noise says nothing of margins at the edge of a cut: leave out top_k and top_p, or it"
            )
        return self

    @model_validator(mode="after")
    def _bits_that_can_be_compared(self) -> RunSpec:
        if self.verification.bitwise is not None and not self.model.batch_invariant:
            raise ValueError(
                "verification.bitwise takes model.batch_invariant = true: bits depend on the batch otherwise"
            )
        return self

    def require_hardware(self, number: int) -> None:
        """Raises PreflightError unless a seat of this hardware class may work in the run."""
        listed = self.verification.hardware
        if number not in listed:
            raise PreflightError(
                f"hardware class {number} cannot work in this run, which lists {', '.join(map(str, listed))}",
                hint=f"take the seat in the class that this machine is of, as node stake --hardware {listed[0]}",
            )

    @property
    def task_files(self) -> list[TaskFile]:
        kept = [environment.kept for environment in self.environments if environment.kept is not None]
        files = [file for one in self.environments for file in one.all_files]
        return [*files, *kept]

    @property
    def pinned_files(self) -> list[PinnedFile]:
        """All that the hub serves by digest: task files, and the reference probe."""
        probe = self.verification.probe
        return [*self.task_files, *([] if probe is None else [probe])]

    @property
    def versions_pinned(self) -> frozenset[int]:
        """Versions of the weights that are kept however old they are: the reference probe is of the first."""
        return frozenset() if self.verification.probe is None else frozenset({0})

    @property
    def versions_kept(self) -> int:
        """Versions of the weights that whoever serves or judges keeps: five, and never fewer than max_lag + 2."""
        return max(5, self.max_lag + 2)

    @property
    def samples(self) -> int:
        """Samples (rows) in one submission."""
        return self.sampling.group_size * self.sampling.groups_per_submission


def from_table(table: dict[str, Any]) -> RunSpec:
    """From a researcher's TOML table. Raises ConfigError naming each wrong place."""
    try:
        return RunSpec.model_validate(table)
    except ValidationError as error:
        raise ConfigError("the run spec is wrong:\n" + complaints(error, RunSpec, within="spec")) from None


def from_bytes(data: bytes, digest: bytes) -> RunSpec:
    """From a peer; must hash to the chain's `digest`.

    Raises HashMismatch, Oversized, VersionMismatch for a spec that a later version of this software wrote, and Malformed.
    """
    value = canonical.decode(data, cap=SPEC_BYTES_MAX, what="run spec")
    if canonical.digest(value) != digest:
        raise HashMismatch("run spec does not hash to the digest on chain")
    return from_canonical(data)


def from_canonical(data: bytes) -> RunSpec:
    """From canonical bytes whose digest the caller has checked, or has written itself. Raises as `from_bytes`."""
    value = canonical.decode(data, cap=SPEC_BYTES_MAX, what="run spec")
    version = value.get("protocol") if isinstance(value, dict) else None
    if isinstance(version, int) and version != PROTOCOL_VERSION:
        raise VersionMismatch(
            f"the run speaks version {version} of the protocol, this program version {PROTOCOL_VERSION}", hint=_UPGRADE
        )
    try:
        spec = RunSpec.model_validate(value)
    except ValidationError as error:
        unknown = [".".join(map(str, without_tags(RunSpec, e["loc"]))) for e in error.errors() if _is_unknown(e)]
        if unknown:
            named = f"this program does not know {', '.join(unknown)} of the run spec"
            raise VersionMismatch(f"{named}: a later version wrote it", hint=_UPGRADE) from None
        raise Malformed("run spec is wrong:\n" + complaints(error, RunSpec)) from None
    if spec.canonical() != data:
        raise Malformed(
            "run spec writes out what is left out, or spells a value another way, and would have two digests"
        )
    return spec
