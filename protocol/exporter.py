"""What a role shows of itself over HTTP: its metrics at `/metrics`, as Prometheus reads them, and `/healthz`.

    GET /metrics    text or OpenMetrics, as the reader asks
    GET /healthz    200 while the role gets on, 503 when nothing has moved for too long; JSON that says what is missing

What counts as progress is the role's to say: it calls `Health.progress` then. Whether a failure is its own or the chain's makes
no difference: who is told wants to look either way.

Off unless `[metrics] port` is set, and then on the loopback unless told otherwise: it has no password. Whoever connects gets a
few seconds, and few may be connected at once.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseServer
from typing import TYPE_CHECKING, Any

from protocol import metrics
from protocol.clock import SYSTEM, Clock
from protocol.errors import PreflightError
from protocol.metrics import REGISTRY, Buckets, Histogram, MetricsSettings, Registry

if TYPE_CHECKING:
    import socket

    from prometheus_client.core import Metric as Family

_IDLE = metrics.gauge("murmur_role_idle_seconds", "Time since the role last got on, as /healthz has it.")
_IDLE_MOST = metrics.gauge(
    "murmur_role_idle_limit_seconds", "Time without progress from which on /healthz answers 503 (progress_seconds)."
)
_DISK = metrics.gauge("murmur_disk_free_bytes", "Free space on the disk where the role keeps its data.")
_CONNECTIONS_MAX = 16
_LOOK_SECONDS = 0.2  # between looks at who takes too long, and whether it is over
_REQUEST_SECONDS = 10.0  # from a connection's beginning to its end


class Health:
    """Whether a role gets on. `what` names its progress, for people: "a turn of the validator"."""

    def __init__(self, what: str, deadline: float, clock: Clock = SYSTEM) -> None:
        """`deadline`: seconds without progress, counted from now on, after which the role is not healthy."""
        self._what = what
        self._deadline = deadline
        self._clock = clock
        self._last = clock.monotonic()

    def progress(self) -> None:
        """From any thread."""
        self._last = self._clock.monotonic()

    @property
    def idle(self) -> float:
        """Seconds since the last progress."""
        return self._clock.monotonic() - self._last

    @property
    def deadline(self) -> float:
        return self._deadline

    def __bool__(self) -> bool:
        return self.idle <= self._deadline

    def as_json(self) -> dict[str, Any]:
        since = self.idle
        found: dict[str, Any] = {
            "healthy": since <= self._deadline, "progress": self._what, "seconds_since": round(since, 1),
            "deadline": self._deadline,
        }  # fmt: skip
        if not found["healthy"]:
            found["reason"] = f"{self._what}: none for {since:.0f} s, and {self._deadline:g} s is the most"
        return found


class Exporter:
    """Serves while the context lasts; `url` says where, None where the settings want nothing served.

    Raises PreflightError on entry when the port cannot be had.
    """

    def __init__(
        self, settings: MetricsSettings, health: Health, registry: Registry = REGISTRY, *, folder: Path | None = None
    ) -> None:
        """`folder`: where the role keeps its data; the space left there is among its metrics."""
        self._settings = settings
        self._health = health
        self._registry = registry
        self._folder = folder
        self._looking = ExitStack()
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str | None:
        if self._server is None:
            return None
        host, port = self._server.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    def progress(self) -> None:
        """The role got on; from any thread."""
        self._health.progress()

    def __enter__(self) -> Exporter:
        host, port = self._settings.host, self._settings.port
        if port is None:
            return self
        try:
            self._server = _Server(host, port, self._registry, self._health)
        except OSError as error:
            raise PreflightError(
                f"cannot serve metrics at {host}:{port}: {error.strerror}", hint="set metrics.port, or 0 for a free one"
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_LOOK_SECONDS,), name="metrics", daemon=True
        )
        self._thread.start()
        self._looking.enter_context(self._registry.looking(self._look))
        return self

    def _look(self) -> None:
        _IDLE.set(self._health.idle)
        _IDLE_MOST.set(self._health.deadline)
        if self._folder is not None:
            with suppress(OSError):
                _DISK.set(shutil.disk_usage(self._folder).free)

    def __exit__(self, *_: object) -> None:
        self._looking.close()
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join(5)
            self._server = None


class _Server(ThreadingHTTPServer):
    request_queue_size = 64
    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, registry: Registry, health: Health) -> None:
        import socket

        from prometheus_client import CollectorRegistry, ProcessCollector

        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.health = health
        self.collected = CollectorRegistry()
        self.collected.register(_Collector(registry))
        ProcessCollector(registry=self.collected)
        self._open: dict[socket.socket, float] = {}
        self._mutex = threading.Lock()
        super().__init__((host, port), _Handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        with self._mutex:
            if len(self._open) >= _CONNECTIONS_MAX:
                return False
            self._open[request] = time.monotonic()
            return True

    def shutdown_request(self, request: Any) -> None:
        with self._mutex:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Called again and again: cuts whoever takes too long; the socket's own timeout is per read."""
        import socket

        late = time.monotonic() - _REQUEST_SECONDS
        with self._mutex:
            overdue = [request for request, since in self._open.items() if since < late]
        for request in overdue:
            try:
                request.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that went away is nobody's trouble."""


class _Handler(BaseHTTPRequestHandler):
    """HTTP/1.0: one request for each connection."""

    timeout = _REQUEST_SECONDS
    server: BaseServer

    def do_GET(self) -> None:
        server: _Server = self.server  # type: ignore[assignment]
        path = self.path.partition("?")[0]
        if path == "/metrics":
            from prometheus_client.exposition import choose_encoder

            encode, kind = choose_encoder(self.headers.get("Accept") or "")
            self._answer(200, kind, encode(server.collected))
        elif path == "/healthz":
            found = server.health.as_json()
            self._answer(200 if found["healthy"] else 503, "application/json", json.dumps(found).encode())
        else:
            self._answer(404, "text/plain", b"")

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: whoever scrapes would fill the log."""


class _Collector:
    """Our metrics in prometheus_client's terms, made anew for each reader."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Family]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        self._registry.look()
        for metric in self._registry:
            if isinstance(metric, Histogram):
                histogram = HistogramMetricFamily(metric.name, metric.text, labels=metric.labels)
                for labels, found in metric.values().items():
                    histogram.add_metric(labels, _cumulative(metric.bounds, found), found.sum)
                yield histogram
                continue
            make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = make(metric.name, metric.text, labels=metric.labels)
            for labels, value in metric.values().items():
                family.add_metric(labels, value)  # type: ignore[arg-type]
            yield family


def _cumulative(bounds: tuple[float, ...], found: Buckets) -> list[tuple[str, float]]:
    total, buckets = 0, []
    for bound, count in zip((*(str(bound) for bound in bounds), "+Inf"), found.counts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets
