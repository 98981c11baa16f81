"""Check users' SQL against an allow-list of the nodes that a parser makes of it, and of the names that may stand there.

A parsed query is judged before anything in it is resolved: to resolve it an engine opens what it names. What is not
listed here is refused by its name, as a statement that writes, or what another version of the engine brings.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from iscp.model.sql.sql_names import (
    OPTIONS_AT,
    Constant,
    SqlFault,
    function_fault,
    options_fault,
    size_fault,
    table_function_fault,
)
from iscp.model.values.errors import InvalidRequest

_QUERY = "Write a query, as SELECT … or WITH …"

PLANS = frozenset(
    {
        *("Aggregate", "Distinct", "Except", "Filter", "Generate", "GlobalLimit", "Intersect", "Join", "LateralJoin"),
        *("LimitAll", "LocalLimit", "LocalRelation", "Offset", "OneRowRelation", "Pivot", "PipeOperator", "Project"),
        *("RepartitionByExpression", "ResolvedInlineTable", "Sample", "Sort", "SubqueryAlias", "Union", "Unpivot"),
        *("UnresolvedHaving", "UnresolvedHint", "UnresolvedInlineTable", "UnresolvedRelation"),
        *("UnresolvedSubqueryColumnAliases", "UnresolvedTVFAliases", "UnresolvedTableValuedFunction"),
        *("UnresolvedWith", "WithWindowDefinition"),
    }
)
"""Nodes of which a query consists; none writes, or reads anything but the tables that are named."""

EXPRESSIONS = frozenset(
    {
        # of columns and values
        *(
            "Alias",
            "AttributeReference",
            "Literal",
            "MultiAlias",
            "UnresolvedAlias",
            "UnresolvedAttribute",
            "UnresolvedExtractValue",
        ),
        *("UnresolvedOrdinal", "UnresolvedPipeAggregateOrdinal", "UnresolvedRegex", "UnresolvedStar"),
        *("UnresolvedStarExceptOrReplace", "PipeExpression", "SemiStructuredExtract", "NamedArgumentExpression"),
        # of operators
        *("Add", "And", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Divide", "EqualNullSafe", "EqualTo"),
        *("GreaterThan", "GreaterThanOrEqual", "IntegralDivide", "LessThan", "LessThanOrEqual", "Multiply", "Not"),
        *("Or", "Remainder", "ShiftLeft", "ShiftRight", "ShiftRightUnsigned", "Subtract", "UnaryMinus"),
        *("UnaryPositive", "In", "IsNotNull", "IsNull", "ILike", "Like", "LikeAll", "LikeAny", "NotLikeAll"),
        *("NotLikeAny", "RLike", "IsDistinctFrom", "Between"),
        # of functions that the grammar knows
        *(
            "AggregateExpression",
            "AnyValue",
            "CaseWhen",
            "Cast",
            "Coalesce",
            "Collate",
            "Concat",
            "CreateNamedStruct",
            "CurrentDate",
        ),
        *("CurrentTime", "CurrentTimestamp", "CurrentUser", "First", "Last", "Lower", "Overlay", "StringLocate"),
        *("StringTrim", "StringTrimLeft", "StringTrimRight", "Substring", "TimestampAdd", "TimestampDiff"),
        *("UnresolvedCollation", "UnresolvedFunction", "UnresolvedGenerator", "LambdaFunction"),
        *("UnresolvedNamedLambdaVariable",),
        # of subqueries, groups, order and windows
        *("Exists", "InSubquery", "LateralSubquery", "ListQuery", "ScalarSubquery", "Cube", "GroupingSets", "Rollup"),
        *("SortOrder", "CurrentRow", "SpecifiedWindowFrame", "UnboundedFollowing", "UnboundedPreceding"),
        *("UnresolvedWindowExpression", "UnspecifiedFrame", "WindowExpression", "WindowSpecDefinition"),
    }
)
"""Nodes of which values are made, before names are resolved."""

_IDENTIFIER = SqlFault("has IDENTIFIER(…), which names something by a value", "Write the name itself")
_REFUSED = {
    "ScriptTransformation": SqlFault("has TRANSFORM … USING, which runs a program", "Use functions of Spark's"),
    "PlanWithUnresolvedIdentifier": _IDENTIFIER,
    "ExpressionWithUnresolvedIdentifier": _IDENTIFIER,
}
"""Nodes of which more can be said than that they are not known."""

PLAN, EXPRESSION = "plan", "expression"


@dataclass(frozen=True, slots=True)
class SqlPart:
    """A node that a parser made, or what lies in the fields of one. `kind` is PLAN, EXPRESSION or another.

    In `fields` another part is `{"at": N}`, with its place among all of them.
    """

    kind: str
    name: str
    fields: Mapping[str, Any]
    line: int = 0
    column: int = 0


def named_tables(parts: Sequence[SqlPart], tables: Collection[str], exists: Callable[[str], bool]) -> frozenset[str]:
    """Return which of the tables a query names, whose first part is its root.

    `exists` says whether the engine brings a function along. Raises InvalidRequest (`sql`) for anything that is no
    query, or reads something else than these tables and the engine's own functions.
    """
    root = parts[0]
    if root.name not in PLANS and root.name not in _REFUSED:
        raise InvalidRequest(f"is no SELECT, but {root.name}", field="sql", remedy=_QUERY)
    walk = _Walk(parts, frozenset(name.lower() for name in tables), exists)
    walk.check()
    return frozenset(name for name in tables if name.lower() in walk.named)


def refuse_beyond_row(parts: Sequence[SqlPart], exists: Callable[[str], bool]) -> None:
    """Raise InvalidRequest for a filter that uses more than the rows' own columns, by the rules of `named_tables`."""
    _Walk(parts, None, exists).check()


@dataclass
class _Walk:
    """A walk over a query. `tables` are in small letters; None: none may be read, and no subquery be there. `named` are
    those that were met.
    """

    parts: Sequence[SqlPart]
    tables: frozenset[str] | None
    exists: Callable[[str], bool]
    named: set[str] = field(default_factory=set)
    _waiting: list[tuple[SqlPart, frozenset[str]]] = field(default_factory=list)
    """The parts that wait, the first in the text last, with the names of tables and of queries in WITH that each may
    read.
    """

    def check(self) -> None:
        self._waiting = [(self.parts[0], self.tables or frozenset())]
        while self._waiting:
            part, names = self._waiting.pop()
            if fault := self._fault(part, names):
                place = f" (line {part.line}, column {part.column})" if part.line else ""
                raise InvalidRequest(fault.message + place, field="sql", remedy=fault.remedy)
            if part.name == "UnresolvedWith":
                self._take_with(part, names)
            else:
                self._waiting += [(each, names) for each in reversed([*self._within(part.fields)])]

    def _take_with(self, part: SqlPart, names: frozenset[str]) -> None:
        """Add the queries of a WITH. Each is known to those after it, and where WITH is recursive to itself.

        Raises InvalidRequest for one that is called as a table of several parts is: both would be one identifier.
        """
        recursive = bool(part.fields["allowRecursion"])
        for each in self._within(part.fields["cteRelations"]):
            name = str(each.fields["_1"]).lower()
            if "." in name and name in (self.tables or ()):
                raise InvalidRequest(
                    f"calls a query of its WITH `{name}`, as one of its tables is called",
                    field="sql",
                    remedy="Give the query a name without a dot",
                )
            own = names | {name} if recursive else names
            self._waiting += [(query, own) for query in self._within(each.fields)]
            names |= {name}
        self._waiting += [(query, names) for query in self._within(part.fields["child"])]

    def _within(self, found: Any) -> Iterator[SqlPart]:
        """Yield the parts that a field, or several, lead to."""
        if isinstance(found, Mapping) and "at" in found:
            yield self.parts[found["at"]]
        elif isinstance(found, Mapping | list):
            for each in found.values() if isinstance(found, Mapping) else found:
                yield from self._within(each)

    def _fault(self, part: SqlPart, names: frozenset[str]) -> SqlFault | None:
        if fault := _REFUSED.get(part.name):
            return fault
        if part.kind == PLAN and self.tables is None:
            return SqlFault("has a subquery", "Use only conditions on the row's own columns")
        if part.name not in {PLAN: PLANS, EXPRESSION: EXPRESSIONS}.get(part.kind, {part.name}):
            return SqlFault(f"has {part.name}, which is not understood here", "Write it without that")
        match part.name:
            case "UnresolvedRelation" if part.fields["isStreaming"]:
                return SqlFault("reads a table as a STREAM", "Write its name alone")
            case "UnresolvedRelation":
                return self._table_fault(part.fields["multipartIdentifier"], names)
            case "UnresolvedFunction":
                return self._function_fault(part)
            case "UnresolvedTableValuedFunction":
                return table_function_fault(part.fields["name"]) or self._size_fault(part, part.fields["name"][-1])
            case "UnresolvedGenerator":
                return self._generator_fault(part)
        return None

    def _table_fault(self, parts: Sequence[str], names: frozenset[str]) -> SqlFault | None:
        if len(parts) == 1 and parts[0].lower() in names:
            self.named.add(parts[0].lower())
            return None
        if ".".join(parts).lower() in (self.tables or ()):  # in a field of a node that is no child of it
            return SqlFault(
                f"reads {'.'.join(parts)} in a place where only names of one part are read",
                "Read it in a query of WITH, and name that one here",
            )
        given = ", ".join(sorted(self.tables or ()))
        return SqlFault(
            f"reads {'.'.join(parts)}, which is none of its tables", f"Name it beside the query; now it has {given}"
        )

    def _function_fault(self, part: SqlPart) -> SqlFault | None:
        names = part.fields["nameParts"]
        if fault := function_fault(names, self.exists):
            return fault
        name, arguments = names[-1].lower(), self._arguments(part)
        if name in OPTIONS_AT and len(arguments) > OPTIONS_AT[name]:
            return options_fault(name, self._keys_of(arguments[OPTIONS_AT[name]]))
        return self._size_fault(part, name)

    def _generator_fault(self, part: SqlPart) -> SqlFault | None:
        """Return why a generator may not be called; its name is a function's, which lies in a part of its own."""
        (named,) = self._within(part.fields["name"])
        names = [*named.fields["catalog"], *named.fields["database"], named.fields["funcName"]]
        return table_function_fault(names) or self._size_fault(part, names[-1])

    def _size_fault(self, part: SqlPart, name: str) -> SqlFault | None:
        constants = [self._constant(each) for each in self._arguments(part)]
        return size_fault(name.lower(), constants, computed=self.tables is not None)

    def _arguments(self, part: SqlPart) -> list[SqlPart]:
        """Return the arguments of a call, whose classes call them each in its way."""
        given = next(part.fields[each] for each in ("arguments", "functionArgs", "children") if each in part.fields)
        return list(self._within(given))

    def _constant(self, part: SqlPart) -> Constant | None:
        """Return the value of a literal, with its sign, or None if it is something else."""
        sign = 1
        while part.name in ("UnaryMinus", "UnaryPositive"):
            sign = -sign if part.name == "UnaryMinus" else sign
            part = next(self._within(part.fields["child"]))
        if part.name != "Literal":
            return None
        value, kind = part.fields["value"], str(part.fields["dataType"])
        if isinstance(value, int) and not isinstance(value, bool):
            return Constant(sign * value, kind)
        return Constant(value if isinstance(value, str) else None, kind)

    def _keys_of(self, options: SqlPart) -> list[str] | None:
        """Return the keys of a `map(…)` whose keys are texts, or None for anything else."""
        if options.name != "UnresolvedFunction" or [each.lower() for each in options.fields["nameParts"]] != ["map"]:
            return None
        keys = self._arguments(options)[::2]
        if any(each.name != "Literal" for each in keys):
            return None
        return [str(each.fields["value"]) for each in keys]
