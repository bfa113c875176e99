"""The bench of judging measures honest work by the real rules, and notices work that is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from benches import judging


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"vocab_size": 512, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
    monkeypatch.setattr(judging, "_SHAPE", {**judging._SHAPE, **sizes})
    monkeypatch.setattr(judging, "_BLOCK", 64)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_it_measures_adds_up(dtype: str) -> None:
    rows = {row.name: row for row in judging.run([33], dtype).rows}
    for batch, goal in ((1, 20), (32, 5)):
        ratio = rows[f"33 tokens, batch {batch}: generated ÷ verified"]
        assert ratio.goal == goal
        generated = rows[f"33 tokens, batch {batch}: generated"].ours
        assert ratio.ours == pytest.approx(generated / rows["33 tokens: verified"].ours)
    parts = [row.ours for row in rows.values() if row.unit == "% of it"]
    assert len(parts) == 4
    assert min(parts) > 0
    assert sum(parts) == pytest.approx(100)


def test_work_that_is_not_honest_is_no_measurement(tmp_path: Path) -> None:
    judging.write_model(tmp_path)
    engine = judging.Clocked(tmp_path, "float32")
    prompts = judging._prompts(engine.vocabulary, 2)
    made, _ = engine.make(prompts, 33)
    judging.Submission(engine, prompts, made).judge(2)
    made[1].tokens[5] = (made[1].tokens[5] + 1) % engine.vocabulary
    with pytest.raises(AssertionError, match="no honest work"):
        judging.Submission(engine, prompts, made).judge(2)
