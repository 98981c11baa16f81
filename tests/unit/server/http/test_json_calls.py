"""How requests in JSON are read: what is valid becomes the message, all else is refused, and nothing else is raised.

The OpenAPI document agrees with the descriptors of every method and message.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.model.values.errors import InvalidRequest
from iscp.server.http.json_calls import METHODS, NESTING_MAX, document, read_request
from iscp.wire.v1 import admin_pb2 as pb


def test_names_numbers_and_enums_are_read_as_protobuf_has_them() -> None:
    body = b'{"job": {"table": "t", "name": "\xc3\xbc"}, "version": "7", "timeout_s": 1.5}'
    expected = pb.WaitJobRequest(job=pb.JobName(table="t", name="ü"), version=7, timeout_s=1.5)
    assert read_request(METHODS["WaitJob"], body) == expected
    body = b'{"filter": {"state": "JOB_STATE_ERROR", "late": true}, "limit": 3}'
    expected_list = pb.ListJobsRequest(filter=pb.JobFilter(state=pb.JOB_STATE_ERROR, late=True), limit=3)
    assert read_request(METHODS["ListJobs"], body) == expected_list
    assert read_request(METHODS["GetCluster"], b"") == pb.GetClusterRequest()


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"7",
        b"null",
        b'"x"',
        b"\xff",
        b'{"job": {"tabel": "t"}}',
        b'{"job": 7}',
        b'{"job": {"table": 7}}',
        b'{"job": {"table": "a", "table": "b"}}',
        b'{"version": 1e400}',
        b'{"version": 9223372036854775808}',
        b'{"version": ' + b"9" * 10_000 + b"}",
        b'{"timeout_s": "x"}',
        b'{"job": {"table": "\\ud800"}}',
        b'{"a":' * 100_000,
        b"[" * 100_000,
        b'{"job": ' + b"[" * (NESTING_MAX + 1),
    ],
)
def test_what_is_no_request_is_refused_briefly(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_request(METHODS["WaitJob"], body)
    assert refused.value.field == "body"
    assert len(refused.value.message) < 400


def test_brackets_in_texts_are_no_nesting() -> None:
    text = '\\"' + "[{" * 1_000
    request = read_request(METHODS["Notify"], json.dumps({"table": text}).encode())
    assert request == pb.NotifyRequest(table=text)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda each: (
        st.lists(each, max_size=3)
        | st.dictionaries(
            st.sampled_from(["job", "table", "name", "filter", "limit", "x"]) | st.text(), each, max_size=3
        )
    ),
    max_leaves=10,
)


@given(st.sampled_from(sorted(METHODS)), JSON.map(lambda each: json.dumps(each).encode()) | st.binary())
def test_whatever_comes_is_read_or_refused(name: str, body: bytes) -> None:
    try:
        request = read_request(METHODS[name], body)
    except InvalidRequest:
        return
    assert request.DESCRIPTOR is METHODS[name].input_type


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
