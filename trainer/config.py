"""The researcher's own settings: [trainer], [hub], [vouchers], [engine] and [evaluation] of run.toml, beside [chain] and [peers] that every role has.

Nothing here is hashed or agreed upon: contributors and validators never see it. Defaults are INTELLECT-2's recipe
(arXiv 2505.07291, section 3 and the numbers in its appendix) where it names one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from node.engine.settings import EngineSettings
from protocol.chain.settings import ChainSettings
from protocol.errors import ConfigError, UsageError
from protocol.http_url import typed_host
from protocol.logs import LoggingSettings
from protocol.metrics import MetricsSettings
from protocol.page.settings import PageFor
from protocol.settings import Loaded, Settings, load, read_toml
from protocol.shell.money import parse_tokens
from protocol.shell.peers import PeerSettings
from trainer.engines import Engines, EvaluationSettings, TrainerEngine
from trainer.location import Location
from trainer.recipes import RECIPES, Aggregation, Clip, Correction, Name


class OptimizerSettings(Settings):
    lr: float = Field(default=3e-7, gt=0)
    warmup_steps: int = Field(default=25, ge=0)
    """Optimizer steps over which the learning rate climbs linearly; each step of the trainer has `optimizer_steps` of them."""
    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 0.01
    gradient_clip: float = Field(default=0.1, gt=0)
    """Largest norm of the gradient."""
    offload: bool = False
    """Whether AdamW's two moments lie in host memory between updates, 8 bytes of each parameter, or 4 in bfloat16; on a CPU they do anyway."""
    moments: Literal["float32", "bfloat16"] = "float32"
    """Type that AdamW's two moments are kept in; in bfloat16, half as much, they are rounded at random, so that small changes add up."""


class LossSettings(Settings):
    """What a loss's name leaves open is None: then the table in trainer/recipes.py says."""

    name: Name = "intellect2"
    clip_low: float | None = Field(default=None, ge=0, le=1)
    """ε_low: the ratio is clipped to at least 1 - ε_low."""
    clip_high: float | None = Field(default=None, gt=0)
    """ε_high: the ratio is clipped to at most 1 + ε_high."""
    delta: float | None = Field(default=None, gt=1)
    """δ: upper bound of the ratio where the advantage is negative (two-sided clipping)."""
    aggregation: Aggregation | None = None
    """Mean over tokens, mean over samples of their token means, or sum divided by samples × `constant`."""
    constant: int | None = Field(default=None, ge=1)
    """Divisor of each sample under the aggregation "constant": usually the run's max_new_tokens."""
    old: Literal["recomputed", "claimed"] = "recomputed"
    """Old logprobs: this trainer's own at the beginning of the step, or those the nodes claim to have sampled with."""
    correction: Correction = "none"
    """Importance weights old / claimed probability for stale rollouts: capped, or dropped where out of bounds."""
    correction_low: float = Field(default=0.5, ge=0, le=1)
    correction_high: float = Field(default=2.0, ge=1)
    entropy: float = Field(default=1e-4, ge=0)
    """Weight of the entropy bonus, a mean over tokens."""

    @model_validator(mode="after")
    def _can_work(self) -> LossSettings:
        if self.aggregates == "constant" and self.constant is None:
            raise ValueError("this loss divides by a constant length: set `constant`, usually to max_new_tokens")
        if self.old == "claimed" and self.correction != "none":
            raise ValueError(
                "a correction compares the trainer's own old logprobs with the claimed ones: `old` must be recomputed"
            )
        return self

    def require_logprobs(self, claimed: bool) -> None:
        """Raises ConfigError where this loss wants what rollout files of a run without logprobs do not claim."""
        if not claimed and (self.old == "claimed" or self.correction != "none"):
            setting = "old" if self.old == "claimed" else "correction"
            raise ConfigError(
                f"trainer.loss.{setting} = {getattr(self, setting)!r} needs the logprobs that tokens were sampled with",
                hint="the run leaves them out (spec.sampling.logprobs = false): choose a loss without",
            )

    @property
    def aggregates(self) -> Aggregation:
        return self.aggregation or RECIPES[self.name].aggregation

    @property
    def clip(self) -> Clip:
        own = RECIPES[self.name].clip
        return Clip(
            own.low if self.clip_low is None else self.clip_low,
            own.high if self.clip_high is None else self.clip_high,
            own.delta if self.delta is None else self.delta,
        )


class KlSettings(Settings):
    weight: float = Field(default=0.001, ge=0)
    """Weight of the KL divergence from the policy before training (the folder `model`); 0 never loads it a second time, nor do adapters,
    under which it lies unchanged."""
    reference: Literal["device", "host", "disk"] = "device"
    """Where the reference lies between steps: beside the policy; in host memory, from where a GPU gets it layer by layer; or in its
    folder alone, from where it is read at the beginning of each step."""


class DeadlineSettings(Settings):
    """Seconds that a phase of the trainer may take; one that overruns ends the process, with all stacks dumped."""

    starting: float = Field(default=1800, gt=0)
    """From the start of the process to the first wait for rollouts."""
    training: float = Field(default=7200, gt=0)
    """The optimizer steps on one batch."""
    saving: float = Field(default=1800, gt=0)
    """Writing one checkpoint."""
    publishing: float = Field(default=1800, gt=0)
    """Writing one version of the weights for the hub, and waiting for the one before."""
    evaluating: float = Field(default=7200, gt=0)
    """One evaluation, and waiting for the one before. One that takes longer is warned of and left out; it ends nothing."""
    polling: float = Field(default=900, gt=0)
    """One look at chain and hub, with the download of what is new."""


class MetricSettings(Settings):
    """Where metrics go, besides metrics.jsonl. What fails to be written is warned of; it never ends the training."""

    tensorboard: bool = True
    """Event files in output/tensorboard."""
    wandb_project: str | None = None
    """Project at Weights & Biases; needs the package wandb and its own login."""
    samples: int = Field(default=4, ge=0, le=256)
    """Samples of each step whose texts are kept, in output/samples.jsonl and at Weights & Biases: best and worst of some groups."""
    peak_tflops: float = Field(default=0, ge=0)
    """Peak of the training device in its compute dtype, in 10¹² operations per second; 0: MFU is not reported."""


class AlarmSettings(Settings):
    """Signals that came before every collapse that was seen. An alarm is a log line, a metric and a line of `status`."""

    log_ratio: float = Field(default=0.1, gt=0)
    """Mean |log-ratio| of the policy to the one at the step's start."""
    clipped: float = Field(default=0.1, gt=0)
    """Share of clipped tokens."""
    zero_advantage_surge: float = Field(default=0.25, gt=0)
    """Rise of the share of groups whose samples all got the same reward, above its running mean."""


OnlineFilter = Literal["task_reward", "reward"]


class TrainSettings(Settings):
    model: str = "policy"
    """Folder of the policy before training, beside run.toml."""
    output: str = "output"
    """Folder of checkpoints, outgoing weights, metrics and status, beside run.toml."""
    steps: int = Field(ge=1)
    """Rollout steps to train."""
    groups_per_step: int = Field(default=256, ge=1)
    """Groups that pass the online filter, which a step needs."""
    online_filter: OnlineFilter = "task_reward"
    """A group is trained on where its samples differ in this. "reward" keeps those that differ in their length penalty only."""
    optimizer_steps: int = Field(default=8, ge=1)
    """Optimizer steps on the rollouts of one step."""
    pack_tokens: int = Field(default=32_768, ge=8)
    """Tokens of a packed training row; longer samples get a row of their own length."""
    rows_per_forward: int = Field(default=1, ge=1)
    """Packed rows that go through the model at once."""
    optimizer: OptimizerSettings = OptimizerSettings()
    loss: LossSettings = LossSettings()
    kl: KlSettings = KlSettings()
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type the model computes in; master weights, logprobs and the optimizer are float32 always."""
    lora_rank: int = Field(default=0, ge=0)
    """Rank of the adapters that are trained in place of the weights, one on every linear layer but the head; 0: all weights are trained.
    What is published are the weights with the adapters merged into them."""
    lora_alpha: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """What adapters add is multiplied by this divided by `lora_rank`; else twice the rank."""
    activation_checkpointing: bool = False
    """Recompute the layers in the backward pass: less memory, about a third more time."""
    kernels: Literal["torch", "liger"] = "torch"
    """Norms, rotary embedding and gated MLP of the package liger-kernel, on an NVIDIA GPU; made to take less memory there, not measured here yet."""
    compile_layers: bool = False
    """Compile each layer with torch.compile: the first step takes minutes longer; what later ones gain on a GPU was not measured here yet."""
    seed: int = 0
    evaluate_every: int = Field(default=10, ge=1)
    """Steps between evaluations on the held-out problems."""
    checkpoint_every: int = Field(default=10, ge=1)
    """Steps between checkpoints."""
    checkpoints_kept: int = Field(default=2, ge=1)
    """Newest checkpoints that are kept."""
    checkpoint_keep_every: int = Field(default=0, ge=0)
    """Checkpoints of steps divisible by this are kept for good; 0: none."""
    rollout_wait_seconds: float = Field(default=3600, gt=0)
    """Longest wait for a full batch before the trainer gives up, naming what is missing."""
    rollout_quiet_seconds: float = Field(default=900, gt=0)
    """After so long without a new group the step is taken with those there are, and so it is at once where seats can give no more for these
    weights. With too few, the same weights become the next version, if a seat waits for one."""
    groups_least: int | None = Field(default=None, ge=1)
    """Fewest groups such a step is taken with; else half of `groups_per_step`, and never less than one per optimizer step."""
    node_share: float = Field(default=0.5, gt=0, le=1)
    """Largest share of a batch that one node may supply; never less than an equal share among those who have supplied any."""
    node_share_wait_seconds: float = Field(default=20, ge=0)
    """Longest wait for other nodes when a batch is full but for `node_share`; then the excess is spread evenly."""
    rollouts_ahead: float = Field(default=2.0, ge=1, le=100, allow_inf_nan=False)
    """Batches that nodes are asked for at a time, the one that is collected included. Fewer leave less untrained; too few for the way from
    weights to validated rollouts, and the trainer waits."""
    deadlines: DeadlineSettings = DeadlineSettings()
    metrics: MetricSettings = MetricSettings()
    alarms: AlarmSettings = AlarmSettings()

    @model_validator(mode="after")
    def _least_is_no_more_than_a_batch(self) -> TrainSettings:
        if self.groups_least is not None and self.groups_least > self.groups_per_step:
            raise ValueError(f"groups_least is {self.groups_least}, more than groups_per_step, {self.groups_per_step}")
        return self

    @model_validator(mode="after")
    def _alpha_is_of_adapters(self) -> TrainSettings:
        if self.lora_alpha is not None and not self.lora_rank:
            raise ValueError("lora_alpha says how adapters are scaled, and there are none: set lora_rank")
        return self

    @property
    def fewest_groups(self) -> int:
        """Groups that a step is taken with when no more come."""
        asked = self.groups_least or (self.groups_per_step + 1) // 2
        return min(self.groups_per_step, max(asked, self.optimizer_steps))


class HubSettings(Settings):
    keystore: str = "trainer.json"
    """Keystore of the run's trainer key, beside run.toml: publishes weights, signs manifests and storage receipts."""
    host: str = "0.0.0.0"  # noqa: S104  a hub is there to be reached
    """Address to listen on; "::" takes IPv6 and IPv4."""
    port: int = Field(default=8450, ge=0, le=65535)
    """HTTP port for rollouts and receipts; 0 takes a free one."""
    origin_port: int = Field(default=8451, ge=0, le=65535)
    """HTTP port of the SHARDCAST origin; 0 takes a free one."""
    origin_upload_rate: int | None = Field(default=None, ge=64 << 10)
    """Most bytes a second that the origin sends; none: as fast as the line goes. Relays are served before nodes."""
    anchor_every: int = Field(default=1000, ge=1)
    """Versions from one that is published without a delta to the next. All others can be had by their difference from the version
    before as well, a hundredth of the bytes where the learning rate is small. 1: no deltas."""
    public_host: str | None = None
    """Name or address under which others reach both ports, when that is not `host`; where `host` is all addresses, others are told
    127.0.0.1 without it."""
    writes_per_minute: int = Field(default=600, ge=1)
    bytes_per_hour: int = Field(default=4 << 30, ge=1)
    """Quotas per seat."""
    looks_per_minute: int = Field(default=30, ge=1)
    """Looks at the chain that requests may cause, in all, beside those of every `chain.poll_seconds`; they are what a flood of
    requests can cost at the endpoint."""
    page: PageFor = "local"
    """To whom the hub shows the run's page: "local", browsers on this machine; "public", everybody who asks for it by an address or by
    `public_host`; "off", nobody."""
    connections: int = Field(default=8192, ge=16)
    """Connections to the hub in all, as far as the system's limit of open files goes. Idle ones give way, then those that wait for news."""
    connections_per_address: int = Field(default=256, ge=1)
    """Of one IPv4 address or one IPv6 /64. Behind a reverse proxy all come from its address: give it all of `connections`."""
    requests: int = Field(default=512, ge=8)
    """Requests answered at once. From 30 % of them on the run's page is refused, from half polls, then listings, then downloads, last uploads."""
    store: str | None = None
    """Rollout files and receipts: a folder beside run.toml, or s3://bucket/prefix; else hub/store in the output folder."""
    store_cache_bytes: int = Field(default=16 << 30, ge=0)
    """Rollout files that stay on this disk after a bucket has them, in bytes."""
    store_timeout_seconds: float = Field(default=60, gt=0)
    """Deadline of each request to a bucket; a request moves at most 8 MiB."""
    store_links: bool = True
    """Lead who downloads a rollout file to the bucket, by a URL that is signed for five minutes; where a reader cannot get there, and
    otherwise always, the hub sends it."""
    metrics: MetricsSettings = MetricsSettings()

    @field_validator("public_host")
    @classmethod
    def _can_be_announced(cls, host: str | None) -> str | None:
        return typed_host(host) if host else None

    @field_validator("store")
    @classmethod
    def _is_a_place(cls, text: str | None) -> str | None:
        if text is not None and "://" in text:
            Location.parse(text)
        elif text is not None and not text.strip():
            raise ValueError("expected a folder or s3://bucket/prefix")
        return text

    @property
    def bucket(self) -> Location | None:
        """Where the store is a bucket."""
        return Location.parse(self.store) if self.store is not None and "://" in self.store else None


class TrainerPageSettings(Settings):
    show: Literal["local", "off"] = "local"
    """Whether a running trainer serves its page to browsers on this machine. It costs nothing while nobody looks."""
    port: int = Field(default=8500, ge=0, le=65535)
    """Port of the page on 127.0.0.1; where another program has it, one of the next sixteen, and 0 takes any that is free. `murmur trainer
    status` names the address."""


class VoucherSettings(Settings):
    per_submission: str = "0"
    """Tokens owed to a validator for each submission it judged in time and not against the chain's verdict; 0 promises nothing."""
    submissions_per_step: int = Field(default=1000, ge=1)
    """Most submissions of one step that one validator is paid for."""

    @field_validator("per_submission")
    @classmethod
    def _is_amount(cls, text: str) -> str:
        try:
            parse_tokens(text, least=0)
        except UsageError as error:
            raise ValueError(str(error)) from error
        return text

    @property
    def wei_per_submission(self) -> int:
        return parse_tokens(self.per_submission, least=0)


class RunSettings(Settings):
    chain: ChainSettings
    peers: PeerSettings = PeerSettings()
    trainer: TrainSettings
    hub: HubSettings = HubSettings()
    vouchers: VoucherSettings = VoucherSettings()
    engine: TrainerEngine = TrainerEngine()
    evaluation: EvaluationSettings = EvaluationSettings()
    logging: LoggingSettings = LoggingSettings()
    metrics: MetricsSettings = MetricsSettings()
    page: TrainerPageSettings = TrainerPageSettings()


class SoloTable(Settings):
    """What `murmur trainer solo` asks by itself, in place of [spec.environments]; a run on chain knows nothing of it."""

    tasks: str | None = None
    """Parquet or JSONL file of the questions, beside run.toml; only with `reward`."""
    question: str = "question"
    """Column of the question."""
    reward: str | None = None
    """Function that grades answers, as FILE.py:FUNCTION, the file beside run.toml."""
    held_out: int = Field(default=0, ge=0)
    """Last rows of `tasks`, which are for evaluation."""
    staleness: int = Field(default=0, ge=0, le=64)
    """Steps that the weights which make rollouts are behind; 0: they are the newest. As a swarm's are, to see what it costs."""
    output: str = "solo"
    """Folder of checkpoints, metrics and status, beside run.toml, in place of `trainer.output`."""

    @model_validator(mode="after")
    def _both_or_none(self) -> SoloTable:
        if (self.tasks is None) != (self.reward is None):
            raise ValueError("`tasks` and `reward` go together; without them [[spec.environments]] are asked")
        return self


class SoloSettings(Settings):
    trainer: TrainSettings
    solo: SoloTable = SoloTable()
    engine: TrainerEngine = TrainerEngine()
    evaluation: EvaluationSettings = EvaluationSettings()
    logging: LoggingSettings = LoggingSettings()
    metrics: MetricsSettings = MetricsSettings()
    page: TrainerPageSettings = TrainerPageSettings()


def load_solo(file: Path, overrides: Mapping[str, Any] | None = None) -> Loaded[SoloSettings]:
    """The part of run.toml that a training on one machine needs; what a run on chain needs besides may be missing or half done."""
    return load(SoloSettings, file, overrides, tables=NOT_OF_SOLO)


NOT_OF_SOLO = ("spec", "policy", *sorted(frozenset(RunSettings.model_fields) - frozenset(SoloSettings.model_fields)))
"""Tables of run.toml that a training on one machine skips, or that are read elsewhere."""


def load_run(file: Path, overrides: Mapping[str, Any] | None = None) -> Loaded[RunSettings]:
    """Reads run.toml; [spec] and [policy] belong to protocol/shell/runfile.py. `overrides` by dotted path win."""
    return load(RunSettings, file, overrides, tables=("spec", "policy", "solo"))


class _Engines(Settings):
    engine: TrainerEngine = TrainerEngine()
    evaluation: EvaluationSettings = EvaluationSettings()


def load_engine(file: Path) -> EngineSettings:
    """[engine] of a run.toml, whose other tables need not be complete yet."""
    return _load_engines(file).engine


def load_evaluation_engine(file: Path) -> EngineSettings:
    """The same with what [evaluation.engine] says of it."""
    found = _load_engines(file)
    return found.evaluation.engine.over(found.engine)


def _load_engines(file: Path) -> _Engines:
    others = tuple(set(read_toml(file)) - set(_Engines.model_fields))
    return load(_Engines, file, tables=others).value


class _Planned(_Engines):
    trainer: TrainSettings
    solo: SoloTable = SoloTable()


def load_planned(file: Path, overrides: Mapping[str, Any] | None = None) -> tuple[TrainSettings, Engines]:
    """[trainer] of a run.toml and the engines beside it; its other tables need not be complete yet. With [solo] it generates as well."""
    tables = set(read_toml(file))
    others = tuple(tables - set(_Planned.model_fields))
    found = load(_Planned, file, overrides, tables=others).value
    evaluates = found.evaluation.engine.over(found.engine)
    return found.trainer, Engines(evaluates, found.engine if "solo" in tables else None)


class Outputs:
    """Where a training's files lie, all beside run.toml."""

    hub_status: Path | None = None

    def __init__(self, file: Path, model: str, output: str) -> None:
        root = file.resolve().parent
        self.file = file
        self.model = root / model
        self.output = root / output
        self.checkpoints = self.output / "checkpoints"
        self.outgoing = self.output / "outgoing"
        self.status = self.output / "status.json"
        self.metrics = self.output / "metrics.jsonl"
        self.samples = self.output / "samples.jsonl"
        self.phases = self.output / "phases.jsonl"
        self.tensorboard = self.output / "tensorboard"
        self.stacks = self.output / "stacks.txt"

    def require_checkpoint(self, begin: str) -> None:
        """Raises UsageError where there is nothing to go on from; `begin` is the command that begins. Quick: nothing is loaded."""
        if not any(self.checkpoints.glob("step_*")):
            raise UsageError(f"there is no checkpoint in {self.checkpoints}", hint=begin)


class Layout(Outputs):
    """The same of a run on chain, which has a hub."""

    def __init__(self, file: Path, settings: RunSettings) -> None:
        super().__init__(file, settings.trainer.model, settings.trainer.output)
        root = file.resolve().parent
        self.keystore = root / settings.hub.keystore
        self.hub = self.output / "hub"
        local = settings.hub.store if settings.hub.bucket is None else None
        self.store = self.hub / "store" if local is None else root / local
        self.hub_status: Path = self.hub / "status.json"
        self.book = self.hub / "chain.sqlite"
        self.need = self.output / "need.json"
