"""Errors of iscp's classes that others raise: their plain form, and which of them are none of theirs."""

from __future__ import annotations

import pytest

from iscp.core.values.errors import (
    Conflict,
    ErrorCode,
    InvalidRequest,
    IscpError,
    LeaseLost,
    NotOwner,
    PermanentError,
    QueueFull,
    StorageError,
    TemporaryError,
)
from iscp.core.values.foreign_errors import is_of_a_job, plain_error


class OddError(PermanentError):
    """Its texts are made when they are read, and raise."""

    @property
    def message(self) -> str:
        raise KeyError("no")

    @message.setter
    def message(self, value: str) -> None: ...


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (StorageError("full", about="f", remedy="r"), TemporaryError, ErrorCode.STORAGE),
        (Conflict("c"), Conflict, ErrorCode.CONFLICT),
        (InvalidRequest("i", about="f"), InvalidRequest, ErrorCode.INVALID_REQUEST),
        (PermanentError("p", code=ErrorCode.SELF_TEST), PermanentError, ErrorCode.SELF_TEST),
    ],
)
def test_class_code_and_texts_are_the_same(error: IscpError, kind: type[IscpError], code: ErrorCode) -> None:
    plain = plain_error(error)
    assert (type(plain), plain.code) == (kind, code)
    assert (plain.message, plain.field, plain.remedy) == (error.message, error.field, error.remedy)


def test_texts_are_made_fit_to_be_stored() -> None:
    plain = plain_error(PermanentError("a\x1b[2J\ud800" + "x" * 10_000, remedy="b\0"))
    assert plain.message.startswith("a\\x1b[2J\\ud800x")
    assert len(plain.message) < 5_000
    assert plain.remedy == "b\\x00"


def test_an_error_whose_texts_raise_is_one_too() -> None:
    assert str(plain_error(OddError("what it says"))) == "its text cannot be read"


@pytest.mark.parametrize("error", [LeaseLost("l"), NotOwner("n"), QueueFull("q"), ValueError("v"), IscpError("i")])
def test_errors_of_the_node_are_not_others_to_raise(error: Exception) -> None:
    assert not is_of_a_job(error)
    assert is_of_a_job(StorageError("s"))
