"""What the tests of `murmur net` share: a run that their spec fits, and how its output reads."""

from __future__ import annotations

import re

import pytest
from swarm.anvil import Anvil
from swarm.world import World

from tests.cli.conftest import SPEC

OTHER_SPEC = SPEC.model_copy(update={"max_lag": SPEC.max_lag + 1})


@pytest.fixture
def world(anvil: Anvil) -> World:
    return World.fresh(anvil, spec_digest=SPEC.digest)


def narrow(text: str) -> bool:
    """What has no space in it, as a home's path, is never cut."""
    return all(len(line) <= 80 or len(line.split()) == 1 for line in text.splitlines())


def flat(text: str) -> str:
    return re.sub(r"\s+", " ", text)
