"""A reader of these tests' own, so that its memory and its deaths are theirs, and a node whose submission is always the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from swarm.tiny_run import TinyRun

from protocol.identity import Key
from protocol.sandbox import Sandbox

NODE = Key.from_secret(b"\x11" * 32)


@pytest.fixture(scope="package")
def run(tiny_run: TinyRun) -> Iterator[TinyRun]:
    with Sandbox(tiny_run.spec) as sandbox:
        sandbox.warm_up()
        yield replace(tiny_run, node=NODE, context=replace(tiny_run.context, sandbox=sandbox))
