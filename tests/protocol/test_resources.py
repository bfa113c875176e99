"""What is free is what nobody uses; a container has what it may use of the machine."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from protocol import resources

GIB = 1 << 30


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(resources, "_CGROUP", tmp_path)
    monkeypatch.setattr(resources, "_MEMINFO", tmp_path / "meminfo")
    return tmp_path


def test_a_container_has_the_memory_that_it_may_use(container: Path) -> None:
    everything = resources.memory_bytes()
    assert resources.free_bytes() == everything
    for text, expected in (("max\n", everything), (f"{GIB // 8}\n", GIB // 8)):
        (container / "memory.max").write_text(text)
        assert resources.memory_bytes() == expected
    (container / "memory.current").write_text("2500000\n")
    (container / "memory.stat").write_text("anon 900000\ninactive_file 400000\n")
    assert resources.free_bytes() == GIB // 8 - 2_500_000 + 400_000
    (container / "memory.max").write_text("max\n")
    assert resources.free_bytes() == everything


def test_what_programs_hold_is_not_free(container: Path) -> None:
    (container / "meminfo").write_text(
        "MemTotal: 999999999 kB\nMemFree: 1 kB\nMemAvailable: 5 kB\nHugePages_Total: 0\n"
    )
    assert resources.free_bytes() == 5 << 10


def test_a_container_has_the_cores_that_it_may_use(container: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert resources.cores() == 8
    for quota, expected in (("max 100000", 8), ("300000 100000", 3), ("50000 100000", 1)):
        (container / "cpu.max").write_text(quota + "\n")
        assert resources.cores() == expected


@pytest.mark.parametrize(
    ("cores", "free", "expected"),
    [
        (1, 64 * GIB, 1),
        (2, 64 * GIB, 2),
        (12, 64 * GIB, 12),
        (96, 64 * GIB, 16),
        (96, 2 * GIB, 8),
        (96, 0, 1),
        (8, 1 << 20, 1),
    ],
)
def test_threads_are_as_many_as_cores_and_free_memory_allow_and_one_at_least(
    monkeypatch: pytest.MonkeyPatch, cores: int, free: int, expected: int
) -> None:
    monkeypatch.setattr(resources, "cores", lambda: cores)
    monkeypatch.setattr(resources, "free_bytes", lambda: free)
    assert resources.threads(32 << 20) == expected


def test_without_affinity_the_cores_are_those_of_the_machine(container: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    for counted, expected in ((7, 7), (None, 1)):
        monkeypatch.setattr("os.cpu_count", lambda counted=counted: counted)
        assert resources.cores() == expected


def test_cores_in_use_are_left_to_who_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "cores", lambda: 8)
    for load, expected in ((0.2, 8), (3.4, 5), (7.9, 1), (40.0, 1)):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert resources.idle_cores() == expected


def test_only_collections_of_everything_become_seldom() -> None:
    """Young cycles may hold tensors."""
    before = gc.get_threshold()
    try:
        gc.set_threshold(700, 10, 10)
        resources.collect_seldom()
        assert gc.get_threshold() == (700, 10, 100)
    finally:
        gc.set_threshold(*before)
