"""The options of `iscp-admin job …` that say when and how a job runs, one for each flat name of a job_spec."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeVar

import click

from iscp.cli.shell.arguments import DURATION, WholeNumber
from iscp.core.spec.spec import (
    PRIORITY_MAX,
    PRIORITY_MIN,
    ChangeMode,
    OnDuplicate,
    OnReplace,
    OnSchemaChange,
    TriggerType,
)
from iscp.core.spec.spec_fields import RunFields, nest

F = TypeVar("F", bound=Callable[..., Any])


class ObjectType(click.ParamType):  # type: ignore[type-arg]
    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        try:
            parsed = json.loads(value) if isinstance(value, str) else value
        except (ValueError, RecursionError) as error:
            self.fail(f"{value!r} is not JSON: {error}", param, ctx)
        if not isinstance(parsed, dict):
            self.fail(f"{value!r} is not an object. Give it as in '{{\"name\": 1}}'", param, ctx)
        return parsed


class NamedValueType(click.ParamType):  # type: ignore[type-arg]
    """A name with a value: a number, true or false as JSON writes them, and a text otherwise."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        if not (name.strip() and equals):
            self.fail(f"{value!r} is not NAME=VALUE. Give it as in language=english", param, ctx)
        return name.strip(), _plain_value(text)


def _plain_value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    return json.loads(text) if _NUMBER.fullmatch(text) else text


def named_values(ctx: click.Context, param: click.Parameter | None, given: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the values by their names. Raises click.BadParameter for a name that is given twice."""
    values: dict[str, Any] = {}
    for name, value in given:
        if name in values:
            raise click.BadParameter(f"{name!r} is given twice", ctx, param)
        values[name] = value
    return values


_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,18})?")

OBJECT = ObjectType()
OPTION = click.option(
    "--option",
    "named_options",
    type=NamedValueType(),
    multiple=True,
    metavar="NAME=VALUE",
    callback=named_values,
    help="One of --options, as language=english; again for each.",
)


def _choice(kind: type[StrEnum]) -> click.Choice[str]:
    return click.Choice([each.value for each in kind])


_OPTIONS = (
    click.option("--trigger", type=_choice(TriggerType), help="When iterations start.  [default: default]"),
    click.option("--every", type=DURATION, metavar="D", help="With --trigger periodic: the interval, as in 10m."),
    click.option("--cron", metavar="CRON", help="Instead of --every: times, as in '30 6 * * *'."),
    click.option("--time-zone", metavar="ZONE", help="Of --cron, as Europe/Berlin.  [default: UTC]"),
    click.option("--share/--no-share", default=None, help="With --trigger periodic: go together with others due."),
    click.option("--trigger-name", metavar="NAME", help="With --trigger custom: an entry point of iscp.triggers."),
    click.option("--trigger-options", type=OBJECT, metavar="JSON", help="With --trigger custom: what it is given."),
    click.option("--independent/--no-independent", default=None, help="Share no iteration with the table's others."),
    click.option("--target-lag", type=DURATION, metavar="D", help="By how much the target may lie behind, as in 30s."),
    click.option("--priority", type=WholeNumber(PRIORITY_MIN, PRIORITY_MAX), metavar="P", help="Higher goes first."),
    click.option("--change-source", type=_choice(ChangeMode), help="How changes are read.  [default: auto]"),
    click.option("--on-replace", type=_choice(OnReplace), help="If the source is recreated.  [default: fail]"),
    click.option("--on-duplicate", type=_choice(OnDuplicate), help="If rows share a key.  [default: dead_letter]"),
    click.option(
        "--on-schema-change", type=_choice(OnSchemaChange), help="If columns change otherwise.  [default: evolve]"
    ),
    click.option("--enable-cdf/--no-enable-cdf", default=None, help="Alter a source without a change data feed."),
)


RUN_OPTIONS = tuple(name.replace("_", "-") for name in RunFields.__annotations__)


def run_changes(given: Mapping[str, object], defaults: Sequence[str]) -> dict[str, Any]:
    """Return a job_spec with the fields that are given, and null for those that are to go back to their defaults."""
    fields = {name: value for name, value in given.items() if value is not None}
    names = [name.replace("-", "_") for name in defaults]
    if both := [option for option, name in zip(defaults, names, strict=True) if name in fields]:
        raise click.UsageError(f"--default {both[0]} cannot go with --{both[0]}")
    return nest(fields | dict.fromkeys(names), null=True)


def run_options(command: F) -> F:
    """Give a command the options for the fields of `iscp.core.spec.spec_fields.RunFields`; None where not given."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
