"""Tasksets of verifiers, with the package itself: asked, told and scored in the sandbox; what cannot be repeated is refused by name."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol import extras
from protocol.environments.tasksets import opened, tools
from protocol.environments.tasksets.environment import Tasksets
from protocol.environments.tasksets.scoring import spoken
from protocol.environments.tasksets.tools import CALL_BYTES_MAX, CALLS_MAX, calls_of
from protocol.errors import ConfigError
from protocol.replies import Asked, bounded
from protocol.runspec import Generated
from protocol.sandbox import EnvironmentSandbox
from protocol.sandbox.inspection import examine

ROOT = Path(__file__).parent.parent.parent
OURS = ROOT / "tests/tasksets"


def with_verifiers(test: Any) -> Any:
    """A test that needs the package; scripts/test-verifiers, which CI runs, has it."""
    is_here = importlib.util.find_spec("verifiers") is not None
    test = pytest.mark.skipif(not is_here, reason="verifiers is not installed: see scripts/test-verifiers")(test)
    return pytest.mark.verifiers(pytest.mark.timeout(600)(test))


def spec(dataset: str, **changes: Any) -> Generated:
    values = {
        "package": "verifiers", "version": Tasksets.version, "dataset": dataset, "seed": 0, "size": 3, "held_out_seed": 3, "held_out_size": 1,
        "head": "0" * 64, "exact": False, **changes,
    }  # fmt: skip
    return Generated.model_validate(values)


def put(site: Path, source: str, module: str, version: str = "1.0") -> None:
    """As pip would."""
    site.mkdir(exist_ok=True)
    (site / f"{module}.py").write_text(source)
    info = site / f"{module}-{version}.dist-info"
    shutil.rmtree(info, ignore_errors=True)
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: {version}\n")
    (info / "RECORD").write_text(f"{module}.py,,\n{module}-{version}.dist-info/METADATA,,\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where packages are for this process and the sandbox's child; with two of ours."""
    for name in ("vf_sums", "vf_dictionary"):
        put(tmp_path / "site", (OURS / f"{name}.py").read_text(), name)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}:{ROOT}")
    opened.opened.cache_clear()
    yield tmp_path / "site"
    opened.opened.cache_clear()
    for name in [name for name in sys.modules if name.startswith("vf_")]:
        del sys.modules[name]


def call(name: str, **arguments: Any) -> str:
    written = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{written}\n</tool_call>"


# ---- without the package -----------------------------------------------------------------------------------------------


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened, "VERSION", "99.0")
    with pytest.raises(ConfigError, match=r"verifiers 99\.0, and what is installed is") as error:
        Tasksets(spec("vf-sums"), held_out=False)
    assert error.value.hint == extras.how_to_install("verifiers")


def test_the_version_is_the_one_that_the_extra_installs() -> None:
    assert f'verifiers = ["verifiers=={opened.VERSION}"]' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("turn", "found"),
    [
        (call("a", x=1), [("a", {"x": 1})]), (f"Let me see. {call('a')}\n{call('b', y='z')} \n", [("a", {}), ("b", {"y": "z"})]),
        ("", []), ("<tool_call>{}", []), (call("a") + " and so on", []), ("</tool_call>" * 20_000, []), ("[" * 131_072, []),
        ("<tool_call>not JSON</tool_call>", [(None, {})]), ("<tool_call>[1]</tool_call>", [(None, {})]),
        ('<tool_call>{"name": "a", "arguments": "x"}</tool_call>', [(None, {})]), (f"<tool_call>{'[' * 4000}</tool_call>", [(None, {})]),
        (call("a").replace("{}", '{"x": ' + "[" * 70 + "]" * 70 + "}"), [(None, {})]),
        (f"<tool_call>{'9' * 20_000}</tool_call>", [(None, {})]), ("<tool_call>\ud800</tool_call>", [(None, {})]),
        ("<tool_call>" * 20_000 + "</tool_call>", [(None, {})]), (call("a") * 9, [("a", {})] * CALLS_MAX),
    ],
    ids=lambda value: str(len(value)),
)  # fmt: skip
def test_a_turn_that_ends_in_calls_is_read_and_any_other_is_the_last(turn: str, found: list[Any]) -> None:
    calls = calls_of(turn)
    assert [(one.name, one.arguments) for one in calls] == found
    assert all(len(one.text.encode()) <= CALL_BYTES_MAX for one in calls)


@pytest.mark.parametrize(
    ("answer", "content"),
    [
        ("7", "7"), ("<think>6</think>\n\n7", "7"), ("6</think>7", "7"), ("<think>6", ""), ("a </think> b </think> c", " b </think> c"),
        (f"I ask. {call('a')}", "I ask."), (f"<think>x</think>{call('a')}", ""), (f"{call('a')} 7", f"{call('a')} 7"), ("", ""),
    ],
)  # fmt: skip
def test_an_answer_is_what_stands_beside_thoughts_and_calls(answer: str, content: str) -> None:
    assert spoken(answer) == content


# ---- in the sandbox ----------------------------------------------------------------------------------------------------


@with_verifiers
def test_tasks_are_asked_told_and_scored_in_the_sandbox(site: Path) -> None:
    sums = spec("vf-sums", config={"most": 4, "task.strict": True})
    with EnvironmentSandbox([sums, spec("vf-dictionary")], deadline=300) as sandbox:
        first, _, _, word = sandbox.problems([2, 0, 1, 3])
        assert first.prompt == "Answer with a number.\n\nWhat is 2 + 2?"
        assert [one.prompt.rpartition("\n")[2] for one in sandbox.held_out()] == ["What is 3 + 3?", "What is a tam?"]
        assert '"name": "dictionary_look_up"' in word.prompt
        assert '"required": ["word"]' in word.prompt
        scores = sandbox.score(
            [
                (2, "4"),
                (2, "<think>5?</think>4"),
                (2, "It is 4"),
                (2, "5"),
                (2, ""),
                (3, "hill"),
                (3, "ferry"),
                (3, "x" * 131_072),
            ]
        )
        assert scores == [1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]
        asked, letter = call("dictionary_look_up", word="korn"), call("dictionary_first_letter")
        turns = [asked, f"Again. {asked}\n{letter}", "hill"]
        (replies,) = sandbox.replies([Asked(3, turns)])
        assert [reply.text for reply in replies] == [
            "<tool_response>\n1: hill\n</tool_response>", "<tool_response>\n2: hill\n</tool_response>\n<tool_response>\nk\n</tool_response>",
        ]  # fmt: skip
        assert [(one.turn, one.tool, one.result) for reply in replies for one in reply.calls] == [
            (0, "dictionary_look_up", "1: hill"), (1, "dictionary_look_up", "2: hill"), (1, "dictionary_first_letter", "k"),
        ]  # fmt: skip
        assert sandbox.replies([Asked(3, turns, 1)]) == [replies[1:]], "it heard the calls before"
        assert sandbox.replies([Asked(3, turns[:1])])[0][0].text.startswith("<tool_response>\n1:"), "and nothing else"
        assert sandbox.replies([Asked(0, [asked])]) == [[]], "a task without tools"
        heads = [sandbox.head(one) for one in (sums, spec("vf-sums", config={"most": 2}), spec("vf-dictionary"))]
        assert len({*heads}) == 3
        assert sandbox.head(sums) == heads[0]


@with_verifiers
def test_a_right_answer_is_known_where_the_tasks_data_has_one_that_earns_everything(site: Path) -> None:
    sums = Tasksets(spec("vf-sums"), held_out=False)
    assert [sums.answer(sums.entry(index)) for index in range(3)] == ["0", "2", "4"]
    put(site, (OURS / "vf_sums.py").read_text().replace("str(self.data.answer) in said", "'=' in said"), "vf_more")
    more, words = (Tasksets(spec(name), held_out=False) for name in ("vf-more", "vf-dictionary"))
    assert more.answer(more.entry(0)) is None, "its rewards want more than that"
    assert words.answer(words.entry(0)) is None, "there is none in its data"


@with_verifiers
def test_what_is_installed_is_looked_up_once_for_all_problems(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads what pip says of every package: with 256 problems of a run's head longer than a request may take."""
    looked, look = [], opened.packages_distributions
    monkeypatch.setattr(opened, "packages_distributions", lambda: looked.append(1) or look())
    sums = Tasksets(spec("vf-sums"), held_out=False)
    assert len({sums.fingerprint(sums.entry(index))[2] for index in range(3)}) == 1
    assert len(looked) == 1


@with_verifiers
def test_another_package_than_the_run_was_created_with_has_another_head(site: Path) -> None:
    heads = []
    for version, more in (("1.0", ""), ("1.0", "\n# another reward, perhaps\n"), ("1.1", "")):
        put(site, (OURS / "vf_sums.py").read_text() + more, "vf_sums", version)
        with EnvironmentSandbox(deadline=300) as sandbox:
            heads.append(sandbox.head(spec("vf-sums")))
        shutil.rmtree(site / f"vf_sums-{version}.dist-info")
    assert len({*heads}) == 3


@with_verifiers
def test_it_keeps_what_every_environment_must(site: Path) -> None:
    words = spec("vf-dictionary", size=40, held_out_seed=40, held_out_size=10)  # enough to share the import among
    seen = {one.name: one for one in examine(words, problems=30, deadline=300)}
    assert [one for one in seen.values() if one.holds is False] == []
    assert seen["replies the same"].holds


# ---- hostile turns -----------------------------------------------------------------------------------------------------


@with_verifiers
def test_what_is_wrong_with_a_call_is_told_and_nothing_else_happens(site: Path) -> None:
    words = Tasksets(spec("vf-dictionary"), held_out=False)
    task = words.entry(0)

    def told(turn: str) -> str | None:
        reply = bounded(words.reply(task, [turn]))
        return reply and reply.text.removeprefix("<tool_response>\n").removesuffix("\n</tool_response>")

    assert told(call("dictionary_look_up", word="none")) == "error: KeyError: 'none'"
    assert told(call("dictionary_look_up")) == "error: word: missing"
    assert told(call("dictionary_look_up", word=5)) == "error: word: string_type"
    assert told(call("look_up", word="korn")) == "error: unknown tool 'look_up'"
    assert told(call("dictionary_setup")) == "error: unknown tool 'dictionary_setup'"
    assert told("<tool_call>x</tool_call>") == 'error: a call is {"name": "…", "arguments": {…}}, in JSON'
    assert told("no call") is None
    long = told(call("dictionary_look_up", word="korn", times=100_000))
    assert long is not None
    assert long.endswith(" (cut)")
    assert len(long) == 2006
    widest = "\x01" * (CALL_BYTES_MAX // 6 - 20)
    assert bounded(words.reply(task, [call(widest) * 9])) is not None


# ---- what is refused ---------------------------------------------------------------------------------------------------

BEGIN = """
import verifiers.v1 as vf
class Data(vf.TaskData):
    pass
class TaskConfig(vf.TaskConfig):
    {config}
class Task(vf.Task[Data, vf.State, TaskConfig]):
    {task}
    @vf.reward
    async def right(self, trace{parameter}) -> float:
        {reward}
class Set(vf.Taskset[Task, vf.TasksetConfig]):
    def load(self):
        {load}
        return [Task(Data(prompt={prompt}, {data}))]
{more}
__all__ = ["Set", {exported}]
"""
PARTS = {
    "config": "pass", "task": "pass", "parameter": "", "reward": "return 1.0", "load": "pass", "prompt": "'What?'", "data": "", "more": "", "exported": "",
}  # fmt: skip
TOOLS = """
    @classmethod
    def toolsets(cls, config):
        return [Tools(ToolConfig({config}))]
"""
TOOLSET = """
class ToolConfig(vf.ToolsetConfig): pass
class Remembered(vf.State):
    n: int = 0
class Tools(vf.Toolset[ToolConfig{state}]):
    @vf.tool
    def ask(self, x: str) -> str: return x
"""
REFUSED = {
    "an environment of its own": ({"more": "class Two(vf.Env[vf.EnvConfig]):\n    async def run(self, task, agents): pass", "exported": "'Two'"}, "environment Two"),
    "a harness of its own": ({"more": "class Play(vf.Harness[vf.HarnessConfig]): pass", "exported": "'Play'"}, "harness Play"),
    "a container": ({"task": "NEEDS_CONTAINER = True"}, "Task needs a container"),
    "an image": ({"data": "image='python:3.11'"}, "image. runs in a container"),
    "skills": ({"data": "skills=[{'runtime': '/skills'}]"}, "installs skills"),
    "a set-up": ({"task": "async def setup(self, trace, runtime): pass"}, "Task.setup prepares a sandbox"),
    "a look behind": ({"task": "async def finalize(self, trace, runtime): pass"}, "Task.finalize looks at a sandbox"),
    "a reward in a sandbox": ({"parameter": ", runtime"}, "reward right of .* looks into a sandbox"),
    "a stop": ({"task": "@vf.stop\n    async def enough(self, trace: vf.Trace) -> bool: return True"}, "vf.stop enough"),
    "a judge in its config": ({"config": "judge: vf.JudgeConfig = vf.JudgeConfig()"}, "asks a language model .judge."),
    "a judge plugged in": ({"config": "judges: list = [vf.ReferenceJudgeConfig(id='reference')]"}, "asks a language model .judges: reference"),
    "a judge in a reward": ({"reward": "return vf.ReferenceJudge() and 1.0"}, "the judge ReferenceJudge of .* asks a language model"),
    "a judge whose refusal is caught": ({"reward": "\n        try: return float(trace.timing.start)\n        except Exception: return 1.0"}, "trace.timing"),
    "token counts": ({"reward": "return trace.num_output_tokens / 100"}, "trace.num_output_tokens, which differs between machines"),
    "the network in a reward": ({"reward": "raise ConnectionRefusedError(111, 'refused')"}, "does not work in the sandbox: ConnectionRefusedError"),
    "the network for its tasks": ({"load": "raise ConnectionError('huggingface.co')"}, "cannot be loaded: ConnectionError: huggingface.co"),
    "no reward": ({"more": "Task.right = None"}, "has no reward"),
    "a user who speaks first": ({"prompt": "None"}, "does not begin with one question"),
    "a picture": ({"prompt": "[vf.UserMessage(content=[vf.ImageUrlContentPart(image_url={'url': 'x'})])]"}, "does not begin with one question"),
    "tools elsewhere": ({"more": TOOLSET.format(state=""), "task": TOOLS.format(config="url='http://x'")}, "toolset Tools is asked over the network"),
    "tools in a sandbox": ({"more": TOOLSET.format(state=""), "task": TOOLS.format(config="runtime=vf.PrimeConfig()")}, "Tools runs in a sandbox of its own .prime."),
    "tools beside the model": ({"more": TOOLSET.format(state=""), "task": TOOLS.format(config="colocated=True")}, "Tools runs in a sandbox"),
    "tools with a state": ({"more": TOOLSET.format(state=", Remembered"), "task": TOOLS.format(config="")}, "keeps a state .Remembered."),
    "a reward that sees tools": ({"more": TOOLSET.format(state=""), "task": TOOLS.format(config=""), "reward": "return float(len(trace.tool_messages))"}, "trace.tool_messages, which is more than the last turn"),
    "a reward that counts turns": ({"more": TOOLSET.format(state=""), "task": TOOLS.format(config=""), "reward": "return 1 / trace.num_turns"}, "trace.num_turns, which is more"),
    "no such taskset": ({"exported": "'No'", "more": "__all__ = []; Set = None"}, "exports 0 tasksets"),
}  # fmt: skip


@with_verifiers
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_repeated_is_refused_by_name(site: Path, name: str) -> None:
    parts, complaint = REFUSED[name]
    module = f"vf_refused_{list(REFUSED).index(name)}"
    put(site, BEGIN.format(**PARTS | parts), module)
    environment = Tasksets(spec(module), held_out=False)
    with pytest.raises(ConfigError, match=complaint):
        environment.fingerprint(environment.entry(0))


@with_verifiers
def test_what_none_of_it_concerns_is_not_refused(site: Path) -> None:
    put(site, BEGIN.format(**PARTS | {"more": TOOLSET.format(state=""), "task": TOOLS.format(config="")}), "vf_plain")
    environment = Tasksets(spec("vf-plain"), held_out=False)
    entry = environment.entry(0)
    assert environment.fingerprint(entry)[2].startswith("vf_plain 1.0 ")
    assert environment.score(entry, "x") == 1.0
    with pytest.raises(ConfigError, match="has 1 tasks, and problem 1 is asked for"):
        environment.entry(1)


@with_verifiers
def test_a_reward_that_breaks_on_an_answer_gives_nothing(site: Path) -> None:
    put(site, BEGIN.format(**PARTS | {"reward": "return float(trace.last_reply)"}), "vf_floats")
    environment = Tasksets(spec("vf-floats"), held_out=False)
    entry = environment.entry(0)
    assert environment.fingerprint(entry)
    assert [environment.score(entry, text) for text in ("0.5", "x", "", "nan", "inf")] == [0.5, 0.0, 0.0, 0.0, 0.0]


@with_verifiers
@pytest.mark.parametrize(
    ("name", "settings", "complaint"),
    [
        ("vf-none", {}, "No module named 'vf_none'"),
        ("vf-sums", {"longest": 5}, "longest"),
        ("vf-sums", {"task.strict": "perhaps"}, "strict"),
    ],
)
def test_what_cannot_be_loaded_says_so(site: Path, name: str, settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot be loaded: [^$]*{complaint}"):
        Tasksets(spec(name, config=settings), held_out=False).entry(0)


@with_verifiers
def test_settings_of_this_machine_are_checked_like_others(site: Path) -> None:
    with pytest.raises(ConfigError, match="reply_letters"):
        Tasksets(spec("vf-sums", config={"reply_letters": 5000}), held_out=False)
    assert tools.CALLS_MAX * (4000 + 60) < 1 << 14
