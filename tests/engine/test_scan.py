"""Logits that are shown a part at a time are scored as the definition scores whole rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from node.engine import EngineSettings, scan, torch_engine
from node.engine.scan import Scan, covers
from node.engine.torch_engine import TorchEngine
from protocol import sampling
from protocol.errors import IntegrityError
from protocol.sampling import TokenScores
from tests.engine import models

FIRST = 37
KEY = (1 << 64) - 12_345


def normal(rows: int, vocabulary: int) -> Tensor:
    return torch.randn(rows, vocabulary) * 6


def flat(rows: int, vocabulary: int) -> Tensor:
    return torch.rand(rows, vocabulary) * 1e-3


def peaked(rows: int, vocabulary: int) -> Tensor:
    """The highest is in the last part, so that all before it was for nothing."""
    logits = torch.randn(rows, vocabulary)
    logits[:, -1] += 40
    return logits


def tied(rows: int, vocabulary: int) -> Tensor:
    return torch.randint(-3, 2, (rows, vocabulary)).float()


def rising(rows: int, vocabulary: int) -> Tensor:
    """Each part is higher than the one before."""
    return torch.linspace(-300, 300, vocabulary).expand(rows, -1).clone()


def far(rows: int, vocabulary: int) -> Tensor:
    """Differences that float32 does not hold."""
    logits = torch.full((rows, vocabulary), -3e38)
    logits[:, vocabulary // 2] = 3e38
    return logits


def masked(rows: int, vocabulary: int) -> Tensor:
    logits = torch.randn(rows, vocabulary)
    logits[:, ::2] = -torch.inf
    return logits if vocabulary > 1 else torch.zeros(rows, 1)


KINDS = (normal, flat, peaked, tied, rising, far, masked)


def scores(logits: Tensor, tokens: Tensor, temperature: float, step: int) -> TokenScores:
    scanned = Scan(tokens, KEY, FIRST, temperature)
    for start in range(0, logits.shape[1], step):
        scanned.take(start, logits[:, start : start + step])
    return scanned.scores()


def require_same(logits: Tensor, temperature: float, step: int) -> None:
    whole = logits.float().numpy()
    drawn = sampling.draw(whole, key=KEY, temperature=temperature, first=FIRST)
    anything = torch.randint(logits.shape[1], (len(logits),)).numpy()
    for claimed in (drawn, whole.argmax(1), anything):
        with np.errstate(invalid="ignore"):
            expected = sampling.score(whole, claimed, key=KEY, temperature=temperature, first=FIRST)
        found = scores(logits, torch.from_numpy(claimed), temperature, step)
        assert (found.drawn == expected.drawn).all()
        for name in ("margins", "leads", "gaps"):
            of_found, of_expected = getattr(found, name), getattr(expected, name)
            near = (of_found < _EDGE) | (of_expected < _EDGE) if name == "gaps" else np.isfinite(of_expected)
            assert np.allclose(of_found[near], of_expected[near], rtol=1e-12, atol=1e-9), name
        assert (found.margins[claimed == found.drawn] == 0).all()
        assert (found.ranges == expected.ranges).all()
        seen = np.isfinite(expected.logprobs)
        assert np.allclose(found.logprobs[seen], expected.logprobs[seen], rtol=1e-12, atol=1e-6)


_EDGE = sampling.RIVALS_WITHIN * (1 - 1e-6)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [1e-6, 0.7, 1.0, 30.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_are_those_of_the_definition(
    kind: Callable[[int, int], Tensor], temperature: float, dtype: torch.dtype
) -> None:
    for vocabulary, step in ((1, 4), (4, 4), (5, 4), (1003, 1004), (203, 64), (5002, 2048)):
        require_same(kind(2, vocabulary).to(dtype), temperature, step)


@pytest.mark.parametrize("kind", [normal, flat, tied])
def test_so_they_are_for_a_whole_vocabulary(kind: Callable[[int, int], Tensor]) -> None:
    require_same(kind(2, 151_936).bfloat16(), 1.0, 32_768)


def test_of_equal_scores_the_lowest_index_is_drawn_whatever_part_it_is_in() -> None:
    """Noise is lost beside such logits at such a temperature: the scores are equal in float64, and all but one are rivals without a gap."""
    logits = torch.full((1, 64), -1e9)
    logits[0, [7, 21, 60]] = 1e9
    for step in (4, 8, 64):
        found = scores(logits, torch.tensor([21]), 1e-12, step)
        assert found.drawn.tolist() == [7]
        assert found.margins.tolist() == [0]
        assert found.gaps.tolist() == [[0, 0, np.inf]]


@pytest.mark.parametrize("wrong", [float("nan"), -float("nan"), float("inf"), -float("inf")], ids=str)
@pytest.mark.parametrize("place", [0, 1, 2047, 2048, 2049, 4098])
def test_what_is_no_number_is_seen_wherever_it_stands(wrong: float, place: int) -> None:
    logits = torch.randn(2, 4099)
    for is_wrong in (False, True):
        if is_wrong:
            logits[1, place] = wrong
        found = Scan(torch.tensor([3, 5]), KEY, 0, 1.0)
        for start in (0, 2048, 4096):
            found.take(start, logits[:, start : start + 2048])
        assert found.is_finite == (not is_wrong)


def test_no_tokens_have_no_scores() -> None:
    assert scores(torch.empty(0, 100), torch.empty(0, dtype=torch.int64), 1.0, 32).margins.shape == (0,)


# ---- in the engine -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.make(models.RIGHT["qwen3"], tmp_path_factory.mktemp("policy"))


@pytest.fixture(params=["float32", "bfloat16"])
def engine(request: pytest.FixtureRequest, policy: Path) -> Iterator[TorchEngine]:
    made = TorchEngine(request.param, EngineSettings(device="cpu", threads=1))
    made.load(policy)
    yield made


@pytest.mark.parametrize(("part", "rows"), [(8, 5), (32, 512), (2048, 3)])
def test_an_engine_scores_alike_in_whatever_parts(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch, part: int, rows: int
) -> None:
    tokens = torch.randint(models.VOCABULARY, (20,)).numpy()
    (hidden,) = engine.prefill([([3, 4, 5], tokens)])
    expected = sampling.score(engine.logits(hidden), tokens, key=KEY, temperature=1.0)
    monkeypatch.setattr(scan, "_PART", part)
    monkeypatch.setattr(torch_engine, "_SCANNED_LOGITS", 1)
    monkeypatch.setattr(torch_engine, "_SCANNED_TOKENS", rows)
    with torch.inference_mode():
        starts = [start for start, _ in engine._logits_in_parts(hidden)]
    assert starts == list(range(0, models.VOCABULARY, part))
    found = engine.score(hidden, tokens, key=KEY, temperature=1.0)
    rounding = 1e-4 if engine._dtype == torch.float32 else 0.1
    assert np.allclose(found.margins, expected.margins, atol=rounding)
    assert np.allclose(found.logprobs, expected.logprobs, atol=rounding)


def test_a_part_that_is_no_number_is_this_machines_trouble(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In weights of a single token, that is in one part of many."""
    monkeypatch.setattr(scan, "_PART", 8)
    monkeypatch.setattr(torch_engine, "_SCANNED_LOGITS", 1)
    (hidden,) = engine.prefill([([3, 4, 5], [6, 7, 8])])
    engine.score(hidden, [6, 7, 8], key=KEY, temperature=1.0)
    engine.degrade(lambda model: model.get_output_embeddings().weight.data[50].fill_(torch.nan))
    with pytest.raises(IntegrityError):
        engine.score(hidden, [6, 7, 8], key=KEY, temperature=1.0)


def test_what_is_cut_or_greedy_is_not_scanned() -> None:
    cpu = torch.device("cpu")
    assert covers(cpu, 1.0, 0, 1.0)
    assert not any((covers(cpu, 0.0, 0, 1.0), covers(cpu, 1.0, 5, 1.0), covers(cpu, 1.0, 0, 0.9)))
