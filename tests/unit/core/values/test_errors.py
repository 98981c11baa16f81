"""Every error says whether it is retried or needs a person, and what its remedy is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from iscp.core.values import errors
from iscp.core.values.errors import ErrorCode, InvalidRequest, IscpError, PermanentError, TemporaryError

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
        ("spec.key", "", "spec.key is missing"),
        ("", "Give it", "is missing. Give it"),
        ("spec.key", "Give it", "spec.key is missing. Give it"),
    ],
)
def test_the_text_names_the_field_and_the_remedy(field: str, remedy: str, text: str) -> None:
    assert str(InvalidRequest("is missing", field=field, remedy=remedy)) == text


@pytest.mark.parametrize(
    ("message", "sentence", "text"),
    [
        ("is 3: must be even", "spec.shards is 3: must be even", "spec.shards is 3: must be even"),
        ("there is no such kind", "there is no such kind", "spec.shards: there is no such kind"),
    ],
)
def test_a_message_that_begins_with_a_verb_has_its_field_as_the_subject(message: str, sentence: str, text: str) -> None:
    error = InvalidRequest(message, field="spec.shards")
    assert (error.sentence, str(error)) == (sentence, text)


SUBJECTS = frozenset(
    {"a", "an", "column", "etcd", "no", "range", "row", "rows", "tables", "the", "there", "this", "version"}
)
"""What messages begin with that have a subject of their own."""


def first_words() -> Iterator[str]:
    """Of the messages of all errors that are about a field, but for those that begin with a value."""
    for path in sorted(Path(errors.__file__).parents[2].rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and call.args and any(given.arg == "field" for given in call.keywords):
                message = call.args[0].values[0] if isinstance(call.args[0], ast.JoinedStr) else call.args[0]
                if isinstance(message, ast.Constant) and isinstance(message.value, str):
                    yield message.value.partition(" ")[0]


def test_every_message_of_a_field_is_a_sentence_with_it_or_by_itself() -> None:
    words = set(first_words())
    assert words - errors._VERBS <= SUBJECTS, "a verb belongs to _VERBS: the field is its subject"
    by_helpers = {"calls", "casts", "compares", "expires", "keeps", "maps", "needs", "reads", "takes", "tracks"}
    assert words | by_helpers | {"was", "have", "are", "do", "does"} >= errors._VERBS
