"""Where the numbers of a step go: metrics.jsonl, TensorBoard, a Prometheus endpoint, Weights & Biases.

Watching never ends what it watches: a sink that fails is warned of once and left out from then on. A record is a flat or
once-nested mapping of numbers; `reward_by_environment: {x: 0.5}` is `reward_by_environment/x` in TensorBoard and
`murmur_trainer_reward_by_environment{of="x"}` at the endpoint. None means: not known in this step.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from protocol.errors import ConfigError, PreflightError
from trainer.config import Layout, MetricSettings

log = logging.getLogger("trainer")

Record = Mapping[str, Any]


class Sink(Protocol):
    name: str

    def write(self, step: int, record: Record) -> None: ...

    def close(self) -> None: ...


class Metrics:
    """All sinks of a run. Raises ConfigError or PreflightError for what was asked for and cannot be had."""

    def __init__(self, settings: MetricSettings, layout: Layout, *, step: int) -> None:
        """`step`: the first that will be written; what an earlier process wrote from there on is superseded."""
        self._sinks: list[Sink] = [Lines(layout.metrics)]
        if settings.tensorboard:
            self._sinks += _tensorboard(layout.tensorboard, step)
        if settings.prometheus_port:
            self._sinks.append(Prometheus(settings.prometheus_host, settings.prometheus_port))
        if settings.wandb_project:
            self._sinks.append(WeightsAndBiases(settings.wandb_project, layout.output))

    def write(self, step: int, record: Record) -> None:
        for sink in list(self._sinks):
            try:
                sink.write(step, record)
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


class Lines:
    """One JSON object per step. A full disk costs the line, not the sink."""

    name = "metrics.jsonl"

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, step: int, record: Record) -> None:
        try:
            with self._path.open("a") as file:
                file.write(json.dumps({"step": step, **record}) + "\n")
        except OSError as error:
            log.warning("the metrics of step %d could not be written: %s", step, error.strerror)

    def close(self) -> None:
        pass


def _tensorboard(folder: Path, step: int) -> list[Sink]:
    try:
        return [TensorBoard(folder, step)]
    except (ImportError, OSError) as error:
        log.warning("no TensorBoard files are written: %s", error)
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

    def close(self) -> None:
        self._writer.close()


class Prometheus:
    name = "Prometheus"

    def __init__(self, host: str, port: int) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        self._registry = CollectorRegistry()
        self._gauges: dict[str, Any] = {}
        try:
            self._server, self._thread = start_http_server(port, host, self._registry)
        except OSError as error:
            raise PreflightError(
                f"cannot serve metrics at {host}:{port}: {error.strerror}",
                hint="set trainer.telemetry.metrics.prometheus_port",
            ) from error

    def write(self, step: int, record: Record) -> None:
        for name, part, value in numbers({"step": step, **record}):
            self._gauge(name, nested=bool(part), part=part).set(value)

    def _gauge(self, name: str, *, nested: bool, part: str) -> Any:
        from prometheus_client import Gauge

        if name not in self._gauges:
            labels = ("of",) if nested else ()
            self._gauges[name] = Gauge(f"murmur_trainer_{name}", name, labels, registry=self._registry)
        return self._gauges[name].labels(part) if nested else self._gauges[name]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


class WeightsAndBiases:
    name = "Weights & Biases"

    def __init__(self, project: str, folder: Path) -> None:
        try:
            import wandb
        except ImportError:
            raise ConfigError(
                "trainer.telemetry.metrics.wandb_project is set, and the package wandb is not installed",
                hint="pip install wandb",
            ) from None
        self._run: Any = wandb.init(project=project, dir=str(folder), resume="allow")
        self._run.define_metric("*", step_metric="train_step")  # evaluations come later than the steps they are of

    def write(self, step: int, record: Record) -> None:
        flat = {f"{name}/{part}" if part else name: value for name, part, value in numbers(record)}
        self._run.log({"train_step": step, **flat})

    def close(self) -> None:
        self._run.finish()
