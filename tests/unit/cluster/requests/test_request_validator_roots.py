"""Whatever request brings a table or a target in, it is held to the roots of the job's account before it is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pytest

from iscp.engine.account_turns import PlaceGuard
from iscp.model.access.authorization import AccountRoots
from iscp.model.api.api_requests import ExplainRequest, JobName, RegisterRequest, ResyncRequest, UpdateRequest
from iscp.model.query_plan import QueryExplanation
from iscp.model.spec.spec import ConsumerSpec
from iscp.model.values.errors import ErrorCode, InvalidRequest
from iscp.ports.source import Catalog, TableDescription
from tests.fakes.desk import Desk, asked
from tests.fakes.pipeline import FakeKind

OWN = TableDescription("t-own", "orders", "/acme/orders", 7, 1.0, {"id": "long"})
MORE = TableDescription("t-more", "items", "/acme/items", 7, 1.0, {"id": "long"})
THEIRS = TableDescription("t-theirs", "orders", "/b/orders", 7, 1.0, {"id": "long"})
NONE = "/b/none"
TARGET, TABLES = "spec.iteration.consumer.target", "spec.iteration.consumer.options.tables"


class SeveralTables(FakeKind):
    """Reads the tables of its options, and targets are as they are written, as consumers of others have it."""

    def tables(self, spec: ConsumerSpec, catalog: Catalog) -> Mapping[str, str]:
        return dict(spec.options.get("tables", {"own": OWN.uri}))

    def target_of(self, spec: ConsumerSpec, catalog: Catalog) -> str:
        return spec.target

    def explain(self, spec: ConsumerSpec, catalog: Catalog) -> QueryExplanation:
        for uri in self.tables(spec, catalog).values():
            catalog.describe(uri)
        return QueryExplanation(())


@pytest.fixture
def by_account() -> dict[str, tuple[str, ...]]:
    return {"acme": ("/acme",)}


@pytest.fixture
def desk(by_account: dict[str, tuple[str, ...]]) -> Iterator[Desk]:
    roots = AccountRoots(by_account, "system")
    made = Desk(PlaceGuard(roots, lambda place: (place,), lambda root: root))
    made.kind = SeveralTables()
    made.catalog.tables = {each.uri: each for each in (OWN, MORE, THEIRS)}
    made.world.lead()
    yield made
    made.moved.close()
    made.world.close()


def spec(target: str = "/acme/x", **tables: str) -> str:
    options = {"options": {"tables": {"own": OWN.uri, **tables}}}
    return json.dumps({"iteration": {"consumer": {"kind": "replica", "target": target, **options}}})


def job(table: str = OWN.uri, name: str = "j", account: str = "acme") -> JobName:
    return JobName(table, name, account)


def refusal(call: Callable[[], object], root: str = "/acme") -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        call()
    assert refused.value.code is ErrorCode.OUTSIDE_ROOTS
    assert refused.value.remedy == f"Choose a place below {root}"
    return refused.value


@pytest.mark.parametrize("elsewhere", [THEIRS.uri, NONE, "/acme", "/acmeb/orders"])
def test_what_is_registered_is_held_by_its_field_whether_or_not_it_is_there(desk: Desk, elsewhere: str) -> None:
    for table, spec_json, field in (
        (elsewhere, spec(), "table"),
        (OWN.uri, spec(elsewhere), TARGET),
        (OWN.uri, spec(more=elsewhere), f"{TABLES}.more"),
    ):
        wanted = RegisterRequest(job(table), spec_json)
        error = refusal(lambda wanted=wanted: desk.admin.register([wanted]))  # type: ignore[misc]
        assert (error.field, error.message.split()[0]) == (field, elsewhere)
        (checked,) = desk.admin.check([wanted])
        assert str(checked.error) == str(error)
    assert desk.rows() == 0


def test_one_that_is_refused_refuses_all_and_says_which(desk: Desk) -> None:
    wanted = [RegisterRequest(job(), spec()), RegisterRequest(job(name="k"), spec(THEIRS.uri))]
    assert refusal(lambda: desk.admin.register(wanted)).field == f"requests[1].{TARGET}"
    assert desk.rows() == 0


def test_a_job_within_the_roots_goes_its_way(desk: Desk) -> None:
    assert desk.admin.register([RegisterRequest(job(), spec(more=MORE.uri))])[0].created
    assert not desk.admin.register([RegisterRequest(job(), spec(more=MORE.uri))])[0].created
    desk.admin.update([UpdateRequest(job(), '{"target_lag": 60}')])
    assert desk.admin.resync(ResyncRequest(job())).job_id


def test_a_resync_does_not_lead_elsewhere(desk: Desk) -> None:
    desk.admin.register([RegisterRequest(job(), spec())])
    assert refusal(lambda: desk.admin.resync(ResyncRequest(job(), THEIRS.uri))).field == "table"
    assert refusal(lambda: desk.admin.resync(ResyncRequest(job(), NONE))).field == "table"
    for changed, field in ((spec(THEIRS.uri), TARGET), (spec(more=THEIRS.uri), f"{TABLES}.more")):
        assert refusal(lambda changed=changed: desk.admin.resync(ResyncRequest(job(), "", changed))).field == field  # type: ignore[misc]


def test_a_query_is_not_explained_over_tables_elsewhere(desk: Desk) -> None:
    assert desk.admin.explain(ExplainRequest(job("", ""), spec(more=MORE.uri))) == QueryExplanation(())
    for uri in (THEIRS.uri, NONE):
        request = ExplainRequest(job("", ""), spec(more=uri))
        refusal(lambda request=request: desk.admin.explain(request))  # type: ignore[misc]


def test_of_an_account_without_roots_nothing_passes_but_of_the_cluster_wide_one(desk: Desk) -> None:
    wanted = RegisterRequest(job(account="b"), spec())
    with pytest.raises(InvalidRequest, match=r"accounts\.b\.roots") as refused:
        desk.admin.register([wanted])
    assert refused.value.code is ErrorCode.OUTSIDE_ROOTS
    wanted = RegisterRequest(job(THEIRS.uri, account="system"), spec("/anywhere", own=THEIRS.uri))
    assert desk.admin.register([replace(wanted, request_id="r")])[0].created


def test_a_job_that_other_roots_leave_outside_can_be_ended_and_nothing_else(
    desk: Desk, by_account: dict[str, tuple[str, ...]]
) -> None:
    wanted = RegisterRequest(job(), spec())
    desk.admin.register([wanted])
    by_account["acme"] = ("/acme/other",)
    calls: tuple[Callable[[], object], ...] = (
        lambda: desk.admin.register([wanted]),
        lambda: desk.admin.resync(ResyncRequest(job())),
        lambda: desk.admin.explain(ExplainRequest(job())),
        lambda: asked(desk, "resync", job()),
    )
    for call in calls:
        assert refusal(call, "/acme/other").message
    (updated,) = desk.admin.update([UpdateRequest(job(), '{"target_lag": 60}')])
    assert isinstance(updated, InvalidRequest)
    assert updated.code is ErrorCode.OUTSIDE_ROOTS
    assert asked(desk, "pause", job())
    assert asked(desk, "unregister", job())
