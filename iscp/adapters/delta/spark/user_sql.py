"""SQL that users give, as Spark's own parser reads it, held to the rows that it is of before Spark resolves any name.

To analyze a query Spark opens what it names: tables of catalogs, files by `parquet.`…``, functions. So the parsed tree
is walked first, with all that its nodes are made of: a table, a function or a program is seen wherever it is named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from py4j.java_collections import JavaArray
from py4j.java_gateway import JavaObject

from iscp.core.errors import InvalidRequest
from iscp.core.sql_functions import OPTIONS_AT, SqlFault, function_fault, options_fault, table_function_fault

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTS_MAX = 100_000
"""Parts of one query or filter that are looked at; one with more is refused."""

Part = Any
"""A plan or expression of the JVM, or what such a one is made of."""

_CATALYST = "org.apache.spark.sql.catalyst"


class _Kind(Enum):
    PLAN = auto()
    EXPRESSION = auto()
    SEVERAL = auto()
    PRODUCT = auto()
    OTHER = auto()


_CLASSES = {
    _Kind.PLAN: f"{_CATALYST}.plans.logical.LogicalPlan",
    _Kind.EXPRESSION: f"{_CATALYST}.expressions.Expression",
    _Kind.SEVERAL: "scala.collection.IterableOnce",
    _Kind.PRODUCT: "scala.Product",
}
"""In the order in which they are tried: sequences and options are products too."""

_REACHING = ("UNRESOLVED_FUNCTION", "UNRESOLVED_IDENTIFIER", "PLAN_EXPRESSION", "GENERATOR")
"""Patterns by which Spark finds functions, subqueries and computed names: an expression without them has none."""

_WITHOUT_ROWS_OF_OTHERS = frozenset({"UnresolvedInlineTable", "ResolvedInlineTable", "LocalRelation", "OneRowRelation"})
"""Plans without inputs that read nothing."""

_IDENTIFIER = SqlFault("has IDENTIFIER(…), which names something by a value", "Write the name itself")
_REFUSED = {
    "ScriptTransformation": SqlFault("has TRANSFORM … USING, which runs a program", "Use functions of Spark's"),
    "PlanWithUnresolvedIdentifier": _IDENTIFIER,
    "ExpressionWithUnresolvedIdentifier": _IDENTIFIER,
}


def restrict_query(session: SparkSession, sql: str, tables: Collection[str]) -> frozenset[str]:
    """Those of the tables that the query names. Raises InvalidRequest (`sql`) for one of something else than these
    tables and Spark's own functions.

    What Spark cannot read raises as its parser does; nothing is resolved or read.
    """
    names = frozenset(name.lower() for name in tables)
    parsed = _parser(session).parsePlan(sql)
    refuse_command(session, parsed)
    walk = _Walk(session, names)
    walk.check(parsed)
    return frozenset(name for name in tables if name.lower() in walk.named)


def restrict_condition(session: SparkSession, condition: str) -> None:
    """As `restrict_query`, of a filter, which is of the rows' own columns alone."""
    _Walk(session, None).check(_parser(session).parseExpression(condition))


def refuse_command(session: SparkSession, parsed: Part) -> None:
    """Raises InvalidRequest (`sql`) for what is no query."""
    for each in _of_jvm(session._jvm).commands:
        if each.isInstance(parsed):
            raise InvalidRequest("is no SELECT", field="sql", remedy="Write a query, as SELECT … or WITH …")


def _parser(session: SparkSession) -> Any:
    java_session: Any = session._jsparkSession
    return java_session.sessionState().sqlParser()


def _items(several: Part) -> Iterator[Part]:
    rest = several.iterator()
    while rest.hasNext():
        yield rest.next()


class _JvmParts:
    """Classes and constants of one JVM. To look one up takes several calls to it, and is done once."""

    def __init__(self, jvm: Any) -> None:
        by_name = jvm.java.lang.Class.forName
        patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
        self.commands = [by_name(f"{_CATALYST}.plans.logical.{name}") for name in ("Command", "ParsedStatement")]
        self.identifier = jvm.org.apache.spark.sql.catalyst.FunctionIdentifier
        self.reaching = jvm.PythonUtils.toSeq([getattr(patterns, name)() for name in _REACHING])
        self._classes = {kind: by_name(name) for kind, name in _CLASSES.items()}
        self._kinds: dict[str, _Kind] = {}

    def kind_of(self, part: Part) -> tuple[_Kind, str]:
        """With the name of its class."""
        found = part.getClass()
        name = str(found.getName())
        if name not in self._kinds:
            fits = (kind for kind, each in self._classes.items() if each.isAssignableFrom(found))
            self._kinds[name] = next(fits, _Kind.OTHER)
        return self._kinds[name], name.rpartition(".")[2].rstrip("$")


_of_jvm = lru_cache(maxsize=1)(_JvmParts)
"""There is one JVM in a process at a time."""


@dataclass
class _Walk:
    """`tables`: in small letters; None: none may be read, and no subquery be there. `named`: those that were met."""

    session: SparkSession
    tables: frozenset[str] | None
    named: set[str] = field(default_factory=set)
    _functions: dict[str, bool] = field(default_factory=dict)
    _waiting: list[tuple[Part, frozenset[str]]] = field(default_factory=list)
    """Parts, the first in the text last, with the names of tables, and of queries in WITH, that each may read."""

    def check(self, parsed: Part) -> None:
        self._waiting = [(parsed, self.tables or frozenset())]
        for _ in range(PARTS_MAX):
            if not self._waiting:
                return
            self._take(*self._waiting.pop())
        raise InvalidRequest(f"has more than {PARTS_MAX} parts", field="sql", remedy="Write less of it")

    def _take(self, part: Part, names: frozenset[str]) -> None:
        if isinstance(part, JavaArray):
            self._wait_for(part, names)
        elif isinstance(part, JavaObject):
            kind, name = _of_jvm(self.session._jvm).kind_of(part)
            if kind is _Kind.SEVERAL:
                self._wait_for(_items(part), names)
            elif kind is not _Kind.OTHER and not self._is_plain(part, kind):
                self._take_product(part, kind, name, names)

    def _is_plain(self, part: Part, kind: _Kind) -> bool:
        """Whether it is an expression that Spark will find nothing in to be resolved but columns."""
        return kind is _Kind.EXPRESSION and not part.containsAnyPattern(_of_jvm(self.session._jvm).reaching)

    def _take_product(self, part: Part, kind: _Kind, name: str, names: frozenset[str]) -> None:
        if kind is not _Kind.PRODUCT and (fault := self._fault(part, kind, name, names)):
            raise InvalidRequest(f"{fault.message}{_place(part)}", field="sql", remedy=fault.remedy)
        if name == "UnresolvedWith":
            self._take_with(part, names)
        else:
            self._wait_for([part.productElement(at) for at in range(part.productArity())], names)

    def _wait_for(self, parts: Collection[Part] | Iterator[Part], names: frozenset[str]) -> None:
        self._waiting += [(each, names) for each in reversed(list(parts))]

    def _take_with(self, part: Part, names: frozenset[str]) -> None:
        """A query of WITH is known to those after it, and where it is recursive to itself."""
        recursive = bool(part.allowRecursion())
        for each in _items(part.cteRelations()):
            name = str(each.productElement(0)).lower()
            self._waiting.append((each.productElement(1), names | {name} if recursive else names))
            names |= {name}
        self._waiting.append((part.child(), names))

    def _fault(self, part: Part, kind: _Kind, name: str, names: frozenset[str]) -> SqlFault | None:
        if fault := _REFUSED.get(name):
            return fault
        if kind is _Kind.PLAN and self.tables is None:
            return SqlFault("has a subquery", "Use only conditions on the row's own columns")
        match name:
            case "UnresolvedRelation":
                return self._table_fault([str(each) for each in _items(part.multipartIdentifier())], names)
            case "UnresolvedFunction":
                return self._function_fault(part)
            case "UnresolvedTableValuedFunction":
                return table_function_fault([str(each) for each in _items(part.name())])
            case "UnresolvedGenerator":
                return table_function_fault(str(part.name().unquotedString()).split("."))
        if kind is _Kind.PLAN and part.children().isEmpty() and name not in _WITHOUT_ROWS_OF_OTHERS:
            return SqlFault(f"has {name}, which may read something else than its tables", "Write it without that")
        return None

    def _table_fault(self, parts: list[str], names: frozenset[str]) -> SqlFault | None:
        if len(parts) == 1 and parts[0].lower() in names:
            self.named.add(parts[0].lower())
            return None
        given = ", ".join(sorted(self.tables or ()))
        return SqlFault(
            f"reads {'.'.join(parts)}, which is none of its tables", f"Name it beside the query; now it has {given}"
        )

    def _function_fault(self, part: Part) -> SqlFault | None:
        parts = [str(each) for each in _items(part.nameParts())]
        if fault := function_fault(parts, self._exists):
            return fault
        name = parts[0].lower()
        if name in OPTIONS_AT and len(arguments := list(_items(part.arguments()))) > OPTIONS_AT[name]:
            return options_fault(name, self._keys_of(arguments[OPTIONS_AT[name]]))
        return None

    def _keys_of(self, options: Part) -> list[str] | None:
        """Of a `map(…)` whose keys are texts; None: of anything else."""
        _, name = _of_jvm(self.session._jvm).kind_of(options)
        if name != "UnresolvedFunction" or [str(each).lower() for each in _items(options.nameParts())] != ["map"]:
            return None
        keys = list(_items(options.arguments()))[::2]
        if any(_of_jvm(self.session._jvm).kind_of(each)[1] != "Literal" for each in keys):
            return None
        return [str(each.toString()) for each in keys]

    def _exists(self, name: str) -> bool:
        """Whether Spark brings the function along; those of extensions that a deployment has set up are there too."""
        if name not in self._functions:
            java_session: Any = self.session._jsparkSession
            state, identifier = java_session.sessionState(), _of_jvm(self.session._jvm).identifier(name)
            known = state.functionRegistry(), state.tableFunctionRegistry()
            self._functions[name] = any(registry.functionExists(identifier) for registry in known)
        return self._functions[name]


def _place(part: Part) -> str:
    origin = part.origin()
    line, column = origin.line(), origin.startPosition()
    return f" (line {line.get()}, column {column.get() + 1})" if line.isDefined() and column.isDefined() else ""
