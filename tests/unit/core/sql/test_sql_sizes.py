"""No call in users' SQL makes more than it may, whichever number says how much, and what is small enough passes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.core.sql.sql_sizes import SIZE_MAX, Constant, size_fault

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
