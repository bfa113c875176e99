"""Judging again from evidence: no chain, no hub, no network, and the same rules.

The only parts that a replay cannot repeat are what the chain and the clock said at the time (the commitment, that a file was never
served, and which rows took long): those it takes from the evidence.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from node.engine import EngineSettings
from node.judging.alternatives import steps_before
from node.judging.candidate import PrefillPlan
from node.judging.equipment import Equipment
from node.judging.evidence import Evidence
from node.judging.judge import details, judge
from node.judging.rules import CHEAP, RULES, available
from protocol import prefill_sampling
from protocol.errors import PreflightError
from protocol.model_files import require_model_files
from protocol.shardcast.store import version_folder
from protocol.verdict import Details


def replay(
    evidence: Evidence, weights: Path | None, *, in_full: bool = False, settings: EngineSettings | None = None
) -> Details:
    """The judgement of the evidence, of the samples that were drawn or of all of them.

    Raises PreflightError where weights are needed and not given, HashMismatch for others than the submission was judged with, and
    whatever keeps a rule from running.
    """
    spec, time = evidence.spec, evidence.receipt.details.time
    plan = evidence.plan
    drawn_with = None if evidence.receipt.details.prefill == prefill_sampling.NO_COMMITMENT else plan.secret
    engine = settings or EngineSettings()
    with Equipment(spec, evidence.domain, evidence.run, engine, lambda: _given(weights)) as equipment:
        context, path = equipment.context, evidence.rollout
        if path is None:
            missing = available.missing(spec.upload_grace_seconds)
            return details(context, evidence.commitment, missing, time, secret=drawn_with)
        folder, rules = _given(weights), tuple(RULES)
        if evidence.judged_without_weights:
            rules = CHEAP  # any version will do, for its tokenizer
            require_model_files(folder, spec.model)
        else:
            evidence.require_weights(folder)
            require_model_files(folder, spec.model)
            equipment.load(folder, notice=evidence.notice)
        before = partial(_beside, folder, evidence.receipt.details.step)
        if missing_version := next(
            (name for name in plan.alternatives if steps_before(name) and not before(steps_before(name))), None
        ):
            raise PreflightError(
                f"the receipt compares with the version {steps_before(missing_version)} steps before too, which is not beside {folder}"
            )
        again = PrefillPlan(1.0, plan.secret, alternatives=plan.alternatives) if in_full else plan
        candidate = equipment.candidate(evidence.commitment, path, again, before=before)
        candidate.history = evidence.history
        finding = judge(candidate, rules)
        return details(context, evidence.commitment, finding, time, candidate.checked, drawn_with, candidate.history)


def _beside(folder: Path, step: int, back: int) -> Path | None:
    """An earlier version, where the folder is a version's in a store (protocol/shardcast/store.py) that has that one too."""
    store = folder.parent.parent
    found = version_folder(store, step - back)
    return found if folder == version_folder(store, step) and found.is_dir() else None


def _given(weights: Path | None) -> Path:
    if weights is None:
        raise PreflightError("the weights of this submission are not here any more", hint="give them with --weights")
    return weights


def compare(stored: Details, replayed: Details) -> list[dict[str, Any]]:
    """Field by field: {field, receipt, replay, same}."""
    again = asdict(replayed)
    return [
        {"field": name, "receipt": value, "replay": again[name], "same": value == again[name]}
        for name, value in asdict(stored).items()
    ]
