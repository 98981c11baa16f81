"""Any value from outside becomes a storable text or an exact number, or one ValueError that says what it was.

Errors of iscp's classes that others raise: their plain form, and which of them are none of theirs.

What callers hand over: timeouts up to a bound, names that are like known ones, faults that are collected.

The libraries as after `pip install iscp-delta` alone: they can be imported, and say what the rest of them needs.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from iscp.model.values.errors import (
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
from iscp.model.values.untrusted_values import (
    AT_S_MOST,
    COUNT_MOST,
    EXTRA_MODULES,
    NAME_CHARS_MAX,
    SHOWN_CHARS_MAX,
    TEXT_CHARS_MAX,
    Refusals,
    error_code,
    error_text,
    exact_float,
    exact_int,
    exact_name,
    is_of_a_job,
    name_hint,
    named_error,
    plain_error,
    printable,
    require_seconds,
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


@pytest.mark.parametrize("given", [0, 2.5, np.int64(30), np.float32(2.5), np.float64(1)])
def test_numbers_of_every_kind_are_seconds(given: Any) -> None:
    assert require_seconds(given, "timeout_s") == given


@pytest.mark.parametrize("given", [10**400, -(10**400), float("nan"), float("inf"), "3", None, True, 1j])
def test_what_no_clock_can_be_set_to_is_refused_by_its_name(given: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        require_seconds(given, "timeout_s")
    assert refused.value.field == "timeout_s"


def test_a_name_is_hinted_at_by_the_known_one_that_it_is_most_like() -> None:
    assert name_hint("targt", ["target", "table"]) == "Did you mean target?"
    assert name_hint("colour", ["target", "table"]) == ""
    assert name_hint("ISCP_LISTN", ["ISCP_LISTEN", "ISCP_X"], prefix="ISCP_") == "Did you mean ISCP_LISTEN?"
    assert name_hint("t" * 1_000_000, ["target"]) == ""


def test_what_is_refused_is_collected_and_raised_with_all_that_is_beside_it() -> None:
    inner, outer = Refusals(), Refusals()
    for name in "ab":
        with inner.collect():
            raise InvalidRequest("is missing", field=name, remedy="Add it")
    with outer.collect():
        inner.raise_all()
    outer.add(InvalidRequest("is wrong", field="c"))
    with pytest.raises(InvalidRequest) as refused:
        outer.raise_all()
    assert [each.field for each in (refused.value, *refused.value.others)] == ["a", "b", "c"]
    assert str(refused.value) == "a is missing. Add it\nb is missing. Add it\nc is wrong"
    Refusals().raise_all()


PLAIN = ("Conflict", "Cursor", "CursorBehind", "EtcdSettings", "FeedIncident", "InvalidRequest", "IscpError")
"""What needs no more than the client does; among others."""


def run(code: str) -> subprocess.CompletedProcess[str]:
    """In a Python that has none of the extras' modules."""
    blocked = f"import sys\nfor name in {EXTRA_MODULES}: sys.modules[name] = None\n"
    return subprocess.run([sys.executable, "-c", blocked + code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("module", "needs_extras"),
    [("iscp.changefeed", True), ("iscp.changefeed.spark", True), ("iscp.consumers.custom", False)],
)
def test_each_name_is_there_or_says_what_to_install(module: str, needs_extras: bool) -> None:
    code = (
        f"import {module} as module\n"
        "for name in module.__all__:\n"
        "    try: getattr(module, name)\n"
        "    except ModuleNotFoundError as error: print(error)\n"
        "    else: print(name)\n"
    )
    ended = run(code)
    assert ended.stderr == ""
    lines = ended.stdout.splitlines()
    refused = [line for line in lines if " " in line]
    assert bool(refused) is needs_extras
    for line in refused:
        assert re.fullmatch(
            rf"{module}\.\w+: the Python module [\w.]+ is not installed\. Run: pip install 'iscp-delta\[node\]'", line
        ), line
    if module == "iscp.changefeed":
        assert set(lines) >= set(PLAIN)


def test_a_call_ends_in_that_sentence_and_in_one_traceback() -> None:
    ended = run("from iscp import changefeed\nchangefeed.create('/feed', None)")
    assert ended.returncode == 1
    assert ended.stderr.count("Traceback") == 1
    assert re.search(
        r"\nModuleNotFoundError: iscp\.changefeed\.create: the Python module [\w.]+ is not installed\. "
        r"Run: pip install 'iscp-delta\[node\]'\n$",
        ended.stderr,
    )


def test_a_module_of_another_program_is_reported_as_it_is() -> None:
    ended = run("sys.modules['json'] = None\nfrom iscp import changefeed\nchangefeed.Cursor")
    assert "ModuleNotFoundError: import of json halted" in ended.stderr
    assert "pip install" not in ended.stderr


def test_no_module_of_an_extra_comes_without_it() -> None:
    project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]
    always = {re.split(r"[\[<>=~! ]", each)[0] for each in project["dependencies"]}
    assert len(always) >= 5
    assert always.isdisjoint(EXTRA_MODULES)
