"""A materialized view: the result of a query over one or more tables, stored in a Delta table.

It equals its query at exactly the versions of the tables that its last commit names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from iscp.algebra.duck_engine import DUCK_ENGINE, DuckEngine
from iscp.consumers.validation import CONSUMER_PATH, check_target, normalized_target, refuse_reserved
from iscp.consumers.view.view_spec import ViewSpec, read_view_spec
from iscp.model.job.job_row import JobRow
from iscp.model.job.source_holds import unread_property
from iscp.model.query_plan import (
    EXACT_REMEDY,
    OperatorUpkeep,
    QueryExplanation,
    QueryShape,
    explain_operators,
    undecided_reason,
)
from iscp.model.spec.spec import ConsumerSpec
from iscp.model.sql.sql_names import VIEW_STATE_SUFFIX, VIEW_STATE_SUFFIXES
from iscp.model.values.errors import ErrorCode, InvalidRequest, TableNotFound
from iscp.model.values.watermark import Position
from iscp.ports.consumer import ConsumerEnvironment, ConsumerKind, Needs
from iscp.ports.sink import Deleted, DeletionOrder
from iscp.ports.source import Catalog, TableDescription
from iscp.views.refresh.refresh_choice import Policy

if TYPE_CHECKING:
    from iscp.consumers.view.view_check import RangeBuiltView, ViewCheck
    from iscp.views.refresh.view_memory import RecentViews

_SQL, _TABLES = f"{CONSUMER_PATH}.options.sql", f"{CONSUMER_PATH}.options.tables"


class ViewKind(ConsumerKind):
    """The kind `view`. What reads and refreshes queries is imported when a view has something to do."""

    name = "view"
    needs = Needs(compares=False, built_by_spark=True)

    def __init__(self, engine: DuckEngine | None = DUCK_ENGINE) -> None:
        """`engine` computes small changes; None: Spark computes all of them."""
        self._engine = engine

    @cached_property
    def _recent(self) -> RecentViews:
        from iscp.views.refresh.view_memory import RecentViews

        return RecentViews()

    def validate(self, spec: ConsumerSpec, source: TableDescription, catalog: Catalog) -> None:
        from iscp.views.analysis.query_analysis import refuse_columns, refuse_reserved_names

        view = read_view_spec(spec)
        refuse_reserved_names(spec.options["sql"], _SQL)
        tables = _describe(view, catalog)
        target = ""
        for each in (source, *tables.values()):
            target = check_target(spec, each, catalog)
        if source.uri not in {each.uri for each in tables.values()}:
            raise InvalidRequest(
                f"does not have {source.uri}, the table that the view is registered on",
                field=_TABLES,
                remedy="Register the view on the first of its tables",
            )
        if target.endswith(VIEW_STATE_SUFFIXES):
            raise InvalidRequest(
                f"ends in {VIEW_STATE_SUFFIX} or its like, as tables do in which more is kept of a view",
                field=f"{CONSUMER_PATH}.target",
                remedy="Choose another path",
            )
        if view.hold_s:
            _refuse_unread_retention(tables)
        shape = _shape(view, tables, catalog)
        refuse_columns(shape.schema_json, _SQL)
        _refuse_unread(view, shape)
        if view.policy is Policy.STRICT:
            _refuse_whole(shape)
        _refuse_unusable(target, catalog)

    def explain(self, spec: ConsumerSpec, catalog: Catalog) -> QueryExplanation:
        from iscp.consumers.view.view_check import explain_view
        from iscp.views.analysis.query_analysis import refuse_reserved_names

        view = read_view_spec(spec)
        refuse_reserved_names(spec.options["sql"], _SQL)
        tables = _describe(view, catalog)
        shape = _shape(view, tables, catalog)
        uris = {name: each.uri for name, each in tables.items()}
        return explain_view(shape, uris, self.target_of(spec, catalog), catalog)

    def tables(self, spec: ConsumerSpec, catalog: Catalog) -> Mapping[str, str]:
        return {name: catalog.normalize(uri) for name, uri in read_view_spec(spec).query.tables.items()}

    def held(self, spec: ConsumerSpec) -> Mapping[str, float]:
        view = read_view_spec(spec)
        return dict.fromkeys(view.query.tables.values(), view.hold_s) if view.hold_s else {}

    def columns(self, spec: ConsumerSpec, source: Sequence[str]) -> tuple[str, ...]:
        return tuple(source)

    def open(self, row: JobRow, environment: ConsumerEnvironment) -> RangeBuiltView:
        from iscp.consumers.view.view_check import RangeBuiltView
        from iscp.views.refresh.view_memory import ViewMemory

        spec = row.spec.consumer
        view = read_view_spec(spec)
        name = (self.name, row.job_id, view.query.sql)
        memory = environment.keep(name, spec.target, lambda uri: ViewMemory())
        recent = self._recent.of((spec.target, *name))
        return RangeBuiltView(view, row, environment, memory, recent, self._engine)

    def settled_at(self, row: JobRow, environment: ConsumerEnvironment) -> Position | None:
        sink = environment.sink(row.spec.consumer.target)
        position = sink.position(row)
        return None if sink.overtaken or position.void or position.as_of_s else position

    def delete_target(self, order: DeletionOrder, environment: ConsumerEnvironment) -> Deleted:
        target = order.row.spec.consumer.target
        return environment.sink(target).delete(order, [target + suffix for suffix in VIEW_STATE_SUFFIXES])

    def check(self, row: JobRow, environment: ConsumerEnvironment) -> ViewCheck:
        from iscp.consumers.view.view_check import ViewCheck

        spec = row.spec.consumer
        return ViewCheck(read_view_spec(spec), environment.sink(spec.target), environment)


def _describe(view: ViewSpec, catalog: Catalog) -> dict[str, TableDescription]:
    found = {}
    for name, uri in view.query.tables.items():
        try:
            catalog.refuse_links(uri)
            found[name] = catalog.describe(uri)
            refuse_reserved(found[name])
            if found[name].uri != uri:
                raise InvalidRequest(
                    f"is {uri}, which is {found[name].uri}",
                    field=f"{_TABLES}.{name}",
                    remedy=f"Write it as {found[name].uri}",
                )
        except TableNotFound as error:
            raise TableNotFound.from_error(error, field=f"{_TABLES}.{name}") from error
        except InvalidRequest as error:
            raise InvalidRequest.from_error(error, field=f"{_TABLES}.{name}", code=error.code) from error
    return found


def _refuse_unread_retention(tables: Mapping[str, TableDescription]) -> None:
    for name, each in tables.items():
        if unread := unread_property(each.configuration):
            raise InvalidRequest(
                f"the table {name} has {unread}, which is no interval of a fixed length to compare with",
                about=f"{CONSUMER_PATH}.options.hold_s",
                remedy="Set it as in 'interval 7 days', or leave out the hold",
            )


def _shape(view: ViewSpec, tables: Mapping[str, TableDescription], catalog: Catalog) -> QueryShape:
    try:
        return catalog.query_shape(view.query.sql, {name: each.schema_json for name, each in tables.items()})
    except InvalidRequest as error:
        refusal = InvalidRequest.from_error(error, field=_SQL, code=error.code)
        refusal.message += view.query.note
        raise refusal from error


def _refuse_unread(view: ViewSpec, shape: QueryShape) -> None:
    if unread := sorted(set(view.query.tables) - shape.named):
        raise InvalidRequest(
            f"names {', '.join(unread)}, which the query does not read",
            field=_TABLES,
            remedy="Leave it out; or read it in the query",
        )
    if not shape.root.tables():
        raise InvalidRequest("has no rows of any table, whatever is in them", field=_SQL, remedy="Read a table")


def _refuse_whole(shape: QueryShape) -> None:
    if shape.undecided:
        raise InvalidRequest(
            f"is strict, and cannot be kept by what changed: {undecided_reason(shape.undecided)}",
            field=f"{CONSUMER_PATH}.options.refresh",
            remedy=EXACT_REMEDY,
        )
    whole = next((each for each in explain_operators(shape.root) if each.upkeep is OperatorUpkeep.WHOLE), None)
    if whole is not None:
        raise InvalidRequest(
            f"is strict, and {whole.operator} cannot be kept by what changed: {whole.reason}",
            field=f"{CONSUMER_PATH}.options.refresh",
            remedy=whole.remedy or "Choose auto",
        )


def _refuse_unusable(target: str, catalog: Catalog) -> None:
    try:
        there = catalog.describe(normalized_target(target, catalog))
    except TableNotFound:
        return
    fault, remedy = there.target_fault
    if not fault and not there.empty and not there.sink_seq:
        fault, remedy = "is a table with rows that iscp did not write", "Choose a new path, or empty the table"
    if fault:
        raise InvalidRequest(
            f"{target} {fault}", about=f"{CONSUMER_PATH}.target", remedy=remedy, code=ErrorCode.TARGET_UNUSABLE
        )
