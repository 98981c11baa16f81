"""Write down a refresh without Spark, for people to read: its statements, and the lookups between them."""

from __future__ import annotations

from collections.abc import Iterator

from iscp.core.algebra.algebra import Rel
from iscp.core.algebra.change_plan import ChangePlan
from iscp.core.algebra.duck_text import leaf_name, translate
from iscp.core.algebra.key_reduction import UnplannedError
from iscp.core.algebra.lookup_plan import ComputedStep, LookupPlan, LookupStep, WholeTableError
from iscp.core.sql.sql_names import WEIGHT

STATEMENT_CHARS_SHOWN = 20_000
"""Characters of one statement that are shown; a longer one is cut."""


def statements_of(root: Rel) -> tuple[str, ...]:
    """Return for each table of a query what a refresh runs when that table alone has changed, and is large.

    Rows are looked up by keys where that is possible; otherwise the tables are read whole, which is done of small ones.
    """
    names = sorted({each.name for each in root.tables()})
    return tuple(f"-- {name} has changed\n" + "\n".join(_statements(root, name)) for name in names)


def _statements(root: Rel, changed: str) -> Iterator[str]:
    names = {each.name for each in root.tables()}
    for large in (names, set[str]()):
        plan = ChangePlan(root, [changed])
        lookups = LookupPlan(plan.ids, large)
        try:
            found = [(what, lookups.over_lookups(rows)) for what, rows in _results(plan)]
        except WholeTableError:
            continue
        except UnplannedError as error:
            yield f"-- computed by Spark: {error}"
            return
        yield from map(_step, lookups.steps)
        for what, rows in found:
            yield f"-- {what}\n{_text(rows)}"
        return


def _results(plan: ChangePlan) -> Iterator[tuple[str, Rel]]:
    summed = plan.summed_rows()
    if summed is not None:
        yield f'what changed rows add to groups, as "{leaf_name(summed.moved[1])}"', summed.moved[0]
        yield f'these groups as they are now, as "{leaf_name(summed.now[1])}"', summed.now[0]
    touched = plan.keyed_rows() if summed is None else summed.touched
    if touched is not None:
        yield "the keys of which all rows are replaced", touched.keys
        yield "by these rows", touched.rows
        return
    net = plan.net_rows()
    if net is not None:
        yield f"the rows that come and go, with how many of each as {WEIGHT}", net


def _step(step: ComputedStep | LookupStep) -> str:
    if isinstance(step, ComputedStep):
        return f'-- as "{leaf_name(step.into)}"\n{_text(step.rows, [each.name for each in step.into.fields])}'
    by = ", ".join(own for own, _ in step.pairs)
    source, keys = leaf_name(step.source), leaf_name(step.keys)
    return f'-- the rows of "{source}" whose {by} are in "{keys}" are looked up as "{leaf_name(step.into)}"'


def _text(rows: Rel, names: list[str] | None = None) -> str:
    translation = translate(rows, names)
    text = translation.text or f"-- computed by Spark: {'; '.join(translation.gaps)}"
    shown = text.replace(", r", ",\n  r").replace(") SELECT ", ")\nSELECT ", 1) if len(text) > 200 else text
    return shown if len(shown) <= STATEMENT_CHARS_SHOWN else f"{shown[:STATEMENT_CHARS_SHOWN]}…"
