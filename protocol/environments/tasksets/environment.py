"""A taskset of the package verifiers: its tasks asked, its tools called, its rewards computed, all in the sandbox's child.

    [[spec.environments]]
    package = "verifiers"
    dataset = "word-count"        # its id: the name that pip installed
    config = { longest = 9 }      # fields of its TasksetConfig
    seed = 0                      # the first task to train on
    size = 1000
    held_out_seed = 1000          # the first one held out
    held_out_size = 50

It is played as the chat loop of verifiers (its harness "null") plays it: system prompt, prompt and tools in the question; the conversation goes
on while a turn ends in calls. Never exact: what strangers' code computes, nobody has looked at.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import ConfigDict, Field

from protocol.environments.environment import Config, Environment, Grants
from protocol.environments.tasksets import opened as opening
from protocol.environments.tasksets import scoring, tools
from protocol.environments.tasksets.opened import VERSION, Opened
from protocol.errors import ConfigError
from protocol.rollout import ToolCall, ToolResult
from protocol.runspec import EnvironmentSpec

_PROBES = ("", "0")


class TasksetSettings(Config):
    """Whatever else is given are fields of the taskset's own config; a dot leads into a field of a field, as `"task.strict"`."""

    model_config = ConfigDict(extra="allow")

    reply_letters: int = Field(default=2000, ge=16, le=4000)
    """Of what one tool call gave; the rest is cut off."""


class Tasksets(Environment):
    """Entry: a task of verifiers."""

    name = "verifiers"
    version = f"1 on verifiers {VERSION}"
    exact = False
    Config = TasksetSettings
    grants = Grants(seconds=120.0)

    def __init__(self, spec: EnvironmentSpec, *, held_out: bool) -> None:
        super().__init__(spec, held_out=held_out)
        opening.require_verifiers()

    def entry(self, index: int) -> Any:
        return self._opened.task(self.seed + index)

    def prompt(self, entry: Any) -> str:
        described = [one.prompt for one in self._opened.tools(entry)]
        return "\n\n".join(part for part in (entry.data.system_prompt, *described, _question(entry)) if part)

    def answer(self, entry: Any) -> str | None:
        """`answer` of the task's data, where it earns everything: no taskset promises such a field, or what it holds."""
        known = getattr(entry.data, "answer", None)
        if not isinstance(known, str | int | float):
            return None
        return str(known) if self._score(entry, str(known)).value >= 1 else None

    def score(self, entry: Any, completion: str) -> float:
        return self._score(entry, completion).value

    def _score(self, entry: Any, completion: str) -> scoring.Score:
        return scoring.score(entry, completion, has_tools=self._opened.has_tools(entry), run=self._opened.run)

    def reply(self, entry: Any, turns: Sequence[str]) -> ToolResult | None:
        last = tools.calls_of(turns[-1])
        if not last or not self._opened.has_tools(entry):
            return None
        available = self._opened.tools(entry)
        if not available:
            return None
        for call in (call for turn in turns[:-1] for call in tools.calls_of(turn)):
            _ask(available, call)
        told = [(call, self._cut(_ask(available, call))) for call in last]
        text = "\n".join(f"<tool_response>\n{result}\n</tool_response>" for _, result in told)
        known = {schema["function"]["name"] for one in available for schema in one.schemas}
        named = [call.name if call.name is not None and call.name in known else "none" for call in last]
        calls = (
            ToolCall(len(turns) - 1, name, call.text, result) for name, (call, result) in zip(named, told, strict=True)
        )
        return ToolResult(text, tuple(calls))

    def as_call(self, text: str) -> str | None:
        available = self._opened.tools(self.entry(0))
        for schema in (schema["function"] for one in available for schema in one.schemas):
            properties = schema["parameters"].get("properties", {})
            words = [name for name, kind in properties.items() if kind.get("type") == "string"]
            if words:
                written = json.dumps({"name": schema["name"], "arguments": {words[0]: text}})
                return f"<tool_call>\n{written}\n</tool_call>"
        return None

    def fingerprint(self, entry: Any) -> list[str]:
        """Also the package's content; and its rewards are tried, so that what cannot be repeated is refused before anybody works."""
        for probe in _PROBES:
            error = self._score(entry, probe).error
            if (cause := _of_system(error)) is not None:
                raise ConfigError(
                    f"a reward of {type(entry).__name__} does not work in the sandbox: {type(cause).__name__}: {cause}",
                    hint="it has no network, and writes no files",
                ) from error
        return [self.prompt(entry), entry.hash, self._opened.installed]

    @property
    def _opened(self) -> Opened:
        own = set(type(self.config).model_fields)
        return opening.opened(self.spec.dataset, json.dumps(_nested({k: v for k, v in self.config if k not in own})))

    def _cut(self, text: str) -> str:
        text = text.encode("utf-8", "replace").decode()
        return text if len(text) <= self.config.reply_letters else f"{text[: self.config.reply_letters]} (cut)"


def _question(task: Any) -> str:
    """Raises ConfigError for what is no text of one person's."""
    prompt = task.data.prompt
    if isinstance(prompt, str) and prompt:
        return prompt
    match prompt:
        case [message] if message.role == "user" and isinstance(message.content, str):
            return str(message.content)
    raise ConfigError(
        f"the task {task.data.idx} of {type(task).__name__} does not begin with one question in text: it cannot be asked here"
    )


def _ask(available: Sequence[tools.Tools], call: tools.FunctionCall) -> str:
    for one in available:
        if one.has(call.name):
            return one.ask(call)
    return available[0].ask(call)


def _nested(flat: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in sorted(flat.items()):
        *above, last = name.split(".")
        place = made
        for part in above:
            place = place.setdefault(part, {})
        place[last] = value
    return made


def _of_system(error: BaseException | None) -> OSError | None:
    """What the sandbox refused."""
    while error is not None:
        if isinstance(error, OSError):
            return error
        error = error.__cause__ or error.__context__
    return None
