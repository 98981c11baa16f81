"""Errors on the command line: in the words of what was typed, as text or as JSON, and with which exit status.

The exit statuses of `iscp-admin` and what they mean (docs/cli.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from types import MappingProxyType

import click

from iscp.cli.shell.terminal import json_text, say
from iscp.model.spec.spec import flat_name
from iscp.model.values.errors import ErrorCode, IscpError
from iscp.model.values.untrusted_values import one_line, printable


class ExitStatus(IntEnum):
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
