"""What of the vLLM engine needs no vLLM: its process as the parent sees it, how memory is divided, what the self-check accepts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from swarm.processes import wait_until

from node.engine import device, vllm_build, vllm_check, vllm_engine, vllm_plan, vllm_process
from node.engine import process as processes
from node.engine.interface import Completion, Prompt, Restarting
from node.engine.memory import Footprint
from node.engine.proofs import bits
from node.engine.settings import EngineSettings
from node.engine.vllm_engine import VllmEngine
from node.engine.vllm_process import Lost, VllmProcess
from node.engine.vllm_server import VllmServer
from protocol import toploc
from protocol.errors import ConfigError, IntegrityError, PreflightError, Unavailable
from protocol.model_files import CONFIG
from protocol.sampling import TokenScores
from tests.engine import models
from tests.protocol.scored import scored

FOOTPRINT = Footprint(weights=1000 << 20, cache_token=1 << 15, row=1 << 20, prefill_token=1 << 18, pair=0)
CPU = torch.device("cpu")


# ---- the process ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VllmProcess]:
    """One whose kernel counts in `tmp_path / "kills"`."""
    monkeypatch.setattr(processes, "_KILLS", (tmp_path / "none", tmp_path / "kills"))
    (tmp_path / "kills").write_text("oom 3\noom_kill 7\n")
    made = VllmProcess(dict(os.environ), 60)
    yield made
    made.end()


def lost(process: VllmProcess) -> Lost:
    with pytest.raises(Lost) as told:
        process.ask("nothing")
    return told.value


def test_who_is_killed_was_not_out_of_memory_unless_the_kernel_says_so(process: VllmProcess, tmp_path: Path) -> None:
    os.kill(process.pid, signal.SIGKILL)
    told = lost(process)
    assert (str(told), told.is_memory) == ("its process was killed by SIGKILL: it said nothing", False)
    (tmp_path / "kills").write_text("oom 4\noom_kill 8\n")
    assert lost(process).is_memory


def test_a_process_without_a_sign_of_life_hangs(process: VllmProcess) -> None:
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(Lost, match="it hangs: no sign of life for 0 s"):
        process.ask("nothing", seconds=0.2)


def test_a_process_that_takes_nothing_in_hangs(process: VllmProcess) -> None:
    """More than the pipe holds: nobody would ever end this write."""
    processes._limit(process._pipe, 0.2)
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(Lost, match="it takes nothing in"):
        process.ask("nothing", prompts=[0] * (1 << 20))


Starts = Callable[[str], VllmProcess]


@pytest.fixture
def starting(tmp_path: Path) -> Iterator[Starts]:
    """Starts processes that do this first."""
    made: list[VllmProcess] = []

    def start(code: str) -> VllmProcess:
        (tmp_path / "sitecustomize.py").write_text(code)
        path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
        made.append(VllmProcess({**os.environ, "PYTHONPATH": path}, 60, 3))
        return made[-1]

    yield start
    for process in made:
        process.end()


def test_a_process_that_computes_is_alive_but_not_for_ever(starting: Starts) -> None:
    """It is silent three times as long as one may be that does not compute."""
    with pytest.raises(Lost, match="it computes without a word for 3 s"):
        starting("while True: pass").ask("nothing", seconds=1)


def test_a_process_that_leaves_its_pipe_and_does_not_end_hangs(
    starting: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_END_SECONDS", 0.2)
    process = starting("import os, sys, time; os.close(int(sys.orig_argv[-1])); time.sleep(600)")
    with pytest.raises(Lost, match="does not end"):
        process.ask("nothing")


def test_a_process_that_has_ended_is_not_killed_again(process: VllmProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number may be that of somebody else's process by then."""
    os.kill(process.pid, signal.SIGKILL)
    lost(process)
    killed: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, _: killed.append(group))
    process.end()
    assert killed == []


@pytest.mark.parametrize("job", ["generate", "prefill"])
def test_requests_that_vllm_drops_are_an_error_and_no_loop_without_end(
    job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=lambda **_: None))
    kinds = SimpleNamespace(RequestOutputKind=SimpleNamespace(FINAL_ONLY=0))
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", kinds)
    ours, theirs = Pipe()
    server = VllmServer(theirs)
    server._rows = 2
    server._engine = SimpleNamespace(add_request=lambda *_: "", has_unfinished_requests=lambda: False)
    with ours, theirs, pytest.raises(RuntimeError, match="2 requests were never finished"):
        if job == "prefill":
            server._prefill([[0, [1], 0], [1, [1], 0]])
        else:
            server._generate([[0, 0, [1], 0], [1, 1, [1], 0]], {}, 1, [], True)


@pytest.mark.parametrize(
    ("name", "message", "kind", "is_memory"),
    [
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB", Lost, True),
        ("RuntimeError", "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried", Lost, True),
        ("MemoryError", "", Lost, True),
        (
            "ValueError",
            "Free memory on device cuda:0 (1/80 GiB) on startup is less than desired GPU memory",
            Lost,
            True,
        ),
        ("RuntimeError", "CUDA error: an illegal memory access was encountered", Lost, False),
        ("IntegrityError", "3 rows of hidden states were seen for 4 tokens", IntegrityError, None),
        ("NotNumbers", "NaN", ValueError, None),
    ],
)
def test_what_it_says_of_itself_is_taken_for_what_it_is(
    name: str, message: str, kind: type[Exception], is_memory: bool | None
) -> None:
    error = vllm_process._as_error(name, message)
    assert (type(error), getattr(error, "is_memory", None)) == (kind, is_memory)


def test_a_process_ends_with_the_role_that_was_killed(tmp_path: Path) -> None:
    """Also where it computes and does not look at its pipe."""
    code = (
        "import os, signal, sys, time; from node.engine.vllm_process import VllmProcess; p = VllmProcess(dict(os.environ), 60);"
        "print(p.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as role:
        assert role.stdout is not None
        pid = int(role.stdout.readline())
        wait_until(lambda: _is_serving(pid), deadline=60, what="it serves")
        role.kill()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), deadline=30, what="it ended")


def _is_serving(pid: int) -> bool:
    return len(list(Path(f"/proc/{pid}/task").iterdir())) > 1


# ---- memory --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1200 << 20, 2 << 30, 80 << 30])
def test_what_is_planned_stays_within_what_may_be_taken(most: int) -> None:
    plan = vllm_plan.plan(FOOTPRINT, most, 1 << 20)
    working = plan.sequences * FOOTPRINT.row + plan.step * FOOTPRINT.prefill_token
    assert FOOTPRINT.weights + plan.cache + working <= most
    assert plan.tokens * FOOTPRINT.cache_token <= plan.cache
    assert plan.sequences <= plan.step
    vllm_plan.require_room(FOOTPRINT, most, plan.tokens)
    with pytest.raises(PreflightError, match=f"one sequence of {plan.tokens + 1} tokens takes about"):
        vllm_plan.require_room(FOOTPRINT, most, plan.tokens + 1)


def test_no_more_cache_is_taken_than_all_sequences_fill() -> None:
    plan = vllm_plan.plan(FOOTPRINT, 80 << 30, 1024)
    assert plan.cache == plan.sequences * (1024 + 64) * FOOTPRINT.cache_token < 10 << 30
    assert plan.tokens > 1024


def test_a_share_is_of_what_is_free_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not of what its own process leaves free, when it is started again."""
    monkeypatch.setattr(vllm_build, "require", lambda _: CPU)
    monkeypatch.setattr(device, "free_bytes", lambda _: 10 << 30)
    engine = VllmEngine("float32", EngineSettings(name="vllm", memory="50%"))
    monkeypatch.setattr(device, "free_bytes", lambda _: 1 << 30)
    assert engine._most() == 5 << 30


# ---- versions ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
def test_a_process_that_could_not_forget_the_version_before_is_ended(
    clean: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM does not empty its prefix cache while requests run."""
    monkeypatch.setattr(vllm_build, "require", lambda _: CPU)
    version, another, _ = models.versions(tmp_path, models.RIGHT["qwen3"])
    engine, asked, ended = VllmEngine("float32"), [], []

    def ask(job: str, **of: Any) -> dict[str, Any]:
        asked.append((job, (Path(of["folder"]) / CONFIG).resolve().parent))
        return {"clean": clean}

    engine.load(version)
    engine._process = SimpleNamespace(ask=ask, end=lambda: ended.append(True))  # type: ignore[assignment]
    engine.load(another)
    assert asked == [("load", another)]
    assert (engine._process is None, bool(ended)) == (not clean, not clean)


class Standing:
    """In the place of a process: takes every job, and notes which files it is given to read."""

    given: list[list[str]]

    def __init__(self, *_: object) -> None: ...

    def ask(self, job: str, **of: Any) -> dict[str, Any]:
        folder = of["folder"] if job == "load" else of["arguments"]["model"]
        self.given.append(sorted(path.name for path in Path(folder).iterdir() if path.exists()))
        return FACTS | {"clean": True}

    def end(self) -> None: ...


@pytest.fixture
def standing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[VllmEngine, Path, Path]:
    """An engine whose processes only stand there, and two versions for it."""
    monkeypatch.setattr(vllm_build, "require", lambda _: CPU)
    monkeypatch.setattr(vllm_engine, "VllmProcess", Standing)
    monkeypatch.setattr(vllm_engine, "_LIVES", 1)
    monkeypatch.setattr(VllmEngine, "_check", lambda *_: None)
    monkeypatch.setattr(Standing, "given", [], raising=False)
    version, another, _ = models.versions(tmp_path, models.RIGHT["qwen3"])
    return VllmEngine("float32"), version, another


def test_vllm_is_given_what_is_checked_and_nothing_else(standing: tuple[VllmEngine, Path, Path]) -> None:
    """It would read every file of weights that it finds, and settings of formats that nobody else knows."""
    engine, *folders = standing
    for folder in folders:
        for name in ("zzz.safetensors", "hf_quant_config.json", "params.json", "consolidated.safetensors"):
            (folder / name).write_bytes(b"{}")
        engine.load(folder)
        engine.start()
    assert Standing.given == [[CONFIG, models.WEIGHTS]] * 2


def test_after_a_load_that_was_refused_its_process_computes_nothing_before_it_has_read_the_next_version(
    standing: tuple[VllmEngine, Path, Path], tmp_path: Path
) -> None:
    engine, version, another = standing
    engine.load(version)
    engine.start()
    process = engine._process
    odd = tmp_path / "odd"
    shutil.copytree(another, odd)
    save_file({"stranger": torch.ones(1)}, odd / models.WEIGHTS)
    with pytest.raises(IntegrityError, match="stranger"):
        engine.load(odd)
    prompt, given = [Prompt([1], (1,))], list(Standing.given)
    with pytest.raises(Unavailable, match="holds no version"):
        engine.generate(prompt, temperature=1.0, max_new_tokens=1, end_tokens=frozenset())
    with pytest.raises(Unavailable, match="holds no version"):
        list(engine.prefill_in_batches([([1], [1])]))
    with pytest.raises(Unavailable, match="holds no version"):
        engine.score(torch.ones(1, engine.hidden_size), [1], key=0, temperature=1.0)
    assert Standing.given == given
    engine.load(another)
    engine.start()
    assert engine._process is process
    assert len(Standing.given) == len(given) + 1


def test_each_process_is_vetted_and_once_more_when_it_has_read_a_version_in_place(
    standing: tuple[VllmEngine, Path, Path],
) -> None:
    engine, version, another = standing
    assert isinstance(engine, Restarting)
    vetted: list[object] = []
    engine.vet = lambda: vetted.append(engine._process)
    for folder in (version, another, version, another):
        engine.load(folder)
        engine.start()
        engine.start()
    first = engine._process
    assert vetted == [first, first]
    engine.close()
    engine.start()
    assert engine._process is not first
    assert vetted == [first, first, engine._process]


def test_a_process_that_does_not_pass_is_not_worked_with(standing: tuple[VllmEngine, Path, Path]) -> None:
    engine, version, _ = standing

    def differs() -> None:
        raise PreflightError("it differs")

    engine.vet = differs
    engine.load(version)
    for _ in range(2):
        with pytest.raises(PreflightError, match="it differs"):
            engine.start()
        assert engine._process is None


def test_a_process_that_ends_while_it_is_vetted_has_not_passed(standing: tuple[VllmEngine, Path, Path]) -> None:
    engine, version, _ = standing

    def ends() -> None:
        engine.close()
        engine.start()  # as the work of the vetting would

    engine.vet = ends
    engine.load(version)
    with pytest.raises(PreflightError, match="ended while it was compared"):
        engine.start()


@pytest.mark.parametrize("name", ["mixtral", "deepseek_v3"])
def test_a_model_that_vllm_cannot_load_is_refused_by_name_before_anything_starts(
    name: str, standing: tuple[VllmEngine, Path, Path], tmp_path: Path
) -> None:
    engine = standing[0]
    folder = models.make(models.RIGHT[name], tmp_path / name)
    with pytest.raises(ConfigError, match=f"vLLM 0.32.0 cannot load models of type '{name}'"):
        engine.load(folder)
    assert engine._model is None and Standing.given == []


# ---- what the process sees -----------------------------------------------------------------------------------------------


def test_what_the_settings_say_of_memory_is_not_overruled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_build, "require", lambda _: CPU)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "40")
    assert "VLLM_CPU_KVCACHE_SPACE" not in VllmEngine("float32")._environment()


@pytest.mark.parametrize(
    ("seen", "first", "count", "expected"),
    [
        ("", "cuda:0", 1, "0"),
        ("", "cuda:1", 2, "1,2"),
        ("", "cuda", 2, "0,1"),
        ("3", "cuda:0", 1, "3"),
        ("2,GPU-8a,5", "cuda:1", 2, "GPU-8a,5"),
    ],
)
def test_it_sees_the_gpus_that_are_meant_and_no_others(
    seen: str, first: str, count: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the role sees some of the machine's GPUs, its first is not the machine's first."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    assert vllm_build.visible(torch.device(first), count) == expected


# ---- the self-check ------------------------------------------------------------------------------------------------------

FACTS: dict[str, Any] = {
    "runners": [{"name": "vllm.v1.Right", "is_known": True, "draws": True}], "async_scheduling": False, "platform": "cpu",
}  # fmt: skip


def test_the_right_vllm_is_accepted() -> None:
    vllm_check.require_installed(FACTS, CPU)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"runners": [*FACTS["runners"], {"name": "vllm.v2.Other", "is_known": False, "draws": False}]}, "vLLM runs vllm.v2.Other"),
        ({"runners": [{"name": "vllm.v1.Right", "is_known": True, "draws": False}]}, "not among vLLM's logits processors"),
        ({"async_scheduling": True}, "schedules asynchronously"),
        ({"platform": "cuda"}, "computes on cuda, and the engine's device is cpu"),
    ],
)  # fmt: skip
def test_another_vllm_is_not(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(PreflightError, match=said):
        vllm_check.require_installed(FACTS | wrong, CPU)


def shown(
    *, margin: float = 0, logprob: float = -3, turned: bool = False, proofs: int = 1
) -> tuple[list[Completion], list[torch.Tensor], list[TokenScores]]:
    hidden = torch.randn(vllm_check.TOKENS, 64, generator=torch.Generator().manual_seed(0))
    proof = toploc.prove([bits(hidden.flip(0) if turned else hidden)])[0]
    made = Completion([5] * vllm_check.TOKENS, [logprob] * vllm_check.TOKENS, proof * proofs)
    scores = scored(np.array([0, margin, 0]), np.full(vllm_check.TOKENS, -3.0))
    return [made], [hidden], [scores]


def test_what_is_drawn_and_proved_rightly_is_accepted() -> None:
    vllm_check.require_right(*shown(margin=0.5, logprob=-3.1))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"margin": 30}, "a token is not the seeded draw: it lies 30 nats below"),
        ({"margin": float("nan")}, "a token is not the seeded draw"),
        ({"logprob": -0.1}, "a logprob is 2.9 nats from that of the model"),
        ({"turned": True}, "a proof is not of the model's final hidden states"),
        ({"proofs": 0}, "no proof of its tokens was made"),
    ],
)
def test_what_is_wrong_is_named(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(PreflightError, match=said):
        vllm_check.require_right(*shown(**wrong))
