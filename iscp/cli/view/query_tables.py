"""Find the tables that a query reads, by the names that it gives them; parsed here, judged by the node alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from iscp.cli.view.sql_tokens import SqlSource
from iscp.core.values.untrusted_values import error_text

if TYPE_CHECKING:
    from sqlglot.expressions import Expr


def tables_read(query: SqlSource) -> tuple[str, ...]:
    """Return the tables in the order of the text, each once (`db.orders`, without quotes); not the names that the query
    itself defines.

    Raises InvalidRequest, with the place, for what is no query.
    """
    tree = _parse(query)
    found: dict[str, str] = {}
    for _, name in sorted(_names(tree)):
        found.setdefault(name.casefold(), name)
    return tuple(found.values())


def _parse(query: SqlSource) -> Expr:
    # Here, as its import takes longer than the start of the program may.
    from sqlglot import parse
    from sqlglot.errors import ParseError, SqlglotError
    from sqlglot.expressions import Query

    logging.getLogger("sqlglot").setLevel(logging.CRITICAL)  # what it says of SQL it does not know goes on stderr
    remedy = "Correct the query: one SELECT, as Spark takes it"
    try:
        trees = parse(query.text, dialect="spark")
    except ParseError as error:
        first = error.errors[0] if error.errors else {}
        line, column = int(first.get("line") or 1), int(first.get("col") or 1)
        offset = sum(len(each) + 1 for each in query.text.split("\n")[: line - 1]) + max(column - 1, 0)
        reason = str(first.get("description") or "is not SQL")
        raise query.fault(min(offset, len(query.text)), f"is not SQL: {reason}", remedy) from error
    except (SqlglotError, RecursionError, ValueError) as error:
        raise query.fault(0, f"is not SQL: {error_text(error)}", remedy) from error
    if len(trees) != 1 or not isinstance(trees[0], Query):
        raise query.fault(0, "is not a query", remedy)
    return trees[0]


def _names(tree: Expr) -> Iterator[tuple[int, str]]:
    """Yield each name with its offset. A name that is called like a function is no table."""
    from sqlglot.expressions import CTE, Identifier, Table

    for table in tree.find_all(Table):
        parts = [part for part in table.parts if isinstance(part, Identifier)]
        name = ".".join(part.name for part in parts)
        if len(parts) == len(table.parts) and not (len(parts) == 1 and _is_defined(table, name, CTE)):
            yield int(parts[0].meta.get("start", 0)), name


def _is_defined(table: Expr, name: str, kind: type[Expr]) -> bool:
    """Return whether a WITH of a query around it defines it; later parts of a WITH know the earlier ones."""
    inside: Expr = table
    around = table.parent
    while around is not None:
        with_ = around.args.get("with_") or around.args.get("with")
        defined = [] if with_ is None or with_ is inside else with_.expressions
        if around.key == "with":
            defined = around.expressions[: around.expressions.index(inside)]
        if any(isinstance(each, kind) and each.alias.casefold() == name.casefold() for each in defined):
            return True
        inside, around = around, around.parent
    return False
