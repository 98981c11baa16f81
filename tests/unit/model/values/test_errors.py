"""Every error says whether it is retried or needs a person, and what its remedy is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from iscp.model.values import errors
from iscp.model.values.errors import ErrorCode, InvalidRequest, IscpError, PermanentError, TemporaryError

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


@pytest.mark.parametrize("message", ["is 3: must be even", "there is no such kind"])
def test_whoever_raises_an_error_says_whether_its_field_is_the_subject_and_no_word_of_the_message_does(
    message: str,
) -> None:
    subject, sentence = InvalidRequest(message, field="spec.shards"), InvalidRequest(message, about="spec.shards")
    assert (subject.sentence, str(subject)) == (f"spec.shards {message}", f"spec.shards {message}")
    assert (sentence.sentence, str(sentence)) == (message, f"spec.shards: {message}")
    assert (subject.field, sentence.field) == ("spec.shards", "spec.shards")


@pytest.mark.parametrize("error", [InvalidRequest("is no day", field="cron"), InvalidRequest("no day", about="cron")])
def test_an_error_that_is_raised_again_says_the_same_of_another_field(error: InvalidRequest) -> None:
    again = PermanentError.from_error(error, field="spec.trigger.cron", remedy="Name one")
    assert type(again) is PermanentError
    assert str(again) == str(error).replace("cron", "spec.trigger.cron") + ". Name one"
    assert str(PermanentError.from_error(error)) == str(error)


def test_an_error_that_is_raised_again_has_the_code_of_its_class_or_the_one_that_is_given() -> None:
    error = InvalidRequest("no such kind", code=ErrorCode.CONSUMER_UNKNOWN)
    assert InvalidRequest.from_error(error).code is ErrorCode.INVALID_REQUEST
    assert InvalidRequest.from_error(error, code=error.code).code is ErrorCode.CONSUMER_UNKNOWN


VERBS = frozenset(
    {
        "are",
        "calls",
        "cannot",
        "casts",
        "changes",
        "comes",
        "compares",
        "do",
        "does",
        "ends",
        "excludes",
        "gives",
        "goes",
    }
    | {"has", "have", "holds", "is", "leave", "leaves", "lies", "must", "names", "needs", "reads", "says", "stands"}
    | {"wants", "was", "would"}
)
"""First words of messages that go on from their field."""

HELPERS = {
    "SettingFault": ("field", 1),
    "SettingFault.about": ("about", 1),
    "SqlFault": ("field", 0),
    "refusal": ("field", 0),
    "self._fault": ("about", 0),
    "self._place_fault": ("field", 0),
}
"""What makes errors, which of the two ways each means, and the place of the message among the arguments."""


def messages() -> Iterator[tuple[str, str, str]]:
    """Yield the place, the way and the first word of the message of each error; empty: it begins with a value."""
    for path in sorted(Path(errors.__file__).parents[2].rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call):
                continue
            way, at = HELPERS.get(ast.unparse(call.func), ("", 0))
            way = way or next((given.arg for given in call.keywords if given.arg in ("field", "about")), "") or ""
            if way and len(call.args) > at and (word := first_word(call.args[at])) is not None:
                yield f"{path.name}:{call.lineno}", way, word


def first_word(message: ast.expr) -> str | None:
    """Return the first word of a message, empty for a value, or None if it is made elsewhere."""
    if isinstance(message, ast.JoinedStr):
        message = message.values[0]
        if isinstance(message, ast.FormattedValue):
            return ""
    if isinstance(message, ast.Constant) and isinstance(message.value, str):
        return message.value.partition(" ")[0]
    return None


def test_a_message_begins_with_a_verb_where_its_field_is_the_subject_and_with_a_subject_otherwise() -> None:
    found = list(messages())
    assert sum(way == "field" for _, way, _ in found) > 250
    assert sum(way == "about" for _, way, _ in found) > 150
    wrong = {place for place, way, word in found if (way == "field") != (word in VERBS)}
    assert wrong == set(), "a message with field= goes on from its field; one with about= is a whole sentence"
    assert {word for _, _, word in found} >= VERBS
