"""Fixtures of the tests of what all parties agree on."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from protocol.sandbox.inspection import examination, examinee, hostile_answers

ROOT = Path(__file__).parent.parent.parent
Install = Callable[..., None]


def installer(site: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a package with one environment where the sandbox's child finds it, as pip would."""

    def put(code: str, *, name: str = "sums", place: str = "sums:Sums", version: str = "1.0") -> None:
        module = place.partition(":")[0]
        site.mkdir(exist_ok=True)
        (site / f"{module}.py").write_text(code)
        info = site / f"{module}-{version}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[murmuration.environments]\n{name} = {place}\n")
        monkeypatch.setenv("PYTHONPATH", f"{site}:{ROOT}")

    return put


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    return installer(tmp_path / "site", monkeypatch)


@pytest.fixture
def quick_inspection(monkeypatch: pytest.MonkeyPatch) -> None:
    """One other process instead of three, and hostile texts of 1,024 characters: enough where neither is what is looked at."""
    monkeypatch.setattr(examination, "conditions", lambda: examinee.conditions()[:2])
    monkeypatch.setattr(hostile_answers, "LONG", 1024)
    monkeypatch.setattr(hostile_answers, "_LONG", {name: text[:1024] for name, text in hostile_answers._LONG.items()})


@pytest.fixture
def many_files() -> Iterator[None]:
    """More open files than `select` knows numbers of, as a hub has; whatever is opened meanwhile has a higher one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096 if hard == resource.RLIM_INFINITY else min(4096, hard), hard))
    opened: list[int] = []
    try:
        while not opened or opened[-1] <= 1100:
            opened.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for each in opened:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
