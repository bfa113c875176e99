"""The bench of deltas trains for real and finds every version again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from benches import delta

from protocol.model_files import WEIGHTS


@pytest.mark.long
@pytest.mark.timeout(600)
def test_versions_of_a_training_differ_a_little_and_come_out_of_their_deltas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(delta.__file__).resolve().parents[2]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(root), str(root / "scripts")]))
    delta.make_versions(tmp_path / "versions", 1, 3e-7)
    files = [tmp_path / "versions" / str(step) / WEIGHTS for step in range(2)]
    assert files[0].read_bytes() != files[1].read_bytes()
    rows = {row.name: row for row in delta.measured(files, tmp_path)}
    assert rows["versions that came out bit for bit"].ours == 1
    assert rows["bytes: promised"].met
