"""Checks what every kind of consumer requires of a spec's key, columns and filter."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from iscp.model.job.start_rule import TargetLog
from iscp.model.spec.spec import ConsumerSpec
from iscp.model.sql.sql_names import refuse_unbounded, reserved_names, too_deep
from iscp.model.values.errors import ErrorCode, InvalidRequest, PermanentError
from iscp.model.values.untrusted_values import first_line, refuse_missing_parent, shown
from iscp.model.values.watermark import chosen_collated
from iscp.ports.source import Catalog, TableDescription
from iscp.system.late_imports import exp, sqlglot

CONSUMER_PATH = "spec.iteration.consumer"
_BARE_DATE = re.compile(r"\d{4} - (0?[1-9]|1[0-2]) - (0?[1-9]|[12]\d|3[01])")
_LOGGED = {TargetLog.DELTA: "table", TargetLog.LANCE: "index"}
VOID = "void"
"""The type of columns without values, which Delta reads and stores nowhere."""


def check_target(
    spec: ConsumerSpec, source: TableDescription, catalog: Catalog, log: TargetLog = TargetLog.DELTA
) -> str:
    """Return the one spelling of a target that is to have a log of this kind: a table, or an index.

    Raises InvalidRequest if it cannot have one.
    """
    if not spec.target:
        raise InvalidRequest("is missing", field=f"{CONSUMER_PATH}.target", remedy="Give the path or URI of the target")
    field = f"{CONSUMER_PATH}.target"
    if "://" not in spec.target and not spec.target.startswith(("/", "file:/")):
        raise InvalidRequest(
            f"is {shown(spec.target)}, which is not absolute",
            field=field,
            remedy="Give an absolute path, or a URI",
        )
    target = normalized_target(spec.target, catalog)
    if target == source.uri or target.startswith(source.uri + "/") or source.uri.startswith(target + "/"):
        raise InvalidRequest(
            "is the source, or lies within it", field=f"{CONSUMER_PATH}.target", remedy="Choose another path"
        )
    _refuse_other_log(target, catalog, log)
    if there := catalog.table_around(target):
        what = _LOGGED[TargetLog.LANCE if TargetLog.LANCE in catalog.logs_at(there) else TargetLog.DELTA]
        raise InvalidRequest(
            f"lies within the directory of the {what} {there}, or around it: cleaning the one would delete files of "
            "the other",
            field=f"{CONSUMER_PATH}.target",
            remedy="Choose a path beside it",
        )
    refuse_missing_parent(catalog.missing_parent(target), field)
    return target


def _refuse_other_log(target: str, catalog: Catalog, log: TargetLog) -> None:
    """Raise InvalidRequest where something else lies than what is to be there: both would write into one directory."""
    if other := catalog.logs_at(target) - {log}:
        raise InvalidRequest(
            f"{target} is {_article(min(other))}, not {_article(log)}",
            about=f"{CONSUMER_PATH}.target",
            remedy="Choose a new path",
            code=ErrorCode.TARGET_UNUSABLE,
        )


def _article(log: TargetLog) -> str:
    return f"an {_LOGGED[log]}" if log is TargetLog.LANCE else f"a {_LOGGED[log]}"


def refuse_reserved(source: TableDescription, *more: str, field: str = "table") -> None:
    """Raise InvalidRequest if a table has columns of names that rows are given while they are read.

    `more` are names besides those that no job's table may have.
    """
    if reserved := reserved_names(source.columns, *more):
        raise InvalidRequest(
            f"{source.name} has {', '.join(reserved)}, which rows are given themselves while they are read",
            about=field,
            remedy="Rename it in the table, or read a copy of the table that has another name for it",
            code=ErrorCode.TABLE_UNREADABLE,
        )


def refuse_lately_reserved(columns: Sequence[str], name: str) -> None:
    """Raise PermanentError if a column of that name has come to a source that a job follows."""
    if any(each.lower() == name for each in columns):
        raise PermanentError(
            f"the source has {name} now, which rows are given themselves while they are read",
            remedy="Have it renamed or dropped, then resume the job",
            code=ErrorCode.SCHEMA_CHANGED,
        )


def normalized_target(target: str, catalog: Catalog) -> str:
    """Return the one spelling of a place for a table. Raises InvalidRequest."""
    try:
        return catalog.normalize(target)
    except InvalidRequest as error:
        field = f"{CONSUMER_PATH}.target"
        raise InvalidRequest.from_error(error, field=field, code=error.code) from error


def check_columns(spec: ConsumerSpec, source: TableDescription, catalog: Catalog) -> None:
    """Raise InvalidRequest if the source lacks what the spec names, or the filter is none."""
    refuse_reserved(source)
    for name in ("key", "columns"):
        _refuse_unknown(getattr(spec, name), source, f"{CONSUMER_PATH}.{name}")
        _refuse_doubled(getattr(spec, name), f"{CONSUMER_PATH}.{name}")
    chosen = {name.lower() for name in spec.columns}
    if collated := chosen_collated(source.collated, spec.columns):
        raise InvalidRequest(
            f"would keep {', '.join(collated)}, whose texts have a collation, with which Delta writes no table here",
            field=f"{CONSUMER_PATH}.columns",
            remedy="Name the columns to keep, without it",
        )
    missing = [name for name in spec.key if chosen and name.lower() not in chosen]
    if missing:
        raise InvalidRequest(
            f"leaves out the key column {', '.join(missing)}",
            field=f"{CONSUMER_PATH}.columns",
            remedy="Add the key's columns",
        )
    if spec.where:
        _refuse_unknown(where_columns(spec.where), source, f"{CONSUMER_PATH}.where")
        _refuse_bare_date(spec.where)
        _refuse_by_engine(spec.where, source, catalog)


def _refuse_by_engine(where: str, source: TableDescription, catalog: Catalog) -> None:
    """Raise InvalidRequest if Spark does not take the filter.

    sqlglot knows neither the functions nor the types that Spark has, and may read a text in another way.
    """
    field = f"{CONSUMER_PATH}.where"
    try:
        fault = catalog.condition_fault(where, source)
    except InvalidRequest as error:
        raise InvalidRequest.from_error(error, field=field, code=error.code) from error
    if fault:
        raise InvalidRequest(
            f"is not a condition that Spark takes: {fault}",
            field=field,
            remedy="Write what holds or does not for a row, as after WHERE",
        )


def require_present(named: Mapping[str, Sequence[str]], source: Sequence[str]) -> dict[str, str]:
    """Return the source's columns by their names in lower case.

    Raises PermanentError if some that a field of the spec has named are gone.
    """
    by_name = {name.lower(): name for name in source}
    for field, names in named.items():
        if lost := [name for name in names if name.lower() not in by_name]:
            raise PermanentError(
                f"the source has no column {', '.join(lost)} any more",
                about=f"{CONSUMER_PATH}.{field}",
                remedy="Bring it back and resume the job; or `iscp-admin job resync` it with a spec that does without",
                code=ErrorCode.SCHEMA_CHANGED,
            )
    return by_name


def wanted_columns(spec: ConsumerSpec, source: Sequence[str]) -> tuple[str, ...]:
    """Return the source columns that have to be read; raises PermanentError if some that the spec names are gone."""
    named = {"key": spec.key, "columns": spec.columns, "where": where_columns(spec.where)}
    by_name = require_present(named, source)
    if not spec.columns:
        return tuple(source)
    return tuple(dict.fromkeys(by_name[name.lower()] for name in (*spec.columns, *named["where"])))


def _refuse_unknown(names: Sequence[str], source: TableDescription, field: str) -> None:
    """Raise InvalidRequest if the source lacks one of the columns, or one is of the type void.

    Names count without regard to case, as Spark has it.
    """
    known = {name.lower(): kind for name, kind in source.columns.items()}
    unknown = [name for name in names if name.lower() not in known]
    if unknown:
        raise InvalidRequest(
            f"names {', '.join(unknown)}, which {source.name} does not have",
            field=field,
            remedy=f"Its columns are {', '.join(source.columns)}",
        )
    if void := [name for name in names if known[name.lower()] == VOID]:
        raise InvalidRequest(
            f"names {', '.join(void)}, a column of the type {VOID}, which Delta reads and keeps nowhere",
            field=field,
            remedy="Leave it out, or have the source give it a type",
        )


def _refuse_doubled(names: Sequence[str], field: str) -> None:
    if len({name.lower() for name in names}) < len(names):
        raise InvalidRequest(
            "names a column twice, but for upper and lower case", field=field, remedy="Name each column once"
        )


def _refuse_bare_date(where: str) -> None:
    """Raise InvalidRequest if the filter has a date without quotes.

    2020-01-01 without quotes is 2018, and a condition with it may hold for no row, or for all.
    """
    for difference in sqlglot.parse_one(where, dialect="spark", into=exp.Condition).find_all(exp.Sub):
        if not isinstance(difference.left.this, exp.Literal):
            continue  # of something longer, whose text would be written out once for each of its parts
        if _BARE_DATE.fullmatch(difference.sql()) and not isinstance(difference.parent, exp.Paren):
            date = difference.sql().replace(" ", "")
            raise InvalidRequest(
                f"has {date} without quotes, which is a difference of numbers",
                field=f"{CONSUMER_PATH}.where",
                remedy=f"Write DATE '{date}'; or put the difference in parentheses",
            )


@lru_cache(maxsize=4096)
def where_columns(where: str) -> tuple[str, ...]:
    """Return the columns that a filter names (empty: there is none).

    Raises InvalidRequest if it is not one SQL condition.
    """
    if not where:
        return ()
    from iscp.algebra.row_conditions import columns_named  # most jobs have no condition

    if (named := columns_named(where)) is not None:
        return named  # without the parser of all of SQL, whose import takes longer than a small iteration
    refuse_unbounded(where, f"{CONSUMER_PATH}.where")
    try:
        condition = sqlglot.parse_one(where, dialect="spark", into=exp.Condition)
    except RecursionError as error:
        raise too_deep(f"{CONSUMER_PATH}.where") from error
    except sqlglot.errors.SqlglotError as error:
        raise InvalidRequest(
            f"is not a SQL condition: {first_line(error)}",
            field=f"{CONSUMER_PATH}.where",
            remedy="Write it as after WHERE",
        ) from error
    if condition.find(exp.Query, exp.AggFunc, exp.Window):
        raise InvalidRequest(
            "has a subquery, an aggregate or a window",
            field=f"{CONSUMER_PATH}.where",
            remedy="Use only conditions on the row's own columns",
        )
    # The column of a field in a struct is the first part.
    return tuple(column.parts[0].name for column in condition.find_all(exp.Column))


def unwritable_name(names: Sequence[str]) -> str:
    """Return a name that a table without mapped names cannot have (Delta's own rule), or an empty text."""
    return next((name for name in names if any(sign in name for sign in " ,;{}()\n\t=")), "")
