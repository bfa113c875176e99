"""What `node hardware` shows: this machine, and what the run asks of it.

Measured here: the device (node/engine/hardware.py), the disk of the home, and each source of weights over one stream. Computed: whether
the run's model fits, from its config.json, and of which hardware class the machine is. Nothing is sent but questions, and the key of
the node stays in its keystore: peers are asked under a key of this command's own.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from node.contributor import disk_rate
from node.contributor.seat_class import propose, shortfalls
from node.contributor.settings import NodeSettings
from node.engine import EngineSettings
from node.engine.fit import Fit, fit
from node.engine.hardware import Measurement, measure_of
from protocol import length_rewards
from protocol.chain.types import Publication
from protocol.errors import ChainError, HashMismatch, MurmurationError, ProtocolViolation, Unavailable
from protocol.identity import Key
from protocol.model_files import CONFIG
from protocol.runspec import RunSpec
from protocol.shardcast.manifest import Expected, Manifest, ManifestLimits
from protocol.shardcast.rate import Taster
from protocol.shardcast.source import Source
from protocol.shell import spec_file
from protocol.shell.connection import Connection, connect
from protocol.shell.home import Home

PROMPT_TOKENS = 512
"""How long prompts are taken to be, for the memory of an answer."""

_CONFIG_BYTES_MAX = 1 << 20
_SOURCES_MAX = 8

Say = Callable[[str], None]


@dataclass
class Survey:
    """Bytes and bytes per second. What could not be found out is None or empty, and `notes` say why."""

    settings: EngineSettings
    device: Measurement
    folder: str
    disk_free: int
    disk: disk_rate.DiskRate | None = None
    spec: RunSpec | None = None
    version: int | None = None
    version_bytes: int | None = None
    model: Fit | None = None
    sources: list[dict[str, Any]] = field(default_factory=list)
    """Of each: name, url, relay (whether it is one), rate or error."""
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        model = None if self.model is None else asdict(self.model)
        return {
            "device": asdict(self.device), "engine": self.settings.name,
            "disk": {"folder": self.folder, "free": self.disk_free, **(asdict(self.disk) if self.disk else {})},
            "version": self.version, "version_bytes": self.version_bytes, "model": model, "sources": self.sources,
            "classes": self.classes(), "class": self.proposed, "notes": self.notes,
        }  # fmt: skip

    @property
    def proposed(self) -> int | None:
        """The hardware class that this machine is of, where the run has a table of them and it is of any."""
        found = None if self.spec is None else propose(self.spec, self.device)
        return None if found is None else found.number

    def classes(self) -> list[dict[str, Any]]:
        """The run's classes in its order: number, name, what the machine lacks, and the length budgets."""
        if self.spec is None:
            return []
        dtype, rewards = self.spec.model.compute_dtype, self.spec.rewards.values()
        return [
            {
                "number": needs.number, "name": needs.name, "lacks": shortfalls(needs, self.device, dtype),
                "budgets": sorted({budget for of in rewards for budget in length_rewards.budgets(of, needs.number)}),
            }
            for needs in self.spec.hardware
        ]  # fmt: skip


def survey(
    place: Home, node: NodeSettings | None, *, spec: Path | None, model: Path | None, offline: bool, say: Say
) -> Survey:
    """All that can be found out. `node` is None before there are settings; `spec` and `model` are a spec.json and a folder with a
    config.json, in place of what hub and sources say; `offline` asks nobody, and takes any spec for the run's.

    Raises PreflightError where the device of these settings is not there, and HashMismatch for a spec of another run. What chain and peers do not answer is a note.
    """
    found = _machine(place.data, EngineSettings() if node is None else node.engine, say)
    if node is None:
        found.notes.append("there are no settings of a node yet: after `node init` this shows what the run asks")
    if node is None or offline:
        _add_run(found, spec_file.find(place, None, spec), model)
        return found
    peers = node.peers.model_copy(update={"listen": "/ip4/0.0.0.0/tcp/0"})  # a running node has the other port
    say("looking for the run")
    try:
        with connect(node.chain, peers, Key.generate()) as connection:
            digest = connection.chain.spec_digest(connection.run)
            _add_run(found, spec_file.find(place, digest, spec) or connection.spec, model)
            _add_sources(found, connection, say)
    except (ChainError, Unavailable) as error:
        found.notes.append(f"of the run not all could be found out: {error}")
    return found


def _machine(folder: Path, settings: EngineSettings, say: Say) -> Survey:
    say("measuring the device")
    device = measure_of(settings)
    say("measuring the disk")
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    found = Survey(settings, device, str(folder), free, disk_rate.measure(folder, free))
    if found.disk is None:
        found.notes.append("the disk is nearly full, and was not measured")
    return found


def _add_run(found: Survey, spec: RunSpec | None, model: Path | None) -> None:
    found.spec = spec
    if spec is not None and model is not None:
        found.model = _fit(found, spec, model)


def _add_sources(found: Survey, connection: Connection, say: Say) -> None:
    """The sources of the newest version, each tried."""
    head = connection.chain.head(connection.run)
    if head is None:
        found.notes.append(
            "no weights are published yet, so there is nothing to fetch and no model to look at (but see --model)"
        )
        return
    for source in connection.sources()[:_SOURCES_MAX]:
        say(f"fetching from {source.url}")
        found.sources.append(_tried(found, connection, source, head))


def _tried(found: Survey, connection: Connection, source: Source, head: Publication) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": source.name, "url": source.url, "relay": source.is_relay}
    domain, trainer = connection.chain.domain, connection.trainer
    taster = Taster(source, Expected(connection.run, head.step, head.manifest, trainer, domain, ManifestLimits()))
    try:
        manifest = taster.manifest()
        found.version, found.version_bytes = head.step, manifest.total_bytes
        if found.model is None:
            found.model = _published(found, taster, manifest)
        return shown | {"rate": taster.rate(manifest)}
    except (OSError, Unavailable, ProtocolViolation) as error:
        return shown | {"error": str(error) or type(error).__name__}


def _published(found: Survey, taster: Taster, manifest: Manifest) -> Fit | None:
    """Of the model that is published, by its config.json."""
    assert found.spec is not None
    data = taster.read(manifest, CONFIG, most=_CONFIG_BYTES_MAX)
    if sha256(data).hexdigest() != found.spec.model.config:
        raise HashMismatch(f"{CONFIG} of the published weights is not the run spec's")
    with TemporaryDirectory() as folder:
        (Path(folder) / CONFIG).write_bytes(data)
        return _fit(found, found.spec, Path(folder))


def _fit(found: Survey, spec: RunSpec, folder: Path) -> Fit | None:
    try:
        return fit(folder, spec.model.compute_dtype, PROMPT_TOKENS, spec.sampling.longest, found.settings)
    except MurmurationError as error:
        found.notes.append(f"whether the model fits cannot be told: {error}")
        return None
