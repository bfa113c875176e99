"""A training on one machine: from a model's folder and a file to a checkpoint, a comparison and a model to take away."""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from protocol.errors import ConfigError, IntegrityError, MurmurationError, PreflightError, UsageError
from protocol.settings import read_toml
from protocol.shell.signals import Ending, until_signalled
from protocol.whole_folder import whole
from tests.trainer import engine_here, small, speaking
from trainer.commands import app
from trainer.config import Outputs, load_run, load_solo
from trainer.learning import tensors
from trainer.learning.checkpoint import TENSORS
from trainer.learning.learner import MODEL
from trainer.learning.ranks import Ranks
from trainer.loop.prepare import prepare
from trainer.loop.solo import Solo, result
from trainer.models.pretrained import make_policy
from trainer.rollouts.local import NothingToLearn
from trainer.rollouts.questions import of_solo
from trainer.rollouts.reward_function import RewardError

STEPS = 6
CHANGES = {
    "trainer.steps": STEPS, "trainer.optimizer.lr": 1e-2, "trainer.optimizer.warmup_steps": 0, "trainer.evaluate_every": 3,
    "trainer.checkpoint_every": 2, "trainer.checkpoints_kept": 9, "trainer.metrics.tensorboard": False, "trainer.pack_tokens": 128,
    "spec.sampling.max_new_tokens": 10, "spec.sampling.group_size": 8, "spec.sampling.groups_per_submission": 4,
    "trainer.groups_per_step": 4, "engine.threads": 1,
}  # fmt: skip


class Mine:
    """A researcher's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = speaking.write_model(folder / "model")
        self.rows = speaking.write_rows(folder / "rows.jsonl", letter="a")
        self.rewards = speaking.write_rewards(folder / "rewards.py")

    def prepare(self, name: str, reward: str | None = "reward", **changes: Any) -> Path:
        place = None if reward is None else f"{self.rewards}:{reward}"
        return prepare(self.model, self.rows, self.folder / name, reward=place, changes=CHANGES | changes)


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mine]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("MURMUR_TASKS", str(tmp_path_factory.mktemp("machine")))
        yield Mine(tmp_path_factory.mktemp("mine"))


@contextmanager
def opened(file: Path, stop: Ending | None = None, **others: Any) -> Iterator[Solo]:
    settings = load_solo(file).value
    layout = Outputs(file, settings.trainer.model, settings.solo.output)
    layout.output.mkdir(exist_ok=True)
    with of_solo(file, layout.model, settings.solo) as questions:
        yield Solo(settings, layout, questions, stop or Ending(), Ranks.alone(), **others)


def train(file: Path, *, resume: bool = False, **others: Any) -> Solo:
    with opened(file, **others) as training:
        training.run(resume=resume)
        return training


def outputs(file: Path) -> Outputs:
    return Outputs(file, "policy", "output")


def records(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in outputs(file).metrics.read_text().splitlines()]


def weights(file: Path, step: int) -> dict[str, Any]:
    return tensors.read(outputs(file).checkpoints / f"step_{step}" / TENSORS, MODEL)


@pytest.fixture(autouse=True)
def evaluating_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for `trained`, which is made before."""
    engine_here.use(monkeypatch)


@pytest.fixture(scope="module")
def trained(mine: Mine) -> Path:
    """run.toml of a training that is finished."""
    file = mine.prepare("trained")
    train(file)
    return file


# ---- a whole training ----------------------------------------------------------------------------------------------------


def test_a_policy_learns_what_the_function_rewards(trained: Path) -> None:
    rewards = [record["reward"] for record in records(trained) if "reward" in record]
    assert len(rewards) == STEPS
    assert rewards[-1] > 2 * rewards[0]


def test_a_step_tells_what_a_researcher_looks_for_first(trained: Path) -> None:
    last = next(record for record in reversed(records(trained)) if "reward" in record)
    assert last["learning_rate"] == 1e-2
    assert 0 < last["completion_length"] <= last["completion_length_max"] <= 10
    assert 0 <= last["truncated_share"] <= 1
    assert last["reward_deviation"] > 0
    assert last["seconds"]["generating"] > 0
    assert last["staleness"] == 0
    assert held_out(trained) == [0, 3, 6]


def test_its_samples_are_kept_and_shown(trained: Path) -> None:
    shown = CliRunner().invoke(app, ["samples", f"@{trained}", "--json"])
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    assert (found["step"], len(found["samples"])) == (STEPS - 1, 4)
    best, worst = found["samples"][:2]
    assert best["reward"] > worst["reward"]
    assert best["advantage"] > 0 > worst["advantage"]
    assert best["completion"].count("a") == best["reward"] * 8
    plain = CliRunner().invoke(app, ["samples", f"@{trained}"])
    assert "advantage" in plain.stdout


def test_status_needs_no_chain(trained: Path) -> None:
    told = CliRunner().invoke(app, ["status", f"@{trained}"])
    assert told.exit_code == 0, told.output
    assert told.stdout.startswith(f"step {STEPS} of {STEPS}: finished")


def test_a_checkpoint_is_compared_and_taken_away_as_that_of_a_run(trained: Path, tmp_path: Path) -> None:
    checkpoint = str(outputs(trained).checkpoints / f"step_{STEPS}")
    compared = CliRunner().invoke(app, ["eval", checkpoint, "--samples", "8", "--json"])
    assert compared.exit_code == 0, compared.output
    (row, _) = json.loads(compared.stdout)["rows"]
    assert (row["name"], row["problems"]) == ("rows", 4)
    assert row["difference"]["low"] > 0
    exported = CliRunner().invoke(app, ["export", checkpoint, str(tmp_path / "taken")])
    assert exported.exit_code == 0, exported.output
    assert set(small.stored(tmp_path / "taken")) == set(small.stored(trained.parent / "policy"))


def test_the_end_says_what_to_type_next(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained.parent.parent)
    lines = result([{"step": 0, "score": 0.1}, {"step": 6, "score": 0.5}], outputs(trained), 6)
    assert lines[0] == "held-out score 0.100 at step 0, 0.500 at step 6"
    assert lines[2].endswith("murmur trainer eval trained/output/checkpoints/step_6")


# ---- stopping and going on -----------------------------------------------------------------------------------------------


def test_a_training_that_was_stopped_goes_on_as_if_it_had_not_been(mine: Mine, trained: Path) -> None:
    file, stop = mine.prepare("stopped"), Ending()
    looks: list[int] = []

    def look(step: int, _: Any) -> None:
        looks.append(step)
        if step == 2:
            stop.set()

    first = train(file, stop=stop, look=look)
    assert (first.step, looks) == (3, [0, 2])
    with pytest.raises(UsageError, match="in progress") as caught:
        train(file)
    assert caught.value.hint == f"murmur trainer solo @{file} --resume"
    second = train(file, resume=True)
    assert small.equal(weights(file, STEPS), weights(trained, STEPS))
    assert told(file) == told(trained)
    assert [one["step"] for one in second.evaluations] == held_out(file) == [0, 3, 6]


def test_steps_that_no_checkpoint_has_are_trained_again(
    mine: Mine, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill after step 5: checkpoint 4 is the newest, and version 5 was handed over already."""
    file = mine.prepare("killed")
    kill(file, monkeypatch)
    assert (outputs(file).outgoing / "5").exists()
    train(file, resume=True)
    assert small.equal(weights(file, STEPS), weights(trained, STEPS))


def kill(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begins a training that ends after the rollouts for step 5, and saves nothing on its way out."""
    with opened(file) as training, monkeypatch.context() as patched:
        patched.setattr(training, "_save_what_can_be", lambda _: None)
        batches = training._wait_for_batch
        patched.setattr(training, "_wait_for_batch", lambda: batches() and 1 / 0 if training.step == 5 else batches())
        with pytest.raises(ZeroDivisionError):
            training.run(resume=False)
        training._publishing.finish()


def told(file: Path) -> list[tuple[Any, ...]]:
    """Of each step: what was said of it that no clock has a part in."""
    lines = [record for record in records(file) if "loss" in record]
    shown = [json.loads(line) for line in outputs(file).samples.read_text().splitlines()]
    names = ("step", "reward", "samples", "groups", "generated_tokens", "zero_advantage_groups", "staleness")
    return [(*(line[name] for name in names), [one for one in shown if one["step"] == line["step"]]) for line in lines]


def held_out(file: Path) -> list[int]:
    return [record["step"] for record in records(file) if "held_out_score" in record]


def test_a_killed_training_with_stale_rollouts_goes_on_as_if_it_had_not_been(
    mine: Mine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The versions that answered before the checkpoint answer after it; every step and sample is told of once, and totals go on."""
    files = [mine.prepare(name, **{"solo.staleness": 2}) for name in ("stale", "stale-killed")]
    train(files[0])
    assert [record["staleness"] for record in records(files[0]) if "staleness" in record] == [0, 1, 2, 2, 2, 2]
    kill(files[1], monkeypatch)
    train(files[1], resume=True)
    assert small.equal(*(weights(file, STEPS) for file in files))
    assert told(files[1]) == told(files[0])
    assert "is gone" not in caplog.text
    assert sorted(path.name for path in outputs(files[1]).outgoing.iterdir()) == ["2", "3", "4", "5", "6"]


def test_other_tasks_are_another_training_and_another_reward_is_not(mine: Mine, tmp_path: Path) -> None:
    """With more rows, problems that were held out would be trained on."""
    rows = speaking.write_rows(tmp_path / "rows.jsonl", letter="a")
    rewards = speaking.write_rewards(tmp_path / "rewards.py")
    changes = CHANGES | {"trainer.steps": 1}
    file = prepare(mine.model, rows, tmp_path / "solo", reward=f"{rewards}:reward", changes=changes)
    train(file)
    written = rows.read_text()
    rows.write_text(written + written.splitlines()[0] + "\n")
    with pytest.raises(IntegrityError, match="other tasks"):
        train(file, resume=True)
    compared = CliRunner().invoke(app, ["eval", str(outputs(file).checkpoints / "step_1"), "--samples", "1"])
    assert isinstance(compared.exception, IntegrityError)
    rows.write_text(written)
    rewards.write_text(rewards.read_text() + "\n# mended\n")
    assert train(file, resume=True).step == 1


def test_to_go_on_without_a_checkpoint_is_refused_before_anything_is_loaded(
    mine: Mine, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = mine.prepare("nothing-yet")
    monkeypatch.setattr("trainer.rollouts.questions.of_solo", lambda *_: pytest.fail("it was opened"))
    asked = CliRunner().invoke(app, ["solo", f"@{file}", "--resume"])
    assert isinstance(asked.exception, UsageError)
    assert "there is no checkpoint in" in str(asked.exception)
    assert asked.exception.hint == f"murmur trainer solo @{file}"


def test_another_sampling_is_another_training(mine: Mine) -> None:
    file = mine.prepare("changed", **{"trainer.steps": 1})
    train(file)
    file.write_text(file.read_text().replace('temperature = "1"', 'temperature = "0.5"'))
    with pytest.raises(IntegrityError, match="another spec"):
        train(file, resume=True)


def test_the_divergence_is_measured_from_the_policy_that_the_training_began_with(mine: Mine) -> None:
    """Also where a weight is given to it later. Without one, or with the policy back, the training goes on."""
    file, stop = mine.prepare("pinned", **{"trainer.steps": 2, "trainer.kl.weight": 0.1}), Ending()
    train(file, stop=stop, look=lambda *_: stop.set())
    text, weights_file = file.read_text(), file.parent / "policy/model.safetensors"
    began = weights_file.read_bytes()
    make_policy(speaking.write_model(file.parent / "other", seed=1), file.parent / "otherwise")
    weights_file.write_bytes((file.parent / "otherwise/model.safetensors").read_bytes())
    with pytest.raises(
        IntegrityError, match=r"measures its divergence from other weights than those in .*policy"
    ) as caught:
        train(file, resume=True)
    assert caught.value.hint == "bring back the policy that it began with, or set trainer.kl.weight = 0"
    file.write_text(text.replace("weight = 0.1", "weight = 0.0"))
    stop = Ending()
    train(file, resume=True, stop=stop, look=lambda *_: stop.set())
    file.write_text(text.replace("steps = 2", "steps = 3"))
    with pytest.raises(IntegrityError, match="divergence"):
        train(file, resume=True)
    weights_file.write_bytes(began)
    assert train(file, resume=True).step == 3


# ---- adapters ------------------------------------------------------------------------------------------------------------


def test_a_signal_ends_the_start_where_it_is_and_a_step_when_it_is_saved(
    mine: Mine, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def send(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.05)  # Python handles it between two of its instructions

    def loading(*_: object) -> None:
        send()
        pytest.fail("it goes on")

    file = mine.prepare("signalled")
    with monkeypatch.context() as patched:
        patched.setattr(Solo, "_open_rollouts", loading)
        with until_signalled("patience") as ending, opened(file, ending) as training:
            training.run(resume=False)
    assert training.saved is None
    assert not list(outputs(file).checkpoints.glob("step_*"))
    assert not capfd.readouterr().err.count("patience")
    with until_signalled("patience") as ending, opened(file, ending, look=send) as training:
        training.run(resume=False)
    assert (training.step, training.saved) == (1, 1)
    assert capfd.readouterr().err.count("patience") == 1


def test_adapters_learn_what_the_function_rewards_and_go_on_where_they_stopped(mine: Mine, tmp_path: Path) -> None:
    """Rollouts come from merged weights. Another rank does not go on."""
    file, stop = mine.prepare("adapted", **{"trainer.lora_rank": 8, "trainer.optimizer.lr": 3e-2}), Ending()
    train(file, stop=stop, look=lambda step, _: stop.set())
    text = file.read_text()
    file.write_text(text.replace("lora_rank = 8", "lora_rank = 4"))
    with pytest.raises(ConfigError, match=r"trained with lora_rank = 8, and trainer\.lora_rank is 4") as caught:
        train(file, resume=True)
    assert caught.value.hint == "set trainer.lora_rank = 8, or begin another training"
    file.write_text(text)
    train(file, resume=True)
    rewards = [record["reward"] for record in records(file) if "reward" in record]
    assert len(rewards) == STEPS
    assert rewards[-1] > 2 * rewards[0]
    checkpoint = outputs(file).checkpoints / f"step_{STEPS}"
    exported = CliRunner().invoke(app, ["export", str(checkpoint), str(tmp_path / "taken")])
    assert exported.exit_code == 0, exported.output
    assert small.equal(small.stored(tmp_path / "taken"), small.stored(outputs(file).outgoing / str(STEPS)))


# ---- what goes wrong -----------------------------------------------------------------------------------------------------


def test_a_function_that_fails_ends_the_training_with_what_was_learnt(mine: Mine) -> None:
    mended = mine.rewards.read_text()
    source = mine.folder / "failing.py"
    source.write_text("calls = []\ndef reward(completions):\n    calls.append(1)\n    return [t.count('a') / (len(calls) < 4) for t in completions]\n")  # fmt: skip
    file = prepare(
        mine.model, mine.rows, mine.folder / "failing", reward=f"{source}:reward", held_out=0, changes=CHANGES
    )
    with pytest.raises(RewardError, match=r"step \d: reward failed on 1 of 32: ZeroDivisionError") as caught:
        train(file)
    assert "failing.py:4" in str(caught.value)
    assert caught.value.hint == f"mend it, then: murmur trainer solo @{file} --resume"
    source.write_text(mended)
    assert train(file, resume=True).step == STEPS


def test_answers_that_all_earn_the_same_end_it_at_once(mine: Mine) -> None:
    file = mine.prepare("equal", "equal")
    with pytest.raises(NothingToLearn, match=r"step 0: only 0 of 4 groups .* mean reward 0\.250"):
        train(file)


def test_groups_without_a_reward_are_left_out_and_counted(mine: Mine) -> None:
    """One answer in eight has none: no group is whole."""
    file = mine.prepare("nan", "nan", **{"trainer.steps": 1})
    with pytest.raises(NothingToLearn, match="no answer got a reward that is a number"):
        train(file)


# ---- a folder to train in ------------------------------------------------------------------------------------------------


def test_a_task_file_is_asked_as_a_run_on_chain_would(mine: Mine) -> None:
    """Its answers are right or wrong, in the sandbox; a model of random weights never is."""
    file = mine.prepare("tasks", None)
    (environment,) = read_toml(file)["spec"]["environments"]
    assert (environment["package"], environment["size"], environment["held_out_size"]) == ("parquet", 36, 4)
    with pytest.raises(NothingToLearn, match=r"mean reward 0\.0"):
        train(file)


def test_rows_held_out_that_ask_the_same_are_told_of(
    mine: Mine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the last four of forty rows the first asks what the last does."""
    rows = tmp_path / "again.jsonl"
    rows.write_text("".join(json.dumps({"question": f"say {i % 3}", "answer": str(i % 3)}) + "\n" for i in range(40)))
    file = prepare(mine.model, rows, tmp_path / "again", changes=CHANGES)
    with (
        caplog.at_level("INFO", "trainer"),
        of_solo(file, outputs(file).model, load_solo(file).value.solo) as questions,
    ):
        assert len(questions.tasks.held_out) == 3
    assert "3 problems are held out, not 4: the others ask the same questions" in caplog.text


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_is_trained_is_computed_in_the_type_that_answers_are(
    mine: Mine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """In bfloat16 on a GPU whose kernels do, which is pretended here: nothing is computed."""
    monkeypatch.setattr("trainer.loop.prepare._computes_bfloat16", lambda: dtype == "bfloat16")
    place = f"{mine.rewards}:reward"
    tables = read_toml(prepare(mine.model, mine.rows, tmp_path / "typed", reward=place, changes=CHANGES))
    assert tables["spec"]["model"]["compute_dtype"] == tables["trainer"]["compute_dtype"] == dtype


def test_a_run_of_the_chain_may_stand_in_the_same_file(mine: Mine) -> None:
    """What is not filled in yet does not matter here, and [solo] does not matter there."""
    file = mine.prepare("both")
    text = file.read_text() + '\n[chain]\nrpc = "http://127.0.0.1:8545"\nchain_id = 31337\n'
    file.write_text(text)
    assert load_solo(file).value.trainer.steps == STEPS
    file.write_text(text + f'contract = "0x{"11" * 20}"\nrun = 1\n')
    assert load_run(file).value.trainer.steps == STEPS


def test_a_folder_is_made_whole_or_not_at_all(mine: Mine, tmp_path: Path) -> None:
    refused = tmp_path / "gemma"
    refused.mkdir()
    (refused / "config.json").write_text('{"model_type": "bloom", "eos_token_id": 1}')
    cases: list[tuple[Callable[[], Path], str]] = [
        (lambda: prepare(refused, mine.rows, tmp_path / "made"), "bloom"),
        (lambda: prepare(tmp_path / "nothing", mine.rows, tmp_path / "made"), "cannot read"),
        (lambda: prepare(mine.model, mine.rows, tmp_path / "made", answer="label"), "no column 'label'"),
        (lambda: prepare(mine.model, mine.rows, tmp_path / "made", question="text"), "no column 'text'"),
        (lambda: prepare(mine.model, mine.rows, tmp_path / "made", held_out=40), "cannot be held out"),
        (lambda: prepare(mine.model, mine.rows, tmp_path / "made", reward=f"{mine.rewards}:wants"), "'solution'"),
        (lambda: prepare(mine.model, mine.rows, tmp_path / "made", changes={"trainer.stepz": 3}), "did you mean"),
        (lambda: prepare(mine.model, mine.rows, tmp_path / "made", changes={"spec.sampling.tempertur": "1"}), "tempertur"),
    ]  # fmt: skip
    for make, said in cases:
        with pytest.raises(ConfigError) as caught:
            make()
        assert said in f"{caught.value} {caught.value.hint}"
        assert [path.name for path in tmp_path.iterdir()] == ["gemma"]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("engine.name=vllm", "vLLM is not installed"), ("engine.name=sglang", "no engine 'sglang'"), ("engine.device=mps", "no GPU of Apple's"),
        ("evaluation.engine.device=cuda:9", "cuda:9"), ("engine.device=gpu", 'is called "auto", "cpu"'),
        ("engine.threads=many", "engine.threads: must be 'auto' or a valid integer"),
        ("spec.model=3", "spec.model is no setting of"),
    ],
)  # fmt: skip
def test_an_engine_that_cannot_be_made_is_refused_before_anything_is(
    mine: Mine, tmp_path: Path, setting: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def imports(*_: object, **__: object) -> None:
        raise AssertionError("the model was imported first")

    monkeypatch.setattr("trainer.loop.prepare.make_policy", imports)
    out = tmp_path / "out"
    refused = CliRunner().invoke(app, ["solo", str(mine.model), str(mine.rows), "--out", str(out), "--set", setting])
    assert isinstance(refused.exception, MurmurationError), refused.exception
    assert said in str(refused.exception)
    assert ".writing" not in str(refused.exception)
    assert not list(tmp_path.iterdir())


def test_an_engine_that_cannot_be_made_leaves_nothing_beside_the_run_file(trained: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run.toml"
    copy.write_text(trained.read_text())
    (tmp_path / "policy").symlink_to(outputs(trained).model)
    refused = CliRunner().invoke(app, ["solo", f"@{copy}", "--set", "engine.name=sglang"])
    assert "no engine 'sglang'" in str(refused.exception)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy", "run.toml"]


def test_a_folder_that_is_there_is_left_alone(mine: Mine, trained: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds a training already") as caught:
        mine.prepare("trained")
    assert f"@{trained} --resume" in caught.value.hint
    fresh = mine.prepare("fresh")
    with pytest.raises(UsageError, match="holds a training already") as caught:
        mine.prepare("fresh")
    assert f"solo @{fresh}, or" in caught.value.hint  # there is no checkpoint to go on from
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="is there already"):
        prepare(mine.model, mine.rows, tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_folder_for_tasks_that_cannot_be_written_to_is_named(
    mine: Mine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MURMUR_TASKS", str(tmp_path / "file/tasks"))
    with pytest.raises(PreflightError, match=f"task files in {tmp_path}/file/tasks: Not a directory") as caught:
        prepare(mine.model, mine.rows, tmp_path / "made")
    assert "MURMUR_TASKS" in caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("within", ["file/made", "made"])
def test_a_folder_that_cannot_be_made_says_why_and_what_to_do(mine: Mine, tmp_path: Path, within: str) -> None:
    (tmp_path / "file").write_text("")
    fault = OSError(errno.EROFS, os.strerror(errno.EROFS), "/elsewhere/x") if within == "made" else None
    refused = pytest.raises(PreflightError, match=r"Not a directory|Read-only file system .*/elsewhere/x")
    with refused as caught, whole(tmp_path / within, "the folder"):
        raise fault or AssertionError
    assert caught.value.hint == "name a folder that can be written to"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["model"], "a model needs tasks"),
        (["@run.toml", "--reward", "a.py:b"], "stand in the file"),
        (["@run.toml", "--max-new-tokens", "9"], "spec.sampling.max_new_tokens stands in the file"),
        (["model", "rows.jsonl", "--resume"], "--resume goes on with a folder"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments: list[str], said: str) -> None:
    refused = CliRunner().invoke(app, ["solo", *arguments])
    assert isinstance(refused.exception, UsageError)
    assert said in str(refused.exception)


def test_many_ranks_do_not_make_one_folder(mine: Mine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    out = tmp_path / "solo"
    refused = CliRunner().invoke(app, ["solo", str(mine.model), str(mine.rows), "--out", str(out)])
    assert isinstance(refused.exception, UsageError)
    assert "torchrun" in str(refused.exception)
    assert not out.exists()
