"""The JSON Schema of job files, made of the fields that a job_spec has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from iscp.core.run.wanted import TAGS_MAX
from iscp.core.spec.spec import SpecField, schema_of_spec
from iscp.core.spec.view_fields import REFRESH_POLICIES, VIEW_KIND

DIALECT = "https://json-schema.org/draft/2020-12/schema"
DURATION_PATTERN = r"^(\d+(\.\d+)?|(\d+(\.\d+)?(ms|s|m|h|d))+)$"

Schema = dict[str, Any]

TAGS = "tags"
NAMING: Mapping[str, str] = {
    "table": "The source: path or URI of a Delta table, db.table of the catalog, or a table id",
    "name": "The job's name, unique on its table",
    "account": "The tenant; by default `default`",
    TAGS: "Names by which `iscp run --select tag:…` chooses the job; a cluster does not keep them",
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
    tags = {"anyOf": [{"type": ["array", "null"], "maxItems": TAGS_MAX, "items": text}, text]}
    types: dict[str, Schema] = {"account": optional, TAGS: tags}
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
    if each.kind == tuple[str, ...]:
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
