"""Leaves out those of a query's conditions without which it has rows, so that there is something to compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Between, exp.In, exp.Like, exp.Is)
_LOGIC = (exp.And, exp.Or, exp.Paren)
_CLAUSES = (exp.Where, exp.Having, exp.Join)


def loosened(query: exp.Expr, has_rows: Callable[[exp.Expr], bool]) -> exp.Expr:
    """The query without as few of its conditions on constants as it takes; as it is where that does not help."""
    if has_rows(query):
        return query
    places = range(len(_conditions(query)))
    for place in places:
        if has_rows(found := _without(query, [place])):
            return found
    dropped: list[int] = []
    for place in places:
        dropped.append(place)
        if has_rows(_without(query, dropped)):
            break
    else:
        return query
    for place in list(dropped):
        fewer = [each for each in dropped if each != place]
        if has_rows(_without(query, fewer)):
            dropped = fewer
    return _without(query, dropped)


def _without(query: exp.Expr, places: Sequence[int]) -> exp.Expr:
    """A copy in which these conditions always hold."""
    copied = query.copy()
    conditions = _conditions(copied)
    for place in places:
        conditions[place].replace(exp.true())
    return copied


def _conditions(query: exp.Expr) -> list[exp.Expr]:
    """That compare with constants, within WHERE, HAVING and ON; those that join tables are none of them."""
    return [each for each in query.find_all(*_COMPARISONS) if _of_clause(each) and _with_constants(each)]


def _of_clause(condition: exp.Expr) -> bool:
    above = condition.parent
    while isinstance(above, _LOGIC):
        above = above.parent
    return isinstance(above, _CLAUSES)


def _with_constants(condition: exp.Expr) -> bool:
    if condition.find(exp.Select):
        return False
    others = [each for name, each in condition.args.items() if name != "this"]
    return not any(part.find(exp.Column) for each in others for part in (each if isinstance(each, list) else [each])
                   if isinstance(part, exp.Expr))  # fmt: skip
