"""Which functions users' SQL may call, by their names alone.

No call in users' SQL makes more than it may, whichever number says how much, and what is small enough passes.

How long and deep SQL may be is found in one pass, as Spark reads texts and comments.

When a query that depends on the time is looked at again.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.model.sql.sql_names import (
    SIZE_MAX,
    SQL_CHARACTERS_MAX,
    SQL_NESTING_MAX,
    TIME_REFRESH_S,
    Constant,
    TimeDependence,
    exact_instant_s,
    finest,
    function_fault,
    nesting_of,
    next_refresh_at_s,
    options_fault,
    refuse_unbounded,
    size_fault,
    table_function_fault,
)
from iscp.model.values.errors import InvalidRequest

BUILT_IN = frozenset({"abs", "reflect", "java_method", "try_reflect", "input_file_name", "from_json", "explode"})


def said_of(name: str) -> str:
    fault = function_fault(name.split("."), BUILT_IN.__contains__)
    assert fault is None or fault.remedy
    return fault.message if fault else ""


@pytest.mark.parametrize("name", ["abs", "ABS", "from_json"])
def test_what_is_built_in_may_be_called(name: str) -> None:
    assert said_of(name) == ""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("reflect", "calls reflect(), which calls Java"),
        ("Java_Method", "calls java_method(), which calls Java"),
        ("system.builtin.try_reflect", "calls try_reflect(), which calls Java"),
        ("from_protobuf", "calls from_protobuf(), which reads a file"),
        ("input_file_name", "calls input_file_name(), which says in which file a row lies"),
        ("default.abs", "calls default.abs(), a function of a catalog"),
        ("system.builtin.abs", "a function of a catalog"),
        ("nope", "calls nope(), which Spark does not have built in"),
    ],
)
def test_what_reaches_beyond_the_rows_may_not(name: str, said: str) -> None:
    assert said in said_of(name)


@pytest.mark.parametrize("name", ["explode", "POSEXPLODE", "range", "json_tuple"])
def test_rows_are_made_of_what_a_function_is_handed(name: str) -> None:
    assert table_function_fault(name.split(".")) is None


@pytest.mark.parametrize(
    "name", ["table_changes", "table_changes_by_path", "read_files", "sql_keywords", "default.range"]
)
def test_rows_of_anything_else_are_refused(name: str) -> None:
    fault = table_function_fault(name.split("."))
    assert fault is not None
    assert fault.message == f"reads rows of {name}()"
    assert "explode" in fault.remedy


def test_options_that_name_a_file_are_refused_and_those_that_are_computed() -> None:
    assert options_fault("from_xml", ["mode", "rowTag"]) is None
    for keys, said in (
        (["mode", "RowValidationXSDPath"], "calls from_xml() with RowValidationXSDPath, by which it reads a file"),
        (["avroSchemaUrl"], "calls from_xml() with avroSchemaUrl"),
        (None, "calls from_xml() with options that are computed"),
    ):
        fault = options_fault("from_xml", keys)
        assert fault is not None
        assert said in fault.message
        assert fault.remedy


ARGUMENTS = {
    "repeat": (1, 2),
    "space": (0, 1),
    "lpad": (1, 3),
    "rpad": (1, 2),
    "array_repeat": (1, 2),
    "array_insert": (1, 3),
    "round": (1, 2),
    "bround": (1, 2),
    "ceil": (1, 2),
    "ceiling": (1, 2),
    "floor": (1, 2),
    "format_number": (1, 2),
    "stack": (0, 3),
}
"""By function: the place of the number that says how much it makes, and how many arguments it has."""

WRITTEN_ALONE = ("round", "bround", "ceil", "ceiling", "floor", "format_number", "stack")
NUMBERS = st.integers(-3 * SIZE_MAX, 3 * SIZE_MAX) | st.sampled_from([SIZE_MAX, SIZE_MAX + 1, -SIZE_MAX, -SIZE_MAX - 1])


def call(name: str, number: Constant | None) -> list[Constant | None]:
    place, count = ARGUMENTS[name]
    huge = Constant(9 * SIZE_MAX, "integer")  # of another argument, which says nothing
    return [number if at == place else huge for at in range(count)]


def whole(*numbers: int | None, kind: str = "integer") -> list[Constant | None]:
    return [None if each is None else Constant(each, kind) for each in numbers]


@given(st.sampled_from(list(ARGUMENTS)), NUMBERS, st.booleans())
def test_a_number_that_is_written_is_bounded_and_no_other_argument(name: str, number: int, computed: bool) -> None:
    fault = size_fault(name, call(name, Constant(number, "long")), computed=computed)
    assert (fault is None) == (abs(number) <= SIZE_MAX)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_number_that_is_computed_passes_only_where_it_is_bounded_then(name: str) -> None:
    assert size_fault(name, call(name, None), computed=False) is not None
    assert (size_fault(name, call(name, None), computed=True) is None) == (name not in WRITTEN_ALONE)


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize(("kind", "passes"), [("void", True), ("string", False), ("decimal(9,0)", False)])
def test_a_number_is_a_whole_one_or_null(name: str, kind: str, passes: bool) -> None:
    fault = size_fault(name, call(name, Constant(None, kind)), computed=True)
    assert (fault is None) == (passes or (name, kind) == ("format_number", "string"))


@given(NUMBERS, NUMBERS, st.none() | st.integers(-5, 5), st.sampled_from(["integer", "long", "short", "byte"]))
def test_a_sequence_is_bounded_by_its_length(first: int, last: int, step: int | None, kind: str) -> None:
    """Spark itself refuses one whose step is 0."""
    given_ = (first, last) if step is None else (first, last, step)
    count = 0 if step == 0 else abs(last - first) // abs(step or 1) + 1
    assert (size_fault("sequence", whole(*given_, kind=kind), computed=True) is None) == (count <= SIZE_MAX)


@pytest.mark.parametrize("arguments", [whole(1, None), whole(None, 1, 1), [Constant("2020", "string")] * 2, whole(1)])
def test_a_sequence_of_what_is_not_written_as_whole_numbers_counts_as_computed(
    arguments: list[Constant | None],
) -> None:
    assert size_fault("sequence", arguments, computed=True) is None
    assert size_fault("sequence", arguments, computed=False) is not None


WIDTHS = st.integers(0, 2 * SIZE_MAX) | st.integers(10**40, 10**41)


@given(st.lists(st.tuples(st.integers(0, 9), WIDTHS), max_size=3))
def test_widths_within_a_format_are_bounded_however_they_are_written(widths: list[tuple[int, int]]) -> None:
    form = " ".join(f"%{'0' * zeros}{width}d" for zeros, width in widths)
    for name in ("format_string", "printf"):
        fault = size_fault(name, [Constant(form, "string"), None], computed=False)
        assert (fault is None) == (max((width for _, width in widths), default=0) <= SIZE_MAX)


def test_a_width_may_have_more_digits_than_python_reads() -> None:
    fault = size_fault("printf", [Constant(f"%{'9' * 10_000}d", "string")], computed=True)
    assert fault is not None
    assert len(fault.message) < 200


def test_a_format_is_written_as_a_text() -> None:
    for arguments in ([], [None], [Constant(5, "integer")]):
        assert size_fault("printf", arguments, computed=True) is not None


def test_a_number_that_is_left_out_and_other_functions_make_nothing() -> None:
    assert size_fault("round", [None], computed=False) is None
    assert size_fault("upper", whole(9 * SIZE_MAX), computed=False) is None


DEPTHS = {
    "SELECT a FROM t": 0,
    "SELECT f(g([1, {2}])) FROM (SELECT 1)": 4,
    "'(((' ((": 2,
    r"r'\' (( '": 2,
    r"'\' ((": 0,
    "bar'(('": 0,
    '"((" (': 1,
    "'a''((b' (": 1,
    "`((`(": 1,
    "-- ((\n(": 1,
    "-- \\\n((( \n(": 1,
    "/* ( /* */ (( */ (": 1,
    "/* ((": 0,
    "))) (": 1,
}


@pytest.mark.parametrize("sql", DEPTHS)
def test_only_levels_outside_of_texts_and_comments_count(sql: str) -> None:
    assert nesting_of(sql) == DEPTHS[sql]


def test_what_is_too_deep_or_too_long_is_refused_with_its_field() -> None:
    refuse_unbounded("(" * SQL_NESTING_MAX + ")" * SQL_NESTING_MAX, "x.sql")
    refuse_unbounded("x" * SQL_CHARACTERS_MAX, "x.sql")
    for sql in ("(" * (SQL_NESTING_MAX + 1), "[" * SQL_NESTING_MAX + "(", "x" * (SQL_CHARACTERS_MAX + 1)):
        with pytest.raises(InvalidRequest) as refused:
            refuse_unbounded(sql, "x.sql")
        assert refused.value.field == "x.sql"
        assert refused.value.remedy


@pytest.mark.parametrize("piece", ["'\\", "'", "/*", "(", "`", "--\\\n", "r'", "/*'*/", '"', "x'"])
def test_the_pass_takes_no_longer_than_the_text_is_long(piece: str) -> None:
    sql = (piece * SQL_CHARACTERS_MAX)[:SQL_CHARACTERS_MAX]
    began_s = time.process_time()
    nesting_of(sql)
    assert time.process_time() - began_s < 1.0


NOON_S = datetime(2026, 3, 10, 12, tzinfo=UTC).timestamp()


def test_one_by_the_date_is_due_when_the_day_of_utc_changes() -> None:
    midnight_s = datetime(2026, 3, 11, tzinfo=UTC).timestamp()
    for at_s in (NOON_S, midnight_s - 0.001):
        assert next_refresh_at_s(TimeDependence.DATE, at_s, at_s + 5, None) == midnight_s
    assert next_refresh_at_s(TimeDependence.DATE, midnight_s, midnight_s, 10.0) == midnight_s + 86_400


@pytest.mark.parametrize(("interval_s", "pause_s"), [(None, TIME_REFRESH_S), (10.0, 10.0), (3_600.0, TIME_REFRESH_S)])
def test_one_by_the_moment_is_due_after_a_pause_that_counts_from_its_end(
    interval_s: float | None, pause_s: float
) -> None:
    """A longer interval holds it back besides, as it does with all that is outstanding."""
    assert next_refresh_at_s(TimeDependence.MOMENT, NOON_S, NOON_S + 90, interval_s) == NOON_S + 90 + pause_s


def test_an_instant_is_written_and_read_as_it_is() -> None:
    instant_s = exact_instant_s(1_773_144_000.123_987)
    assert instant_s == 1_773_144_000.123
    assert round(instant_s * 1_000_000) == 1_773_144_000_123_000


def test_the_finest_dependence_counts() -> None:
    assert finest([None, TimeDependence.DATE]) is TimeDependence.DATE
    assert finest([TimeDependence.DATE, None, TimeDependence.MOMENT]) is TimeDependence.MOMENT
    assert finest([None]) is None
