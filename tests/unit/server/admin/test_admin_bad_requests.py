"""Whatever is sent to the services of users is answered, or refused by one error, and then nothing is kept of it.

The methods and their fields are found in the descriptors of the wire: one that is added is tried without being named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp.client.channel.grpc_calls import DETAIL_KEY, error_of, status_of
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.errors import ErrorCode, IscpError, JobFailed, PermanentError, TimedOut
from iscp.wire.v1 import admin_pb2, builds_pb2, feeds_pb2, operator_pb2, search_pb2
from tests.fakes.fuzzed_node import KEPT, FuzzedNode
from tests.fakes.wire_faults import fill, odd_values, paths, with_value, wrong_values

SERVICES = (
    admin_pb2.DESCRIPTOR.services_by_name["Admin"],
    operator_pb2.DESCRIPTOR.services_by_name["Operator"],
    builds_pb2.DESCRIPTOR.services_by_name["Builds"],
    search_pb2.DESCRIPTOR.services_by_name["Search"],
    feeds_pb2.DESCRIPTOR.services_by_name["Feeds"],
)
METHODS = [method for service in SERVICES for method in service.methods]
EACH_FOR_ITSELF = ("Check", "ChangeJobs", "UpdateJobs")
CREATING = ("Register", "Check")
TIMEOUT_S = 60.0
STEERING = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
"""What a terminal obeys. A letter that Unicode has not assigned yet is shown as it is: a later version may have it."""

each_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: str(method.name))


@dataclass(frozen=True, slots=True)
class Api:
    """A node, and a channel to it that sends bytes."""

    node: FuzzedNode
    channel: grpc.Channel

    def request(self, method: MethodDescriptor) -> Message:
        """One that is in order, with all its fields."""
        node = self.node
        spec = JobSpec(ConsumerSpec("replica", str(node.lake / "new"), ("id",))).to_json()
        texts = {"table": node.table, "name": KEPT, "node_id": "n-1", "spec_json": spec, "changes_json": "{}"}
        values: dict[str, Any] = {**texts, "verb": 1, "limit": 1}
        if method.name in CREATING:
            values["name"] = "new"
        filled = fill(method.input_type, values)
        if isinstance(filled, search_pb2.SearchRequest):
            filled.uri, filled.text, filled.weights.text = str(node.lake / "copy"), "fox", 1.0
        return filled

    def errors(self, method: MethodDescriptor, raw: bytes) -> list[IscpError]:
        """What the call is refused with: as a whole, or one of the many that it requests."""
        open_call = self.channel.unary_stream if method.server_streaming else self.channel.unary_unary
        call: Any = open_call(f"/{method.containing_service.full_name}/{method.name}")
        try:
            answer = call(raw, timeout=TIMEOUT_S)
            answers = list(answer) if method.server_streaming else [answer]
        except grpc.RpcError as failure:
            details = [value for key, value in failure.trailing_metadata() or () if key == DETAIL_KEY]
            (error,) = (error_of(admin_pb2.ErrorDetail.FromString(each)) for each in details)
            return [error] if failure.code() is status_of(error) else []
        kind = GetMessageClass(method.output_type)
        return [error_of(each) for one in answers for each in inner_errors(kind.FromString(one))]


def inner_errors(message: Any) -> Iterator[admin_pb2.ErrorDetail]:
    for field, value in message.ListFields():
        if field.type != field.TYPE_MESSAGE or field.message_type.GetOptions().map_entry:
            continue
        for each in value if field.is_repeated else [value]:
            yield from [each] if isinstance(each, admin_pb2.ErrorDetail) else inner_errors(each)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    node = FuzzedNode(tmp_path_factory.mktemp("lake"))
    with grpc.insecure_channel(node.address) as channel:
        yield Api(node, channel)
    node.close()


def check(api: Api, method: MethodDescriptor, raw: bytes, *, wrong: bool) -> None:
    """It is answered, and what is kept can be shown; or refused in words that help, and nothing is kept."""
    before = api.node.state()
    errors = api.errors(method, raw)
    assert errors or not wrong, "it was taken"
    several = method.name in EACH_FOR_ITSELF
    assert several or len(errors) <= 1
    for error in errors:
        assert several or api.node.state() == before
        assert error.code is not ErrorCode.INTERNAL, error
        assert isinstance(error, (PermanentError, TimedOut)), error
        assert error.message
        assert error.remedy, error
        assert error.field or isinstance(error, TimedOut), error
        assert not STEERING.search(f"{error.field}{error.message}{error.remedy}")
    api.node.restore()


@each_method
def test_a_request_in_order_is_answered(api: Api, method: MethodDescriptor) -> None:
    """The control: these requests, which other tests spoil, are accepted, but for those that no replica can have."""
    errors = api.errors(method, bytes(api.request(method).SerializeToString()))
    api.node.restore()
    assert [error for error in errors if not isinstance(error, (JobFailed, TimedOut))] == [] or method.name in (
        "Reshard",
        "ExplainConsumer",
        "Search",
        "ReadFeed",
    )


@each_method
def test_each_field_that_is_wrong_is_refused(api: Api, method: MethodDescriptor) -> None:
    for path in paths(method.input_type):
        for value in wrong_values(path[-1]):
            check(api, method, with_value(api.request(method), path, value), wrong=True)


@each_method
def test_each_field_that_is_odd_is_answered_or_refused(api: Api, method: MethodDescriptor) -> None:
    for path in paths(method.input_type):
        for value in odd_values(path[-1]):
            check(api, method, with_value(api.request(method), path, value), wrong=False)


@st.composite
def spoilt(draw: st.DrawFn, api: Api) -> tuple[MethodDescriptor, bytes]:
    """A request whose fields are wrong or odd, several of them, some twice; or which is cut off, or was never one."""
    method = draw(st.sampled_from(METHODS))
    request = api.request(method)
    raw = bytes(request.SerializeToString())
    for path in draw(st.lists(st.sampled_from(list(paths(method.input_type))), max_size=3)):
        value = draw(st.sampled_from([*wrong_values(path[-1]), *odd_values(path[-1])]))
        raw += with_value(request, path, value)
    cut = draw(st.integers(0, len(raw)) | st.none())
    return method, raw[:cut] + draw(st.binary(max_size=8))


def check_spoilt(api: Api, examples: int) -> None:
    @settings(max_examples=examples, derandomize=True, database=None)
    @given(st.data())
    def at_random(data: st.DataObject) -> None:
        method, raw = data.draw(spoilt(api))
        check(api, method, raw, wrong=False)

    at_random()


def test_several_faults_at_once_are_answered_or_refused(api: Api) -> None:
    check_spoilt(api, 200)


# A timeout that ends it within a draw is reported by hypothesis as a strategy that is not deterministic.
@pytest.mark.full
@pytest.mark.timeout(1800)
def test_very_many_faults_are_answered_or_refused(api: Api) -> None:
    check_spoilt(api, 20_000)
