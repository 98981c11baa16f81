"""How a query is kept is answered by the kind that would keep it, of jobs that are there and of specs."""

from __future__ import annotations

import json

import pytest

from iscp.model.api.api_requests import ExplainRequest, JobName
from iscp.model.query_plan import ExplainedOperator, OperatorUpkeep, QueryExplanation
from iscp.model.spec.spec import ConsumerSpec
from iscp.model.values.errors import InvalidRequest, JobNotFound
from iscp.ports.source import Catalog
from tests.fakes.desk import Desk, X, request
from tests.fakes.pipeline import FakeKind


class ExplainingKind(FakeKind):
    """Names the query as its one operator, and refuses to be without one."""

    def explain(self, spec: ConsumerSpec, catalog: Catalog) -> QueryExplanation:
        if not spec.options.get("sql"):
            raise InvalidRequest("is missing", field="spec.iteration.consumer.options.sql", remedy="Give a query")
        return QueryExplanation((ExplainedOperator(0, str(spec.options["sql"]), OperatorUpkeep.LINEAR),))


def spec(**options: str) -> str:
    return json.dumps({"iteration": {"consumer": {"kind": "replica", "target": "/targets/v", "options": options}}})


def test_a_query_is_explained_without_a_job(desk: Desk) -> None:
    desk.kind = ExplainingKind()
    explained = desk.admin.explain(ExplainRequest(JobName("", ""), spec(sql="SELECT 1")))
    assert explained.operators[0].operator == "SELECT 1"
    assert desk.kind.validated == []


def test_a_job_is_explained_by_its_own_spec(desk: Desk) -> None:
    desk.kind = ExplainingKind()
    job = request("x")
    desk.admin.register([type(job)(job.job, spec(sql="SELECT 2"))])
    assert desk.admin.explain(ExplainRequest(X)).operators[0].operator == "SELECT 2"
    with pytest.raises(JobNotFound):
        desk.admin.explain(ExplainRequest(JobName(X.table, "none")))


def test_what_cannot_be_kept_is_refused_with_its_field(desk: Desk) -> None:
    desk.kind = ExplainingKind()
    with pytest.raises(InvalidRequest) as refused:
        desk.admin.explain(ExplainRequest(X, spec()))
    assert refused.value.field == "spec.iteration.consumer.options.sql"


def test_a_consumer_that_keeps_no_query_has_nothing_to_explain(desk: Desk) -> None:
    desk.admin.register([request("x")])
    with pytest.raises(InvalidRequest, match="replica keeps no query") as refused:
        desk.admin.explain(ExplainRequest(X))
    assert refused.value.remedy
