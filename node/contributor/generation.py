"""Making one submission: the assigned groups through the engine, scored, with proofs, as a rollout file."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from node.engine import Generator
from node.engine.interface import build_of
from node.engine.samples import generated
from node.judging.candidate import Commitment, RunContext
from protocol import rollout, seeds
from protocol.environments.assignment import AssignedGroup, assign
from protocol.errors import Unavailable
from protocol.rollout import Header, RolloutFile, Sample
from protocol.submission import SubmissionRef
from protocol.tokenizer import Tokenizer


@dataclass(frozen=True)
class Place:
    """Where a submission stands: the derived seed follows from it."""

    node: str
    step: int
    sequence: int
    beacon: bytes
    hardware: int


@dataclass(frozen=True)
class Made:
    """A rollout file on disk and what is to be committed for it."""

    ref: SubmissionRef
    units: int
    path: Path
    place: Place

    def commitment(self) -> Commitment:
        """As the chain will state it, for checking one's own work before it is sent."""
        return Commitment(self.ref, self.units, self.place.beacon, self.place.hardware, block_hash=bytes(32))


def make(context: RunContext, engine: Generator, tokenizer: Tokenizer, place: Place, folder: Path) -> Made:
    """Generates the whole submission and writes it into `folder` under its SHA-256.

    Raises Unavailable where the weights make no numbers, or where an answer cannot be scored.
    """
    domain = context.domain
    seed = seeds.submission_seed(
        chain_id=domain.chain_id, contract=bytes.fromhex(domain.contract[2:]), run=context.run, beacon=place.beacon,
        node=bytes.fromhex(place.node[2:]), step=place.step, sequence=place.sequence,
    )  # fmt: skip
    groups = assign(context.spec, context.tasks, seed, place.hardware)
    file = RolloutFile(_header(context, place, engine), tuple(_samples(context, engine, tokenizer, groups, place.step)))
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "partial.parquet"
    rollout.write(file, partial)
    root = hashlib.sha256(partial.read_bytes()).digest()
    path = path_of(folder, root)
    os.replace(partial, path)
    return Made(SubmissionRef(place.node, place.step, place.sequence, root), file.units, path, place)  # type: ignore[arg-type]


def path_of(folder: Path, root: bytes) -> Path:
    """Where `make` leaves the file of a root."""
    return folder / f"{root.hex()}.parquet"


def _header(context: RunContext, place: Place, engine: Generator) -> Header:
    compares_bits = context.spec.verification.bitwise is not None
    return Header(
        proof=context.spec.verification.proof, chain_id=context.domain.chain_id, contract=context.domain.contract, run=context.run,
        node=place.node, step=place.step, sequence=place.sequence, beacon=place.beacon.hex(),
        spec=context.spec_digest.hex(), hardware=place.hardware, build=build_of(engine) if compares_bits else "",
    )  # fmt: skip


def _samples(
    context: RunContext, engine: Generator, tokenizer: Tokenizer, groups: list[AssignedGroup], step: int
) -> list[Sample]:
    try:
        return generated(context.spec, engine, tokenizer, context.sandbox, groups)
    except ValueError as error:  # finite weights can compute NaN on every machine: that is no fault of this one
        raise Unavailable(
            f"version {step} of the weights computes no numbers here ({error}); the next one is waited for",
            hint="if other nodes work on this version, look for faulty memory or overclocking",
        ) from error
