"""`iscp-admin explain`: what the fields of job files mean.

The JSON Schema of job files, made of the fields that a job_spec has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from iscp.cli.shell import render
from iscp.cli.shell.arguments import beginning, invocation
from iscp.cli.shell.context_file import Invocation
from iscp.cli.shell.terminal import json_text, pairs, say, table
from iscp.model.spec.spec import SpecField, schema_of_spec
from iscp.model.spec.spec_parsing import REFRESH_POLICIES, VIEW_KIND

DIALECT = "https://json-schema.org/draft/2020-12/schema"
DURATION_PATTERN = r"^(\d+(\.\d+)?|(\d+(\.\d+)?(ms|s|m|h|d))+)$"

Schema = dict[str, Any]

NAMING: Mapping[str, str] = {
    "table": "The source: path or URI of a Delta table, db.table of the catalog, or a table id",
    "name": "The job's name, unique on its table",
    "account": "The tenant; by default `default`",
}
"""The fields of a job file that are not of its spec."""


def job_file_schema() -> Schema:
    """Return the schema of one document of a job file: a job, or a list of jobs."""
    return {
        "$schema": DIALECT,
        "title": "iscp job file",
        "anyOf": [{"$ref": "#/$defs/job"}, {"type": "array", "items": {"$ref": "#/$defs/job"}}],
        "$defs": {"job": {"anyOf": [_flat_job(), _job_with_spec()]}, "spec": spec_schema()},
    }


def spec_schema() -> Schema:
    """Return the schema of a whole job_spec, which nests its fields."""
    root = _object({})
    for each in schema_of_spec():
        place = root
        for section in each.path[:-1]:
            place = place["properties"].setdefault(section, _object({}))
        place["properties"][each.path[-1]] = _value(each, in_file=False)
    root["properties"]["iteration"]["properties"]["consumer"]["required"] = ["kind"]
    root["properties"]["iteration"]["required"] = ["consumer"]
    return {**root, "required": ["iteration"]}


def _flat_job() -> Schema:
    fields = {each.name: _value(each, in_file=True) for each in schema_of_spec()}
    return {
        **_object({**_naming(), **fields}),
        "required": ["table", "name"],
        # Some consumers can do without a target.
        "if": {"properties": {"consumer": {"enum": ["replica", "", None]}}},
        "then": {"required": ["target"], "properties": {"target": {"type": "string", "minLength": 1}}},
        "allOf": [
            {
                "if": {"required": ["consumer"], "properties": {"consumer": {"enum": [VIEW_KIND]}}},
                "then": {"required": ["options"], "properties": {"options": _view_options()}},
            }
        ],
    }


def _view_options() -> Schema:
    """Others are the node's to refuse."""
    return {
        "type": "object",
        "required": ["sql", "tables"],
        "properties": {
            "sql": {"type": "string", "pattern": r"\S", "description": "The query, one SELECT"},
            "tables": {
                "type": "object",
                "minProperties": 1,
                "additionalProperties": {"type": "string", "minLength": 1},
                "description": "Where each table of the query is, by its name; one of them is the job's own",
            },
            "refresh": {"enum": list(REFRESH_POLICIES), "default": REFRESH_POLICIES[0]},
        },
    }


def _job_with_spec() -> Schema:
    return {**_object({**_naming(), "spec": {"$ref": "#/$defs/spec"}}), "required": ["table", "name", "spec"]}


def _naming() -> dict[str, Schema]:
    text = {"type": "string", "minLength": 1}
    optional = {"type": ["string", "null"]}
    types: dict[str, Schema] = {"account": optional}
    return {name: {**types.get(name, text), "description": said} for name, said in NAMING.items()}


def _object(properties: dict[str, Schema]) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _value(each: SpecField, *, in_file: bool) -> Schema:
    """Return the schema of a value; `in_file` means as a job file takes it, which is less strict than a job_spec about
    durations and columns.
    """
    schema: Schema = {"description": each.about, **_type(each, in_file=in_file)}
    if each.default is not None:
        schema["default"] = each.default
    return schema


def _type(each: SpecField, *, in_file: bool) -> Schema:
    if each.choices:
        return {"enum": [*each.choices, None]}
    if each.seconds:
        seconds = {"type": ["number", "null"], "exclusiveMinimum": 0}
        written = {"type": "string", "pattern": DURATION_PATTERN}
        return {"anyOf": [seconds, written]} if in_file else seconds
    if each.type_name == "list of texts":
        names = {"type": ["array", "null"], "items": {"type": "string", "minLength": 1}, "uniqueItems": True}
        return {"anyOf": [names, {"type": "string", "minLength": 1}]} if in_file else names
    bounds = {"minimum": each.least, "maximum": each.most}
    return {"type": [_NAMES[each.kind], "null"], **{name: at for name, at in bounds.items() if at is not None}}


_NAMES: dict[Any, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    int | None: "integer",
    Mapping[str, Any]: "object",
}


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
        return {"field": named, "type": "text", "default": None, "about": found}
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
