"""The algebra as a statement for DuckDB, by the allow-list alone; what the list lacks is named.

Nothing of what users write gets into a statement but literals and the names of tables and columns, each quoted as its
kind is. A leaf is read under the name that `leaf_name` gives it, which an executor has to define.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from decimal import Decimal, InvalidOperation

from iscp.algebra.algebra import (
    CLOCK,
    Expand,
    Expr,
    Filter,
    Group,
    Join,
    JoinKind,
    Limit,
    Opaque,
    Project,
    Rel,
    Sort,
    Table,
    TypedColumn,
    Union,
    Values,
    Windowed,
)
from iscp.algebra.duck_aggregates import (
    GROUP_ENTRIES,
    PLANNED_ENTRIES,
    WINDOW_ENTRIES,
    DuckCall,
    Entry,
    cast,
    duck_type,
)
from iscp.algebra.duck_scalars import SCALARS
from iscp.algebra.result_types import DIGITS, FLOATS, MOMENTS, VOID, decimal_of, element_of

EXPRESSION_CHARS_MAX = 200_000
"""Characters of one expression's text, in which an argument may stand several times; a longer one is left to Spark."""

STATEMENT_CHARS_MAX = 4_000_000
"""Characters of a statement; a query with a longer one is left to Spark."""

GROWTH_MAX = 64
"""Texts of which a text may be put together; one of more, which could fill the memory, is left to Spark."""

GATHERED_GROWTH = 32
"""Texts that a text of a group's rows counts as: it may have as many bytes as a table, and be put together with others
once.
"""

_LITERAL_SHARE = 256
"""Characters of a constant that count as a whole text does when texts are put together."""

ALLOW_LIST = (*SCALARS, *GROUP_ENTRIES, *WINDOW_ENTRIES)
"""All that DuckDB computes."""

_JOINS = {
    JoinKind.INNER: "JOIN",
    JoinKind.CROSS: "JOIN",
    JoinKind.LEFT_OUTER: "LEFT JOIN",
    JoinKind.RIGHT_OUTER: "RIGHT JOIN",
    JoinKind.FULL_OUTER: "FULL JOIN",
    JoinKind.LEFT_SEMI: "SEMI JOIN",
    JoinKind.LEFT_ANTI: "ANTI JOIN",
}
_TEXTUAL = frozenset({"string", "array<string>"})
_GROWING = frozenset({"Concat", "ConcatWs", "CreateArray", "ArrayJoin"})
_GATHERING = frozenset({"ListInOrder", "TextInOrder"})
_RANKED = frozenset({each.op for each in WINDOW_ENTRIES} - {"First", "Last", "NthValue"})
_NO_COLUMN = "1 AS no_column"
_POWER_MAX = 100


@dataclass(frozen=True, slots=True)
class Translation:
    """A statement, or `text` None and the `gaps`: each operator, expression and type that the allow-list lacks.

    `entries` names what it uses of the list. With `by_order` it has sums of doubles, whose last digits depend on the
    order of rows. `reads` says how often it reads each leaf, by its name.
    """

    text: str | None
    gaps: tuple[str, ...]
    entries: frozenset[str]
    by_order: bool
    reads: Mapping[str, int]


def translate(root: Rel, names: Sequence[str] | None = None, allowed: Iterable[Entry] = ALLOW_LIST) -> Translation:
    """Return the statement for a relation's rows, with its columns under `names`, or else under their own."""
    writer = _Writer.of(allowed, root)
    text = writer.statement(root, names or [each.name for each in root.columns])
    if len(text) > STATEMENT_CHARS_MAX:
        writer.lack("a statement that is too long")
    gaps = tuple(writer.gaps)
    leaves = {writer.shapes.of(each): leaf_name(each) for each in root.tables()}
    reads: Counter[str] = Counter()
    for shape, name in leaves.items():
        reads[name] += writer.uses[shape]
    return Translation(None if gaps else text, gaps, frozenset(writer.used), writer.by_order, reads)


def leaf_name(table: Table) -> str:
    """Return the name under which a statement reads a leaf: the rows that it stands for, and the table's name, which
    the time has none of.
    """
    return str(table.at) if table.name == CLOCK else f"{table.at}:{table.name}"


def identifier(name: str) -> str:
    """Return a name as an identifier of DuckDB's SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(expression: Expr) -> str | None:
    """Return the text of a constant, or None if its type has none, or the value is no value of it."""
    value, kind = expression.info[0], expression.type
    if value is None:
        return "NULL" if kind == VOID else cast("NULL", kind) if duck_type(kind) else None
    try:
        return _constant(str(value), kind)
    except (ValueError, InvalidOperation):
        return None


def _constant(value: str, kind: str) -> str | None:
    """Return the text of a value. Raises ValueError or InvalidOperation if it is none of this type."""
    if kind in DIGITS:
        return cast(str(int(value)), kind)
    if decimal_of(kind):
        found = Decimal(value)
        return cast(f"'{found:f}'", kind) if found.is_finite() and _is_short(found) else None
    if kind in FLOATS:
        return cast(f"'{float(value)!r}'", kind)
    if kind == "boolean":
        return {"true": "TRUE", "false": "FALSE"}.get(value)
    if kind == "date":
        return f"(DATE '1970-01-01' + {int(value)})"
    if kind in MOMENTS:
        return f"make_timestamp({int(value)})"
    if kind == "string" and "\0" not in value:
        value.encode()
        return "'" + value.replace("'", "''") + "'"
    return None


def _is_short(number: Decimal) -> bool:
    """Return whether a number is written with few digits, and not as 10 to a power that would fill the memory."""
    return abs(number.adjusted()) <= _POWER_MAX and len(number.as_tuple().digits) <= _POWER_MAX


@dataclass
class _Writer:
    """A statement that is being written; a part that cannot be is a gap, and is written as null."""

    entries: Mapping[str, Sequence[Entry]]
    shapes: _Shapes
    uses: Mapping[int, int]
    gaps: dict[str, None] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    by_order: bool = False
    written: int = 0
    parts: list[str] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    first: dict[int, Rel] = field(default_factory=dict)  # the relations of each shape that were written
    growth: dict[int, int] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)  # the texts by which keys of groups are shown

    @classmethod
    def of(cls, allowed: Iterable[Entry], root: Rel) -> _Writer:
        entries: dict[str, list[Entry]] = defaultdict(list)
        for each in (*allowed, *PLANNED_ENTRIES):
            entries[each.op].append(each)
        shapes = _Shapes()
        return cls(entries, shapes, _uses_of(root, shapes))

    def lack(self, reason: str) -> str:
        self.gaps[reason] = None
        return "NULL"

    # --- relations ----------------------------------------------------------------------------------------------------

    def statement(self, root: Rel, names: Sequence[str]) -> str:
        top = self.name(root)
        shown = ", ".join(f"c{each.id} AS {identifier(name)}" for each, name in zip(root.columns, names, strict=True))
        return f"WITH {', '.join(self.parts)} SELECT {shown or _NO_COLUMN} FROM {top}"

    def name(self, relation: Rel) -> str:
        """Return the name of the relation's part in the statement, which is written once."""
        known = self.names.get(id(relation))
        if known is not None:
            return known
        for each in relation.columns:
            if duck_type(each.type) is None and each.type != VOID:
                self.lack(f"column {each.name} of a type that DuckDB lacks")
        shape = self.shapes.of(relation)
        same = None if isinstance(relation, Table) else self.first.setdefault(shape, relation)
        text = self._relation(relation) if same in (None, relation) else self._rename(same, relation)
        self.written += 1
        name = self.names[id(relation)] = f"r{self.written}"
        shared = same is relation and self.uses[shape] > 1
        self.parts.append(f"{name} AS {'MATERIALIZED ' if shared else ''}({text})")
        return name

    def _rename(self, same: Rel, relation: Rel) -> str:
        """Write the rows of a relation as those of the first one of its shape, which is written already."""
        ids = {new.id: old.id for new, old in zip(relation.columns, same.columns, strict=True)}
        self.growth |= {new: self.growth[old] for new, old in ids.items() if old in self.growth}
        return (
            f"SELECT {', '.join(f'c{old} AS c{new}' for new, old in ids.items()) or _NO_COLUMN} FROM {self.name(same)}"
        )

    def _relation(self, relation: Rel) -> str:
        match relation:
            case Table():
                return self._table(relation)
            case Values():
                return self._values(relation)
            case Project():
                below = self.name(relation.inputs[0])
                return f"SELECT {self._items(relation.items)} FROM {below}"
            case Filter():
                below = self.name(relation.inputs[0])
                met = self.expression(relation.condition)
                return f"SELECT * FROM {below} WHERE " + (f"({met}) IS NOT TRUE" if relation.untrue else met)
            case Union() | Expand():
                return self._union(relation)
            case Sort():
                return f"SELECT * FROM {self.name(relation.inputs[0])}"
            case _:
                return self._grouping(relation)

    def _grouping(self, relation: Rel) -> str:
        """Return an operator of several rows."""
        match relation:
            case Limit():
                return self._limit(relation)
            case Join():
                return self._join(relation)
            case Group():
                return self._group(relation)
            case Windowed():
                return self._window(relation)
            case Opaque():
                for each in relation.inputs:
                    self.name(each)
                return self.lack(f"operator {relation.name}: {relation.reason}")
            case _:
                return self.lack(f"operator {type(relation).__name__}")

    def _table(self, table: Table) -> str:
        names = [leaf_name(table), *(each.name for each in table.fields)]
        if any("\0" in name for name in names):
            return self.lack("a name with a NUL")
        shown = ", ".join(f"{_unhanded(each)} AS c{each.id}" for each in table.fields)
        return f"SELECT {shown or _NO_COLUMN} FROM {identifier(leaf_name(table))}"

    def _values(self, values: Values) -> str:
        if not values.rows:
            shown = ", ".join(f"{_null(each.type)} AS c{each.id}" for each in values.fields)
            return f"SELECT {shown or _NO_COLUMN} WHERE FALSE"
        return " UNION ALL ".join(
            "SELECT "
            + (
                ", ".join(
                    f"{self.expression(item)} AS c{each.id}" for item, each in zip(row, values.fields, strict=True)
                )
                or _NO_COLUMN
            )
            for row in values.rows
        )

    def _items(self, items: Sequence[Expr]) -> str:
        """Return a list of columns, each once."""
        shown: dict[int, str] = {}
        for each in items:
            number = each.column.id
            if each.op == "Alias":
                shown[number] = f"{self.expression(each.args[0])} AS c{number}"
                self._grow(number, each.args[0])
            else:
                text = self.expression(each)
                shown[number] = text if text == f"c{number}" else f"{text} AS c{number}"
        return ", ".join(shown.values()) or _NO_COLUMN

    def _union(self, union: Union | Expand) -> str:
        if isinstance(union, Union):
            rows = [(each, tuple(column.value for column in each.columns)) for each in union.inputs]
        else:
            rows = [(union.inputs[0], row) for row in union.rows]
        texts = []
        for below, row in rows:
            name = self.name(below)
            pairs = list(zip(row, union.fields, strict=True))
            shown = ", ".join(f"{self.expression(item)} AS c{each.id}" for item, each in pairs)
            texts.append(f"SELECT {shown or _NO_COLUMN} FROM {name}")
            for item, each in pairs:
                self._grow(each.id, item)
        return " UNION ALL ".join(texts)

    def _limit(self, limit: Limit) -> str:
        count, offset, below = limit.count, limit.offset, limit.inputs[0]
        while isinstance(below, Limit):  # of the rows that the lower one leaves
            left = None if below.count is None else max(below.count - offset, 0)
            count = left if count is None else count if left is None else min(count, left)
            offset += below.offset
            below = below.inputs[0]
        if not isinstance(below, Sort):
            self.name(below)
            return self.lack("operator Limit: without an order")
        order = ", ".join(map(self._ordered, below.order))
        bounds = (f" LIMIT {count}" if count is not None else "") + (f" OFFSET {offset}" if offset else "")
        return f"SELECT * FROM {self.name(below.inputs[0])} ORDER BY {order}{bounds}"

    def _group(self, group: Group) -> str:
        below = self.name(group.inputs[0])
        if not group.keys:
            return f"SELECT {self._items(group.items) if group.items else 'count(*) AS no_column'} FROM {below}"
        keys = {each: self.expression(each) for each in group.keys}
        for each, text in keys.items():  # Spark shows zeros of both signs, which are one group, as the one above zero
            if each.type in FLOATS:
                keys[each] = self.shown[text] = self._key(each)
        found = f"SELECT {self._items(group.items)} FROM {below} GROUP BY {', '.join(keys.values())}"
        self.shown = {}
        return found

    def _join(self, join: Join) -> str:
        left, right = map(self.name, join.inputs)
        on = "TRUE" if join.condition is None else self.expression(join.condition)
        if join.exists is not None:
            return f"SELECT *, EXISTS (SELECT 1 FROM {right} WHERE {on}) AS c{join.exists.id} FROM {left}"
        if join.kind not in _JOINS:
            return self.lack(f"operator Join: of the kind {join.kind}")
        if join.condition is None and join.kind in (JoinKind.INNER, JoinKind.CROSS):
            return f"SELECT * FROM {left} CROSS JOIN {right}"
        return f"SELECT * FROM {left} {_JOINS[join.kind]} {right} ON {on}"

    # --- windows ------------------------------------------------------------------------------------------------------

    def _window(self, window: Windowed) -> str:
        below = self.name(window.inputs[0])
        partition = ", ".join(map(self._key, window.partition))
        order = ", ".join(map(self._ordered, window.order))
        spec = (f"PARTITION BY {partition}" if partition else "") + (f" ORDER BY {order}" if order else "")
        shown = [f"{self._over(each.args[0], spec, bool(order))} AS c{each.column.id}" for each in window.items]
        return f"SELECT *, {', '.join(shown)} FROM {below}"

    def _over(self, value: Expr, spec: str, ordered: bool) -> str:
        """Return the value over a window; ranks have no frame."""
        if value.op != "WindowExpression":
            return self.lack(f"{value.op} as a value over windows")
        function = value.args[0]
        if function.op == "AggregateExpression":
            if len(function.args) > 1 or function.info[0]:
                return self.lack(f"{function.args[0].op} with DISTINCT or FILTER over windows")
            function = function.args[0]
        frame = "" if function.op in _RANKED or not ordered else _frame(value)
        return self.call(function, over=f" OVER ({spec}{frame})")

    def _ordered(self, order: Expr) -> str:
        if order.op != "SortOrder":
            return self.lack(f"{order.op} as an order")
        if element_of(order.args[0].type) is not None:
            return self.lack("an order by arrays")
        ascending, nulls_first = order.info
        direction, nulls = "ASC" if ascending else "DESC", "FIRST" if nulls_first else "LAST"
        return f"{self._key(order.args[0])} {direction} NULLS {nulls}"

    def _key(self, key: Expr) -> str:
        """Return what rows are sorted by: of a column DuckDB gives rows the key in place of the value, and a key has no
        zero below zero.
        """
        return self.call(Expr("NormalizeNaNAndZero", (key,), key.type)) if key.type in FLOATS else self.expression(key)

    # --- expressions --------------------------------------------------------------------------------------------------

    def expression(self, expression: Expr) -> str:
        match expression.op:
            case "Column":
                name = f"c{expression.column.id}"
                return self.shown.get(name, name)
            case "Literal":
                return literal(expression) or self.lack(f"a constant of type {expression.type}")
            case "ScalarSubquery" if expression.plan is not None:
                below = self.name(expression.plan)
                return f"(SELECT c{expression.plan.columns[0].id} FROM {below})"
            case "Opaque":
                for each in expression.args:
                    self.expression(each)
                return self.lack("{}: {}".format(*expression.info))
            case "AggregateExpression":
                return self._aggregate(expression)
            case _:
                return self.call(expression)

    def _aggregate(self, expression: Expr) -> str:
        function, *condition = expression.args
        shown, self.shown = self.shown, {}  # of the rows, and not of their groups
        over = f" FILTER (WHERE {self.expression(condition[0])})" if condition else ""
        found = self.call(function, "DISTINCT " if expression.info[0] else "", over)
        self.shown = shown
        return found

    def call(self, expression: Expr, distinct: str = "", over: str = "") -> str:
        """Return the text of an entry; `over` follows an aggregate."""
        args = tuple(map(self.expression, expression.args))
        entry = self._entry(expression, over)
        if entry is None:
            return "NULL"
        if distinct and not entry.distinct:
            return self.lack(f"{expression.op}: of DISTINCT values")
        self.used.add(entry.name)
        self.by_order |= entry.by_order
        text = entry.write(DuckCall(expression, args, distinct, over))
        if len(text) > EXPRESSION_CHARS_MAX:
            return self.lack(f"{expression.op}: a text that is too long")
        return text

    def _entry(self, expression: Expr, over: str) -> Entry | None:
        kinds = ", ".join(each.type for each in expression.args[:4])
        shown = f"{expression.op}({kinds})" + (f" to {expression.type}" if expression.op == "Cast" else "")
        if any(duck_type(each) is None and each != VOID for each in (expression.type, *_types(expression))):
            self.lack(f"{shown}: a type that DuckDB lacks")
            return None
        arrays = any(element_of(each) is not None for each in (expression.type, *_types(expression)))
        known = (each for each in self.entries.get(expression.op, ()) if each.of_arrays or not arrays)
        entry = next((each for each in known if each.takes(expression)), None)
        framed = over.startswith(" OVER")
        if entry is None or (not entry.framed if framed else entry in WINDOW_ENTRIES):
            self.lack(f"{shown}: not in the list")
            return None
        refused = [each.reason for each in entry.refusals if each.refuses(expression)]
        for reason in refused:
            self.lack(f"{shown}: {reason}")
        return None if refused else entry

    # --- sizes --------------------------------------------------------------------------------------------------------

    def _grow(self, number: int, value: Expr) -> None:
        """Remember of how many texts a column may be put together."""
        if value.type in _TEXTUAL:
            self.growth[number] = max(self.growth.get(number, 1), found := self._growth(value))
            if found > GROWTH_MAX:
                self.lack(f"{value.op}: a text of more than {GROWTH_MAX} texts")

    def _growth(self, value: Expr) -> int:
        if value.op == "Column":
            return self.growth.get(value.column.id, 1)
        if value.op == "Literal":
            return 1 + len(str(value.info[0])) // _LITERAL_SHARE
        if value.op in _GATHERING:
            return GATHERED_GROWTH * self._growth(value.args[0])
        found = [self._growth(each) for each in value.args if each.type in _TEXTUAL]
        return (sum(found) if value.op in _GROWING else max(found)) if found else 1


def _unhanded(column: TypedColumn) -> str:
    """Return a column such that DuckDB itself compares its values: conditions on a bare one, and what a join knows of
    the other side, it hands to pyarrow, to which NaN is greater than nothing and equal to nothing.
    """
    name = identifier(column.name)
    return f"-(-{name})" if column.type in FLOATS else name


def _types(expression: Expr) -> Iterable[str]:
    return (each.type for each in expression.args)


def _null(kind: str) -> str:
    return cast("NULL", kind) if duck_type(kind) else "NULL"


def _frame(value: Expr) -> str:
    kind, lower, upper = value.info
    bounds = [_bound(lower, "PRECEDING"), _bound(upper, "FOLLOWING")]
    return f" {'ROWS' if kind == 'ROWS' else 'RANGE'} BETWEEN {bounds[0]} AND {bounds[1]}"


def _bound(offset: object, unbounded: str) -> str:
    if not isinstance(offset, int):
        return f"UNBOUNDED {unbounded}"
    if not offset:
        return "CURRENT ROW"
    return f"{abs(offset)} {'PRECEDING' if offset < 0 else 'FOLLOWING'}"


class _Shapes:
    """The shapes of relations, as numbers: relations of one shape have the same rows, in columns of other ids.

    A query that names a common table expression twice has its plan twice.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[int, int] = {}

    def of(self, relation: Rel) -> int:
        """Return the shape of a relation, which has to live as long as this object."""
        known = self._known.get(id(relation))
        if known is None:
            columns = (each for below in relation.inputs for each in below.columns)
            places = {each.id: place for place, each in enumerate(columns)}
            own = tuple(
                self._form(getattr(relation, each.name), places)
                for each in fields(relation)
                if each.name not in ("inputs", "number")
            )
            names = tuple(each.name for each in relation.fields) if isinstance(relation, Table) else ()
            form = (type(relation), tuple(map(self.of, relation.inputs)), names, own)
            known = self._known[id(relation)] = self._numbers.setdefault(form, len(self._numbers))
        return known

    def _form(self, value: object, places: Mapping[int, int]) -> Hashable:
        """Return a property of a relation without ids; a column of its inputs is a place among them."""
        match value:
            case tuple():
                return tuple(self._form(each, places) for each in value)
            case TypedColumn():
                return value.type
            case Expr(op="Column"):
                number = value.column.id
                return "Column", value.type, places.get(number, f"c{number}")
            case Expr(op="Alias"):
                return "Alias", self._form(value.args, places)
            case Expr():
                below = None if value.plan is None else self.of(value.plan)
                return value.op, value.type, repr(value.info), self._form(value.args, places), below
            case _:
                return value if isinstance(value, Hashable) else id(value)


def _uses_of(root: Rel, shapes: _Shapes) -> Counter[int]:
    """Return how often the relations of each shape are read."""
    found: Counter[int] = Counter()
    waiting = [root]
    while waiting:
        each = waiting.pop()
        found[shapes.of(each)] += 1
        if found[shapes.of(each)] == 1:
            waiting += (*each.inputs, *each.subqueries)
    return found
