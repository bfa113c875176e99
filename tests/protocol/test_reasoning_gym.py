"""The data sets of reasoning-gym that a run may use: each draws, asks and scores in the sandbox, alike in two children."""

from __future__ import annotations

import ast
import importlib.util
import random
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.environments import reasoning
from protocol.environments.registry import open_environment
from protocol.errors import ConfigError
from protocol.runspec import Generated
from protocol.sandbox import EnvironmentSandbox

FIT = sorted(name for name, found in reasoning.SETS.items() if not found.refused)
_PROBLEMS = 2
_DANGEROUS = {"eval", "exec", "compile", "parse_expr", "sympify", "__import__"}


def spec(dataset: str) -> Generated:
    return Generated(
        package="reasoning-gym", version=reasoning.EXAMINED_VERSION, dataset=dataset, seed=5, size=100, head="0" * 64, exact=True,
        held_out_seed=1 << 30, held_out_size=0,
    )  # fmt: skip


def test_every_set_of_the_package_was_examined() -> None:
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    assert reasoning_gym.__version__
    assert {name: f"reasoning_gym.{found.module}" for name, found in reasoning.SETS.items()} == {
        name: kind.__module__ for name, (kind, _) in DATASETS.items()
    }
    assert len(FIT) > 80


def test_each_is_drawn_and_scored_alike_in_two_children() -> None:
    specs = [spec(name) for name in FIT]
    indices = [100 * number + problem for number in range(len(specs)) for problem in range(_PROBLEMS)]
    told = []
    for seed in (1, 2):
        order = random.Random(seed).sample(indices, len(indices))
        with EnvironmentSandbox(specs, deadline=120) as sandbox:
            problems = sorted(sandbox.problems(order), key=lambda problem: problem.index)
            texts = [(p.index, text) for p in problems for text in (p.answer, "", "7") if text is not None]
            told.append((problems, texts, sandbox.score(texts)))
            assert sandbox.restarts == 0
    assert told[0] == told[1]
    problems, texts, rewards = told[0]
    right = {problem.index: problem.answer for problem in problems}
    wrong = [
        FIT[i // 100] for (i, text), reward in zip(texts, rewards, strict=True) if text == right[i] and reward != 1
    ]
    assert not wrong


@pytest.mark.parametrize("dataset", ["codeio", "countdown", "puzzle24"])
def test_what_did_not_pass_is_refused_with_the_reason(dataset: str) -> None:
    with pytest.raises(ConfigError, match=f"{dataset}.* may not be used: .*") as refused:
        open_environment(spec(dataset), held_out=False)
    assert reasoning.SETS[dataset].refused in str(refused.value)


def test_a_set_that_is_none_is_refused_with_the_nearest() -> None:
    with (
        pytest.raises(ConfigError, match="did you mean 'spiral_matrix'"),
        EnvironmentSandbox([spec("spiral_matrx")]) as sandbox,
    ):
        sandbox.warm_up()


def test_no_verifier_in_use_names_what_runs_text() -> None:
    """Beside what the examination saw: a verifier that mentions eval has it replaced."""
    for name in FIT:
        found = importlib.util.find_spec(f"reasoning_gym.{reasoning.SETS[name].module}")
        assert found is not None
        assert found.origin is not None
        verifiers = [
            node for node in ast.walk(ast.parse(Path(found.origin).read_text()))
            if isinstance(node, ast.FunctionDef) and node.name == "score_answer"
        ]  # fmt: skip
        named = {node.id for verifier in verifiers for node in ast.walk(verifier) if isinstance(node, ast.Name)}
        allowed = {"eval"} if reasoning.SETS[name].literal else set()
        assert named & _DANGEROUS <= allowed, name


def test_one_set_brings_no_other_and_nothing_that_draws_pictures() -> None:
    """In a process of its own: other tests import the whole package."""
    program = """
import sys
from protocol.environments.reasoning import ReasoningGym
from tests.protocol.test_reasoning_gym import spec
for name in ("count_bits", "spiral_matrix"):
    ReasoningGym(spec(name), held_out=False).entry(0)
print(*sorted(name for name in sys.modules if name.startswith("reasoning_gym.") and name.count(".") == 2 and "coaching" not in name))
print(*sorted({"sympy", "matplotlib", "pandas"} & set(sys.modules)))
ReasoningGym(spec("game_of_life"), held_out=False).entry(0)
import matplotlib.pyplot
import reasoning_gym
print(callable(matplotlib.pyplot.plot), len(reasoning_gym.create_dataset.__globals__["DATASETS"]) > 100)
print(reasoning_gym.create_dataset("spiral_matrix", seed=1, size=3).score_answer("[print(1)]", {"answer": "1", "metadata": {"solution": [1]}}))
"""
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True
    ).stdout
    loaded, heavy, whole, score = told.splitlines()
    assert loaded.split() == ["reasoning_gym.algorithmic.spiral_matrix", "reasoning_gym.arithmetic.count_bits"]
    assert not heavy
    assert whole == "True True"
    assert float(score) == 0
