"""Fixtures that several test packages share: one Anvil per session, a fresh deployment per test."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from swarm.anvil import Anvil
from swarm.tiny_run import TinyRun
from swarm.world import World

from protocol.resources import collect_seldom
from tests.once import made_once

# A shell starts background jobs with SIGINT ignored, and whatever the tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


gc.disable()  # until all tests are found: what is made meanwhile stays


def pytest_collection_finish() -> None:
    """Thousands of tests and the libraries that they import are looked through no more: each full collection would take a third of a second."""
    gc.enable()
    gc.freeze()
    collect_seldom()


_files_max = 256


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """What tests leave in cycles holds connections and databases. Collected that seldom, it would be a thousand open files in each worker: as
    many as a process is given on most machines."""
    global _files_max
    if len(os.listdir("/proc/self/fd")) > _files_max:
        gc.collect()
        _files_max = max(_files_max, 2 * len(os.listdir("/proc/self/fd")))  # those in use


hypothesis.settings.register_profile("any machine", deadline=None)  # how long an example takes is the machine's affair
hypothesis.settings.load_profile("any machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "anvil" in getattr(item, "fixturenames", ()):
            item.add_marker("chain")


_start_anvil = Anvil.__init__


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """`scripts/test quick` runs what is not marked `chain`: a chain that such a test starts by itself must not go unseen."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError(f"{item.nodeid} starts a chain: it needs the marker `chain`")

    Anvil.__init__ = _start_anvil if item.get_closest_marker("chain") else refuse  # type: ignore[method-assign]


@pytest.fixture(scope="session", autouse=True)
def no_state_at_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Locks of keys lie in the user's state folder: those of tests do not."""
    before = os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    yield
    os.environ.pop("XDG_STATE_HOME") if before is None else os.environ.update(XDG_STATE_HOME=before)


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Commands that run inside a test set logging up for a whole process; the next test starts without that."""
    loggers = [
        logging.getLogger(),
        *(found for found in logging.root.manager.loggerDict.values() if isinstance(found, logging.Logger)),
    ]
    levels = [(logger, logger.level) for logger in loggers]
    handlers = list(logging.root.handlers)
    yield
    logging.root.handlers[:] = [handler for handler in logging.root.handlers if handler in handlers]
    for logger, level in levels:
        if logger.level != level:  # to set it clears the cache of every logger there is, and there are a thousand
            logger.setLevel(level)


@pytest.fixture(scope="session")
def anvil(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Anvil]:
    node = Anvil(tmp_path_factory.mktemp("anvil"))
    yield node
    node.stop()


@pytest.fixture
def world(anvil: Anvil, tmp_path: Path) -> World:
    """Contracts deployed, a run created and funded, nobody seated yet."""
    return World.fresh(anvil)


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyRun]:
    """A spec and a tiny policy, shared by all tests that need a model."""
    from trainer.models.tiny import make_policy

    def one_for_all_workers(file: Path, folder: Path, **how: Any) -> None:
        shutil.copytree(made_once(tmp_path_factory, "policy", lambda part: make_policy(file, part, **how)), folder)

    run = TinyRun.create(tmp_path_factory.mktemp("run"), one_for_all_workers)
    yield run
    run.context.sandbox.close()


@pytest.fixture
def deep() -> Iterator[None]:
    """Packages that the chain needs raise the limit of recursion, and Python's parser then ends the process."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000_000)
    yield
    sys.setrecursionlimit(before)
