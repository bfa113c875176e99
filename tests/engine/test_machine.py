"""What is free is what nobody uses; a container has what it may use of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.engine import machine

GIB = 1 << 30


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    monkeypatch.setattr(machine, "_MEMINFO", tmp_path / "meminfo")
    return tmp_path


def test_a_container_has_the_memory_that_it_may_use(container: Path) -> None:
    everything = machine.memory_bytes()
    assert machine.free_bytes() == everything
    for text, expected in (("max\n", everything), (f"{GIB // 8}\n", GIB // 8)):
        (container / "memory.max").write_text(text)
        assert machine.memory_bytes() == expected
    (container / "memory.current").write_text("2500000\n")
    (container / "memory.stat").write_text("anon 900000\ninactive_file 400000\n")
    assert machine.free_bytes() == GIB // 8 - 2_500_000 + 400_000
    (container / "memory.max").write_text("max\n")
    assert machine.free_bytes() == everything


def test_what_programs_hold_is_not_free(container: Path) -> None:
    (container / "meminfo").write_text(
        "MemTotal: 999999999 kB\nMemFree: 1 kB\nMemAvailable: 5 kB\nHugePages_Total: 0\n"
    )
    assert machine.free_bytes() == 5 << 10


def test_a_container_has_the_cores_that_it_may_use(container: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert machine.cores() == 8
    for quota, expected in (("max 100000", 8), ("300000 100000", 3), ("50000 100000", 1)):
        (container / "cpu.max").write_text(quota + "\n")
        assert machine.cores() == expected


def test_cores_in_use_are_left_to_who_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 8)
    for load, expected in ((0.2, 8), (3.4, 5), (7.9, 1), (40.0, 1)):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert machine.idle_cores() == expected
