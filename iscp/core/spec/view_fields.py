"""Turn what users give of a materialized view into the job_spec of the job that maintains it, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from iscp.core.spec.spec_fields import flatten, to_spec_json
from iscp.core.values.errors import InvalidRequest

VIEW_KIND = "view"
"""The kind of consumer that maintains a query's result."""

REFRESH_POLICIES = ("auto", "incremental", "strict", "full")
"""The ways in which a view may be refreshed; the first is the default, and is not written into a spec."""

WAITS_FOR_S = 10.0
"""Seconds that a view waits at most for tables that are behind others which it reads, where `waits_for_s` is not given;
then it is refreshed without them, and says that its rows are mixed.
"""

WAITS_FOR_MAX_S = 86_400.0
"""Most seconds for `waits_for_s` of a view; more are refused."""

OPTIONS_FIELD = "spec.iteration.consumer.options"


@dataclass(frozen=True, slots=True)
class ViewFields:
    """A materialized view. `tables` are URIs by the names in the query; the job is registered on the first one.

    With `deletion_vectors` the target may have them. `hold_s` is how long the tables retain what was removed; 0: they
    are left as they are. `waits_for_s` is how long the view waits at most for tables that are behind others; None: as
    long as by default. `run` has the fields of iscp.core.spec.spec_fields.RunFields.
    """

    sql: str
    tables: Mapping[str, str]
    target: str = ""
    refresh: str = ""
    run: Mapping[str, Any] = field(default_factory=dict)
    deletion_vectors: bool = True
    hold_s: float = 0.0
    waits_for_s: float | None = None

    @property
    def table(self) -> str:
        """Return the table on which the job is registered; raise InvalidRequest if there is none."""
        if not self.tables:
            raise InvalidRequest(
                "names no table", field=f"{OPTIONS_FIELD}.tables", remedy="Say where each table of the query is"
            )
        return next(iter(self.tables.values()))

    def spec_json(self) -> str:
        """Return the job_spec. `every` or `cron` alone makes a trigger periodic. Raises InvalidRequest if it is no
        JSON.
        """
        refresh = {} if self.refresh in ("", REFRESH_POLICIES[0]) else {"refresh": self.refresh}
        vectors = {} if self.deletion_vectors else {"deletion_vectors": False}
        hold = {"hold_s": self.hold_s} if self.hold_s else {}
        waits = {} if self.waits_for_s is None else {"waits_for_s": self.waits_for_s}
        options = {"sql": self.sql, "tables": dict(self.tables), **refresh, **vectors, **hold, **waits}
        run = {name: value for name, value in self.run.items() if value is not None}
        if not run.keys().isdisjoint(("every", "cron")):
            run.setdefault("trigger", "periodic")
        return to_spec_json({"consumer": VIEW_KIND, "target": self.target or None, "options": options, **run})


def view_of(spec_json: str) -> ViewFields | None:
    """Return the view of a job, or None if the job maintains something else, or its spec was damaged in the job log."""
    try:
        fields = flatten(spec_json or "{}")
    except (ValueError, RecursionError, AttributeError):
        return None
    options = fields.pop("options", {})
    if fields.pop("consumer", "") != VIEW_KIND or not isinstance(options, dict):
        return None
    tables = options.get("tables")
    return ViewFields(
        sql=str(options.get("sql", "")),
        tables={str(name): str(uri) for name, uri in tables.items()} if isinstance(tables, dict) else {},
        target=str(fields.pop("target", "")),
        refresh=str(options.get("refresh", REFRESH_POLICIES[0])),
        run=fields,
        deletion_vectors=options.get("deletion_vectors", True) is not False,
        hold_s=hold_s if isinstance(hold_s := options.get("hold_s", 0.0), (int, float)) else 0.0,
        waits_for_s=waits_s if isinstance(waits_s := options.get("waits_for_s"), (int, float)) else None,
    )


def shown_tables(tables: Mapping[str, str]) -> str:
    """Return the tables in one line, as in `orders=/lake/orders, items=/lake/items`."""
    return ", ".join(f"{name}={uri}" for name, uri in tables.items())


def view_text(text: str | None) -> str:
    """Return a query as it is stored: without the blanks and semicolons around it."""
    return (text or "").strip().rstrip(";").rstrip()
