"""Where the numbers of a step go, and some of its samples: metrics.jsonl and samples.jsonl, the trainer's own /metrics, TensorBoard,
Weights & Biases.

Watching never ends what it watches: a sink that fails is warned of once and left out from then on. A record is a flat or
once-nested mapping of numbers; `reward_by_environment: {x: 0.5}` is `reward_by_environment/x` in TensorBoard and
`murmur_trainer_reward_by_environment{of="x"}` at /metrics. None means: not known in this step.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from protocol import extras
from protocol.errors import ConfigError
from protocol.metrics import REGISTRY, Gauge, Registry
from trainer.config import MetricSettings, Outputs
from trainer.telemetry import record as known
from trainer.telemetry import samples
from trainer.telemetry.samples import Shown

log = logging.getLogger("trainer")

Record = Mapping[str, Any]


class Sink(Protocol):
    name: str

    def write(self, step: int, record: Record) -> None: ...

    def show(self, step: int, shown: Sequence[Shown]) -> None:
        """Takes samples, where it has room for texts."""
        ...

    def close(self) -> None: ...


class Metrics:
    """All sinks of a run. Raises ConfigError for what was asked for and cannot be had."""

    def __init__(self, settings: MetricSettings, layout: Outputs, *, step: int) -> None:
        """`step`: the first that will be written; what an earlier process wrote from there on is removed, but at Weights & Biases."""
        self._sinks: list[Sink] = [JsonLines(layout.metrics, layout.samples, step), Gauges()]
        if settings.tensorboard:
            self._sinks += _tensorboard(layout.tensorboard, step)
        if settings.wandb_project:
            self._sinks += _weights_and_biases(settings.wandb_project, layout.output)

    def write(self, step: int, record: Record) -> None:
        self._tell(lambda sink: sink.write(step, record))

    def show(self, step: int, shown: Sequence[Shown]) -> None:
        if shown:
            self._tell(lambda sink: sink.show(step, shown))

    def _tell(self, what: Callable[[Sink], None]) -> None:
        for sink in list(self._sinks):
            try:
                what(sink)
            except Exception as error:  # noqa: BLE001  whatever a sink raises, the training goes on
                log.warning("metrics are no longer written to %s: %s", sink.name, error)
                self._sinks.remove(sink)

    def close(self) -> None:
        for sink in self._sinks:
            try:
                sink.close()
            except Exception as error:  # noqa: BLE001
                log.warning("%s could not be closed: %s", sink.name, error)


def numbers(record: Record) -> Iterator[tuple[str, str, float]]:
    """(name, part, value) of every number; `part` is "" where the value is not nested."""
    for name, value in record.items():
        parts = value.items() if isinstance(value, Mapping) else [("", value)]
        for part, number in parts:
            if isinstance(number, int | float):
                yield name, str(part), float(number)


class JsonLines:
    """One JSON object per step, and one per sample. A full disk costs the line, not the sink."""

    name = "metrics.jsonl"

    def __init__(self, path: Path, samples: Path, step: int) -> None:
        self._path = path
        self._samples = samples
        for file in (path, samples):
            try:
                _cut_off(file, step)
            except OSError as error:
                log.warning("%s may tell of steps from %d on twice: %s", file, step, error.strerror)

    def write(self, step: int, record: Record) -> None:
        try:
            with self._path.open("a") as file:
                file.write(json.dumps({"step": step, **record}) + "\n")
        except OSError as error:
            log.warning("the metrics of step %d could not be written: %s", step, error.strerror)

    def show(self, step: int, shown: Sequence[Shown]) -> None:
        try:
            samples.write(self._samples, step, shown)
        except OSError as error:
            log.warning("the samples of step %d could not be written: %s", step, error.strerror)

    def close(self) -> None:
        pass


def _cut_off(path: Path, step: int) -> None:
    """Removes the lines of `step` and later ones, and torn ones, by one rename. Raises OSError."""
    if not path.exists() or _all_before(step, path):
        return
    rest = path.with_name(f".writing-{path.name}")
    try:
        with path.open("rb") as lines, rest.open("wb") as kept:
            kept.writelines(line for line in lines if _is_before(step, line))
            kept.flush()
            os.fsync(kept.fileno())
        os.replace(rest, path)
    finally:
        rest.unlink(missing_ok=True)


def _all_before(step: int, path: Path) -> bool:
    with path.open("rb") as lines:
        return all(_is_before(step, line) for line in lines)


def _is_before(step: int, line: bytes) -> bool:
    try:
        return line.endswith(b"\n") and int(json.loads(line)["step"]) < step
    except (ValueError, TypeError, KeyError):  # torn, by a kill or a full disk
        return False


def _tensorboard(folder: Path, step: int) -> list[Sink]:
    try:
        return [TensorBoard(folder, step)]
    except (ImportError, OSError) as error:
        log.warning("no TensorBoard files are written: %s (the extra `trainer` of murmuration brings it)", error)
        return []


class TensorBoard:
    name = "TensorBoard"

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder), purge_step=step)

    def write(self, step: int, record: Record) -> None:
        for name, part, value in numbers(record):
            self._writer.add_scalar(f"{name}/{part}" if part else name, value, step)
        self._writer.flush()

    def show(self, step: int, shown: Sequence[Shown]) -> None:
        """TensorBoard renders Markdown: as indented code a stranger's text is nothing but text."""
        lines = (
            f"    {name}: {cell}" for sample in shown for name, cell in zip(samples.COLUMNS, sample.cells, strict=True)
        )
        self._writer.add_text("samples", "\n".join(lines), step)

    def close(self) -> None:
        self._writer.close()


class Gauges:
    """What the trainer's /metrics shows of a step, beside what every role counts (protocol/metrics.py)."""

    name = "/metrics"

    def __init__(self, registry: Registry = REGISTRY) -> None:
        self._registry = registry
        self._gauges: dict[str, Gauge] = {}

    def write(self, step: int, record: Record) -> None:
        for name, part, value in numbers({"step": step, **record}):
            if name not in self._gauges:
                text = known.TEXTS.get(name, name)
                self._gauges[name] = self._registry.gauge(f"murmur_trainer_{name}", text, *(["of"] if part else []))
            self._gauges[name].set(value, **({"of": part} if part else {}))

    def show(self, step: int, shown: Sequence[Shown]) -> None:
        """Texts are no numbers."""

    def close(self) -> None:
        for gauge in self._gauges.values():
            self._registry.remove(gauge)


class WeightsAndBiases:
    """A run of its own there, which a resumed training goes on with: its id lies in output/wandb-id."""

    name = "Weights & Biases"

    def __init__(self, package: Any, project: str, folder: Path) -> None:
        self._table: Callable[..., Any] = package.Table
        self._run: Any = package.init(project=project, dir=str(folder), id=_run_id(folder / "wandb-id"), resume="allow")
        self._run.define_metric("*", step_metric="train_step")  # evaluations come later than the steps they are of

    def write(self, step: int, record: Record) -> None:
        flat = {f"{name}/{part}" if part else name: value for name, part, value in numbers(record)}
        self._run.log({"train_step": step, **flat})

    def show(self, step: int, shown: Sequence[Shown]) -> None:
        rows = [[step, *sample.cells] for sample in shown]
        self._run.log({"train_step": step, "samples": self._table(columns=["step", *samples.COLUMNS], data=rows)})

    def close(self) -> None:
        self._run.finish()


def _weights_and_biases(project: str, folder: Path) -> list[Sink]:
    try:
        import wandb
    except ImportError:
        raise ConfigError(
            "trainer.metrics.wandb_project is set, and the package wandb is not installed",
            hint=extras.how_to_install("wandb"),
        ) from None
    try:
        return [WeightsAndBiases(wandb, project, folder)]
    except Exception as error:  # noqa: BLE001  no login, no network: the training goes on
        log.warning("nothing is written to Weights & Biases: %s", error)
        return []


def _run_id(path: Path) -> str:
    if not path.exists():
        path.write_text(secrets.token_hex(8))
    return path.read_text()
