"""Whatever JSON is sent to the gateway, it answers with a status that says nothing of its insides, and lives."""

from __future__ import annotations

import json
from collections import Counter
from http.client import HTTPConnection

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import strategies as st

from iscp.server.http.json_calls import METHODS
from tests.fakes.attacked_node import INSIDES, AttackedNode, play

MORE_MIB = 100
EXAMPLES, MANY_EXAMPLES = 200, 5_000
UNFORESEEN = 500
LEVELS = 3
"""How deeply objects are drawn as the messages have them; what is deeper is any JSON."""

odd_texts = st.sampled_from(
    [
        "",
        "/lake/0",
        "copy",
        "a\0b",
        "\ud800",
        "\u202e",
        "../..",
        "x" * 5_000,
        "default",
        "NaN",
        "-1",
        "$" + "{env:HOME}",
    ]
)
odd_numbers = st.sampled_from([0, 1, -1, 0.5, 1e308, 2**31, 2**63, 2**64, -(2**70), float("nan"), float("inf")])
odd_leaves = st.none() | st.booleans() | odd_texts | odd_numbers
odd_json = st.recursive(
    odd_leaves, lambda each: st.lists(each, max_size=3) | st.dictionaries(odd_texts, each, max_size=3)
)


def values_of(field: FieldDescriptor, levels: int) -> st.SearchStrategy[object]:
    """Values of a field, most of them of its kind."""
    if field.message_type is not None and levels:
        of_kind: st.SearchStrategy[object] = objects_of(field.message_type, levels - 1)
    elif field.enum_type is not None:
        of_kind = st.sampled_from([each.name for each in field.enum_type.values])
    else:
        of_kind = odd_texts | odd_numbers
    return (st.lists(of_kind, max_size=3) if field.is_repeated else of_kind) | odd_json


def objects_of(kind: Descriptor, levels: int = LEVELS) -> st.SearchStrategy[object]:
    """JSON objects with fields of a message, and one that it has not."""
    fields = {field.name: values_of(field, levels) for field in kind.fields}
    return st.fixed_dictionaries({}, optional={**fields, "more": odd_json})


@st.composite
def bodies(draw: st.DrawFn, kind: Descriptor) -> bytes:
    """A request's body, which may be cut off, or begin twice."""
    text = json.dumps(draw(objects_of(kind) | odd_json)).encode()
    way = draw(st.integers(0, 9))
    if way == 0:
        return text[: draw(st.integers(0, len(text)))]
    return text + text if way == 1 else b"[" * 10_000 if way == 2 else text


def send(attacked: AttackedNode, name: str, body: bytes) -> tuple[int, str]:
    connection = HTTPConnection(attacked.gateway, timeout=60)
    try:
        connection.request("POST", f"/v1/{name}", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def fuzz(attacked: AttackedNode, examples: int) -> Counter[int]:
    """Send so many requests; return how often each status was answered."""
    ended: Counter[int] = Counter()

    def check(data: st.DataObject) -> None:
        method = METHODS[data.draw(st.sampled_from(sorted(METHODS)))]
        status, words = send(attacked, method.name, data.draw(bodies(method.input_type)))
        assert status != UNFORESEEN, words
        assert not INSIDES.search(words), words
        assert attacked.alive()
        ended[status] += 1

    play(examples, check)
    return ended


@pytest.mark.parametrize(
    "examples", [EXAMPLES, pytest.param(MANY_EXAMPLES, marks=[pytest.mark.full, pytest.mark.timeout(1_800)])]
)
def test_random_requests_by_json_are_answered(attacked: AttackedNode, examples: int) -> None:
    before_mib = attacked.memory_mib
    ended = fuzz(attacked, examples)
    assert {200, 400} <= set(ended)
    attacked.assert_unharmed(before_mib, MORE_MIB)
