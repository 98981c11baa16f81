"""What the targets of the kinds of consumers hold, read by nothing that keeps them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from iscp.cli.demo.lake import read
from iscp.consumers.replica.replica_consumer import dead_letter_uri
from iscp.index.search.searched_index import open_whole
from iscp.model.spec.spec import ConsumerSpec
from tests.both_ways.model_lake import Bag
from tests.integration.pipeline.index_expectations import Expectations, assert_as_expected

_COMES = ("insert", "update_postimage")


def assert_holds(consumer: ConsumerSpec, names: Sequence[str], rows: Bag) -> None:
    """Assert that a target has these rows, of columns with these names, and no others."""
    match consumer.kind:
        case "changefeed":
            assert _replayed(consumer.target, names) == rows
        case "fulltext":
            found = [dict(zip(names, row, strict=True)) for row in rows.elements()]
            expected = Expectations(consumer, lambda row: True).of(found, 0)
            assert_as_expected(open_whole(consumer.target), expected, found)
        case _:
            _assert_rows(consumer.target, names, rows)


def assert_left_out(consumer: ConsumerSpec, names: Sequence[str], rows: Bag) -> None:
    """Assert that these rows are beside a target, which leaves them out."""
    letters = dead_letter_uri(consumer.target)
    if rows or Path(letters).is_dir():
        _assert_rows(letters, names, rows)


def _assert_rows(uri: str, names: Sequence[str], rows: Bag) -> None:
    held = read(uri)
    assert sorted(held.column_names) == sorted(names)
    columns = [held[name].to_pylist() for name in names]
    assert Counter(zip(*columns, strict=True)) == rows


def _replayed(uri: str, names: Sequence[str]) -> Bag:
    """Return the rows that are left of a feed's changes; none may go that is not there."""
    held: Bag = Counter()
    for change in sorted(read(uri).to_pylist(), key=lambda each: each["ulid"]):
        row = tuple(change["row"].get(name) for name in names)  # a column comes with the first change that has it
        held[row] += 1 if change["operation"] in _COMES else -1
        assert held[row] >= 0, f"{change['operation']} of {row}, which is not there"
    return +held
