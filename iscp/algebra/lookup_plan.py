"""Plan how the rows of large tables that a relation needs are looked up by keys, so that no such table is read whole.

A refresh without Spark is also written down here, for people to read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import TypeGuard

from iscp.algebra.algebra import (
    LEFT,
    RIGHT,
    Expr,
    Group,
    Join,
    JoinKind,
    Project,
    Rel,
    Table,
    TableRows,
    TypedColumn,
    UnplannedError,
    conjuncts,
    equal_sides,
    named,
    reduced_to_keys,
    with_expressions,
    with_plans,
)
from iscp.algebra.change_plan import ChangePlan
from iscp.algebra.duck_text import leaf_name, translate
from iscp.model.sql.sql_names import WEIGHT

# --- lookups ----------------------------------------------------------------------------------------------------------
# A join needs of one side only the rows that may meet a row of the other side. So where one side can be computed, its
# keys are computed first, the rows of the other side's tables that have one of these keys are looked up, and the
# relation is computed over them: the reduction by semi-joins of Bernstein and Chiu. What is looked up may be more rows
# than the relation needs, never fewer; its operators decide as always.

LOOKED_UP_BY = frozenset(
    {"byte", "short", "integer", "long", "string", "date", "boolean", "timestamp", "timestamp_ntz"}
)
"""The types of columns by whose values rows are looked up: two values are equal only if nothing distinguishes them."""

_REDUCED_BY_OTHER = {
    JoinKind.INNER: {LEFT, RIGHT},
    JoinKind.LEFT_OUTER: {RIGHT},
    JoinKind.LEFT_SINGLE: {RIGHT},
    JoinKind.RIGHT_OUTER: {LEFT},
    JoinKind.LEFT_SEMI: {LEFT, RIGHT},
    JoinKind.LEFT_ANTI: {RIGHT},
    JoinKind.EXISTENCE: {RIGHT},
}
"""The sides of which a join needs only the rows that may meet a row of the other side."""


class WholeTableError(Exception):
    """All rows of a large table would be needed; the message names it."""


@dataclass(frozen=True, slots=True)
class ComputedStep:
    """A step: the rows are computed, and are those of the leaf `into` from then on."""

    rows: Rel
    into: Table


@dataclass(frozen=True, slots=True)
class LookupStep:
    """A step: the rows of `source` that have one of some keys are those of the leaf `into` from then on.

    `keys` is a leaf that was computed. `pairs` has the names of columns, of the source and of the keys.
    """

    source: Table
    keys: Table
    pairs: tuple[tuple[str, str], ...]
    into: Table


class LookupPlan:
    """The steps that go before a relation over tables of which `large` are not read whole.

    `ids` gives numbers of columns that nothing else has. A relation that `is_shared` is computed once, in a step.
    """

    def __init__(
        self, ids: Iterator[int], large: Collection[str], is_shared: Callable[[Rel], bool] = lambda _: False
    ) -> None:
        self._ids, self._large, self._is_shared = ids, large, is_shared
        self.steps: list[ComputedStep | LookupStep] = []
        self._found: dict[int, tuple[Rel, Rel | WholeTableError]] = {}
        self._keys: dict[tuple[int, tuple[Expr, ...]], Table] = {}
        self._looked: dict[tuple[str, TableRows, int, tuple[tuple[str, TypedColumn], ...]], Table] = {}
        self._partly: dict[int, tuple[Rel, Rel]] = {}

    def over_lookups(self, relation: Rel) -> Rel:
        """Return the relation over rows that the steps give. Raises WholeTableError."""
        known = self._found.get(id(relation))
        if known is None:
            try:
                found: Rel | WholeTableError = self._reduced(relation)
            except WholeTableError as error:
                found = error
            known = self._found[id(relation)] = relation, found
        if isinstance(known[1], WholeTableError):
            raise known[1]
        return known[1]

    def over_some_lookups(self, relation: Rel) -> Rel:
        """Return the relation over rows that the steps give, and over whole tables where none can be looked up."""
        known = self._partly.get(id(relation))
        if known is None:
            try:
                found = self.over_lookups(relation)
            except WholeTableError:
                found = self._partly_reduced(relation)
            known = self._partly[id(relation)] = relation, found
        return known[1]

    def _partly_reduced(self, relation: Rel) -> Rel:
        found = relation
        if relation.subqueries:
            found = with_expressions(relation, lambda each: with_plans(each, self.over_some_lookups))
        if isinstance(found, Join) and (reduced := self._reduced_side(found, self.over_some_lookups)) is not None:
            return reduced
        found = replace(found, inputs=tuple(map(self.over_some_lookups, found.inputs)))
        return self._given_by(found) if self._is_shared(relation) else found

    def computed(self, relation: Rel) -> Table:
        """Return the leaf with the relation's rows, which a step computes; who needs the relation reads that leaf.

        Raises WholeTableError.
        """
        found = self.over_lookups(relation)
        if not _is_given(found):
            given = self._given_by(found)
            self._found[id(relation)] = relation, given
            return given
        return found

    def _given_by(self, rows: Rel) -> Table:
        """Return the leaf of rows that a step computes."""
        given = self._leaf(tuple(replace(each, name=f"c{each.id}") for each in rows.columns))
        self.steps.append(ComputedStep(rows, given))
        return given

    def _reduced(self, relation: Rel) -> Rel:
        if relation.subqueries:
            relation = with_expressions(relation, lambda each: with_plans(each, self.over_lookups))
        match relation:
            case Table():
                if relation.at in (TableRows.NEW, TableRows.OLD) and relation.name in self._large:
                    raise WholeTableError(f"all rows of {relation.name} are needed")
                return relation
            case Join():
                return self._joined(relation)
            case _:
                inputs = tuple(map(self.over_lookups, relation.inputs))
                found = relation if inputs == relation.inputs else replace(relation, inputs=inputs)
                return self._given_by(found) if self._is_shared(relation) else found

    def _joined(self, join: Join) -> Rel:
        sides = [self._side(each) for each in join.inputs]
        left, right = sides
        if isinstance(left, Rel) and isinstance(right, Rel):
            return replace(join, inputs=(left, right))
        missing = left if isinstance(left, WholeTableError) else right
        assert isinstance(missing, WholeTableError)
        if _is_given(right) and join.kind is JoinKind.LEFT_SEMI:  # the condition has come down as far as it can
            return self._looked_up(join, right, missing)
        found = self._reduced_side(join, self.over_lookups)
        if found is None:
            raise missing
        return found

    def _reduced_side(self, join: Join, over: Callable[[Rel], Rel]) -> Join | None:
        """Return the join with that side reduced of which it needs only rows that may meet one of the other, or None.

        That other side can be computed; `over` gives the reduced one over lookups.
        """
        sides, keys = [self._side(each) for each in join.inputs], equal_sides(join)
        for at, other in ((LEFT, RIGHT), (RIGHT, LEFT)):
            computed = sides[at]
            if keys and isinstance(computed, Rel) and isinstance(sides[other], WholeTableError):
                if other not in _REDUCED_BY_OTHER.get(join.kind, ()):
                    return None
                if _is_given(computed) and join.kind is JoinKind.LEFT_SEMI:
                    return None
                given = self._given(join.inputs[at], computed, keys[at], over)
                inputs = [*join.inputs]
                inputs[at] = self.over_lookups(join.inputs[at])
                inputs[other] = over(reduced_to_keys(join.inputs[other], keys[other], given, given.columns))
                return replace(join, inputs=tuple(inputs))
        return None

    def _side(self, relation: Rel) -> Rel | WholeTableError:
        try:
            return self.over_lookups(relation)
        except WholeTableError as error:
            return error

    def _given(self, relation: Rel, computed: Rel, keys: tuple[Expr, ...], over: Callable[[Rel], Rel]) -> Table:
        """Return the leaf with the different keys of a relation, which a step computes."""
        known = (id(relation), keys)
        if known not in self._keys:
            if isinstance(computed, Group) and keys == tuple(each.value for each in computed.columns):
                self._keys[known] = self.computed(relation)
            else:
                columns = [TypedColumn(next(self._ids), "key", each.type) for each in keys]
                items = tuple(named(each, column) for each, column in zip(keys, columns, strict=True))
                values = tuple(each.value for each in columns)
                found = over(Group((Project((computed,), items),), values, values))
                self._keys[known] = found if _is_given(found) else self._given_by(found)
        return self._keys[known]

    def _looked_up(self, join: Join, given: Table, missing: WholeTableError) -> Rel:
        source = join.inputs[LEFT]
        assert join.condition is not None
        pairs = []
        for each in conjuncts(join.condition):
            own, key = each.args
            if own.op == "Column" and own.type in LOOKED_UP_BY:
                pairs.append((own.column.name, key.column))
        if not isinstance(source, Table) or not pairs:
            raise missing
        known = (source.name, source.at, id(given), tuple(pairs))
        if known not in self._looked:
            names = {each.id: each.name for each in given.fields}
            into = self._leaf(source.fields)
            by = tuple((own, names[key.id]) for own, key in pairs)
            self.steps.append(LookupStep(source, given, by, into))
            self._looked[known] = into
        rows = replace(self._looked[known], fields=source.fields, number=source.number)
        return replace(join, inputs=(rows, given))

    def _leaf(self, fields: tuple[TypedColumn, ...]) -> Table:
        return Table((), fields, str(len(self.steps)), TableRows.GIVEN)


def _is_given(relation: Rel | WholeTableError) -> TypeGuard[Table]:
    return isinstance(relation, Table) and relation.at is TableRows.GIVEN


# --- a refresh as people read it --------------------------------------------------------------------------------------
# The refresh's statements, and the lookups between them.

STATEMENT_CHARS_SHOWN = 20_000
"""Characters of one statement that are shown; a longer one is cut."""


def statements_of(root: Rel) -> tuple[str, ...]:
    """Return for each table of a query what a refresh runs when that table alone has changed, and is large.

    Rows are looked up by keys where that is possible; otherwise tables are read whole, within `ReadLimits`.
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
