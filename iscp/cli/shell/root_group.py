"""The programs `iscp-admin` and `iscp` as a whole: their root command, what it refuses, and how errors become words on
stderr and an exit status.

The module also has the option `--watch`, and the files that both programs make of themselves: the script of a shell's
completion, and manual pages.
"""

from __future__ import annotations

import functools
import io
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, TypeVar

import click

from iscp import __version__
from iscp.cli.shell import render
from iscp.cli.shell.arguments import script
from iscp.cli.shell.context_file import Invocation
from iscp.cli.shell.terminal import json_text, say, say_drawn
from iscp.model.spec.spec import flat_name
from iscp.model.values.errors import ConfigurationError, ErrorCode, IscpError, TemporaryError
from iscp.model.values.untrusted_values import extra_missing, one_line, printable, shown

# --- the root command -------------------------------------------------------------------------------------------------

USAGE_CHARS_MAX = 1_000
"""Characters of what a command says of wrong arguments; of a longer text the middle is left out."""


class WrongUsage(click.UsageError):
    """Wrong usage, in one line that a terminal shows as it is, and that begins as all errors do.

    `option` is the option that is wrong, if one is.
    """

    def __init__(self, error: click.UsageError) -> None:
        super().__init__(one_line(error.format_message(), USAGE_CHARS_MAX), error.ctx)
        self.option = error.param.opts[0] if isinstance(error, click.BadParameter) and error.param else ""

    def show(self, file: IO[Any] | None = None) -> None:
        if self.ctx is not None:
            say(f"{self.ctx.get_usage()}\nTry '{self.ctx.command_path} --help' for help.\n", err=True)
        say(f"{ERROR_PREFIX}{self.message}", err=True)


class RootGroup(click.Group):
    """The root of `iscp-admin` and `iscp`."""

    own_words = False
    """Whether errors are in words of this machine alone, which may be of several lines."""

    def status_of(self, error: IscpError) -> int:
        """Return the exit status after an error."""
        return ExitStatus.FAILED

    def extra_of(self, command: str) -> str:
        """Return the extra that has what a command needs."""
        return "node"

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with _usage_in_one_line():
            for each in args:
                _refuse_half_characters(each)
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _usage_in_one_line():
                return super().invoke(ctx)
        except IscpError as error:
            self._fail(ctx, error)
        except ModuleNotFoundError as error:
            if not (sentence := extra_missing(error, self.extra_of(ctx.invoked_subcommand or ""))):
                raise
            self._fail(ctx, ConfigurationError(sentence))
        except WrongUsage as error:
            if ctx.ensure_object(Invocation).output != "json":
                raise
            show_usage_error(error, error.option)
            ctx.exit(ExitStatus.WRONG_USAGE)
        except KeyboardInterrupt:  # of which click says "Aborted!", with the status of a failure
            ctx.exit(ExitStatus.INTERRUPTED)

    def _fail(self, ctx: click.Context, error: IscpError) -> None:
        show_error(error, ctx.ensure_object(Invocation).output, lines=self.own_words)
        ctx.exit(self.status_of(error))


def _refuse_half_characters(argument: str) -> None:
    """Refuse arguments that are no UTF-8: they reach a program as halves of surrogate pairs, which can be neither sent
    nor shown.
    """
    try:
        argument.encode()
    except UnicodeEncodeError:
        raise click.UsageError(f"{shown(argument)} is not UTF-8. Write it so, or rename the file") from None


@contextmanager
def _usage_in_one_line() -> Iterator[None]:
    try:
        yield
    except (click.exceptions.NoArgsIsHelpError, WrongUsage):
        raise  # the message of the first is the help, of many lines
    except click.UsageError as error:
        raise WrongUsage(error) from error


# --- --watch ----------------------------------------------------------------------------------------------------------
# A command that shows something shows it again and again.

F = TypeVar("F", bound=Callable[..., Any])

WATCH_EVERY_S = 2.0
"""Pause between two answers of `--watch`; what comes and goes between them is not seen."""


class _Frame(io.StringIO):
    """A frame is what one round prints, drawn as for where it will be shown."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def watched(command: F) -> F:
    """Give a command the option --watch; with it the command is run until Ctrl-C."""

    @functools.wraps(command)
    def run(*args: Any, watch: bool, **given: Any) -> Any:
        if not watch:
            return command(*args, **given)
        invocation = click.get_current_context().ensure_object(Invocation)
        return repeat(lambda: command(*args, **given), invocation)

    option = click.option("-w", "--watch", is_flag=True, help="Show it again whenever it changes, until Ctrl-C.")
    return option(run)  # type: ignore[return-value]


def repeat(show: Callable[[], object], invocation: Invocation, *, apart: bool = True) -> None:
    """Repeat until Ctrl-C, or until `show` gives True: what it shows then is the last.

    On a terminal each answer replaces the one before; elsewhere those that differ follow each other, tables `apart`.
    """
    with suppress(KeyboardInterrupt):
        _repeat(show, invocation, apart)


def _repeat(show: Callable[[], object], invocation: Invocation, apart: bool) -> None:
    terminal = sys.stdout.isatty()
    last: str | None = None
    while True:
        frame = _Frame(terminal)
        try:
            with redirect_stdout(frame):
                over = show()
        except TemporaryError as error:  # the owner is changing, or the node is restarted
            say(f"{ERROR_PREFIX}{error.sentence}; trying again", err=True)
        else:
            if (drawn := frame.getvalue()) != last:
                _print(drawn, _between(invocation.output, apart and last is not None), terminal)
                last = drawn
            if over is True:
                return
        invocation.pause(WATCH_EVERY_S)


def _between(output: str, apart: bool) -> str:
    """Return what separates two answers if they follow each other."""
    if not apart or output in ("json", "name"):
        return ""
    return "---\n" if output == "yaml" else "\n"


def _print(drawn: str, between: str, terminal: bool) -> None:
    say_drawn(drawn if terminal else between + drawn, clear=terminal, nl=False)
    sys.stdout.flush()


# --- errors and exit statuses -----------------------------------------------------------------------------------------
# An error is said in the words of what was typed, as text or as JSON.


class ExitStatus(IntEnum):
    """The exit statuses of `iscp-admin` and what they mean (docs/cli.md)."""

    FAILED = 1
    WRONG_USAGE = 2
    OUT_OF_TIME = 3
    DIFFERS = 4
    """A comparison was made, and source and target are not equal."""
    NOT_FRESH = 5
    """Jobs were checked, and one is not fresh."""
    DEAD_LETTERS = 6
    """A run has brought all jobs up to date, and rows of one are left out of its target."""
    INTERRUPTED = 130
    """Ctrl-C ended the command, as it does in shells: 128 and the number of SIGINT."""


ERROR_PREFIX = "error: "
"""The beginning of each error that the programs show on stderr for people."""

_OPTIONS = {
    "account": "--account",
    "adopt_from": "--from-version",
    "job.account": "--account",
    "job.name": "--name",
    "spec.iteration.consumer.options.shards": "--shards",
}
FAULTS_SHOWN_MAX = 50
"""Faults that one command shows; of others their number is shown."""

_REQUEST = re.compile(r"(?:requests|registrations)\[(\d+)\]\.")


@contextmanager
def options_named(table: str = "--table", own: Mapping[str, str] = MappingProxyType({})) -> Iterator[None]:
    """Name the option that a node's refusal is about: `--key`, not `spec.iteration.consumer.key`.

    `table`: what the command calls the source. `own`: the command's own options, by the paths of what they give.
    """
    try:
        yield
    except IscpError as error:
        path = _REQUEST.sub("", error.field)
        mine = next((option for known, option in own.items() if f"{path}.".startswith(f"{known}.")), "")
        error.field = mine or (table if path in ("table", "job.table") else option_of(path))
        raise


@contextmanager
def places_named(places: Sequence[str]) -> Iterator[None]:
    """Name the place in the files that a node's refusal is about: `job.yaml[1].key`."""
    try:
        yield
    except IscpError as error:
        for each in (error, *error.others):
            found = _REQUEST.match(each.field)
            number = int(found[1]) if found else 0
            if each.field and (found or len(places) == 1) and number < len(places):
                each.field = f"{places[number]}.{field_in_file(_REQUEST.sub('', each.field))}"
        raise


def field_in_file(path: str) -> str:
    """Return what a job file calls the field at `path`."""
    return flat_name(path.removeprefix("job."))


def option_of(path: str) -> str:
    """Return the option for the field at `path`, or the path if there is none."""
    flat = flat_name(path)
    if path not in _OPTIONS and path.startswith("spec.iteration.consumer.options."):
        return "--options"
    return _OPTIONS.get(path) or _OPTIONS.get(flat) or (path if flat == path else f"--{flat.replace('_', '-')}")


def exit_status(error: IscpError) -> ExitStatus:
    return ExitStatus.OUT_OF_TIME if error.code is ErrorCode.TIMEOUT else ExitStatus.FAILED


def show_error(error: IscpError, output: str, *, lines: bool = False) -> None:
    """Show the error on stderr, and those beside it: with `-o json` one object each, otherwise (YAML too) lines for
    people.

    With `lines`, what is wrong may be said in several, as it is in the words of nobody else.
    """
    faults = (error, *error.others)
    for each in faults[:FAULTS_SHOWN_MAX]:
        _show_one(each, output, lines)
    if (left := len(faults) - FAULTS_SHOWN_MAX) > 0:
        about, remedy = f"{left} more faults are not shown", "Correct those that are"
        _show_one(IscpError(about, about=error.field, remedy=remedy, code=error.code), output, lines)


def _show_one(error: IscpError, output: str, lines: bool) -> None:
    if output == "json":
        about = {"code": int(error.code), "name": error.code.name, "field": error.field}
        _show_json(about | {"message": error.sentence, "remedy": error.remedy})
        return
    say(f"{ERROR_PREFIX}{printable(error.sentence) if lines else one_line(error.sentence)}", err=True)
    if error.field:
        say(f"  field: {one_line(error.field)}", err=True)
    if error.remedy:
        say(f"  remedy: {one_line(error.remedy)}", err=True)


def show_usage_error(error: click.UsageError, option: str) -> None:
    """Show wrong usage, as of `option`, as `show_error` shows an error with `-o json`."""
    code = ErrorCode.INVALID_REQUEST
    remedy = f"See `{error.ctx.command_path} --help`" if error.ctx else ""
    _show_json(
        {"code": int(code), "name": code.name, "field": option, "message": error.format_message(), "remedy": remedy}
    )


def _show_json(about: dict[str, object]) -> None:
    fields = {name: one_line(value) if isinstance(value, str) else value for name, value in about.items()}
    say(json_text({"error": fields}), err=True)


# --- manual pages and completion --------------------------------------------------------------------------------------
# The manual pages (man, section 1) are made of what the commands' own help is made of: one page for each command.


def write_pages(program: click.Command, name: str, directory: Path) -> list[Path]:
    """Write the manual pages into `directory`, which is made. Raises ConfigurationError if a page cannot be written."""
    written = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for context in _contexts(click.Context(program, info_name=name)):
            path = directory / f"{context.command_path.replace(' ', '-')}.1"
            path.write_text(page(context), encoding="utf-8")
            written.append(path)
    except OSError as error:
        raise ConfigurationError(
            f"{directory} cannot be written: {error.strerror or error}", about="DIR", remedy="Name another directory"
        ) from error
    return written


def _contexts(context: click.Context) -> Iterator[click.Context]:
    yield context
    for name, command in _commands(context):
        yield from _contexts(click.Context(command, parent=context, info_name=name))


def _commands(context: click.Context) -> list[tuple[str, click.Command]]:
    if not isinstance(context.command, click.Group):
        return []
    found = ((name, context.command.get_command(context, name)) for name in context.command.list_commands(context))
    return [(name, command) for name, command in found if command is not None and not command.hidden]


def page(context: click.Context) -> str:
    """Return the page in roff."""
    command, path = context.command, context.command_path
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [f'.TH "{_plain(path.replace(" ", "-").upper())}" 1 "" "iscp {__version__}"']
    lines += [".SH NAME", f"{_plain(path.replace(' ', '-'))} \\- {_plain(command.get_short_help_str(200))}"]
    lines += [".SH SYNOPSIS", f"\\fB{_plain(path)}\\fR {_plain(usage)}"]
    lines += [".SH DESCRIPTION", *_paragraphs(command.help or "")]
    records = [record for each in command.get_params(context) if (record := each.get_help_record(context))]
    lines += _section("OPTIONS", records)
    lines += _section("COMMANDS", [(name, each.get_short_help_str(200)) for name, each in _commands(context)])
    if context.parent is not None:
        lines += [".SH SEE ALSO", f"\\fB{_plain(context.parent.command_path.replace(' ', '-'))}\\fR(1)"]
    return "\n".join(lines) + "\n"


def _section(title: str, records: list[tuple[str, str]]) -> list[str]:
    shown = [line for name, about in records for line in (".TP", f"\\fB{_plain(name)}\\fR", _plain(about) or "\\&")]
    return [f".SH {title}", *shown] if shown else []


def _paragraphs(text: str) -> list[str]:
    found = [" ".join(each.split()) for each in re.split(r"\n\s*\n", text.partition("\f")[0])]
    return [line for each in found if each for line in (".PP", _plain(each.replace("\b", "").strip()))]


def _plain(text: str) -> str:
    """Escape the text so that roff prints it and does not read it."""
    escaped = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


shell_argument = click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
pages_argument = click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))


def show_script(shell: str, root: click.Command, program: str, output: str) -> None:
    text = script(shell, root, program)
    if not render.show({"shell": shell, "script": text}, output):
        say(text)


def show_written(root: click.Command, program: str, directory: Path, output: str) -> None:
    """Write the manual pages of a program, and say how many there are."""
    pages = len(write_pages(root, program, directory))
    if not render.show({"directory": str(directory), "pages": pages}, output):
        say(f"{pages} pages are in {directory}")
