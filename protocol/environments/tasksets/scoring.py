"""What a task's rewards say of an answer. They see a trace of verifiers: a question and the text that answers it, nothing more.

Of a conversation with tools they see the last turn alone, as whatever scores here does: `last_reply`. What a trace cannot tell here, or
tells otherwise on each machine (times, token counts, who was asked), is refused by name when a reward looks at it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

from protocol.environments.tasksets import refusals, tools
from protocol.errors import ConfigError

_MEASURED = frozenset({
    "agent", "calls", "extra_usage", "id", "num_input_tokens", "num_output_tokens", "num_total_tokens", "timing", "usage",
})  # fmt: skip
_TURNS = frozenset({
    "assistant_messages", "branches", "is_truncated", "last_message", "messages", "nodes", "num_branches", "num_turns", "pending", "state",
    "tool_messages", "transcript",
})  # fmt: skip


@dataclass(frozen=True)
class Score:
    """The sum of a task's weighted rewards, 0 where one of them broke; and what broke it."""

    value: float
    error: Exception | None = None


def score(task: Any, answer: str, *, has_tools: bool, run: tools.Run) -> Score:
    """Raises ConfigError for what cannot be repeated."""
    trace = _trace(task, answer, has_tools)
    try:
        run(task.score(trace))
        found = Score(float(trace.reward) if math.isfinite(trace.reward) else 0.0)
    except Exception as error:
        refused = _refusal(error)
        if refused is not None:
            raise refused from error
        found = Score(0.0, error)
    if trace._looked is not None:  # and the error was caught
        raise trace._looked
    return found


def _refusal(error: BaseException | None) -> ConfigError | None:
    while error is not None:
        if isinstance(error, ConfigError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _trace(task: Any, answer: str, has_tools: bool) -> Any:
    from verifiers.v1 import graph, trace
    from verifiers.v1.configs.agent import AgentConfig
    from verifiers.v1.state import state_cls
    from verifiers.v1.types import AssistantMessage, SystemMessage, UserMessage

    content = spoken(answer)
    asked = [UserMessage(content=task.data.prompt_text)]
    if task.data.system_prompt is not None:
        asked.insert(0, SystemMessage(content=task.data.system_prompt))
    nodes = [
        graph.MessageNode(message=message, parent=n - 1 if n else None, timestamp=0.0)
        for n, message in enumerate(asked)
    ]
    said = AssistantMessage(content=content, reasoning_content=_thought(answer))
    nodes.append(graph.MessageNode(message=said, parent=len(nodes) - 1, sampled=True, timestamp=0.0))
    made = _watched()(
        id="0" * 32, verifiers=trace.VersionInfo(version="0"), timing=trace.Timing(start=0.0), nodes=nodes, root_reply=content,
        task=trace.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
        agent=trace.AgentInfo(config=AgentConfig()), state=state_cls(type(task))(), is_completed=True, ok=True, stop_condition="agent_completed",
    )  # fmt: skip
    made._hidden = _MEASURED | _TURNS if has_tools else _MEASURED
    return made


@cache
def _watched() -> type[Any]:
    from pydantic import PrivateAttr
    from verifiers.v1.trace import Trace

    class Watched(Trace):
        """Says what was looked at that is not there."""

        _hidden: frozenset[str] = PrivateAttr(default=frozenset())
        _looked: ConfigError | None = PrivateAttr(default=None)
        _within: bool = PrivateAttr(default=False)

        def __getattribute__(self, name: str) -> Any:
            if name.startswith("_"):
                return super().__getattribute__(name)
            own = super().__getattribute__("__pydantic_private__")
            if own is None or own["_within"]:
                return super().__getattribute__(name)
            if name in own["_hidden"]:
                why = "differs between machines" if name in _MEASURED else "is more than the last turn"
                self._looked = refusals.refuse(
                    f"a reward or metric of {self.task.type} looks at trace.{name}, which", why
                )
                raise self._looked
            own["_within"] = True  # what a trace looks at to answer
            try:
                return super().__getattribute__(name)
            finally:
                own["_within"] = False

    return Watched


def spoken(answer: str) -> str:
    """What an inference server calls the content of an answer: without thoughts and calls."""
    thought, ended, rest = answer.partition("</think>")
    if not ended:
        rest = "" if answer.lstrip().startswith("<think>") else thought
    return tools.without_calls(rest.lstrip("\n") if ended else rest)


def _thought(answer: str) -> str | None:
    thought, ended, _ = answer.partition("</think>")
    return thought.replace("<think>", "", 1) if ended or answer.lstrip().startswith("<think>") else None
