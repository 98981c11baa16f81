from __future__ import annotations

import pytest

from iscp.core.api.search_views import SearchRequest
from iscp.core.metrics.index_metrics import SEARCH_DURATION
from iscp.core.values.errors import IscpError
from iscp.runtime.metrics.metered_search import MeteredSearch
from tests.fakes.clock import FakeClock
from tests.fakes.meter import FakeMeter
from tests.fakes.searches import ANSWER, FakeSearches


def test_searches_are_measured_and_failing_ones_by_the_type_of_their_error() -> None:
    meter, searches = FakeMeter(), FakeSearches()
    metered = MeteredSearch(searches, meter, FakeClock())
    assert metered.search(SearchRequest("/lake/index", "fox"), "", lambda: True) == ANSWER
    with pytest.raises(IscpError):
        metered.search(SearchRequest("/lake/elsewhere", "fox"), "", lambda: True)
    assert meter.of(SEARCH_DURATION) == [(0.0, {}), (0.0, {"error.type": "TABLE_NOT_FOUND"})]
    metered.close()
    assert searches.closed
