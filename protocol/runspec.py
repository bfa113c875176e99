"""The run spec: everything that all parties of a run must agree on, and its digest, which the chain holds.

A researcher writes it as the `[spec]` table of run.toml. Its canonical JSON (protocol/canonical.py) hashed with SHA-256 is
the *spec digest* of `Runs.create`. Decimals are strings, because nothing hashed contains a float. An unknown key, a
wrong type or a value out of range is refused with its place and what was expected.

Fields are added and never taken away. A field at its default is left out of the canonical JSON, so a spec keeps its digest
when later versions know more fields than it has; a default is therefore as fixed as a field's name. Fields that name a kind
or a version (`Literal`) are always written. A program that meets a field it does not know is too old for the run: it
raises VersionMismatch. Vectors: tests/vectors/spec_digests.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Literal, Self, TypedDict, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from protocol import canonical
from protocol.complaints import complaints, without_tags
from protocol.constants import PROTOCOL_VERSION, SAMPLES_MAX, SPEC_BYTES_MAX
from protocol.errors import ConfigError, HashMismatch, Malformed, PreflightError, VersionMismatch

_UPGRADE = "upgrade murmuration to the version that the run was created with, or a later one"


def _decimal(text: str) -> str:
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise ValueError("expected a decimal number in quotes, such as '0.25'") from None
    if not value.is_finite() or value < 0:
        raise ValueError("expected a finite decimal that is not negative")
    return text


def _digest(text: str) -> str:
    if len(text) != 64 or set(text) - set("0123456789abcdef"):
        raise ValueError("expected 64 lower-case hex digits")
    return text


DecimalText = Annotated[str, AfterValidator(_decimal)]
"""A non-negative decimal written as a string."""
HexDigest = Annotated[str, AfterValidator(_digest)]
"""SHA-256 in lower-case hex."""
HardwareClass = Annotated[int, Field(ge=0, lt=256)]
HardwareKey = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,2})$")]
"""The number of a hardware class as the key of a table."""
LengthBudget = Annotated[int, Field(gt=0, lt=2**31)]
"""Tokens of an answer that its prompt announces."""
ConfigValue = bool | int | str | list[int] | list[str]


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_serializer(mode="wrap")
    def _leave_out_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        return {
            name: value for name, value in handler(self).items() if not _is_default(fields[name], getattr(self, name))
        }


def _is_unknown(error: ErrorDetails) -> bool:
    """Whether pydantic complains of a name that this program does not know: of a field, a kind or a version."""
    named = error["type"] == "literal_error" and isinstance(error["input"], str)
    return named or error["type"] in ("extra_forbidden", "union_tag_invalid")


def _is_default(field: FieldInfo, value: Any) -> bool:
    """Whether a field need not be written: it holds its default, and names no kind or version."""
    return not field.is_required() and get_origin(field.annotation) is not Literal and value == field.get_default()


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


class TaskFile(Part):
    """One file of a task set (protocol/environments/taskfile.py)."""

    sha256: HexDigest
    rows: int = Field(gt=0, lt=2**31)
    size: int = Field(gt=0, lt=2**44)
    """Bytes."""
    suffix: ClassVar[str] = ".parquet"


class Selection(TaskFile):
    """What the offline filter kept (protocol/environments/selection.py); `rows` are problems of this environment."""

    suffix: ClassVar[str] = ".json"


class EnvironmentSpec(Part):
    """One task set, named so that all parties draw the very same problems. `Generated` or `FromFiles`."""

    from_files: ClassVar[bool]

    package: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")
    """Name of the environment (protocol/environments/registry.py)."""
    version: str = Field(max_length=64)
    """Of the environment."""
    dataset: str
    """The environment's name of it; of "parquet" any name."""
    config: dict[str, ConfigValue] = {}
    """Fields that the environment's class knows."""
    kept: Selection | None = None
    """In run.toml: the path of what `murmur trainer filter` wrote. Only what it kept, out of the first `size`, is trained on."""
    seed: int = Field(ge=0, lt=2**62)
    size: int = Field(gt=0, lt=2**31)
    """Training problems, before `kept` chooses of them."""
    head: HexDigest
    """SHA-256 of the first 256 problems (fewer if the set is smaller); each party checks it before it starts."""
    exact: bool
    """Whether the verifier's reward is exact and always terminates: only then may a wrong reward be a hard verdict."""
    held_out_seed: int = Field(ge=0, lt=2**62)
    held_out_size: int = Field(ge=0, le=100_000)
    """Problems for evaluation; a training problem with the same question is never assigned."""

    @model_validator(mode="after")
    def _kept_fit(self) -> Self:
        if self.kept is not None and self.kept.rows > self.size:
            raise ValueError(f"{self.kept.rows} problems kept of {self.size}")
        return self

    @property
    def problems(self) -> int:
        """Number of the training problems."""
        return self.size if self.kept is None else self.kept.rows


class Generated(EnvironmentSpec):
    """Problems that an environment draws from seeds."""

    from_files = False


class FromFiles(EnvironmentSpec):
    """Problems that are the rows of task files: the first `size` for training, the last `held_out_size` held out."""

    from_files = True

    files: list[TaskFile] = Field(min_length=1, max_length=256)
    """In run.toml: their paths."""
    seed: Literal[0] = 0
    held_out_seed: Literal[0] = 0

    @model_validator(mode="after")
    def _files_fit(self) -> Self:
        rows = sum(file.rows for file in self.files)
        if self.size + self.held_out_size > rows:
            raise ValueError(f"{self.size} + {self.held_out_size} problems in files of {rows} rows")
        return self


def environment_kind(value: Any) -> type[EnvironmentSpec]:
    """The kind of environment that a table, or a spec, is."""
    if isinstance(value, EnvironmentSpec):
        return type(value)
    named = isinstance(value, dict) and (value.get("package") == "parquet" or bool(value.get("files")))
    return FromFiles if named else Generated


AnyEnvironment = Annotated[
    Annotated[Generated, Tag("Generated")] | Annotated[FromFiles, Tag("FromFiles")],
    Discriminator(lambda value: environment_kind(value).__name__),
]


def starts(environments: Sequence[EnvironmentSpec]) -> list[int]:
    """The number of each environment's first training problem in the run, and last the number of all."""
    return [0, *accumulate(environment.problems for environment in environments)]


class SamplingSpec(Part):
    group_size: int = Field(ge=2, le=1024)
    """Samples of one problem."""
    groups_per_submission: int = Field(ge=1, le=4096)
    temperature: DecimalText
    """At most 100; 0 is greedy."""
    top_k: int = Field(default=0, ge=0, lt=2**31)
    """Most likely tokens that are kept; 0: all."""
    top_p: DecimalText = "1"
    """Share of the probability that is kept, of what `top_k` left; "1": all. At least 0.001."""
    max_new_tokens: int = Field(ge=1, le=1 << 20)
    logprobs: bool = True
    """Whether rollout files carry the logprob of each generated token, which trainers may correct for stale weights with."""
    prompt_template: str = "{prompt}"
    """How a problem becomes the model's input; holds `{prompt}` once."""

    @model_validator(mode="after")
    def _one_place(self) -> SamplingSpec:
        if self.prompt_template.count("{prompt}") != 1:
            raise ValueError("prompt_template must hold {prompt} exactly once")
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
    def distribution(self) -> SamplingDistribution:
        """Keyword arguments of whatever draws or scores."""
        return {"temperature": float(self.temperature), "top_k": self.top_k, "top_p": float(self.top_p)}


def classes(numbers: Sequence[int]) -> str:
    """Hardware classes as a message names them."""
    return f"hardware class{'es' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


class RewardSpec(Part):
    alpha: DecimalText = "0"
    """Reward lost per token of distance from the length budget (arXiv 2505.07291, section 3.1.2); 0 switches it off."""
    budgets: dict[HardwareKey, Annotated[list[LengthBudget], Field(min_length=1)]] = {}
    """Length budgets in tokens for each hardware class (the class number as text); empty: none is announced to any."""

    def require_classes(self, listed: Sequence[int]) -> None:
        """Raises ValueError unless budgets are for exactly these hardware classes, or for none.

        A seat chooses its class: one without budgets would be a way around them.
        """
        named = [int(key) for key in self.budgets]
        if left_out := sorted(set(listed) - set(named)) if named else []:
            raise ValueError(f"reward.budgets leaves out {classes(left_out)}: give budgets to every class or to none")
        if unknown := sorted(set(named) - set(listed)):
            raise ValueError(f"reward.budgets is of {classes(unknown)}, which verification does not list")


class Limit(Part):
    """A measured value above `soft` earns nothing; above `hard` it is cheating. Between them nobody is slashed."""

    soft: DecimalText
    hard: DecimalText

    @model_validator(mode="after")
    def _ordered(self) -> Limit:
        if Decimal(self.hard) < Decimal(self.soft):
            raise ValueError("hard must not be below soft")
        return self


class ComputationLimits(Part):
    """Per chunk of a TOPLOC proof. The first two are shares of the k points."""

    exponents: Limit
    signs: Limit
    mantissa_mean: Limit
    mantissa_median: Limit


class SamplingLimits(Part):
    """Margins are in logits. A token whose margin exceeds `mismatch_above` counts as mismatched."""

    mismatch_above: DecimalText
    token_margin: Limit
    chunk_mismatches: Limit
    sequence_mismatches: Limit
    mean_margin: Limit
    """Mean over a sequence of margins clipped at `margin_clip`."""
    chunk_mean_margin: Limit | None = None
    """The same over each chunk of 32 tokens; calibrations older than this field have none, and nothing is judged by it."""
    margin_clip: DecimalText
    logprob_error: Limit
    """Largest distance of a claimed logprob from the verifier's."""


class VerificationSpec(Part):
    proof: Literal["toploc/1"] = "toploc/1"
    validators_needed: int = Field(ge=1, le=16)
    """Accepting validators a rollout needs before the trainer may learn from it."""
    newcomer_submissions: int = Field(ge=0, default=8)
    """A seat's first submissions get the prefill in full."""
    prefill_share: DecimalText = "1"
    """Share of the samples that get the prefill afterwards."""
    reward_tolerance: DecimalText = "0.000001"
    computation: ComputationLimits
    sampling: SamplingLimits
    calibration: HexDigest
    """Digest of the calibration these limits came from."""
    calibrated: list[HardwareClass] = [0]
    """Hardware classes that the calibration covers."""
    uncalibrated: list[HardwareClass] = []
    """Hardware classes that may work as well, though nobody knows how far their honest work strays: no finding is worse than
    soft there, so they are paid and never slashed. A class in neither list cannot work in the run."""

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


class RunSpec(Part):
    protocol: Literal[1] = PROTOCOL_VERSION
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    model: ModelSpec
    environments: list[AnyEnvironment] = Field(min_length=1, max_length=256)
    sampling: SamplingSpec
    reward: RewardSpec = RewardSpec()
    verification: VerificationSpec
    max_lag: int = Field(ge=0, le=64)
    """Oldest weights a rollout may come from, in steps behind the trainer's."""
    upload_grace_seconds: int = Field(ge=1, le=86_400)
    """From commitment to upload, in block time."""
    file_bytes_max: int = Field(ge=1 << 10, le=1 << 30)

    @model_validator(mode="after")
    def _budgets_for_every_class(self) -> RunSpec:
        self.reward.require_classes(self.verification.hardware)
        return self

    @model_validator(mode="after")
    def _require_receipts_to_fit(self) -> RunSpec:
        if self.samples > SAMPLES_MAX:
            raise ValueError(f"group_size x groups_per_submission is {self.samples}, more than {SAMPLES_MAX}")
        return self

    def canonical(self) -> bytes:
        return canonical.encode(self.model_dump(mode="json"))

    @property
    def digest(self) -> bytes:
        return canonical.digest(self.model_dump(mode="json"))

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
        files = [file for one in self.environments if isinstance(one, FromFiles) for file in one.files]
        return [*files, *kept]

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
