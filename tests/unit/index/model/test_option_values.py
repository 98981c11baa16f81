"""Values of options are read from texts and from JSON, and nothing else is taken for one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.core.values.errors import InvalidRequest
from iscp.index.model.index_definition import Metric
from iscp.index.model.option_values import OPTION_CHARS_MAX, OptionReader

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda values: st.lists(values, max_size=2) | st.dictionaries(st.text(max_size=3), values, max_size=2),
    max_leaves=4,
)


def reader(value: Any) -> OptionReader:
    return OptionReader("fulltext", {"it": value}, ["it"])


@pytest.mark.parametrize(("value", "number"), [("7", 7), (" +7 ", 7), (7.0, 7), (7, 7), ("-3", -3)])
def test_whole_numbers(value: Any, number: int) -> None:
    assert reader(value).whole_number("it", 1, -5, 10) == number


@pytest.mark.parametrize(("value", "number"), [("0.5", 0.5), (".5", 0.5), ("1e-1", 0.1), (1, 1.0), (0.25, 0.25)])
def test_numbers(value: Any, number: float) -> None:
    assert reader(value).number("it", 1, 0, 1) == number


@pytest.mark.parametrize(
    "value", ["", "x", "1_0", "٣", "0x1", "1e999", "9" * 400, 10**400, float("inf"), None, [], True]
)
def test_what_is_no_number_in_bounds(value: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"no number|not between"):
        reader(value).number("it", 1, 0, 1)
    with pytest.raises(InvalidRequest, match=r"no whole number|not between"):
        reader(value).whole_number("it", 1, 0, 1)


def test_defaults_are_those_of_options_that_are_not_given() -> None:
    nothing = OptionReader("fulltext", {}, ["it"])
    assert not nothing.given("it")
    assert nothing.text("it") == nothing.word("it", ["a"]) == ""
    assert nothing.truth("it", True) is True
    assert nothing.whole_number("it", 3, 1, 5) == 3
    assert nothing.choice("it", Metric.DOT) is Metric.DOT
    assert nothing.names("it") == ()
    assert nothing.text_columns("it") == ()


@given(JSON)
def test_any_value_is_read_or_refused_by_its_path(value: Any) -> None:
    def read(name: str) -> None:
        found = reader(value)
        match name:
            case "text":
                assert found.text("it") == value.strip()
            case "truth":
                assert found.truth("it", False) in (True, False)
            case "whole_number":
                assert 1 <= found.whole_number("it", 1, 1, 9) <= 9
            case "number":
                assert 1 <= found.number("it", 1, 1, 9) <= 9
            case "choice":
                assert found.choice("it", Metric.DOT) == value.strip().lower()
            case "names":
                assert all(found.names("it"))
            case _:
                assert all(each.name and each.boost > 0 for each in found.text_columns("it"))

    for name in ("text", "truth", "whole_number", "number", "choice", "names", "text_columns"):
        error = refusal(read, name)
        assert error is None or (error.field == "spec.iteration.consumer.options.it" and error.remedy)


def refusal(read: Any, name: str) -> InvalidRequest | None:
    try:
        read(name)
    except InvalidRequest as error:
        return error
    return None


def test_names_of_options_are_shown_in_part() -> None:
    with pytest.raises(InvalidRequest) as refused:
        OptionReader("fulltext", {"x\n" * 5_000: 1}, ["it"])
    assert len(refused.value.field) < 200
    assert "\n" not in refused.value.field
    with pytest.raises(InvalidRequest, match="is no option"):
        OptionReader("fulltext", {7: 1}, ["it"])  # type: ignore[dict-item]
    with pytest.raises(InvalidRequest, match="more than 20000"):
        reader("x" * (OPTION_CHARS_MAX + 1))
