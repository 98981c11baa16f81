"""Explanations survive encoding and decoding, and what a newer node says is not guessed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.adapters.grpc.codec.query_messages import explanation_from_wire, explanation_to_wire
from iscp.core.query.query_explanation import ChangeCost, ExplainedOperator, KeptTable, OperatorUpkeep, QueryExplanation
from iscp.core.values.errors import PermanentError
from iscp.core.values.progress import TableSize
from iscp.wire.v1 import admin_pb2 as pb

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.integers(-1, 2**62)
OPERATORS = st.builds(
    ExplainedOperator,
    depth=st.integers(0, 2**31 - 1),
    operator=TEXT,
    upkeep=st.sampled_from(OperatorUpkeep),
    state=TEXT,
    reason=TEXT,
    remedy=TEXT,
    costs=st.lists(st.builds(ChangeCost, table=TEXT, changed=NUMBERS, read=NUMBERS), max_size=3).map(tuple),
)
SIZES = st.builds(TableSize, rows=NUMBERS, bytes=st.integers(0, 2**62))
TABLES = st.dictionaries(TEXT, st.tuples(TEXT, st.none() | SIZES), max_size=4)


def with_tables(explained: QueryExplanation, tables: dict[str, tuple[str, TableSize | None]]) -> QueryExplanation:
    """Sizes are those of tables, and of some of them alone."""
    sizes = {name: size for name, (_, size) in tables.items() if size is not None}
    return replace(explained, tables={name: uri for name, (uri, _) in tables.items()}, sizes=sizes)


EXPLANATIONS = st.builds(
    QueryExplanation,
    kept=st.lists(st.builds(KeptTable, uri=TEXT, holds=TEXT, size=SIZES), max_size=2).map(tuple),
    operators=st.lists(OPERATORS, max_size=4).map(tuple),
    columns=st.dictionaries(TEXT, TEXT, max_size=4),
    notes=st.lists(TEXT, max_size=3).map(tuple),
)


@given(EXPLANATIONS, TABLES)
def test_explanations_survive_with_their_order(
    explained: QueryExplanation, tables: dict[str, tuple[str, TableSize | None]]
) -> None:
    explained = with_tables(explained, tables)
    back = explanation_from_wire(explanation_to_wire(explained))
    assert back == explained
    assert [*back.columns.items(), *back.tables.items()] == [*explained.columns.items(), *explained.tables.items()]


def test_an_upkeep_of_a_newer_version_is_refused() -> None:
    newer = pb.QueryExplanation(operators=[pb.ExplainedOperator.FromString(b"\x18\x63")])  # upkeep = 99
    with pytest.raises(PermanentError, match="as new as the node"):
        explanation_from_wire(newer)
