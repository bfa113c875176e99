"""The command `murmur`, and what all commands share: options, output, confirmation, and errors that end well.

Command groups are found through the entry-point group `murmuration.commands` and imported only when they are used. stdout
carries data, stderr carries progress and logs; every reading command has --json.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeVar

import typer
from typer.core import TyperGroup

from protocol import __version__
from protocol.errors import MurmurationError, UsageError
from protocol.resources import collect_seldom
from protocol.shell import machine

if TYPE_CHECKING:
    from eth_typing import ChecksumAddress

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
PasswordFile = Annotated[
    Path | None, typer.Option(help="File holding the keystore's password (else MURMUR_PASSWORD, else a prompt).")
]
Fix = Annotated[
    bool,
    typer.Option(
        "--fix", help="Mend what is safe to mend: rights of files with secrets, unfinished downloads nobody needs."
    ),
]
RunCardFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="[CARD]",
        help="The run's card, a file that its owner hands out; without it --rpc, --contract, --run and --bootnode.",
    ),
]
Rpc = Annotated[
    str | None, typer.Option(help="JSON-RPC endpoint of the chain; beside a card, one to ask in place of its own.")
]
Contract = Annotated[str | None, typer.Option(help="Address of the Runs contract.")]
Bootnodes = Annotated[
    list[str] | None,
    typer.Option(
        "--bootnode",
        help="Multiaddr of a bootnode, ending in /p2p/PEERID; may be given several times; beside a card, in place of its own.",
    ),
]
CalldataJson = Annotated[bool, typer.Option("--json", help="With --calldata: as a file of Safe's Transaction Builder.")]

INTERRUPTED, UNREAD = 130, 141  # as the shell names SIGINT and SIGPIPE


class _Closable(Protocol):
    def close(self) -> None: ...


_Held = TypeVar("_Held", bound=_Closable)


def calldata_option(sender: str) -> Any:
    """--calldata of commands that `sender` sends."""
    text = f"Send nothing; print to, value and data for an {sender} that is a contract, as a Safe signs them."
    return typer.Option("--calldata", help=text)


def group(help_text: str) -> typer.Typer:
    """A command group with the project's manners: help without arguments, plain tracebacks, no completion machinery.

    Help is plain text: rich would draw boxes around it, and cost as much to import as all the rest of a command's start.
    """
    return typer.Typer(
        help=help_text,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )


class LazyGroups(TyperGroup):
    """Command groups of all installed packages, each imported at its first use."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted([*_groups(), *(name for name, command in self.commands.items() if not command.hidden)])

    def get_command(self, ctx: Any, name: str) -> Any:
        found = _groups().get(name)
        if found is None:
            return super().get_command(ctx, name)
        command = typer.main.get_command(found.load())
        command.name = name
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except typer.TyperException as error:
            from difflib import get_close_matches

            nearest = get_close_matches(args[0], _groups())
            if nearest:
                error.message = f"No such command {args[0]!r}. Did you mean {', '.join(map(repr, nearest))}?"
            raise


@cache
def _groups() -> dict[str, EntryPoint]:
    """By name. Reading them is a walk through all installed packages."""
    return {point.name: point for point in entry_points(group="murmuration.commands")}


app = typer.Typer(
    cls=LazyGroups, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="Reinforcement learning of a language model by a swarm of machines nobody controls.",
)  # fmt: skip


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"murmuration {__version__}")
        raise typer.Exit


@app.command("completion")
def _completion(shell: Annotated[Literal["bash", "zsh"], typer.Argument(help="The shell that completes.")]) -> None:
    """Print what completes `murmur` and `node` in bash or zsh.

    Put eval "$(murmur completion bash)" into ~/.bashrc, or eval "$(murmur completion zsh)" into ~/.zshrc behind compinit.
    """
    from protocol.shell.completion import script

    typer.echo(script(shell), nl=False)


@app.command("complete", hidden=True)
def _complete(words: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """What the last of these words may become; for the shell."""
    from protocol.shell.completion import candidates

    for word, text in candidates(typer.main.get_command(app), words or []):
        typer.echo(f"{word}\t{text}" if text else word)


def main() -> None:
    """Entry point of `murmur`."""
    run(app, "murmur")


_held, _afterwards = ExitStack(), ExitStack()
_unfinished: list[Callable[[], str]] = []


def until_end(thing: _Held) -> _Held:
    """Closes `thing` when the command ends, however it does."""
    _held.callback(thing.close)
    return thing


def once_told(note: Callable[[], None]) -> None:
    """Calls `note` when the command has printed its last word and ends well; not where it fails, is interrupted, or nobody reads its output."""
    _afterwards.callback(note)


def if_interrupted(say: Callable[[], str]) -> None:
    """What `say` returns is printed where the command is interrupted: a sentence on what it leaves behind, or nothing."""
    _unfinished.append(say)


def run(application: typer.Typer, name: str) -> None:
    """Runs a command line and ends the process with the exit code of what happened."""
    collect_seldom()
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without ✓ shows ?, and the command does not end there
    try:
        ended = typer.main.get_command(application)(prog_name=name, standalone_mode=False)
        code = ended if isinstance(ended, int) else 0  # outside standalone mode typer returns the code of an early exit
        sys.stdout.flush()
        if not code:
            _afterwards.close()
        if code == INTERRUPTED and _unfinished:  # typer's code after Ctrl-C; a command that only shows ends so too
            _report_end("interrupted")
    except typer.Exit as error:
        code = error.exit_code
    except typer.TyperException as error:
        _report_usage(error, name)
        code = UsageError.exit_code
    except (KeyboardInterrupt, typer.Abort):
        _report_end("interrupted")
        code = INTERRUPTED
    except MurmurationError as error:
        report(error)
        code = error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = UNREAD if _unfinished else 0  # what was sent is told to nobody
    except Exception as error:
        if (refused := machine.trouble(error)) is None:
            raise
        report(refused)
        code = refused.exit_code
    finally:
        _afterwards.pop_all()
        _unfinished.clear()
        _held.close()
    sys.exit(code)


def _report_end(how: str) -> None:
    """And what the command leaves behind."""
    typer.echo("\n  ".join(filter(None, [how, *(say() for say in _unfinished)])), err=True)


def _report_usage(error: typer.TyperException, name: str) -> None:
    """What is wrong with a command line; where nothing is but that a group's command is missing, the group's help alone."""
    context = getattr(error, "ctx", None)
    message = getattr(error, "format_message", error.__str__)()
    if context is not None and message == context.get_help():
        typer.echo(message, err=True)
    else:
        report(UsageError(message, hint=f"{context.command_path if context else name} --help"))


def report(error: MurmurationError) -> None:
    """One sentence of what is wrong and one of what to do next, on stderr."""
    typer.echo(f"error: {error}", err=True)
    if error.hint:
        typer.echo(f"  try: {error.hint}", err=True)


def emit(data: dict[str, Any], as_json: bool, text: Callable[[], None]) -> None:
    """Prints `data` as JSON, or calls `text` to print it for a person."""
    if as_json:
        typer.echo(json.dumps(data, default=str))
    else:
        text()


def confirm(question: str, consequences: list[str], yes: bool) -> None:
    """Shows what follows and asks. Raises UsageError at once when nobody can answer, typer.Abort at Ctrl-C, and ends the command when the answer is no."""
    for line in consequences:
        typer.echo(f"  {line}", err=True)
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} needs a confirmation and there is no terminal", hint="give --yes")
    if not typer.confirm(question, err=True):
        _report_end("nothing was sent")
        raise typer.Exit(UsageError.exit_code)


def plain(text: object, most: int = 200) -> str:
    """What a stranger wrote, fit for a terminal and cut to a length: nothing but printable ASCII, the rest written out."""
    short = str(text)
    short = short if len(short) <= most else short[: most - 1] + "…"
    return "".join(c if c == "…" or (c.isascii() and c.isprintable()) else ascii(c)[1:-1] for c in short)


def parse_address(text: str) -> ChecksumAddress:
    """Raises UsageError for what is no address, or has a wrong checksum: then it is mistyped."""
    from eth_utils import is_hex_address, to_checksum_address

    if not is_hex_address(text) or not text.startswith("0x"):
        raise UsageError(f"{text[:80]!r} is no address", hint="one is 0x and 40 hex digits")
    address = to_checksum_address(text)
    if address != text and text[2:] not in (
        text[2:].lower(),
        text[2:].upper(),
    ):  # not all libraries look at the checksum
        raise UsageError(f"{text} is no address: its checksum is wrong", hint="it is mistyped; copy it again")
    return address


def strip_at(path: str) -> Path:
    """`@run.toml` and `run.toml` name the same file."""
    return Path(path.removeprefix("@"))
