"""schema: a Parquet file of exactly the schema, of the version that the run's protocol has, read within the sandbox's bounds, whose
turns fit together, no NaN. Soft."""

from __future__ import annotations

from node.judging.candidate import Candidate
from protocol.errors import Malformed, UnknownVersion
from protocol.verdict import Finding, Outcome


def check(c: Candidate) -> Finding | None:
    try:
        problem = c.reading.problem
    except (
        UnknownVersion
    ) as error:  # the run's spec is known here, so there is no later version that its files may have
        return Finding("schema", Outcome.SOFT, "another version", "this run's version", str(error)[:300])
    except Malformed as error:
        c.context.sandbox.require_reader()  # raises where not even our own file can be read: this validator's trouble
        return Finding("schema", Outcome.SOFT, "unreadable", "a rollout file", str(error)[:300])
    if problem is not None:
        return Finding("schema", Outcome.SOFT, "another schema", "the exact schema", problem)
    return None
