"""Tools of a taskset: its toolsets in this process, asked through the MCP server that verifiers makes of them, without a network.

A call is written as Qwen and Hermes write it, and a turn that ends in one or several is replied to:

    <tool_call>
    {"name": "lookup_word", "arguments": {"word": "wren"}}
    </tool_call>

Tools keep nothing from one conversation to the next: for each reply those of a task are made anew and hear all calls before it once more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from protocol import canonical
from protocol.environments.tasksets import refusals
from protocol.errors import Malformed

CALLS_MAX = 4
"""Of one turn; what is beyond is not called."""
CALL_BYTES_MAX = 1 << 12
"""UTF-8 bytes of one call: a rollout file has room for it, written in the longest way, and for its result."""
_BEGIN, _END = "<tool_call>", "</tool_call>"
_NO_CALL = 'error: a call is {"name": "…", "arguments": {…}}, in JSON'
_PROMPT = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""

Run = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine to its end."""


@dataclass(frozen=True)
class FunctionCall:
    """As the model wrote it; `name` is None for what is no call."""

    text: str
    name: str | None
    arguments: dict[str, Any]


def calls_of(turn: str) -> list[FunctionCall]:
    """What a turn calls; nothing where it does not end in a call."""
    said = turn.rstrip(" \t\r\n")
    if not said.endswith(_END):
        return []
    found: list[FunctionCall] = []
    end = 0
    while len(found) < CALLS_MAX and (start := said.find(_BEGIN, end)) >= 0:
        end = said.find(_END, start)
        if end < 0:
            break
        found.append(_parsed(said[start + len(_BEGIN) : end].strip(" \t\r\n")))
    return found


def without_calls(turn: str) -> str:
    """What a turn says beside them."""
    return turn[: turn.find(_BEGIN)].rstrip(" \t\r\n") if calls_of(turn) else turn


def _parsed(text: str) -> FunctionCall:
    nothing = FunctionCall(text.encode("utf-8", "replace")[:CALL_BYTES_MAX].decode("utf-8", "ignore"), None, {})
    if len(text) > CALL_BYTES_MAX or nothing.text != text:
        return nothing
    try:
        match canonical.parse(text.encode(), "a call"):
            case {"name": str(name), "arguments": dict(arguments)}:
                return FunctionCall(text, name, arguments)
    except Malformed:
        pass
    return nothing


class Tools:
    """Toolsets that are ready. Raises ConfigError for one that is not repeatable, or two tools of one name."""

    def __init__(self, toolsets: Sequence[Any], task: Any, run: Run) -> None:
        from mcp.server.mcpserver import MCPServer

        self._run = run
        self._servers: dict[str, tuple[Any, str]] = {}
        self.schemas: list[dict[str, Any]] = []
        for toolset in toolsets:
            refusals.require_toolset(toolset)
            run(toolset.setup())
            if task is not None:
                run(toolset.setup_task(task.data))
            server = MCPServer(toolset.server_name or type(toolset).__name__)
            toolset.register(server)
            for tool in run(server.list_tools()):
                full = f"{toolset.server_name}_{tool.name}" if toolset.server_name else tool.name
                if full in self._servers:
                    raise refusals.refuse(f"the tool {full}", "is there twice")
                self._servers[full] = server, tool.name
                described = {"name": full, "description": tool.description or "", "parameters": tool.input_schema}
                self.schemas.append({"type": "function", "function": described})

    @property
    def prompt(self) -> str:
        """What tells a model of them; empty where there are none."""
        lines = [json.dumps(schema, ensure_ascii=False, sort_keys=True) for schema in self.schemas]
        return _PROMPT.format(tools="\n".join(lines)) if lines else ""

    def has(self, name: str | None) -> bool:
        return name in self._servers

    def ask(self, call: FunctionCall) -> str:
        """What a tool says to a call; whatever is wrong with it is said too."""
        if call.name is None:
            return _NO_CALL
        if call.name not in self._servers:
            return f"error: unknown tool {call.name!r}"
        server, name = self._servers[call.name]
        try:
            return _text(self._run(server.call_tool(name, call.arguments)))
        except Exception as error:  # noqa: BLE001  strangers' code; verifiers, too, tells the model of it
            return f"error: {_words(error)}"


def _text(result: Any) -> str:
    return "\n".join(block.text if block.type == "text" else f"({block.type})" for block in result.content)


def _words(error: Exception) -> str:
    """Without what differs between versions of pydantic: the address of its pages."""
    from pydantic import ValidationError

    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    if isinstance(cause, ValidationError):
        return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['type']}" for one in cause.errors(include_url=False))
    return f"{type(cause).__name__}: {cause}"
