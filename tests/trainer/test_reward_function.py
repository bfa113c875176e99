"""A researcher's own function gets what its parameters name, and what goes wrong in it is said so that it can be mended."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from protocol.errors import ConfigError
from tests.trainer import speaking
from trainer.rollouts.reward_function import Answered, RewardError, RewardFunction

COLUMNS = ("answer", "letter", "question")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return speaking.write_rewards(tmp_path_factory.mktemp("mine") / "rewards.py")


def answers(*texts: str) -> list[Answered]:
    rows = [{"question": f"say {i}", "answer": str(i), "letter": "b"} for i in range(len(texts))]
    return [Answered(row["question"], text, row) for text, row in zip(texts, rows, strict=True)]


def test_lists_of_completions_and_of_the_columns_it_names(file: Path) -> None:
    assert RewardFunction(f"{file}:reward", COLUMNS)(answers("bb", "a", "abab")) == [0.25, 0.0, 0.25]


def test_one_answer_at_a_time(file: Path) -> None:
    assert RewardFunction(f"{file}:one", COLUMNS)(answers("bb", "a", "abab")) == [2.0, 0.0, 2.0]


def test_a_parameter_with_a_default_may_be_no_column(file: Path) -> None:
    assert RewardFunction(f"{file}:one", ("question",))(answers("bb", "aa")) == [0.0, 2.0]


def test_nothing_is_asked_of_it_when_there_is_nothing(file: Path) -> None:
    assert RewardFunction(f"{file}:short", COLUMNS)([]) == []


def test_rewards_of_none_or_nan_are_told_with_the_sample(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = RewardFunction(f"{file}:nan", COLUMNS)(answers("a", "b", "c", "d\n", "ee"))
    assert [math.isnan(reward) for reward in found] == [False, False, False, True, False]
    assert 'nan gave no finite reward for 1 of 5: prompt "say 3", completion "d\\n"' in caplog.text
    assert all(math.isnan(reward) for reward in RewardFunction(f"{file}:nothing", COLUMNS)(answers("a", "b")))


def test_an_error_names_the_line_and_the_sample(file: Path) -> None:
    with pytest.raises(RewardError) as caught:
        RewardFunction(f"{file}:broken", COLUMNS)(answers("a", "b", "c", "\x1b[2Jd", "e"))
    message = str(caught.value)
    assert message.startswith("broken failed on 4 of 5: ZeroDivisionError: division by zero\n")
    assert "rewards.py:13 in " in message
    assert "1 / 0" in message
    assert 'prompt "say 3", completion "\\x1b[2Jd"' in message
    assert "reward_function.py" not in message  # nobody looks for the fault in ours
    assert caught.value.exit_code == 3


def test_an_error_of_all_answers_together_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def reward(completions):\n    return [1 / (len(completions) - 2)] * 2\n")
    with pytest.raises(RewardError, match="reward failed on all of them together: ZeroDivisionError"):
        RewardFunction("mine.py:reward", COLUMNS, tmp_path)(answers("a", "b"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("short", "short gave 1 rewards for 2 completions"),
        ("words", r"the reward of 1 of 2 is 'good' \(str\) instead of a number"),
    ],
)
def test_what_are_no_rewards_is_an_error(file: Path, name: str, said: str) -> None:
    with pytest.raises(RewardError, match=said):
        RewardFunction(f"{file}:{name}", COLUMNS)(answers("a", "b"))


@pytest.mark.parametrize(
    ("place", "said", "hint"),
    [
        ("rewards.py", "is no reward function", "my_file.py:reward"),
        ("nowhere.py:reward", "there is no Python file", "--reward"),
        ("rewards.py:rewad", "has no function 'rewad'", "it has: reward, one"),
        ("rewards.py:wants", "wants 'solution', which is no column", "answer, completions, letter, prompts, question"),
        ("rewards.py:takes_nothing", "neither a parameter `completions` nor `completion`", "def takes_nothing"),
        ("rewards.py:later", "is asynchronous", "plain `def`"),
    ],
)
def test_a_function_that_cannot_be_used_is_refused_before_anything_is_trained(
    file: Path, place: str, said: str, hint: str
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        RewardFunction(place, COLUMNS, file.parent)
    assert hint in caught.value.hint


def test_a_file_that_fails_to_import_says_where(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import json\nlimit = json.nothing\n")
    with pytest.raises(ConfigError, match=r"AttributeError: .*\n  .*mine.py:2: limit = json.nothing"):
        RewardFunction("mine.py:reward", COLUMNS, tmp_path)


def test_it_may_import_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "letters_of_mine.py").write_text("WANTED = 'b'\n")
    (tmp_path / "mine.py").write_text(
        "from letters_of_mine import WANTED\ndef reward(completion):\n    return completion.count(WANTED)\n"
    )
    assert RewardFunction("mine.py:reward", COLUMNS, tmp_path)(answers("bab")) == [2.0]
