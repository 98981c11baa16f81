"""Rows are made once, only when somebody wants them, and are the same in both of their forms."""

from __future__ import annotations

from typing import Any

import pytest

from iscp.ports.source import Rows


class Source:
    """Numbers as a list, which stands for a frame, and as a tuple, which stands for a table; counts what is made."""

    rows: Any

    def __init__(self, *numbers: int, small: bool = True) -> None:
        self.made: list[str] = []
        self.rows = Rows(self._make([*numbers], "frame"), self._make(numbers if small else None, "table"), reread=True)

    def _make(self, rows: Any, form: str) -> Any:
        def make() -> Any:
            self.made.append(form)
            return rows

        return make


def odd(rows: Any) -> Any:
    return type(rows)(each for each in rows if each % 2)


def test_each_form_is_made_once_and_only_when_it_is_wanted() -> None:
    source = Source(1, 2, 3)
    chosen = source.rows.transformed(odd, odd).transformed(odd, odd)
    assert source.made == []
    assert (chosen.table, chosen.table) == ((1, 3), (1, 3))
    assert source.made == ["table"]
    assert (chosen.frame, chosen.frame) == ([1, 3], [1, 3])
    assert source.made == ["table", "frame"]
    assert chosen.reread


@pytest.mark.parametrize("of_table", [None, lambda table: None])
def test_what_only_spark_can_do_leaves_the_frame_alone(of_table: Any) -> None:
    chosen = Source(1, 2, 3).rows.transformed(odd, of_table).transformed(odd, odd)
    assert (chosen.table, chosen.frame) == (None, [1, 3])


def test_a_table_is_not_made_where_only_spark_can_do_the_next_step() -> None:
    source = Source(1, 2)
    assert source.rows.transformed(odd, None).table is None
    assert source.made == []


def test_many_rows_have_no_table() -> None:
    assert Source(1, 2, small=False).rows.transformed(odd, odd).table is None


def test_rows_for_spark_have_no_table_and_are_read_again_as_before() -> None:
    chosen = Source(1, 2).rows.for_spark()
    assert (chosen.table, chosen.frame, chosen.reread) == (None, [1, 2], True)
