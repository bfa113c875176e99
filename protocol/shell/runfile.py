"""run.toml, a researcher's one file for a run, and what is made of it.

    [chain], [peers]  as for every role          [policy]    goes on chain, for good (contracts/src/Runs.sol, Policy)
    [spec]            what all must agree on      [trainer], [hub]   the researcher's own business (trainer/config.py)

Digests may be left out of [spec]: `complete` computes them from the model folder, the calibration and the environments,
and the result is kept beside run.toml as spec.json, in the canonical form whose SHA-256 goes on chain.
"""

from __future__ import annotations

import copy
import hashlib
import logging
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError

from protocol import architectures, calibration, runspec
from protocol import probe as probes
from protocol.calibration import Calibration
from protocol.chain.settings import ClientSettings
from protocol.chain.types import Policy
from protocol.complaints import complaints
from protocol.constants import HEAD_PROBLEMS, NOBODY, TURNS_MAX
from protocol.environments import TaskSet, selection, taskfile
from protocol.errors import ConfigError, ProtocolViolation
from protocol.model_files import CONFIG, TOKENIZER
from protocol.notice_book import FILE as NOTICES
from protocol.notice_book import NoticeBook
from protocol.runspec import (
    AnswerSpec,
    EnvironmentSpec,
    FromFiles,
    Part,
    ProbeFile,
    RewardSpec,
    RunSpec,
    SamplingSpec,
    environment_kind,
)
from protocol.sandbox import EnvironmentSandbox
from protocol.settings import Settings, read_toml
from protocol.shell.money import parse_tokens
from protocol.tokenizer import Tokenizer

log = logging.getLogger(__name__)
P = TypeVar("P", bound=Part)

SPEC_FILE = "spec.json"
FILLED_IN = frozenset((
    "spec.model.config", "spec.model.tokenizer", "spec.model.unlisted", "spec.environments.package", "spec.environments.version", "spec.environments.content",
    "spec.environments.exact", "spec.environments.head", "spec.verification.computation", "spec.verification.sampling",
    "spec.verification.calibrated",
))  # fmt: skip
"""What may be left out of [spec] because `complete` finds it by itself."""
_AMOUNTS = ("node_stake", "validator_stake", "penalty", "bond", "jury_fee", "fee", "reward", "voucher_cap")
_SIZE_ALONE, _HELD_OUT_ALONE = 100_000, 32
_PACKAGE = "reasoning-gym"  # where an environment names none


class PolicyTable(Settings):
    """Goes on chain for good. Times in seconds; amounts in tokens, as text. What is sensible: docs/contracts.md, Policy."""

    trainer: str
    """Address of the trainer key, which publishes weights and signs receipts and vouchers."""
    gate: str = NOBODY
    """Key that invites nodes; zero: anyone with stake may join."""
    window: int = Field(default=86_400, ge=5)
    """In which a submission may be challenged; its reward can be claimed 1.0 to 1.2 windows after it."""
    appeal: int = Field(default=43_200, ge=0)
    """In which a case may be appealed; 0: verdicts are final at once, and no jury is needed."""
    vote: int = Field(default=43_200, ge=0)
    """In which validators vote on an appeal; above 0 where there are appeals."""
    grace: int = Field(default=120, ge=1)
    """For which superseded weights still take work; longer than the longest rollout."""
    notice: int = Field(default=600, ge=1)
    """From the owner's announcement (pause, defund, ban) to its effect; at least grace."""
    max_units: int = Field(ge=1, lt=2**29)
    """Most units, that is completion tokens, of one submission."""
    max_per_step: int = Field(ge=1, lt=2**16)
    """Most submissions of one seat for one step."""
    finder_bps: int = Field(default=2000, ge=0, le=5000)
    """The challenger's share of a slash, in hundredths of a per cent."""
    bond_bps: int = Field(default=2000, ge=0, le=10_000)
    """A challenger risks this many hundredths of a per cent of what its case withholds, where that is more than bond."""
    co_signers: int = Field(default=1, ge=0, le=1)
    """1: a hard challenge needs a second validator's signature; 0: it needs none."""
    leverage: int = Field(default=10, ge=1, lt=2**8)
    """A proven seat's reward at risk of a verdict may be this many times its locked stake; that of a new one is at most its stake."""
    strikes: int = Field(default=10, ge=1, lt=256)
    """Rejected or skipped submissions within one window that suspend a seat."""
    node_stake: str
    """Locked by each node's seat; at least penalty + bond + strikes × fee."""
    validator_stake: str
    """Locked by each validator's seat; at least bond, and bond_bps of the largest submission there is."""
    penalty: str
    """Slashed on a hard verdict, once for each seat; all that a seat's key can lose by itself. At least bond where there are appeals."""
    bond: str
    """Least at risk in a case and in an appeal; above 0 where there are appeals."""
    jury_fee: str = "1"
    """Pay of a whole jury for each submission of an appealed case; at most bond for a case, and above 0 where there are appeals."""
    voucher_cap: str = "100000"
    """Most that vouchers signed by the trainer pay in one window, counted from time zero; none where the owner is the trainer."""
    fee: str = "0"
    """Slashed for each strike; the challenger gets finder_bps of it."""
    reward: str
    """Per unit, that is per completion token."""

    def policy(self, owner: str) -> Policy:
        amounts = {name: parse_tokens(getattr(self, name), least=0) for name in _AMOUNTS}
        return Policy(owner=owner, **{**self.model_dump(), **amounts})  # type: ignore[arg-type]


def client(file: Path) -> tuple[ClientSettings, int | None]:
    """How the run's chain is reached, and its id where [chain] says it; readable before the run has a number."""
    table = _table(file, "chain")
    if "rpc" not in table or "contract" not in table:
        raise ConfigError(f"{file} needs chain.rpc and chain.contract")
    try:
        settings = ClientSettings.model_validate({k: v for k, v in table.items() if k in ClientSettings.model_fields})
    except ValidationError as error:
        lines = complaints(error, ClientSettings, within="chain")
        raise ConfigError(f"{file} has a wrong [chain]:\n{lines}") from None
    return settings, table.get("chain_id")


def read_policy(file: Path) -> PolicyTable:
    table = _table(file, "policy")
    try:
        return PolicyTable.model_validate(table)
    except ValidationError as error:
        lines = complaints(error, PolicyTable, within="policy")
        raise ConfigError(f"{file} has a wrong policy:\n{lines}") from None


def complete(file: Path, model: Path, *, probe: bool = True) -> RunSpec:
    """The run spec of `file`, with the digests that it leaves out filled in; without `probe` as if it named no reference probe."""
    table = copy.deepcopy(_table(file, "spec"))
    section = _fill_in_model(table, model)
    verification = _section(table, "verification", "spec")
    name, found = str(verification.get("calibration")), None
    if len(str(verification.get("calibration", ""))) != 64:
        if not isinstance(verification.get("calibration"), str):
            raise ConfigError("spec.verification.calibration is not set", hint=calibration.MAKE)
        found = calibration.load(name, file.parent)
        _require_covered(name, found, section)
        verification["calibration"] = found.digest
        verification.setdefault("computation", found.computation)
        verification.setdefault("sampling", found.sampling)
        verification.setdefault("calibrated", found.hardware)
        if found.noise is not None and not sampling(file).is_cut:
            verification.setdefault("noise", found.noise)
    if isinstance(verification.get("probe"), str):
        named = verification.pop("probe")
        verification |= {"probe": _probe(file.parent / named, section).model_dump()} if probe else {}
    table["environments"] = [e.model_dump() for e in environments(file)]
    spec = runspec.from_table(table)
    _require_right_model(model, spec)
    _require_room_for_prompts(model, spec)
    config = architectures.require_file(model / CONFIG)
    architectures.require_soft(config, spec.verification.calibrated)
    _require_exceedable(spec)
    _tell_of_idle_alpha(spec)
    if found is not None:
        _require_measured(name, found, spec.verification.calibrated)
    return spec


def other_calibration(name: str, spec: RunSpec) -> Calibration:
    """A calibration to replace that of a running run with: a file, or a shipped one by its name. Raises ConfigError for one of another dtype, or that did not
    measure each class that may be slashed."""
    found = calibration.load(name, Path())
    _require_covered(name, found, {"compute_dtype": spec.model.compute_dtype, "config": spec.model.config})
    _require_measured(name, found, spec.verification.calibrated)
    return found


def calibration_in_force(file: Path, head: int) -> dict[str, Any] | None:
    """Which calibration work with version `head` is judged by, and from which version on, by what lies beside `file`; None where no spec does."""
    if not (file.parent / SPEC_FILE).exists():
        return None
    verification, notice = read_spec(file).verification, NoticeBook(hub_folder(file) / NOTICES).of(head)
    if notice is None:
        return {"digest": verification.calibration, "since": 0, "notice": 0}
    return {"digest": notice.calibration, "since": notice.since, "notice": notice.number}


def hub_folder(file: Path) -> Path:
    """Where the hub keeps what is its own, within trainer.output; readable before the run has a chain."""
    return file.resolve().parent / str(_section(read_toml(file), "trainer").get("output", "output")) / "hub"


def _probe(path: Path, model: dict[str, Any]) -> ProbeFile:
    """Takes a copy of a reference probe into the task folder. Raises ConfigError for what is none, or of another model or dtype."""
    try:
        with path.open("rb") as opened:
            data = opened.read(probes.FILE_BYTES_MAX + 1)
        found = probes.decode(data)
    except (OSError, ProtocolViolation) as error:
        raise ConfigError(f"{path} cannot be used: {error}", hint="murmur trainer probe writes such files") from error
    if (found.config, found.compute_dtype) != (model["config"], model.get("compute_dtype")):
        raise ConfigError(
            f"{path} is of another model or compute dtype than the run's", hint="make it anew: murmur trainer probe"
        )
    return taskfile.keep(data, ProbeFile)


def answers(file: Path, model: Path) -> AnswerSpec:
    """What `file` says of model, sampling and reward, whatever else it leaves out. Raises ConfigError."""
    table = copy.deepcopy(_table(file, "spec"))
    _fill_in_model(table, model)
    parts = {name: table[name] for name in ("model", "sampling", "reward") if name in table}
    try:
        spec = AnswerSpec.model_validate(parts)
    except ValidationError as error:
        raise ConfigError(f"the run spec is wrong:\n{complaints(error, AnswerSpec, within='spec')}") from None
    _require_right_model(model, spec)
    return spec


def asked(file: Path, model: Path) -> AnswerSpec:
    """The same with the environments of `file`, for whoever asks their problems and verifies nothing. Raises ConfigError."""
    parts = answers(file, model)
    spec = AnswerSpec(
        model=parts.model, sampling=parts.sampling, reward=parts.reward, environments=list[Any](environments(file))
    )
    _require_room_for_prompts(model, spec)
    return spec


def _fill_in_model(table: dict[str, Any], model: Path) -> dict[str, Any]:
    """[spec.model], with the digests of the files in `model` where it names none, and whether that is unlisted."""
    section = _section(table, "model", "spec")
    for key, name in (("config", CONFIG), ("tokenizer", TOKENIZER)):
        section.setdefault(key, _digest_of(model / name))
    _require_said(section, model)
    return section


def _require_said(section: dict[str, Any], model: Path) -> None:
    """Fills in whether the model is unlisted, as its config.json says. Raises ConfigError where the file says otherwise."""
    found = architectures.is_unlisted(architectures.require_file(model / CONFIG))
    if section.setdefault("unlisted", found) is not found:
        said = "is not in the list of models" if found else "is in the list of models, or was never let in"
        raise ConfigError(
            f"spec.model.unlisted is {section['unlisted']!r}, and the model in {model} {said}", hint="leave it out"
        )


def _require_measured(name: str, found: Calibration, calibrated: list[int]) -> None:
    """Raises ConfigError for classes listed as calibrated that the calibration did not measure: their honest work might be slashed."""
    if unmeasured := sorted(set(calibrated) - set(found.hardware)):
        raise ConfigError(
            f"the calibration {name!r} measured {runspec.classes(found.hardware)}, not {', '.join(map(str, unmeasured))}",
            hint="list the others in spec.verification.uncalibrated, or make one with `murmur validator calibrate --hardware …`",
        )


def _require_right_model(model: Path, spec: AnswerSpec) -> None:
    """Raises ConfigError for a model that is not computed rightly, or has too few positions for an answer."""
    most = architectures.positions(architectures.require_file(model / CONFIG))
    if most is not None and spec.sampling.longest >= most:
        raise ConfigError(
            f"{_room(spec)}, and the model has {most} positions for a prompt and its answer",
            hint=f"lower spec.sampling.max_new_tokens by more than a prompt has tokens, below {most}",
        )


def _require_room_for_prompts(model: Path, spec: AnswerSpec) -> None:
    """Raises ConfigError where the model has too few positions for a prompt of the first problems and its answer."""
    tokenizer = Tokenizer(model)
    with EnvironmentSandbox(spec.environments) as sandbox:
        longest = tokenizer.longest(spec, TaskSet(spec.environments, sandbox).first(HEAD_PROBLEMS))
    if tokenizer.positions is not None and longest > tokenizer.positions:
        raise ConfigError(
            f"a prompt of the first problems has {longest - spec.sampling.longest} tokens; {_room(spec)}: with that it is longer than"
            f" the model's {tokenizer.positions} positions",
            hint=f"lower spec.sampling.max_new_tokens by {longest - tokenizer.positions}, or choose another model",
        )


def _room(spec: AnswerSpec) -> str:
    """What a sample may need after its prompt."""
    replies = f" and reply_tokens {spec.sampling.reply_tokens}" if spec.sampling.reply_tokens else ""
    return f"max_new_tokens is {spec.sampling.max_new_tokens}{replies}"


def _require_exceedable(spec: RunSpec) -> None:
    """Raises ConfigError for limits that nothing can exceed: the rule would find no cheat, and look as if it did."""
    limits = spec.verification.computation
    for name, limit in (("exponents", limits.exponents), ("signs", limits.signs)):
        if Decimal(limit.soft) >= 1:
            raise ConfigError(
                f"spec.verification.computation.{name}.soft is {limit.soft}, and a share is never above 1: no false proof would be found",
                hint="compute in float32, or calibrate on more honest work: murmur validator calibrate --prompts …",
            )


def _require_covered(name: str, found: Calibration, model: dict[str, Any]) -> None:
    """Raises ConfigError where a calibration cannot be the run's: rounding decides what honest work looks like.

    Of a model it did not measure it may still tell something, an earlier size of the same family for one: that is a warning.
    """
    dtype = model.get("compute_dtype", found.compute_dtype)
    if dtype != found.compute_dtype:
        raise ConfigError(
            f"the run computes in {dtype}, and the calibration {name!r} was measured in {found.compute_dtype}",
            hint=calibration.MAKE,
        )
    if found.models and model["config"] not in [covered.config for covered in found.models]:
        covered = ", ".join(covered.name for covered in found.models)
        log.warning(
            "the calibration %r measured %s, and the run's model is none of them: honest work of it may look different",
            name,
            covered,
        )


def _tell_of_idle_alpha(spec: RunSpec) -> None:
    """Whoever sets it means lengths to count."""
    places = {"spec.reward": spec.reward} | {
        f"the reward of {one.dataset}": one.reward for one in spec.environments if one.reward is not None
    }
    for place, reward in places.items():
        if Decimal(reward.alpha) and not reward.budgets:
            log.warning(
                "%s has alpha = %s and no budgets: no length is announced, and none counts", place, reward.alpha
            )


def environments(file: Path) -> list[EnvironmentSpec]:
    """The environments of `file`, completed; for whoever needs the tasks before there is a model."""
    listed = _table(file, "spec").get("environments", [])
    if not isinstance(listed, list) or not all(isinstance(table, dict) for table in listed):
        raise ConfigError(
            f"spec.environments of {file} is no list of tables", hint="write each as [[spec.environments]]"
        )
    with EnvironmentSandbox() as sandbox:
        return [_environment(table, number, file.resolve().parent, sandbox) for number, table in enumerate(listed)]


def turns(file: Path) -> int:
    """Turns that a sample of this run may have; what is no number in the file counts as it is left out."""
    sampling = _table(file, "spec").get("sampling", {})
    said = sampling.get("turns", 1) if isinstance(sampling, dict) else 1
    return said if type(said) is int and 1 <= said <= TURNS_MAX else 1


def environment_alone(
    package: str, dataset: str, config: dict[str, Any], files: list[Path], corpus: Sequence[Path] = ()
) -> EnvironmentSpec:
    """An environment without a run: many problems of some seeds, or all rows of task files, a tenth of them held out.

    Raises ConfigError for what it does not take.
    """
    table: dict[str, Any] = {"package": package, "dataset": dataset, "config": config}
    if files:
        found = [taskfile.add(path) for path in files]
        rows = sum(file.rows for file in found)
        held_out = min(_HELD_OUT_ALONE, rows // 10)
        table |= {"files": [file.model_dump() for file in found], "size": rows - held_out, "held_out_size": held_out}
        table |= {"corpus": [taskfile.add(path).model_dump() for path in corpus]}
    else:
        table |= {"seed": 1, "size": _SIZE_ALONE, "held_out_seed": 1 << 30, "held_out_size": _HELD_OUT_ALONE}
    with EnvironmentSandbox() as sandbox:
        if not files and sandbox.describe(package).from_files:
            raise ConfigError(
                f"the problems of {package} are rows of task files", hint="name them: --file tasks.parquet"
            )
        return _environment({**table, "head": "0" * 64}, 0, Path(), sandbox)


def _environment(table: dict[str, Any], number: int, beside: Path, sandbox: EnvironmentSandbox) -> EnvironmentSpec:
    """`table` with what it leaves out. Raises ConfigError for what is wrong in it, or where no environment is called so."""
    package = table.get("package", _PACKAGE)
    filled: dict[str, Any] = {"package": package, "head": "0" * 64}
    if isinstance(package, str):
        here = sandbox.describe(package)
        filled |= {"version": here.version, "exact": here.exact, "content": here.content}
    paths: dict[str, Any] = {"kept": None} if isinstance(table.get("kept"), str) else {}
    if environment_kind(table) is FromFiles:
        paths |= {name: _task_files(table[name], beside) for name in ("files", "corpus") if name in table}
    try:
        spec = environment_kind(table).model_validate({**filled, **table, **paths})
    except ValidationError as error:
        lines = complaints(error, environment_kind(table), within=f"spec.environments.{number}")
        raise ConfigError(f"the run spec is wrong:\n{lines}") from None
    if "kept" in paths:
        spec = spec.model_copy(update={"kept": selection.add(beside / table["kept"], spec)})
    return spec if "head" in table else spec.model_copy(update={"head": sandbox.head(spec)})


def _task_files(listed: Any, beside: Path) -> Any:
    """Digests and rows of the files that a table names by path; each is taken into the machine's task folder."""
    if not isinstance(listed, list):
        return listed
    return [taskfile.add(beside / one).model_dump() if isinstance(one, str) else one for one in listed]


def sampling(file: Path) -> SamplingSpec:
    """[spec.sampling] of `file`, for whoever needs it before there is a model."""
    return _part(file, "sampling", SamplingSpec)


def compute_dtype(file: Path) -> str:
    """spec.model.compute_dtype of `file`, likewise."""
    found = _section(_table(file, "spec"), "model", "spec").get("compute_dtype")
    if found not in ("float32", "bfloat16"):
        raise ConfigError("spec.model.compute_dtype is not set", hint='"bfloat16", or "float32"')
    return str(found)


def batch_invariant(file: Path) -> bool:
    """spec.model.batch_invariant of `file`, likewise."""
    return _section(_table(file, "spec"), "model", "spec").get("batch_invariant") is True


def reward(file: Path) -> RewardSpec:
    """[spec.reward] of `file`, likewise."""
    return _part(file, "reward", RewardSpec)


def _part(file: Path, name: str, kind: type[P]) -> P:
    try:
        return kind.model_validate(_table(file, "spec").get(name, {}))
    except ValidationError as error:
        lines = complaints(error, kind, within=f"spec.{name}")
        raise ConfigError(f"the run spec is wrong:\n{lines}") from None


def write_spec(file: Path, spec: RunSpec) -> Path:
    """Keeps the canonical spec beside run.toml; one that was created before is never changed under a run."""
    path = file.parent / SPEC_FILE
    if path.exists() and path.read_bytes() != spec.canonical():
        raise ConfigError(
            f"{path} holds another spec", hint="a run's spec never changes; move the file away for a new run"
        )
    path.write_bytes(spec.canonical())
    return path


def read_spec(file: Path) -> RunSpec:
    """The spec that `murmur run create` left beside run.toml."""
    path = file.parent / SPEC_FILE
    try:
        return runspec.from_canonical(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", hint="murmur run create writes it") from error
    except ProtocolViolation as error:
        raise ConfigError(f"{path}: {error}") from error


def model_folder(file: Path) -> Path:
    """Folder of the policy before training, trainer.model; readable before the run has a chain."""
    return file.resolve().parent / str(_section(read_toml(file), "trainer").get("model", "policy"))


def _table(file: Path, name: str) -> dict[str, Any]:
    table = read_toml(file).get(name)
    if not isinstance(table, dict):
        raise ConfigError(f"{file} has no [{name}] table")
    return table


def _section(table: dict[str, Any], name: str, within: str = "") -> dict[str, Any]:
    """The table called `name` in another one, which may leave it out."""
    section = table.setdefault(name, {})
    if not isinstance(section, dict):
        path = f"{within}.{name}" if within else name
        raise ConfigError(f"{path} is {section!r} instead of a table", hint=f"write it as [{path}]")
    return section


def _digest_of(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}", hint="trainer.model must name the policy's folder"
        ) from error
