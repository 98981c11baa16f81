"""Every error says whose move is next, and how to make it."""

from __future__ import annotations

import pytest

from iscp.core import errors
from iscp.core.errors import ErrorCode, InvalidRequest, IscpError, PermanentError, StorageError, TemporaryError

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, IscpError)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_code_of_every_error_is_of_its_family(kind: type[IscpError]) -> None:
    code = kind("why").code
    if issubclass(kind, PermanentError):
        assert not code.temporary
        assert code >= errors.PERMANENT_FROM
    elif issubclass(kind, TemporaryError):
        assert code.temporary
    else:
        assert code is ErrorCode.INTERNAL


def test_codes_are_temporary_from_1_to_9999() -> None:
    assert not ErrorCode.OK.temporary
    assert {code for code in ErrorCode if code.temporary} == {code for code in ErrorCode if 1 <= code <= 9_999}


@pytest.mark.parametrize(
    ("field", "remedy", "text"),
    [
        ("", "", "is missing"),
        ("spec.key", "", "spec.key: is missing"),
        ("", "Give it", "is missing. Give it"),
        ("spec.key", "Give it", "spec.key: is missing. Give it"),
    ],
)
def test_the_text_names_the_field_and_the_remedy(field: str, remedy: str, text: str) -> None:
    assert str(InvalidRequest("is missing", field=field, remedy=remedy)) == text


def test_one_error_may_have_a_closer_code_than_its_kind() -> None:
    assert StorageError("disk full", code=ErrorCode.NO_SPACE).code is ErrorCode.NO_SPACE
    assert StorageError("broken").code is ErrorCode.STORAGE
