"""A filter whose outcome for a row changes by itself is refused: the target could not follow it."""

from __future__ import annotations

import pytest

from iscp.adapters.delta.source.delta_catalog import DeltaCatalog, condition_analyzer

from .conftest import Pipeline

pytestmark = pytest.mark.spark


def test_conditions_that_change_by_themselves_and_those_that_do_not(pipeline: Pipeline) -> None:
    source = DeltaCatalog().describe(pipeline.source)
    with pipeline.engine.session() as session:
        analyze = condition_analyzer(session)

        def passes(condition: str) -> bool:
            return analyze(source.schema_json, condition) == ""

        changing = (
            "current_date() > DATE '2020-01-01'",
            "now() > TIMESTAMP '2020-01-01'",
            "localtimestamp() > TIMESTAMP_NTZ '2020-01-01'",
            "unix_timestamp() > id",
            "v = current_user()",
            "v = current_database()",
            "rand() > 0.5",
            "v = uuid()",
        )
        assert [condition for condition in changing if passes(condition)] == []
        steady = ("id > 3", "v IS NULL OR v <> 'gone'", "date_trunc('day', timestamp_micros(id)) > DATE '2020-01-01'")
        assert [condition for condition in steady if not passes(condition)] == []
