"""`iscp-admin explain`: what the fields of job files mean."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from iscp.cli.job.json_schema import NAMING, TAGS, job_file_schema
from iscp.cli.shell import render
from iscp.cli.shell.arguments import invocation
from iscp.cli.shell.completion import beginning
from iscp.cli.shell.drawing import pairs, table
from iscp.cli.shell.invocation import Invocation
from iscp.cli.shell.terminal import json_text, say
from iscp.core.spec.spec import SpecField, schema_of_spec

Place = tuple[str, ...]


def _complete_path(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the next part of a path only, as of directories."""
    depth = incomplete.count(".") + 1
    return beginning(incomplete, (".".join(place[:depth]) for place in fields_by_place()))


@click.command()
@click.argument("path", default="job", metavar="[PATH]", shell_complete=_complete_path)
@click.option("--json-schema", is_flag=True, help="Print the JSON Schema of job files.")
@invocation
def explain(invocation: Invocation, /, path: str, json_schema: bool) -> None:
    """Explain the fields of job files, by their types, defaults and meanings.

    PATH is `job` for the fields of a job file, or one of them, as `job.key`; `job.spec` and below it is a whole spec,
    as `job.spec.trigger`. Calls no node.
    """
    if json_schema:
        say(json_text(job_file_schema(), indent=2))
        return
    known = fields_by_place()
    place = tuple(path.removesuffix(".").split("."))
    if place in known:
        row = field_row(place, known[place])
        if not render.show(row, invocation.output):
            pairs({name: str(value) for name, value in row.items() if value is not None})
        return
    rows = [field_row(each, known[each]) for each in known if _is_listed(each, place)]
    if not rows:
        raise click.BadParameter(f"{path!r} is no field; below it there would be {_nearest(place, known)}")
    if not render.show(rows, invocation.output):
        drawn = [(row["field"], row["type"], _text(row["default"]), row["about"]) for row in rows]
        table(("FIELD", "TYPE", "DEFAULT", "ABOUT"), drawn, wide=invocation.wide)


def fields_by_place() -> dict[Place, SpecField | str]:
    """Return each field by its place: those of a file by their flat names, those of a spec where they nest."""
    known: dict[Place, SpecField | str] = {("job", name): about for name, about in NAMING.items()}
    known |= {("job", each.name): each for each in schema_of_spec()}
    return known | {("job", "spec", *each.path): each for each in schema_of_spec()}


def _is_listed(place: Place, below: Place) -> bool:
    """Return whether the field is listed: the flat fields alone for a file, all that lies below for a spec."""
    return place[: len(below)] == below and (len(below) > 1 or len(place) == len(below) + 1)


def field_row(place: Place, found: SpecField | str) -> dict[str, Any]:
    named = ".".join(place)
    if isinstance(found, str):
        kind = "list of texts" if place[-1] == TAGS else "text"
        return {"field": named, "type": kind, "default": None, "about": found}
    bounds = f" (from {found.least} to {found.most})" if found.most is not None else ""
    row = {
        "field": named,
        "type": f"{found.type_name}{bounds}",
        "default": found.default,
        "about": found.about,
    }
    other = ("job", found.name) if place[1] == "spec" else ("job", "spec", *found.path)
    return {**row, "same_as": ".".join(other)}


def _text(value: Any) -> str:
    return "" if value is None else json.dumps(value) if isinstance(value, bool) else str(value)


def _nearest(place: Place, known: Sequence[Place] | dict[Place, Any]) -> str:
    """Return the names that could stand where the path is wrong."""
    for length in range(len(place) - 1, -1, -1):
        if names := {each[length] for each in known if len(each) > length and each[:length] == place[:length]}:
            return ", ".join(sorted(names))
    return "job"
