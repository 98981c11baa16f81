"""Tables that a job holds are released when it is dropped, or registered again without that, and then alone."""

from __future__ import annotations

from collections.abc import Mapping

from iscp.core.api.api_requests import RegisterRequest, ResyncRequest
from iscp.core.job.source_holds import holder_of
from iscp.core.spec.spec import ConsumerSpec
from iscp.core.values.errors import StorageError
from tests.fakes.desk import OTHER, TABLE, Desk, X, asked, spec
from tests.fakes.pipeline import FakeKind
from tests.fakes.waiting import until

BOTH = [TABLE.uri, OTHER.uri]


class HoldingKind(FakeKind):
    """Holds what its option says."""

    def held(self, spec: ConsumerSpec) -> Mapping[str, float]:
        return dict.fromkeys(spec.options.get("held", ()), 60.0)


def holding(desk: Desk, held: list[str]) -> str:
    """A job that does; how its sources name it."""
    desk.kind = HoldingKind()
    desk.admin.register([RegisterRequest(X, spec(options={"held": held}))])
    until(desk.world.runs)
    return holder_of(desk.row().key)


def test_a_job_that_is_dropped_holds_nothing_any_more(desk: Desk) -> None:
    holder = holding(desk, BOTH)
    for kept in ("pause", "resume"):
        asked(desk, kept, X)
    assert desk.holds.released == []
    assert asked(desk, "unregister", X)
    assert desk.holds.released == [(uri, holder) for uri in sorted(BOTH)]
    asked(desk, "unregister", X)
    assert len(desk.holds.released) == len(BOTH)


def test_a_resync_lets_go_of_what_the_job_holds_no_longer(desk: Desk) -> None:
    holder = holding(desk, BOTH)
    desk.admin.resync(ResyncRequest(X))
    assert desk.holds.released == []
    desk.admin.resync(ResyncRequest(X, spec_json=spec(options={"held": [OTHER.uri]})))
    assert desk.holds.released == [(TABLE.uri, holder)]


def test_a_table_that_cannot_be_reached_keeps_no_job_from_being_dropped(desk: Desk) -> None:
    desk.holds.refusals[OTHER.uri] = StorageError("is not there")
    holder = holding(desk, BOTH)
    assert asked(desk, "unregister", X)
    assert desk.holds.released == [(TABLE.uri, holder)]
