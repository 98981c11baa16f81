"""Any value from outside becomes a storable text or an exact number, or one ValueError that says what it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from iscp.core.values.errors import ErrorCode, IscpError, PermanentError, TemporaryError
from iscp.core.values.untrusted_values import (
    AT_S_MOST,
    COUNT_MOST,
    NAME_CHARS_MAX,
    SHOWN_CHARS_MAX,
    TEXT_CHARS_MAX,
    error_code,
    error_text,
    exact_float,
    exact_int,
    exact_name,
    named_error,
    printable,
    shown,
)
from tests.fakes.poison import POISON, SAYS_NOTHING, TEXTS, Evil, RaisesWhenRead


@given(TEXTS)
def test_a_text_is_bounded_valid_and_printable_and_an_ordinary_one_stays_as_it_is(text: str) -> None:
    kept = printable(text)
    assert_kept(kept)
    if text.isprintable() and len(text) <= TEXT_CHARS_MAX:
        assert kept == text


def assert_kept(text: str) -> None:
    assert type(text) is str
    assert len(text) <= TEXT_CHARS_MAX * 10  # each character may have become the ten of its escape
    text.encode()
    assert all(char >= " " or char in "\n\t" for char in text)
    assert "\x1b" not in text
    assert pa.array([text], pa.string())[0].as_py() == text
    assert json.loads(json.dumps(text)) == text


def test_of_a_long_text_beginning_and_end_are_kept() -> None:
    kept = printable("cause " + "x" * 100_000_000 + " Caused by: disk full")
    assert kept.startswith("cause xxx")
    assert kept.endswith("Caused by: disk full")
    assert len(kept) == TEXT_CHARS_MAX


@pytest.mark.parametrize("text", ["zeile\nzwei\tdrei", "数据库 – ключ – مفتاح – 🗝 – a\u00a0b"])
def test_what_people_write_stays(text: str) -> None:
    assert printable(text) == text


def test_what_steers_a_terminal_is_shown_and_not_obeyed() -> None:
    assert printable("\x1b[2J\x00\ud800\u202e\u061c") == "\\x1b[2J\\x00\\ud800\\u202e\\u061c"


def test_the_methods_of_a_text_of_another_class_are_not_called() -> None:
    assert printable(Evil("a\x00")) == "a\\x00"
    assert type(printable(Evil("plain"))) is str
    assert exact_name(Evil("plain"), "x") == "plain"


@given(POISON)
def test_any_value_can_be_shown(value: object) -> None:
    text = shown(value)
    assert_kept(text)
    assert len(text) <= SHOWN_CHARS_MAX * 10
    assert_kept(printable(value))


@pytest.mark.parametrize("error", SAYS_NOTHING, ids=lambda error: type(error).__name__)
def test_an_error_whose_text_cannot_be_had_is_named_all_the_same(error: BaseException) -> None:
    assert error_text(error) == "its text cannot be read"
    assert named_error(error) == f"{type(error).__name__}: its text cannot be read"


def test_an_error_is_named_by_its_class_and_what_it_says() -> None:
    assert named_error(KeyError("x")) == "KeyError: 'x'"
    assert named_error(ValueError()) == "ValueError"
    assert named_error(OSError("a\x1bb")) == "OSError: a\\x1bb"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError(), ErrorCode.INTERNAL),
        (TemporaryError("x", code=ErrorCode.STORAGE), ErrorCode.STORAGE),
        (TemporaryError("x", code=ErrorCode.OK), TemporaryError.code),
        (TemporaryError("x", code="soon"), TemporaryError.code),  # type: ignore[arg-type]
        (PermanentError("x", code=10**30), PermanentError.code),  # type: ignore[arg-type]
        (PermanentError("x", code=np.int64(10_003)), ErrorCode.TARGET_UNUSABLE),  # type: ignore[arg-type]
        (IscpError("x", code=77_777), ErrorCode.INTERNAL),  # type: ignore[arg-type]
    ],
)
def test_an_error_without_a_code_that_there_is_has_that_of_its_class(error: Exception, code: ErrorCode) -> None:
    assert error_code(error) is code


@pytest.mark.parametrize("value", [5, np.int64(5), np.uint8(5), ErrorCode.NO_SPACE])
def test_what_represents_a_whole_number_exactly_is_one(value: object) -> None:
    found = exact_int(value, "rows")
    assert (found, type(found)) == (5, int)


@pytest.mark.parametrize("value", [1.5, 1, np.float32(1.5), np.float64(1.5), Fraction(3, 2)])
def test_what_is_real_is_a_float(value: Any) -> None:
    found = exact_float(value, "at_s")
    assert (found, type(found)) == (float(value), float)


@pytest.mark.parametrize(
    "value", [True, None, "5", 5.0, b"5", -1, COUNT_MOST + 1, 2**63, np.bool_(True), []], ids=shown
)
def test_any_other_is_refused_by_its_name(value: object) -> None:
    with pytest.raises(ValueError, match="rows is"):
        exact_int(value, "rows")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e300, True, "1.0", None, 1j], ids=shown)
def test_a_time_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="at_s is"):
        exact_float(value, "at_s")


@pytest.mark.parametrize("value", ["\ud800", b"x", None, 5, "x" * (NAME_CHARS_MAX + 1)], ids=shown)
def test_a_name_that_is_none_is_refused_and_never_another_one(value: object) -> None:
    with pytest.raises(ValueError, match="table_id"):
        exact_name(value, "table_id")


CHECKS: list[Callable[[object], object]] = [
    lambda value: exact_int(value, "x"),
    lambda value: exact_float(value, "x"),
    lambda value: exact_name(value, "x"),
]


@pytest.mark.parametrize("check", CHECKS)
def test_no_value_raises_anything_but_a_value_error(check: Callable[[object], object]) -> None:
    @given(POISON)
    def holds(value: object) -> None:
        try:
            found = check(value)
        except ValueError as error:
            assert_kept(str(error))
        else:
            assert type(found) in (int, float, str)
            assert isinstance(found, str) or -AT_S_MOST <= found <= COUNT_MOST  # type: ignore[operator]

    holds()


def test_one_that_raises_an_exit_when_it_is_read_is_a_value_error_too() -> None:
    with pytest.raises(ValueError, match="a value of RaisesWhenRead"):
        exact_int(RaisesWhenRead(), "x")
