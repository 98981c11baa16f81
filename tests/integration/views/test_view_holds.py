"""A view that holds its tables follows their changes through a VACUUM, and a release leaves them as they were."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from deltalake import DeltaTable

from iscp.model.job.source_holds import holder_of

from .conftest import ViewBench
from .test_view_consumer_events import change

pytestmark = pytest.mark.spark

JOIN = "select t.a, t.b, u.x from t join u on t.a = u.a"
FILES, LOG = "delta.deletedFileRetentionDuration", "delta.logRetentionDuration"
NONE = "interval 0 seconds"


def properties(uri: str) -> dict[str, str]:
    return dict(DeltaTable(uri).metadata().configuration)


def vacuum(view: ViewBench) -> None:
    """As users do, by what the tables say."""
    for uri in view.lake.uris.values():
        view.runtime.new_session().sql(f"VACUUM delta.`{uri}`").collect()


def without_retention(view: ViewBench) -> dict[str, dict[str, str]]:
    """Each table's properties then: nothing that was removed is kept."""
    for uri in view.lake.uris.values():
        DeltaTable(uri).alter.set_table_properties({FILES: NONE, LOG: "interval 1 day"})
    return {uri: properties(uri) for uri in view.lake.uris.values()}


@pytest.mark.parametrize(
    ("hold_s", "strategy"), [(7 * 86_400, "changes"), pytest.param(0, "full", marks=pytest.mark.further)]
)
@pytest.mark.slow
def test_changes_outlive_a_vacuum_only_where_they_are_held(
    new_view: Callable[..., ViewBench], hold_s: int, strategy: str
) -> None:
    view = new_view(JOIN, seed=11, refresh="incremental", hold_s=hold_s)
    before = without_retention(view)
    assert view.run().ok
    for uri, was in before.items():
        assert (properties(uri) == was) is not bool(hold_s)
    assert view.run().ok  # past the versions that the hold itself made
    change(view)
    vacuum(view)
    outcome = view.run()
    assert (outcome.error_msg, outcome.strategy) == ("", strategy)
    assert bool(outcome.warning) is not bool(hold_s)
    view.assert_equal()


def test_a_hold_has_nothing_computed_again_and_is_released_without_a_trace(new_view: Callable[..., ViewBench]) -> None:
    view = new_view(JOIN, seed=11, refresh="incremental", hold_s=86_400)
    before = without_retention(view)
    assert view.run().strategy == "full"
    held = {uri: properties(uri) for uri in before}
    for _ in range(2):
        outcome = view.run()
        assert (outcome.error_msg, outcome.warning) == ("", "")
        assert outcome.strategy != "full"
    assert {uri: properties(uri) for uri in before} == held
    for uri in before:
        assert held[uri][FILES] == "interval 86400 seconds"
        assert held[uri][LOG] == "interval 1 day"
        view.holds.release(uri, holder_of(view.row.key))
    assert {uri: properties(uri) for uri in before} == before
