"""Paths into answers: what they find, and the error for those that find nothing."""

from __future__ import annotations

from typing import Any

import pytest

from iscp.cli.shell.json_path import parse_path, values_at

ANSWER = [{"name": "a", "status": {"rows": 1}, "odd key": 1}, {"name": "b", "status": {"rows": 2}, "odd key": 2}]


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("[*].name", ["a", "b"]),
        ("{.items[*].name}", ["a", "b"]),
        ("$[0].status.rows", [1]),
        ("[-1].name", ["b"]),
        ("[7].name", []),
        ("name", ["a", "b"]),
        ("[*]['odd key']", [1, 2]),
        ('[0]["odd key"]', [1]),
        ("[0].status[*]", [1]),
    ],
)
def test_a_path_finds_values_in_order(path: str, found: list[Any]) -> None:
    assert values_at(ANSWER, parse_path(path)) == found


@pytest.mark.parametrize("path", ["", "{}", ".a[", ".a[?(@.b)]", "[1:2]", "..a", ".a b"])
def test_what_is_no_path_is_refused_with_an_example(path: str) -> None:
    with pytest.raises(ValueError, match=r"as in \.status\.rows"):
        parse_path(path)


def test_a_field_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(LookupError, match=r"no field 'row'; there are rows"):
        values_at(ANSWER, parse_path("[*].status.row"))
    with pytest.raises(LookupError, match="which has no parts"):
        values_at(ANSWER, parse_path("[0].name.first"))
