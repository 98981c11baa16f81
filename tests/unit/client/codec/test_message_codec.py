"""Codecs that are made of a class and a message: both ways lose nothing, and what does not fit is named."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp.client.codec.message_codec import (
    PAGE_BYTES_MAX,
    PAGE_ITEMS_MAX,
    Codec,
    EnumCodec,
    FieldCodec,
    pages,
    to_message,
    to_request,
)
from iscp.model.values.errors import InvalidRequest, PermanentError
from iscp.system.tls.tls_files import FORMAT_VERSION
from iscp.wire.v1 import admin_pb2 as pb


@dataclass(frozen=True)
class Name:
    """`extra` has no place in the message."""

    account: str
    name: str
    extra: int = 5


@dataclass(frozen=True)
class Job:
    """`owner` lies flat in the message, which has no field for it."""

    table: str
    owner: Name


NAMES = Codec(Name, pb.JobName, absent={"account": "default"})
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@settings(max_examples=30)
@given(TEXTS, TEXTS)
def test_a_value_comes_back_and_an_absent_field_is_its_default(account: str, name: str) -> None:
    back = NAMES.from_wire(pb.JobName.FromString(NAMES.to_wire(Name(account, name, 7)).SerializeToString()))
    assert back == Name(account or "default", name)


def test_a_field_that_is_given_is_not_read() -> None:
    message = pb.JobName(account="a", name="n")
    assert NAMES.from_wire(message, name="other") == Name("a", "other")
    assert NAMES.from_wire(message, extra=1, account="b") == Name("b", "n", 1)
    assert NAMES.from_wire(message) == Name("a", "n")


def test_a_part_has_its_own_form_in_the_message() -> None:
    swapped = FieldCodec(lambda text: text[::-1], lambda text: text[::-1])
    codec = Codec(Name, pb.JobName, name=swapped)
    assert codec.to_wire(Name("a", "xyz")) == pb.JobName(account="a", name="zyx")
    assert codec.from_wire(pb.JobName(account="a", name="zyx")) == Name("a", "xyz")


def test_a_part_without_a_field_lies_flat_in_the_message() -> None:
    codec = Codec(Job, pb.JobName, owner=NAMES)
    message = codec.to_wire(Job("t", Name("a", "n")))
    assert message == pb.JobName(table="t", account="a", name="n")
    assert codec.from_wire(message) == Job("t", Name("a", "n"))


class Verb(Enum):
    PAUSE = 1
    RESUME = 2


def test_a_number_that_only_a_newer_node_knows_is_refused() -> None:
    verbs = EnumCodec(Verb, pb.ChangeVerb, "verb {}")
    assert [verbs.from_wire(verbs.to_wire(each)) for each in Verb] == [*Verb]
    assert verbs.to_wire(Verb.PAUSE) == pb.CHANGE_VERB_PAUSE
    with pytest.raises(PermanentError, match="verb 99 is not known here"):
        verbs.from_wire(99)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"name": 3}, "name"),
        ({"account": "a", "name": "\ud800"}, "name"),
        ({"name": b"\xff"}, "name"),
        ({"name": ["n"]}, "name"),
    ],
)
def test_a_value_that_does_not_fit_is_named(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest, match="must be a text") as refused:
        to_message(pb.JobName, **given)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"limit": -1}, "limit"),
        ({"limit": 2**32}, "limit"),
        ({"limit": "3"}, "limit"),
        ({"filter": {"late": "yes", "table": "t"}}, "late"),
        ({"filter": {"table": "t", "account": 3}}, "account"),
    ],
)
def test_what_is_wrong_is_named_in_inner_messages_too(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        to_message(pb.ListJobsRequest, **given)
    assert refused.value.field == field


@settings(max_examples=30)
@given(st.lists(st.integers(0, 2 * PAGE_BYTES_MAX), max_size=8))
def test_pages_are_bounded_in_bytes_and_lose_nothing(sizes: list[int]) -> None:
    messages = [pb.Job(name="x" * size) for size in sizes]
    found = list(pages(messages))
    assert [message for page in found for message in page] == messages
    for page in found:
        assert len(page) == 1 or sum(message.ByteSize() for message in page) <= PAGE_BYTES_MAX


def test_pages_are_bounded_in_items() -> None:
    found = list(pages(pb.Job(name=str(number)) for number in range(PAGE_ITEMS_MAX * 2 + 1)))
    assert [len(page) for page in found] == [PAGE_ITEMS_MAX, PAGE_ITEMS_MAX, 1]


def test_a_request_is_in_the_format_of_this_release() -> None:
    assert to_request(pb.NotifyRequest, table="/t") == pb.NotifyRequest(format_version=FORMAT_VERSION, table="/t")
    with pytest.raises(InvalidRequest) as refused:
        to_request(pb.NotifyRequest, table=7)  # type: ignore[arg-type]
    assert refused.value.field == "table"
