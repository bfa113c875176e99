"""The bench at which a validator judges: engine, weights of the step in question, files, and the rules' context."""

from __future__ import annotations

import secrets
from pathlib import Path

from node.engine import TorchEngine
from node.validator.candidate import Candidate, Commitment, PrefillPlan, RunContext
from node.validator.journal import Journal
from node.validator.judge import details, judge
from node.versions import Versions
from protocol.environments import TaskSet
from protocol.role import Connection
from protocol.sandbox import Sandbox
from protocol.tokens import Tokens
from protocol.verdict import Details


class Bench:
    def __init__(self, connection: Connection, folder: Path, journal: Journal, *, threads: int) -> None:
        spec = connection.spec
        tasks = TaskSet(spec.environments)
        tasks.require_same_problems()
        self.context = RunContext(spec, connection.chain.domain, connection.run, tasks, Sandbox(spec))
        self.context.sandbox.warm_up()
        self._connection = connection
        self._versions = Versions(connection, folder / "weights")
        self._files = folder / "rollouts"
        self._files.mkdir(parents=True, exist_ok=True)
        self._engine = TorchEngine(spec.model.compute_dtype, threads=threads)
        self._loaded: int | None = None
        self._tokens: Tokens | None = None
        self._secret = journal.secret("prefill", secrets.token_bytes(32))

    def close(self) -> None:
        self.context.sandbox.close()

    def fetch(self, root: bytes) -> Path | None:
        """The rollout file of a root, from disk or the hub; None when nobody has it yet."""
        path = self._files / f"{root.hex()}.parquet"
        if path.exists() or self._connection.hub.download(root, path, cap=self.context.spec.file_bytes_max):
            return path
        return None

    def judge(self, commitment: Commitment, path: Path, *, newcomer: bool, time: int) -> Details:
        """Judges a work; `newcomer` works get the prefill in full. Raises whatever keeps a rule from running."""
        self._load(commitment.ref.step)
        assert self._tokens is not None
        share = 1.0 if newcomer else float(self.context.spec.verification.prefill_share)
        plan = PrefillPlan(share, self._secret)
        candidate = Candidate(self.context, commitment, path, self._engine, self._tokens, plan)
        return details(candidate, judge(candidate), time)

    def discard(self, root: bytes) -> None:
        """Forgets a file that is not needed any more."""
        (self._files / f"{root.hex()}.parquet").unlink(missing_ok=True)

    def _load(self, step: int) -> None:
        if self._loaded == step:
            return
        folder = self._versions.folder(self._connection.chain.publication(self._connection.run, step))
        with self._versions.store.lease(step):
            self._engine.load(folder)
            if self._tokens is None:
                self._tokens = Tokens(folder)
        self._loaded = step
