"""Numbers that every role writes to as it works: counters, gauges and histograms, in memory.

A metric is declared once, at the top of the module that writes it, and belongs to the process. exporter.py serves them all;
docs/metrics.md lists them. Writing is a dictionary look-up under a lock and imports nothing, so that short commands, which
serve nothing, pay nothing.

Names follow Prometheus: `murmur_<role>_<what>_<unit>`, a counter's ends in `_total`, times are seconds, sizes bytes. Labels hold
words of ours, never a stranger's text, a path, or a URL (which may hold a provider's key): see `host_of`. Should one get out of
hand nevertheless, what comes after `SERIES_MAX` combinations is counted together as "other".
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import ClassVar, Generic, TypeVar

from pydantic import Field

from protocol.errors import MurmurationError
from protocol.http_url import host_and_port
from protocol.settings import Settings

SERIES_MAX = 200
"""Combinations of label values that one metric tells apart."""
OTHER = "other"
SECONDS = (0.005, 0.02, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Upper bounds of a histogram of seconds: from a read on the chain to a submission of a large model."""

Labels = tuple[str, ...]
V = TypeVar("V")


class Metric(Generic[V]):
    """`name`, a sentence of `text`, and the names of its labels; one value for each combination of theirs."""

    kind: ClassVar[str]

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self.text = text
        self.labels = tuple(labels)
        self._names = frozenset(labels)
        self._values: dict[Labels, V] = {}
        self._lock = Lock()

    def values(self) -> dict[Labels, V]:
        """What there is now, by label values in the order of `labels`."""
        with self._lock:
            return {key: self._copy(value) for key, value in self._values.items()}

    def clear(self) -> None:
        """Forgets every value: for a gauge whose labels have changed, and for tests."""
        with self._lock:
            self._values.clear()

    def _copy(self, value: V) -> V:
        return value

    def _key(self, labels: Mapping[str, object]) -> Labels:
        """Under the lock. Raises ValueError where the labels are not those of the declaration."""
        if labels.keys() != self._names:
            raise ValueError(f"{self.name} has the labels {self.labels}, not {tuple(labels)}")
        key = tuple([str(labels[name]) for name in self.labels])
        if key not in self._values and len(self._values) >= SERIES_MAX:
            return (OTHER,) * len(self.labels)
        return key


class Counter(Metric[float]):
    """Only grows, from 0 at the start of the process. Without labels it is there from the beginning."""

    kind = "counter"

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        if not name.endswith("_total"):
            raise ValueError(f"the counter {name} must end in _total")
        super().__init__(name, text, labels)
        if not labels:
            self._values[()] = 0.0

    def from_zero(self, *values: str) -> Counter:
        """Has these values of its one label there from the beginning: a rate is known only of what was 0 before."""
        (label,) = self.labels
        for value in values:
            self.add(0, **{label: value})
        return self

    def add(self, amount: float = 1.0, **labels: object) -> None:
        if amount < 0:
            raise ValueError(f"{self.name} only grows")
        with self._lock:
            key = self._key(labels)
            self._values[key] = self._values.get(key, 0.0) + amount

    def reach(self, amount: float, **labels: object) -> None:
        """Takes over a total that is counted elsewhere; never goes back."""
        with self._lock:
            key = self._key(labels)
            self._values[key] = max(self._values.get(key, 0.0), amount)


class Gauge(Metric[float]):
    """Goes up and down. Absent until it was set."""

    kind = "gauge"

    def set(self, value: float, **labels: object) -> None:
        with self._lock:
            self._values[self._key(labels)] = float(value)


@dataclass
class Buckets:
    """`counts`: observations up to each of the histogram's bounds and above the one before; the last: above all."""

    counts: list[int]
    sum: float = 0.0


class Histogram(Metric[Buckets]):
    kind = "histogram"

    def __init__(self, name: str, text: str, labels: Sequence[str] = (), bounds: Sequence[float] = SECONDS) -> None:
        super().__init__(name, text, labels)
        self.bounds = tuple(bounds)

    def observe(self, value: float, **labels: object) -> None:
        with self._lock:
            key = self._key(labels)
            found = self._values.setdefault(key, Buckets([0] * (len(self.bounds) + 1)))
            found.counts[bisect_left(self.bounds, value)] += 1
            found.sum += value

    @contextmanager
    def time(self, **labels: object) -> Iterator[None]:
        """Observes the seconds that the block takes, also where it raises."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.observe(time.monotonic() - began, **labels)

    def _copy(self, value: Buckets) -> Buckets:
        return Buckets(list(value.counts), value.sum)


class Registry:
    """The metrics of a process, by name."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric[float] | Metric[Buckets]] = {}
        self._looks: list[Callable[[], None]] = []

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        return self._add(Counter(name, text, labels))

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return self._add(Gauge(name, text, labels))

    def histogram(self, name: str, text: str, *labels: str, bounds: Sequence[float] = SECONDS) -> Histogram:
        return self._add(Histogram(name, text, labels, bounds))

    @contextmanager
    def looking(self, look: Callable[[], None]) -> Iterator[None]:
        """Within the block `look` is called before the metrics are read, to set gauges that are dear to keep up to date."""
        self._looks.append(look)
        try:
            yield
        finally:
            self._looks.remove(look)

    def look(self) -> None:
        """Calls all of them. What one raises is its own trouble: the other metrics are read in any case."""
        for look in list(self._looks):
            with suppress(MurmurationError):
                look()

    def __iter__(self) -> Iterator[Metric[float] | Metric[Buckets]]:
        return iter(list(self._metrics.values()))

    def __getitem__(self, name: str) -> Metric[float] | Metric[Buckets]:
        return self._metrics[name]

    def __contains__(self, name: str) -> bool:
        return name in self._metrics

    def remove(self, metric: Metric[float]) -> None:
        """For a metric whose name the process learns only as it runs."""
        self._metrics.pop(metric.name, None)

    def _add(self, metric: M) -> M:
        if metric.name in self._metrics:
            raise ValueError(f"the metric {metric.name} is declared twice")
        self._metrics[metric.name] = metric
        return metric


M = TypeVar("M", Counter, Gauge, Histogram)


class MetricsSettings(Settings):
    host: str = "127.0.0.1"
    """Address on which /metrics and /healthz are served. They have no password."""
    port: int | None = Field(default=None, ge=0, le=65535)
    """Their port; 0 takes a free one, which status.json names. Not set: they are not served."""
    progress_seconds: float = Field(default=600.0, gt=0)
    """Time without progress after which /healthz answers 503."""


REGISTRY = Registry()
"""Of this process."""
counter, gauge, histogram = REGISTRY.counter, REGISTRY.gauge, REGISTRY.histogram


@lru_cache(maxsize=1024)
def host_of(url: str) -> str:
    """Host and port of a URL, to label by: paths, queries and user names of RPC providers hold their customers' keys."""
    return host_and_port(url) or OTHER
