"""Queries as they are stored beside a view's rows: the algebra as JSON, the part of a query whose rows are stored
beside the target, and tables with fields of structs as columns.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import Any

from iscp.algebra.algebra import (
    CLOCK,
    CLOCK_TYPES,
    Expand,
    Expr,
    Group,
    Join,
    JoinKind,
    Opaque,
    Project,
    Rel,
    Table,
    TableRows,
    TypedColumn,
    Union,
    all_of,
    named,
    over_rows,
    same_values,
    with_expressions,
    with_plans,
)
from iscp.algebra.algebra_codec import ALGEBRA_DEPTH_MAX, algebra_document, read_algebra_document
from iscp.algebra.change_plan import ChangePlan, GroupTotals, largest_id
from iscp.algebra.result_types import OTHER, type_of_delta
from iscp.model.sql.sql_names import TimeDependence, fields_by_name, finest, path_name
from iscp.model.values.untrusted_values import exact_int
from iscp.model.values.watermark import COLLATIONS

# --- queries of which a part is stored --------------------------------------------------------------------------------
# What is above the part, such as a LIMIT, is computed of it. The part is stored as groups' sums (`change_plan.py`) or
# as its rows, whose columns are `c0`, `c1`, … there.


@dataclass(frozen=True, slots=True)
class KeptInput:
    """The part of the query `root` that lies `depth` operators below it, each of which has one input. `summed`: it is
    stored as sums.
    """

    root: Rel
    depth: int
    summed: bool

    @property
    def is_sound(self) -> bool:
        """Return whether there is such a part."""
        return 0 < self.depth == len(self._above) and (isinstance(self.part, Group) or not self.summed)

    @property
    def _above(self) -> list[Rel]:
        """Return the operators above the part, the highest first; fewer than `depth` if one has not one input."""
        found: list[Rel] = []
        each = self.root
        while len(found) < self.depth and len(each.inputs) == 1:
            found.append(each)
            (each,) = each.inputs
        return found

    @property
    def part(self) -> Rel:
        return self._above[-1].inputs[0]

    def result(self, rows: Rel) -> Rel:
        """Return the query over other rows in the place of the part."""
        return over_rows(self._above, rows)


@dataclass(frozen=True, slots=True)
class KeptRows:
    """The changes of a stored part, the leaf `stored`: relations that are computed one after the other, each with the
    leaf of its rows.

    `moved` is what changed rows add to groups, or the keys that changed rows have; `now` has the changed groups as they
    are stored from now on, and `result` all rows of the query. The first `keys` columns of `stored` are keys.
    """

    stored: Table
    keys: tuple[str, ...]
    moved: tuple[Rel, Table]
    now: tuple[Rel, Table]
    result: Rel


def plan_kept_rows(kept: KeptInput, changed: Iterable[str]) -> tuple[ChangePlan, KeptRows] | None:
    """Return how the stored part follows changes of tables, and the plan with more ids, or None if Spark has to do it.

    Raises UnplannedError.
    """
    part = kept.part
    if kept.summed:
        assert isinstance(part, Group)
        plan = ChangePlan(part.inputs[0], changed, largest_id(kept.root))
        return _by_sums(kept, part, plan)
    plan = ChangePlan(part, changed, largest_id(kept.root))
    return _by_rows(kept, plan)


def _by_sums(kept: KeptInput, group: Group, plan: ChangePlan) -> tuple[ChangePlan, KeptRows] | None:
    changes = plan.changes(group.inputs[0])
    sums = GroupTotals.of(group, Table((), (), "kept", TableRows.STATE), plan.ids)
    if changes is None or sums is None:
        return None
    moved, now = (replace(sums.rows, name=name, at=TableRows.GIVEN) for name in ("moved", "now"))
    result = kept.result(sums.result(sums.all_now(moved)))
    keys = tuple(each.name for each in sums.keys)
    return plan, KeptRows(sums.rows, keys, (sums.moved(changes, plan.weight), moved), (sums.now(moved), now), result)


def _by_rows(kept: KeptInput, plan: ChangePlan) -> tuple[ChangePlan, KeptRows] | None:
    touched = plan.keyed_rows()
    if touched is None or not touched.unique:
        return None
    fields = tuple(replace(each, name=f"c{place}") for place, each in enumerate(kept.part.columns))
    stored = Table((), fields, "kept", TableRows.STATE)
    names = {each.id: each.name for each in fields}
    keys = tuple(replace(each, name=names[each.id]) for each in touched.keys.columns)
    wanted = tuple(TypedColumn(next(plan.ids), each.name, each.type) for each in keys)
    moved = Table((), wanted, "moved", TableRows.GIVEN)
    now = Table((), fields, "now", TableRows.GIVEN)
    gone = all_of(same_values([each.value for each in keys], wanted))
    others = Join((stored, moved), JoinKind.LEFT_ANTI, gone)
    items = tuple(named(each.value, column) for each, column in zip(touched.keys.columns, wanted, strict=True))
    result = kept.result(Union((others, now), fields))
    names_of_keys = tuple(each.name for each in keys)
    return plan, KeptRows(stored, names_of_keys, (Project((touched.keys,), items), moved), (touched.rows, now), result)


# --- the file with a query --------------------------------------------------------------------------------------------
# A query's algebra is written as JSON for the file beside a view's rows, and read without trusting it. The file lies in
# a tenant's directory. Whatever in it is not exactly what is written here counts as no file: another format, another
# query, other tables or schemas, other versions of what has analyzed the query, and an algebra that does not fit the
# tables' columns. It may be another query's: that cannot be seen from it.

QUERY_BYTES_MAX = 2 * 1024**2
"""Bytes of the file with a view's query; a larger one is neither written nor read, and Spark analyzes the query
again.
"""

_FORMAT = 7
"""Another one is written once what is read of a query, or what it means, is another."""

_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class QueryOrigin:
    """The origin of a query's algebra: its text, the URIs of its `tables` and their schemas as their logs have them,
    both by their names in the query, and the `versions` of the programs that analyze and compute it.
    """

    sql: str
    tables: Mapping[str, str]
    versions: Mapping[str, str]
    schemas: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return what a file of this query begins with; of a schema, which may be long, it has a digest."""
        return {
            "format": _FORMAT,
            "versions": dict(self.versions),
            "sql": self.sql,
            "tables": dict(self.tables),
            "schemas": {name: hashlib.sha256(schema.encode()).hexdigest() for name, schema in self.schemas.items()},
        }


@dataclass(frozen=True)
class StoredQuery:
    """A query as it is stored: `root`, or None if there is something in it that only Spark computes.

    `kept` is the part of it that is stored beside the target, if there is one.
    """

    root: Rel | None = None
    kept: KeptInput | None = None

    @cached_property
    def clock_types(self) -> frozenset[str]:
        """Return the types of the values of the time that the query has; none if it does not depend on the time."""
        tables = () if self.root is None else self.root.tables()
        return frozenset(column.type for each in tables if each.name == CLOCK for column in each.fields)

    @property
    def by_time(self) -> TimeDependence | None:
        return finest(CLOCK_TYPES[each] for each in self.clock_types)


def query_to_json(query: StoredQuery, origin: QueryOrigin) -> bytes | None:
    """Return the content of the file, or None if it could not be read back as this query."""
    algebra = None if query.root is None else algebra_document(query.root)
    kept = None if query.kept is None else [query.kept.depth, query.kept.summed]
    try:
        document = origin.document() | {"algebra": algebra, "kept": kept}
        content = json.dumps(document | {"digest": _digest(document)}, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return None
    read = query_from_json(content, origin)
    if read is None or (read.kept is None) != (kept is None):
        return None
    return content if (None if read.root is None else algebra_document(read.root)) == algebra else None


def query_from_json(content: bytes, origin: QueryOrigin) -> StoredQuery | None:
    """Return the query in the content of a file, or None if it is no such file, not of this query, or damaged."""
    if len(content) > QUERY_BYTES_MAX:
        return None
    try:
        document = json.loads(content)
        digest = document.pop("digest")
        if digest != _digest(document) or {**document, **origin.document()} != document:
            return None
        root = None if document["algebra"] is None else read_algebra_document(document["algebra"])
        kept = None if root is None or document["kept"] is None else _read_kept(root, *document["kept"])
        kinds = {name: _plain_kinds(schema) for name, schema in origin.schemas.items()}
        kinds[CLOCK] = {kind: kind for kind in CLOCK_TYPES}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return StoredQuery(root, kept) if root is None or _is_over(root, kinds) else None


def _read_kept(root: Rel, depth: object, summed: object) -> KeptInput:
    """Raises ValueError."""
    kept = KeptInput(root, exact_int(depth, "depth", 1, ALGEBRA_DEPTH_MAX), summed is True)
    if not kept.is_sound:
        raise ValueError("has no such part")
    return kept


def _digest(document: Mapping[str, Any]) -> str:
    """Return a digest that shows damage, and nothing of who has written the file."""
    content = json.dumps(document, sort_keys=True).encode()
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


def _plain_kinds(schema_json: str) -> Mapping[str, str]:
    """Return the types of a table's columns, and of fields of structs, whose texts compare as written.

    `schema_json` is the table's, from its log. Raises ValueError, KeyError, TypeError, AttributeError.
    """
    return {
        name: kind
        for name, each in fields_by_name(json.loads(schema_json)["fields"]).items()
        if (kind := type_of_delta(each["type"])) != OTHER and not (each.get("metadata") or {}).get(COLLATIONS)
    }


def _is_over(root: Rel, kinds: Mapping[str, Mapping[str, str]]) -> bool:
    """Return whether the tables have the columns that a query reads, and its result has columns of different names."""
    names = [each.name.lower() for each in root.columns]
    if not names or len({*names}) < len(names):
        return False
    return all(
        kinds.get(table.name, {}).get(each.name) == each.type for table in root.tables() for each in table.fields
    )


# --- fields of structs as columns -------------------------------------------------------------------------------------
# A query reads the fields of structs as columns of their own, so that only plain values are computed with. A struct
# that the query reads as a whole anywhere, or passes on, stays; what reads such a struct is Spark's.


def with_fields_as_columns(root: Rel) -> Rel:
    """Return the query over tables that have, in place of structs, the fields that are read; the same object if none
    are.
    """
    columns = _columns_of_fields(root)
    return _FieldColumns(columns).relation(root) if any(columns.values()) else root


def without_unread_columns(root: Rel) -> Rel:
    """Return the query over tables with only those columns that something in it reads: Catalyst leaves plans of values
    all columns. The same object if each is read.
    """
    read = {each.id for each in root.columns}
    for relation in root.walk():
        read.update(*(each.references for each in relation.expressions))
        read.update(each.id for plan in relation.subqueries for each in plan.columns)
        if isinstance(relation, Union | Expand | Opaque):  # they take columns by their places
            read.update(each.id for below in relation.inputs for each in below.columns)
    done: dict[int, tuple[Rel, Rel]] = {}

    def pruned(relation: Rel) -> Rel:
        if id(relation) not in done:
            done[id(relation)] = relation, prune(relation)
        return done[id(relation)][1]

    def prune(relation: Rel) -> Rel:
        if isinstance(relation, Table):
            fields = tuple(each for each in relation.fields if each.id in read)
            return relation if fields == relation.fields else replace(relation, fields=fields)
        if any(pruned(plan) is not plan for plan in relation.subqueries):
            relation = with_expressions(relation, lambda each: with_plans(each, pruned))
        inputs = tuple(map(pruned, relation.inputs))
        same = all(now is before for now, before in zip(inputs, relation.inputs, strict=True))
        return relation if same else replace(relation, inputs=inputs)

    return pruned(root)


_FieldPath = tuple[str, ...]


def _columns_of_fields(root: Rel) -> dict[int, dict[_FieldPath, TypedColumn]]:
    """Return the columns that stand for the fields of each struct that need not be read, by the struct's id."""
    read, whole = _read_fields(root)
    ids, found = count(largest_id(root) + 1), dict[int, dict[_FieldPath, TypedColumn]]()
    for table in root.tables():
        names = {each.name for each in table.fields}
        for struct in (each for each in table.fields if each.type == OTHER and each.id not in whole):
            fields = [(path, path_name((struct.name, *path)), kind) for path, kind in read.get(struct.id, {}).items()]
            if all(kind != OTHER and name not in names for _, name, kind in fields):
                found[struct.id] = {path: TypedColumn(next(ids), name, kind) for path, name, kind in fields}
    return found


def _read_fields(root: Rel) -> tuple[dict[int, dict[_FieldPath, str]], set[int]]:
    """Return the types of the fields that a query reads, by the ids of their columns and by their paths, and the
    columns that it reads, or passes on, as they are.
    """
    read, whole = dict[int, dict[_FieldPath, str]](), {each.id for each in root.columns}
    for relation in root.walk():
        waiting = [*relation.expressions]
        while waiting:
            expression = waiting.pop()
            struct, path = _path(expression)
            if path and struct.op == "Column":
                read.setdefault(struct.column.id, {})[path] = expression.type
            elif struct.op == "Column":
                whole.add(struct.column.id)
            waiting += struct.args
        if isinstance(relation, Union | Expand | Opaque):  # they take columns by their places
            whole.update(each.id for below in relation.inputs for each in below.columns)
    return read, whole


@dataclass
class _FieldColumns:
    """A query over the columns in place of structs: `columns` has them by the struct's id and the field's path."""

    columns: Mapping[int, Mapping[_FieldPath, TypedColumn]]
    done: dict[int, tuple[Rel, Rel]] = field(default_factory=dict)

    def relation(self, relation: Rel) -> Rel:
        """Return a relation over the columns; what is one object stays one."""
        known = self.done.get(id(relation))
        if known is None:
            known = self.done[id(relation)] = relation, self._changed(relation)
        return known[1]

    def _changed(self, relation: Rel) -> Rel:
        if isinstance(relation, Table):
            own = [[*self.columns[each.id].values()] if each.id in self.columns else [each] for each in relation.fields]
            return replace(relation, fields=tuple(new for each in own for new in each))
        inputs = tuple(map(self.relation, relation.inputs))
        found = replace(relation, inputs=inputs)
        return with_expressions(found, self._value) if any(map(_reads_fields, found.expressions)) else found

    def _value(self, expression: Expr) -> Expr:
        struct, path = _path(expression)
        if path and struct.op == "Column" and struct.column.id in self.columns:
            return self.columns[struct.column.id][path].value
        plan = None if expression.plan is None else self.relation(expression.plan)
        return replace(expression, args=tuple(map(self._value, expression.args)), plan=plan)


def _reads_fields(expression: Expr) -> bool:
    return any(each.op == "StructField" or each.plan is not None for each in expression.walk())


def _path(expression: Expr) -> tuple[Expr, tuple[str, ...]]:
    """Return what a field is read of, and the path to it there; none if the expression is no field."""
    path: tuple[str, ...] = ()
    while expression.op == "StructField":
        path = (str(expression.info[0]), *path)
        (expression,) = expression.args
    return expression, path
