"""The options of a view: its query, the tables that it names, and how it is refreshed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from iscp.consumers.validation import CONSUMER_PATH
from iscp.model.job.source_holds import HOLD_MAX_S
from iscp.model.query_plan import NamedQuery
from iscp.model.spec.spec import ConsumerSpec
from iscp.model.spec.spec_parsing import WAITS_FOR_MAX_S, WAITS_FOR_S
from iscp.model.sql.sql_names import refuse_unbounded
from iscp.model.values.errors import InvalidRequest
from iscp.model.values.untrusted_values import exact_float, shown
from iscp.views.refresh.refresh_choice import Policy

_OPTIONS = f"{CONSUMER_PATH}.options"
_PART = r"\w(?:[\w-]{0,126}\w)?"
_NAME = re.compile(rf"{_PART}(?:\.{_PART}){{0,2}}")
_NAMES = frozenset({"sql", "tables", "refresh", "deletion_vectors", "hold_s", "waits_for_s"})
TABLES_MAX = 64
"""Tables that one view may read; more are refused."""


@dataclass(frozen=True, slots=True)
class ViewSpec:
    """The options of a view. With `deletion_vectors` the target may have them. `hold_s` is that of `source_holds`; 0:
    the tables are left as they are. `waits_for_s`: how long it waits at most for tables that are behind others of it.
    """

    query: NamedQuery
    policy: Policy
    deletion_vectors: bool = True
    hold_s: float = 0.0
    waits_for_s: float = WAITS_FOR_S


def read_view_spec(spec: ConsumerSpec) -> ViewSpec:
    """Read the options of a view; raise InvalidRequest with the field's path."""
    for name in ("key", "columns", "where"):
        if getattr(spec, name):
            raise InvalidRequest(
                "is given, and a view has it in its query", field=f"{CONSUMER_PATH}.{name}", remedy="Leave it out"
            )
    if unknown := sorted(set(spec.options) - _NAMES):
        raise InvalidRequest(
            f"has unknown names: {', '.join(unknown)}",
            field=_OPTIONS,
            remedy="A view takes sql, tables, refresh, deletion_vectors, hold_s and waits_for_s",
        )
    tables, policy = _tables(spec.options.get("tables")), _policy(spec.options.get("refresh", "auto"))
    vectors = _yes_or_no(spec.options.get("deletion_vectors", True), f"{_OPTIONS}.deletion_vectors")
    hold_s, waits_for_s = (
        _hold_s(spec.options.get("hold_s", 0)),
        _waits_for_s(spec.options.get("waits_for_s", WAITS_FOR_S)),
    )
    try:
        given = _sql(spec.options.get("sql"))
        sql = _without_qualify(given)
        note = "" if sql == given else f" (in the query as it is rewritten without QUALIFY: {shown(sql)})"
        return ViewSpec(NamedQuery(sql, tables, note), policy, vectors, hold_s, waits_for_s)
    except InvalidRequest as error:
        field = f"{_OPTIONS}.sql" if error.field == "sql" else error.field
        raise InvalidRequest.from_error(error, field=field) from error


def _without_qualify(sql: str) -> str:
    if "qualify" not in sql.lower():
        return sql
    from iscp.views.analysis.column_lineage import without_qualify  # its parser is loaded for those that need it

    return without_qualify(sql)


def _yes_or_no(value: Any, field: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(f"is {shown(value)}: must be true or false", field=field)
    return value


def _hold_s(value: Any) -> float:
    remedy = "Give how long the tables are to keep what was removed, as in --hold 7d; or leave it out"
    return _seconds("hold_s", value, HOLD_MAX_S, "30 days", remedy)


def _waits_for_s(value: Any) -> float:
    remedy = "Give how long the view may wait for tables that are behind, as in --waits-for 10s; or leave it out"
    return _seconds("waits_for_s", value, WAITS_FOR_MAX_S, "one day", remedy)


def _seconds(name: str, value: Any, most: float, called: str, remedy: str) -> float:
    try:
        return exact_float(value, name, 0.0, most)
    except ValueError as error:
        wrong = f"is {shown(value)}: must be seconds, at most {most:.0f} ({called})"
        raise InvalidRequest(wrong, field=f"{_OPTIONS}.{name}", remedy=remedy) from error


def _sql(value: Any) -> str:
    field = f"{_OPTIONS}.sql"
    if not isinstance(value, str) or not value.replace(";", "").strip():
        raise InvalidRequest(f"is {shown(value)}: must be a query", field=field, remedy="Write it as SELECT …")
    refuse_unbounded(value, field)
    return value.strip().rstrip(";")


def _tables(value: Any) -> Mapping[str, str]:
    field = f"{_OPTIONS}.tables"
    if not isinstance(value, Mapping) or not value:
        raise InvalidRequest(
            f"is {shown(value)}: must be the tables by their names in the query",
            field=field,
            remedy='Write it as in {"orders": "/lake/orders"} (`--table orders=/lake/orders`)',
        )
    if len(value) > TABLES_MAX:
        raise InvalidRequest(f"has {len(value)} tables, more than {TABLES_MAX}", field=field)
    for name, uri in value.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidRequest(
                f"has the name {shown(name)}: must be one to three parts of letters, digits, _ and -",
                field=field,
                remedy="Write it without quotes, with dots between its parts, as in lake.sales.orders",
            )
        if not isinstance(uri, str) or not uri:
            raise InvalidRequest(f"has {shown(uri)} for {name}: must be a path or a URI", field=f"{field}.{name}")
    if len({name.lower() for name in value}) < len(value):
        raise InvalidRequest("has a name twice, but for upper and lower case", field=field, remedy="Name each once")
    return value


def _policy(value: Any) -> Policy:
    if not isinstance(value, str) or value not in set(Policy):
        raise InvalidRequest(
            f"is {shown(value)}, which is not known here",
            field=f"{_OPTIONS}.refresh",
            remedy=f"Use one of {', '.join(Policy)}",
        )
    return Policy(value)
