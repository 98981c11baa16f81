"""The OpenAPI document agrees with the descriptors of every method and message."""

from __future__ import annotations

import json
from typing import Any

from iscp.adapters.gateway.json_calls import METHODS
from iscp.adapters.gateway.openapi import document

DOCUMENT = document(METHODS.values(), "1.2.3")


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if "$ref" in node else set()
        return own.union(*map(references, node.values()))
    return set().union(*map(references, node)) if isinstance(node, list) else set()


def test_every_method_is_a_path_and_every_reference_leads_somewhere() -> None:
    assert set(DOCUMENT["paths"]) == {f"/v1/{name}" for name in METHODS}
    assert {"Register", "GetJob", "ListJobs"} < set(METHODS)
    schemas = DOCUMENT["components"]["schemas"]
    assert references(DOCUMENT) <= {f"#/components/schemas/{name}" for name in schemas}
    assert json.loads(json.dumps(DOCUMENT)) == DOCUMENT


def test_streams_are_lines_and_others_are_not() -> None:
    kinds = {path: set(each["post"]["responses"]["200"]["content"]) for path, each in DOCUMENT["paths"].items()}
    assert kinds["/v1/ListJobs"] == {"application/x-ndjson"}
    assert kinds["/v1/GetJob"] == {"application/json"}


def test_fields_have_their_types() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    job = schemas["Job"]["properties"]
    assert job["applied_version"] == {"type": "string", "format": "int64"}
    assert job["late"] == {"type": "boolean"}
    assert "JOB_STATE_ERROR" in job["state"]["enum"]
    assert job["status"] == {"$ref": "#/components/schemas/JobStatus"}
    assert schemas["JobPage"]["properties"]["jobs"] == {
        "type": "array",
        "items": {"$ref": "#/components/schemas/Job"},
    }
    counters = schemas["Cluster"]["properties"]["counters"]
    assert counters == {"type": "object", "additionalProperties": {"type": "string", "format": "int64"}}
