"""Completion of `murmur` and `node` in bash and zsh: a few lines for the shell, and the words that it asks for.

The shell asks `murmur` alone, also about `node`: where that is Node.js, it must not be started by a TAB. Only a `node` that lies beside `murmur` is ours,
and words that are none of its commands are files, as they are for Node.js.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import typer

_OURS = '[ "$(dirname "$(command -v node)")" = "$(dirname "$(command -v murmur)")" ]'

_BASH = f"""_murmur_words() {{
    local IFS=$'\\n' words=("${{COMP_WORDS[@]:1:COMP_CWORD}}")
    COMPREPLY=()
    if [ "${{COMP_WORDS[COMP_CWORD-1]}}" = @ ]; then  # @run.toml, which bash parts and would complete by names of machines
        COMPREPLY=($(compgen -f -P @ -- "${{2#@}}"))
        return
    fi
    if [ "$1" = node ]; then
        {_OURS} || return
        words=(node "${{words[@]}}")
    fi
    COMPREPLY=($(murmur complete -- "${{words[@]}}" 2>/dev/null | cut -f 1))
}}
complete -o default -F _murmur_words murmur node
"""

_ZSH = f"""_murmur_words() {{
    local -a asked=("${{(@)words[2,CURRENT]}}") found
    if [ "$service" = node ]; then
        {_OURS} || {{ _files; return }}
        asked=(node "${{(@)asked}}")
    fi
    found=("${{(@f)$(murmur complete -- "${{(@)asked}}" 2>/dev/null | sed -e 's/:/\\\\:/g' -e 's/\\t/:/')}}")
    if [ -n "$found[1]" ]; then _describe word found; else compset -P @; _files; fi
}}
compdef _murmur_words murmur node
"""


def script(shell: str) -> str:
    return _BASH if shell == "bash" else _ZSH


def candidates(command: Any, words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What the last of `words`, which follow the program's name, may become, each with its help; nothing where it is a file or a text."""
    *typed, last = words or [""]
    awaited: Any = None
    for word in typed:
        if word == "=":  # bash parts --home=/srv/node there
            continue
        if awaited is not None:
            awaited = None
        elif word.startswith("-"):
            awaited = None if "=" in word else _awaiting(command, word)
        elif _is_group(command):
            command = command.get_command(typer.Context(command), word)
            if command is None:
                return
    for word, text in _possible(command, awaited, last):
        if word.startswith(last):
            yield word, text


def _is_group(command: Any) -> bool:
    return hasattr(command, "list_commands")


def _awaiting(command: Any, option: str) -> Any:
    """The option, where it takes a value."""
    for parameter in command.params:
        if option in parameter.opts:
            return None if parameter.is_flag else parameter
    return None


def _possible(command: Any, awaited: Any, last: str) -> Iterator[tuple[str, str]]:
    if awaited is not None:
        yield from _choices(command, awaited, last)
    elif last.startswith("-"):
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.hidden:
                text = getattr(parameter, "help", None) or ""
                yield from ((name, _line(text)) for name in (*parameter.opts, *parameter.secondary_opts))
        yield "--help", "Show this message and exit."
    elif _is_group(command):
        context = typer.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and not found.hidden:
                yield name, _line(found.help or "")
    else:
        for parameter in command.params:
            if parameter.param_type_name == "argument":
                yield from _choices(command, parameter, last)


def _choices(command: Any, parameter: Any, last: str) -> Iterator[tuple[str, str]]:
    """Where it takes one of a few words."""
    for item in parameter.shell_complete(typer.Context(command), last):
        if item.type == "plain":
            yield item.value, ""


def _line(text: str) -> str:
    return text.partition("\n")[0]
