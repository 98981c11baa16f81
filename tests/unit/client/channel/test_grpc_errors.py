"""Errors keep their class, code, field and remedy in a detail that fits into gRPC's metadata."""

from __future__ import annotations

import grpc
import pytest

from iscp.client.channel import grpc_errors
from iscp.model.values import errors as core
from iscp.wire.v1 import admin_pb2 as pb

KINDS = [kind for kind in vars(core).values() if isinstance(kind, type) and issubclass(kind, core.IscpError)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_class_comes_back(kind: type[core.IscpError]) -> None:
    error = kind("what", field="spec.x", remedy="do that")
    back = grpc_errors.error_of(pb.ErrorDetail.FromString(grpc_errors.detail_of(error).SerializeToString()))
    assert type(back) is kind
    assert (back.message, back.field, back.remedy, back.code) == ("what", "spec.x", "do that", error.code)


@pytest.mark.parametrize(
    "error", [core.InvalidRequest("is no day", field="cron"), core.InvalidRequest("is it a day", about="cron")]
)
def test_an_error_says_the_same_where_it_arrives_whatever_words_it_has(error: core.InvalidRequest) -> None:
    back = grpc_errors.error_of(pb.ErrorDetail.FromString(grpc_errors.detail_of(error).SerializeToString()))
    assert (back.sentence, str(back)) == (error.sentence, str(error))


@pytest.mark.parametrize(
    ("message", "text"), [("is missing", "cron is missing"), ("there is no such day", "cron: there is no such day")]
)
def test_an_error_of_a_node_of_0_1_has_its_field_as_the_subject_if_it_begins_with_a_verb(
    message: str, text: str
) -> None:
    detail = pb.ErrorDetail(code=10_000, kind="InvalidRequest", field="cron", message=message)
    assert str(grpc_errors.error_of(detail)) == text


def test_a_code_that_differs_from_its_class_comes_back() -> None:
    error = core.InvalidRequest("no such kind", code=core.ErrorCode.CONSUMER_UNKNOWN)
    assert grpc_errors.error_of(grpc_errors.detail_of(error)).code is core.ErrorCode.CONSUMER_UNKNOWN


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (core.InvalidRequest, grpc.StatusCode.INVALID_ARGUMENT),
        (core.JobNotFound, grpc.StatusCode.NOT_FOUND),
        (core.TableNotFound, grpc.StatusCode.NOT_FOUND),
        (core.TimedOut, grpc.StatusCode.DEADLINE_EXCEEDED),
        (core.NotOwner, grpc.StatusCode.UNAVAILABLE),
        (core.Unavailable, grpc.StatusCode.UNAVAILABLE),
        (core.QueueFull, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (core.JobFailed, grpc.StatusCode.FAILED_PRECONDITION),
        (core.Conflict, grpc.StatusCode.ABORTED),
        (core.InvariantBroken, grpc.StatusCode.INTERNAL),
    ],
)
def test_the_status_is_enough_for_machines_that_know_no_detail(
    kind: type[core.IscpError], status: grpc.StatusCode
) -> None:
    assert grpc_errors.status_of(kind("what")) is status


class OfANewerNode(core.JobNotFound):
    """A class that the other side does not have."""


def test_a_class_of_ones_own_travels_as_the_nearest_known() -> None:
    assert grpc_errors.detail_of(OfANewerNode("what")).kind == "JobNotFound"


@pytest.mark.parametrize(("code", "kind"), [(77, core.TemporaryError), (10_777, core.PermanentError)])
def test_an_unknown_kind_still_says_whose_move_is_next(code: int, kind: type[core.IscpError]) -> None:
    back = grpc_errors.error_of(pb.ErrorDetail(code=code, kind="Unheard", message="what"))
    assert type(back) is kind


def test_over_long_texts_are_cut_to_fit() -> None:
    detail = grpc_errors.detail_of(core.InvalidRequest("ü" * 100_000, about="f" * 100_000, remedy="汉" * 100_000))
    assert detail.ByteSize() < 5_000
    assert detail.message.startswith("üü")
